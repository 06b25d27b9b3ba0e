"""Operations in the admin: preview and start, then progress, pause, resume, cancel."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, ids
from django_delayq.admin.badges import badge, word
from django_delayq.admin.forms import EXAMPLES, OperationForm, examples, operation_form, reason_given
from django_delayq.admin.job_admin import JobAdmin
from django_delayq.admin.listing import VIEW, chosen, unknown_parameters
from django_delayq.admin.readonly import ReadOnlyAdmin, actor, column, is_partial, log, partial_response
from django_delayq.console import keyset, operation_loop, operations, overview, selection
from django_delayq.console.overview import leased
from django_delayq.console.selection import Selection
from django_delayq.console.verbs import VERBS, Verb
from django_delayq.console.wording import breakable, cut, duration, format_error, moment
from django_delayq.models import Job, Operation, Queue, database
from django_delayq.producer.outbox.rows import hindered
from django_delayq.states import State
from django_delayq.text import visible


@dataclass(frozen=True, slots=True)
class Preview:
    """The state that a user saw before the start: the time of the database, the newest job, a digest of the matching tasks, and the
    jobs that ran according to Redis (`only`, see `Selection`). The form returns it, so that the operation includes no newer jobs, other
    tasks or other running jobs.
    """

    at_ms: int
    upto: UUID
    digest: str
    only: tuple[str, ...] | None = None

    @classmethod
    def now(cls, wanted: Selection) -> Preview:
        tasks = json.dumps(wanted.tasks)
        only = None if wanted.only is None else tuple(wanted.only)
        return cls(wanted.at_ms, operations.newest(), hashlib.sha256(tasks.encode()).hexdigest()[:16], only)

    @classmethod
    def read(cls, text: str, wanted: Selection) -> Preview | None:
        """Reads a preview from a form. None if it is about other tasks; without a text, returns a new one."""
        here = cls.now(wanted)
        if not text:
            return here
        try:
            at_ms, upto, digest, *running = text.split(".")
            only = tuple(ids.short(ids.full(id)) for id in running[0].split(",")) if running else None
            seen = cls(int(at_ms), ids.full(upto), digest, only)
        except ValueError:
            return None
        if seen.digest != here.digest or not 0 < seen.at_ms <= here.at_ms:
            return None
        if seen.only is not None and (wanted.view != State.RUNNING or len(seen.only) > overview.MOST_LEASED):
            return None
        return replace(seen, upto=min(seen.upto, here.upto))

    def of(self, wanted: Selection) -> Selection:
        """Restricts a selection to the jobs of the preview."""
        return replace(wanted, at_ms=self.at_ms, only=self.only)

    def written(self) -> str:
        return ".".join([str(self.at_ms), ids.short(self.upto), self.digest, *([",".join(self.only)] if self.only else [])])


Stage = Operation.Stage

# The acts on an operation: from which stages, to which stage, and the message.
STEERING: Final[dict[str, tuple[tuple[str, ...], str, Any, Any]]] = {
    "pause": (
        (Stage.WAITING, Stage.RUNNING),
        Stage.PAUSED,
        _("Pause"),
        _("The operation is paused. At most one more batch will be processed."),
    ),
    "resume": ((Stage.PAUSED,), Stage.RUNNING, _("Resume"), _("The operation continues where it stopped.")),
    "cancel": (
        (Stage.WAITING, Stage.RUNNING, Stage.PAUSED),
        Stage.CANCELLED,
        _("Cancel the rest"),
        _("The operation is cancelled. Jobs that were already changed stay changed."),
    ),
}
DONE: Final = {"pause": "operation_paused", "resume": "operation_resumed", "cancel": "operation_cancelled"}  # kinds of events
OUTCOMES: Final = {
    "done": _("done"),
    "running": _("already running"),
    "finished": _("already finished"),
    "conflict": _("in conflict"),
    "unknown": _("not found in Redis"),
    "left": _("unchanged"),
    "again": _("done before an interruption"),
}
SHORT: Final = {**{name: verb.short for name, verb in VERBS.items()}, operation_loop.PURGE: _("purge")}
LONGEST_REASON: Final = 80  # characters, in the list
FINGERPRINT: Final = re.compile("fingerprint:[0-9a-f]{6,}")
OPTIONS: Final = {"delay": _("delay"), "run_at": _("run at")}


class OperationAdmin(ReadOnlyAdmin):
    """Operations on all matching jobs. A worker with the role mirror performs them."""

    list_display = ("stage_shown", "verb_shown", "jobs_meant", "progress_shown", "reason_shown", "actor_shown", "created_shown")
    list_display_links = ("stage_shown", "verb_shown")
    list_filter = ("stage",)

    stage_shown = column(_("stage"), lambda operation: badge(operation.stage))
    verb_shown = column(_("verb"), lambda operation: str(SHORT.get(operation.verb) or visible(operation.verb)))
    reason_shown = column(_("reason"), lambda operation: cut(visible(operation.reason), LONGEST_REASON) or "-")
    actor_shown = column(_("actor"), lambda operation: visible(operation.actor))
    created_shown = column(_("created"), lambda operation: moment(operation.created_at))

    @admin.display(description=_("jobs"))
    def jobs_meant(self, operation: Operation) -> str:
        """Returns the selection as a link to the jobs."""
        words, understood = operations.described(operation)
        text = format_html("<code>{}</code>", breakable(readable(words))) if words else now("all")
        jobs = self.address("delayq_job_changelist") if understood else ""
        return format_html('<a href="{}?{}">{}</a>', jobs, urlencode({"q": words}), text) if jobs else text

    @admin.display(description=_("progress"))
    def progress_shown(self, operation: Operation) -> str:
        seen = number_format(operation.seen, force_grouping=True)
        if not operation.expected:
            return seen
        done = operation.expected if operation.stage == Stage.FINISHED else min(operation.seen, operation.expected)
        text = '<progress max="{}" value="{}" aria-label="{}"></progress> <bdi>{} / {}</bdi>'
        expected = number_format(operation.expected, force_grouping=True)
        return format_html(text, operation.expected, done, now("progress"), seen, expected)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Operation]:
        """Defers the ids, which only the page of the operation shows."""
        return super().get_queryset(request).defer("frozen")

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page_url("start/<str:name>/", "start", self.start),
            *(self.page_url(f"<path:object_id>/{act}/", act, partial(self._steer, act), posted=True) for act in STEERING),
            *super().get_urls(),
        ]

    def start(self, request: HttpRequest, name: str) -> HttpResponse:
        """Shows the preview on GET, and starts the operation on POST."""
        verb = VERBS.get(name)
        if verb is None:
            raise Http404(now("This action does not exist."))
        if not all(self.allows(request, name) for name in ("view_job", "start_operation", verb.permission)):
            raise PermissionDenied
        jobs = self._jobs_to_act_on(request, verb)
        wanted = chosen(request).fixed(clock.to_ms(database.now()))
        if wanted.view == State.RUNNING:
            wanted = wanted.running(leased(wanted.queue))
        complaints = [*unknown_parameters(request), *operations.complaints(wanted)]
        posted = request.method == "POST" and not complaints
        seen = Preview.read(request.POST.get("preview", "") if posted else "", wanted)
        if seen is None:
            complaints.append(now("The matching jobs have changed in the meantime. Check the selection again."))
            seen = Preview.now(wanted)
        wanted, form = seen.of(wanted), operation_form(verb, request.POST if posted else None)
        frozen = None
        if not complaints and (wanted.only is not None or not wanted.indexed):
            frozen = keyset.all_ids(wanted, jobs.filter(pk__lte=seen.upto), verb.states)
        if posted and not complaints and form.is_valid() and (frozen is not None or not wanted.search.loose):
            return self._started(request, verb, wanted, seen.upto, frozen, form)
        return self._preview(request, verb, wanted, jobs, form, complaints, seen, frozen)

    def _jobs_to_act_on(self, request: HttpRequest, verb: Verb) -> QuerySet[Job]:
        """Returns the jobs that this user may see on this site.

        Raises:
            PermissionDenied: its admin of jobs starts no operations, or refuses this one.
        """
        if not self.admin_site.is_registered(Job):
            return Job.objects.all()
        jobs = self.admin_site.get_model_admin(Job)
        if not (isinstance(jobs, JobAdmin) and jobs.starts_operations() and jobs.may(request, verb)):
            raise PermissionDenied(now("This site does not allow actions on all matching jobs."))
        return jobs.get_queryset(request)

    def _preview(
        self,
        request: HttpRequest,
        verb: Verb,
        wanted: Selection,
        jobs: QuerySet[Job],
        form: OperationForm,
        complaints: list[str],
        seen: Preview,
        frozen: list[UUID] | None,
    ) -> HttpResponse:
        count, looked, others = None, list[Job](), list[tuple[Selection, int]]()
        if frozen is not None:
            count, looked = len(frozen), first(jobs, frozen)
        elif not complaints and wanted.search.loose:
            others = selection.exact_searches(wanted, keyset.page(wanted, jobs.defer(None), keyset.STEP).jobs)
            complaints = [selection.incomplete(wanted.search)]
        elif not complaints:
            count = keyset.count_up_to(wanted, jobs, operations.MOST_COUNTED)
            looked = keyset.page(wanted, jobs, EXAMPLES).jobs
        title = now("%(verb)s: all matching jobs") % {"verb": verb.label}
        bad = form.errors or (complaints and request.method == "POST")
        return self.page(
            request,
            "admin/delayq/operation/start.html",
            title,
            status=400 if bad else 200,
            verb=verb,
            form=form,
            words=visible(readable(wanted.words)),
            complaints=complaints,
            others=[(visible(each.words), self._address(verb, each), found) for each, found in others],
            examples=examples(looked, sensitive=self.allows(request, "view_sensitive")),
            and_so_on=bool(looked) and (count is None or count > len(looked)),
            confirm=title if count is None or count > operations.MOST_COUNTED else verb.confirmed(count),
            count=None if count is None else min(count, operations.MOST_COUNTED),
            over=bool(count and count > operations.MOST_COUNTED),
            back=self._jobs(request),
            none=count == 0,
            frozen=frozen is not None,
            by_rows=wanted.view == State.RUNNING and wanted.only is None,
            preview=seen.written(),
        )

    def _address(self, verb: Verb, wanted: Selection) -> str:
        """Returns the URL of the preview of this selection."""
        parts = {"q": wanted.text, VIEW: wanted.view, "queue": wanted.queue, "task": wanted.task}
        query = urlencode({name: value for name, value in parts.items() if value})
        return f"{self.address('delayq_operation_start', verb.name)}?{query}"

    def _started(
        self, request: HttpRequest, verb: Verb, wanted: Selection, upto: UUID, frozen: list[UUID] | None, form: OperationForm
    ) -> HttpResponse:
        fields = {"reason": form.cleaned_data["reason"], "options": form.options(), "seconds": form.cleaned_data["over"] or 0}
        operation = operations.made(verb, wanted, upto, frozen, **fields)
        begin(request, operation, f"{verb.label}: {wanted.words}")
        messages.success(request, now("The operation has started. A worker carries it out, so you can leave this page."))
        return HttpResponseRedirect(self.page_of(request, operation) or self._jobs(request))

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        alone, operation = is_partial(request), self.found(request, object_id)
        words, understood = operations.described(operation)
        frozen = operation.frozen
        may = self.allows(request, "steer_operation")
        steps = [(act, step[2]) for act, step in STEERING.items() if may and operation.stage in step[0]]
        page = self.page(
            request,
            "admin/delayq/operation/page.html",
            now("Operation"),
            operation=operation,
            original=operation,
            stage=badge(operation.stage),
            steps=steps,
            verb=_title(operation.verb),
            words=visible(readable(words)),
            jobs=urlencode({"q": words}) if understood and frozen is None else "",
            frozen=None if frozen is None else len(frozen),
            examples=self._examples(request, frozen or []),
            more=max(0, len(frozen or []) - EXAMPLES),
            counts=[(OUTCOMES.get(name, name), n) for name, n in operation.counts.items()],
            over=duration(operation.seconds) if operation.seconds else "",
            left=_left(operation),
            reason=visible(operation.reason),
            refreshing=not operation.over,
            trouble=_trouble(operation),
            later="" if operation.over else ", ".join(operation_loop.labels(operation)),
            options={OPTIONS.get(name, name): value for name, value in operation.options.items()},
        )
        return partial_response(request, page) if alone else page

    def _examples(self, request: HttpRequest, frozen: list[str]) -> list[dict[str, Any]]:
        """Returns the first of these jobs, as far as the user may view them on this site."""
        if not self.admin_site.is_registered(Job):
            return []
        jobs: Any = self.admin_site.get_model_admin(Job)
        found = first(jobs.get_queryset(request), map(ids.full, frozen[:EXAMPLES]))
        seen = [job for job in found if jobs.has_view_permission(request, job)]
        return examples(seen, sensitive=self.allows(request, "view_sensitive"))

    def _steer(self, act: str, request: HttpRequest, object_id: str) -> HttpResponse:
        if not (self.has_view_permission(request) and self.allows(request, "steer_operation")):
            raise PermissionDenied
        operation = self.found(request, object_id)
        reason = reason_given(request)
        if reason is None:
            return HttpResponseRedirect(self.url_of(operation))
        before, after, label, said = STEERING[act]
        fields: dict[str, Any] = {"stage": after}
        if act == "resume":
            fields |= {"paced_from": None, **hindered(None)}
        if act == "cancel":
            fields["finished_at"] = database.ago()
        mine = Operation.objects.filter(pk=operation.pk, stage__in=before)
        if mine.update(**fields):
            log(request, Operation, [(str(operation.pk), str(operation))], label, reason)
            operations.note(operation, DONE[act], actor(request), reason)
            messages.success(request, said)
        else:
            operation.refresh_from_db()
            messages.warning(request, now("Nothing was changed: the stage is already “%(stage)s”.") % {"stage": word(operation.stage)})
        return HttpResponseRedirect(self.url_of(operation))

    def _jobs(self, request: HttpRequest) -> str:
        """Returns the URL of the list, or of the index if the site has no jobs."""
        jobs = self.address("delayq_job_changelist")
        return f"{jobs}?{request.GET.urlencode()}" if jobs else self.address("index")


def first(jobs: QuerySet[Job], ids: Iterable[UUID]) -> list[Job]:
    """Returns the first of these jobs."""
    return list(jobs.filter(pk__in=islice(ids, EXAMPLES)).order_by("pk"))


def begin(request: HttpRequest, operation: Operation, text: str) -> None:
    """Starts an operation, and logs it with this text."""
    operation.actor, operation.user = actor(request), str(request.user.pk)
    operations.start(operation)
    log(request, Operation, [(str(operation.pk), str(operation))], text, operation.reason)


def begin_purge(request: HttpRequest, queue: str, reason: str) -> Operation:
    """Starts the operation that cancels all scheduled jobs of a queue."""
    said, fields = f"{now('Purge')}: {queue}", {"selection": {"queue": queue}, "permission": "delayq.purge_queue", "reason": reason}
    operation = Operation(verb=operation_loop.PURGE, **fields)
    begin(request, operation, said)
    log(request, Queue, [(queue, queue)], said, reason)
    return operation


def readable(words: str) -> str:
    """Returns the search for people; a fingerprint becomes "failed with the same cause"."""
    return " ".join(now("failed with the same cause") if FINGERPRINT.fullmatch(word) else word for word in words.split(" "))


def _trouble(operation: Operation) -> str:
    """Returns why the operation does not continue, or ""."""
    if operation.stage == Stage.FINISHED:
        return ""
    problem: Any = operation.problem
    return format_error(problem["code"], problem["fields"]) if problem else ""


def _title(verb: str) -> Any:
    if verb == operation_loop.PURGE:
        return now("Purge")
    return VERBS[verb].label if verb in VERBS else visible(verb)


def _left(operation: Operation) -> str:
    """Estimates the remaining time from the requested or the actual rate."""
    if operation.over or not operation.expected or not operation.seen or operation.started_at is None:
        return ""
    spent = (clock.now() - operation.started_at).total_seconds()
    rest = max(0, operation.expected - operation.seen)
    seconds = rest * operation.seconds / operation.expected if operation.seconds else rest * spent / operation.seen
    return duration(seconds) if rest else ""
