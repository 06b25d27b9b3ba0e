"""Jobs in the admin: the list with its actions, the job page with its buttons."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ERROR_FLAG, ORDER_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, reverse
from django.utils.text import capfirst, format_lazy
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf
from django_delayq.admin import editing, failures, job_page, task_page
from django_delayq.admin.badges import word
from django_delayq.admin.forms import ExportForm, PeriodForm, ask_first, form_for
from django_delayq.admin.listing import (
    AHEAD,
    BEHIND,
    COLUMNS,
    NARROWING,
    JobColumns,
    JobList,
    QueueFilter,
    TaskFilter,
    chosen,
    linked_schedule,
    title,
)
from django_delayq.admin.readonly import MOST, ReadOnlyAdmin, carry_out, is_partial, log, partial_response, permission
from django_delayq.console import export, keyset, schedule_views, selection
from django_delayq.console.search_fields import FIELDS
from django_delayq.console.search_parser import Search
from django_delayq.console.verbs import ONCE, UNRESOLVED, VERBS, Verb
from django_delayq.console.wording import task_name
from django_delayq.models import DERIVED, Job, database
from django_delayq.producer.outbox import period_keys
from django_delayq.states import FINISHED, PERIODIC, REQUEUEABLE, State
from django_delayq.text import visible

_ACROSS = forms.BooleanField(required=False)
# A subclass that overrides one of these may restrict the jobs.
RULES = ("get_queryset", "has_view_permission", *(f"has_{name}_permission" for name in VERBS))
EXPORT_KINDS: Final[dict[str, tuple[Callable[..., Iterator[bytes]], str, str]]] = {
    "csv": (export.csv_lines, "text/csv; charset=utf-8", "csv"),
    "json": (export.json_lines, "application/x-ndjson; charset=utf-8", "jsonl"),
}


class JobAdmin(JobColumns, ReadOnlyAdmin):
    """All jobs that have a row."""

    list_display = COLUMNS[""]  # a subclass with its own columns shows them in all views
    list_display_links = ("task_shown",)
    list_filter = (QueueFilter, TaskFilter)
    search_fields = ("id", "key", "task")
    search_help_text = format_lazy(
        _(
            "Text to find in ids, keys, task names, errors and arguments. Or use {terms}; put - or not before a term, and OR between "
            "terms"
        ),
        terms=" ".join(f"{word}:{value}" for word, field in FIELDS.items() for value in field.values),
    )
    list_max_show_all = 200
    actions = tuple(VERBS)
    operations: bool | None = None  # whether verbs can be applied to all matching jobs; None: see `starts_operations`

    # the list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Defers long columns that only the job page shows."""
        return super().get_queryset(request).defer("args", "kwargs", "options", "result")

    def get_list_display(self, request: HttpRequest) -> Any:
        if self.list_display is not COLUMNS[""]:
            return self.list_display
        columns = COLUMNS.get(chosen(request).shown_view, self.list_display)
        place = columns.index("queue_shown")
        more = (("customer_shown", selection.has_customers()), ("scope_shown", conf.get().scope is not None))
        return (*columns[:place], *(name for name, shown in more if shown), *columns[place:])

    def get_sortable_by(self, request: HttpRequest) -> list[Any]:
        """The columns that an index can sort by; see `Selection.sorts`."""
        sorts = chosen(request).sorts
        columns = self.get_list_display(request)
        return [name for name in columns if getattr(getattr(self, str(name), None), "admin_order_field", "") in sorts]

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return chosen(request).order

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Job], search_term: str) -> tuple[QuerySet[Job], bool]:
        """Returns the rows unchanged, because `JobList` searches itself."""
        return queryset, False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": title(chosen(request)), **(extra_context or {})})

    def list_context(self, request: HttpRequest, listed: Any) -> dict[str, Any]:
        """Adds a notice if Redis cannot be reached, and the actions on all matching jobs."""
        usable = (listed.result_list or listed.earlier or listed.later) and not listed.complaints
        found = {
            "trouble": listed.trouble,
            "for_all": [(verb, self._start_address(request, verb)) for verb in self.verbs_for_all(request) if usable],
        }
        if self.has_export_permission(request):
            found["export"] = self.address("delayq_job_export") + listed.get_query_string().removesuffix("?")
        return found

    # actions from the list

    has_edit_permission = permission("edit_job")
    has_copy_permission = permission("schedule_job")

    def may(self, request: HttpRequest, verb: Verb, job: Job | None = None) -> bool:
        """Whether the user may view the job and carry out this verb. Without a job: on any job."""
        allowed: bool = getattr(self, f"has_{verb.name}_permission")(request, job)
        return allowed and self.has_view_permission(request, job)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Removes verbs that do nothing for jobs of the view. Django 6.1 passes the location."""
        location = {} if action_location is None else {"action_location": action_location}
        applying, found = {verb.name for verb in self._applying(request)}, super().get_actions(request, **location)
        return {name: each for name, each in found.items() if name in applying or name not in VERBS}

    def response_action(self, request: HttpRequest, queryset: QuerySet[Job], *more: Any, **options: Any) -> HttpResponse | None:
        """Checks that the selected values are ids."""
        try:
            for text in request.POST.getlist(ACTION_CHECKBOX_NAME):
                UUID(text)
        except ValueError:
            messages.error(request, now("No jobs were changed because the selection contains an invalid id. Select the jobs again."))
            return None
        return super().response_action(request, queryset, *more, **options)

    def _ask_then_act(self, request: HttpRequest, queryset: QuerySet[Job], verb: Verb) -> HttpResponse | None:
        if _ACROSS.clean(request.POST.get("select_across")):  # Django also reads "2" and "true" as all
            if verb not in self.verbs_for_all(request):
                messages.error(
                    request, now("You do not have permission to do this to all matching jobs. Select the jobs individually.")
                )
                return None
            return HttpResponseRedirect(self._start_address(request, verb))
        confirmed = "confirmed" in request.POST
        form = form_for(verb, request.POST if confirmed else None)
        search = chosen(request).search
        whole = queryset.defer(None) if search.by_argument else queryset
        ticked = whole.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME)).order_by("pk")[:MOST]
        found = [job for job in ticked if search.exact(job)]
        jobs = [job for job in found if self.may(request, verb, job)]
        if len(jobs) < len(found):
            text = now("You do not have permission to do this to %(count)d of these jobs. They were not changed.")
            messages.warning(request, text % {"count": len(found) - len(jobs)})
        if not jobs:
            return None
        if confirmed and form.is_valid():
            carry_out(request, verb, jobs, reason=form.cleaned_data["reason"], **form.date()).tell(request, verb)
            return None
        ticks = [(ACTION_CHECKBOX_NAME, pk) for pk in request.POST.getlist(ACTION_CHECKBOX_NAME)]
        hidden = [("action", request.POST.get("action", verb.name)), ("index", "0"), *ticks]
        return ask_first(self, request, verb, form, jobs, hidden=hidden, back=request.get_full_path())

    # all matching jobs

    def verbs_for_all(self, request: HttpRequest) -> list[Verb]:
        """Returns the actions on all matching jobs, or none if the list has a filter that operations do not support."""
        known = {*NARROWING, BEHIND, AHEAD, ERROR_FLAG, ORDER_VAR}
        if not self._may_start(request) or set(request.GET) - known:
            return []
        return [verb for verb in self._applying(request) if self.may(request, verb)]

    def _applying(self, request: HttpRequest) -> list[Verb]:
        state = chosen(request).shown_view
        stored = State.SCHEDULED if state in DERIVED and state not in UNRESOLVED else state
        return [verb for verb in VERBS.values() if verb.states & ({stored} if state else frozenset(State))]

    def starts_operations(self) -> bool:
        """Whether operations can use this admin. Workers carry them out without it, so a subclass that restricts rows has none, unless
        `operations = True` states that its rows include all jobs.
        """
        if self.operations is not None:
            return self.operations
        return all(getattr(type(self), name) is getattr(JobAdmin, name) for name in RULES)

    def _may_start(self, request: HttpRequest) -> bool:
        here = self.starts_operations() and self.address("delayq_operation_start", "cancel") != ""
        return here and self.allows(request, "start_operation")

    def _start_address(self, request: HttpRequest, verb: Verb) -> str:
        given = request.GET.copy()
        for name in (BEHIND, AHEAD, ERROR_FLAG, ORDER_VAR):
            given.pop(name, None)
        place = reverse("admin:delayq_operation_start", args=[verb.name], current_app=self.admin_site.name)
        return f"{place}?{given.urlencode()}" if given else place

    # the job page

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page_url("failures/", "failures", self.failures),
            self.page_url("export/", "export", self.export),
            self.page_url("task/<path:name>/", "task", partial(task_page.respond, self)),
            *(self.page_url(f"<path:object_id>/{name}/", name, partial(self._act, verb), posted=True) for name, verb in VERBS.items()),
            self.page_url("<path:object_id>/edit/", "edit", partial(self._arguments, editing.EDIT, self.has_edit_permission)),
            self.page_url("<path:object_id>/copy/", "copy", partial(self._arguments, editing.COPY, self.has_copy_permission)),
            *super().get_urls(),
        ]

    has_export_permission = permission("export_job")

    def export(self, request: HttpRequest) -> HttpResponseBase:
        """Exports all pages of the list, without the jobs that this user may not view."""
        if not self.has_view_permission(request) or not self.has_export_permission(request):
            raise PermissionDenied
        back = self.list_url()
        try:
            listed: Any = self.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return HttpResponseRedirect(back)
        shown, chosen, jobs = listed.selection, listed.meant, listed.unsearched.defer(None)
        sensitive = self.allows(request, "view_sensitive")
        kind = request.POST.get("kind", "") if request.method == "POST" else ""
        form = ExportForm(request.POST or None)
        if kind in EXPORT_KINDS and not listed.complaints and form.is_valid():
            write, content_type, ending = EXPORT_KINDS[kind]
            words = shown.words or now("all")
            said = now("Exported as %(kind)s: %(selection)s") % {"kind": ending, "selection": words}
            log(request, Job, [("", words)], said, form.cleaned_data["reason"])
            walk = export.Walk(
                selection=chosen.fixed(clock.to_ms(database.now())), jobs=jobs, seen=partial(self.has_view_permission, request)
            )
            lines = export.together(write(walk, sensitive=sensitive, ending=partial(_export_ending, chosen.search)))
            name = "-".join(filter(None, ("jobs", shown.shown_view, f"{clock.now():%Y%m%d-%H%M%S}")))
            return StreamingHttpResponse(
                _one_by_one(lines) if isinstance(request, ASGIRequest) else lines,
                content_type=content_type,
                headers={"Content-Disposition": f'attachment; filename="{name}.{ending}"'},
            )
        count = None if listed.complaints else keyset.count_up_to(chosen, jobs, export.MOST)
        return self.page(
            request,
            "admin/delayq/job/export.html",
            now("Export"),
            status=400 if request.method == "POST" else 200,
            complaints=listed.complaints,
            words=shown.words,
            form=form,
            count=count,
            most=export.MOST,
            over=count is not None and count > export.MOST,
            masked=not sensitive,
            kinds=[(kind, kind.upper()) for kind in EXPORT_KINDS],
            back=back + listed.get_query_string(),
        )

    def failures(self, request: HttpRequest) -> HttpResponse:
        """Failed jobs, grouped by their cause."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        one_by_one = type(self).has_view_permission is not JobAdmin.has_view_permission  # then only samples are checked
        form = PeriodForm(request.GET)
        period = failures.Period(**form.cleaned_data) if form.is_valid() else None
        jobs = self.get_queryset(request).defer(None)
        found: dict[str, Any] = failures.look(jobs, period, compare=not one_by_one) if period else {"groups": []}
        for group in found["groups"]:
            if group.sample and not self.has_view_permission(request, group.sample):
                group.forget()
        may = self._may_start(request)
        return self.page(
            request,
            "admin/delayq/job/failures.html",
            now("Failures"),
            **found,
            form=form,
            zone=visible(get_current_timezone_name()),
            limited=period != failures.Period(),
            status=200 if period else 400,
            window=failures.WINDOW,
            may_requeue=may and self.may(request, VERBS["requeue"]),
            may_cancel=may and self.may(request, VERBS["cancel"]),
            may_run_now=may and self.may(request, VERBS["run_now"]),
        )

    def _arguments(self, act: editing.Act, allowed: Callable[..., bool], request: HttpRequest, object_id: str) -> HttpResponse:
        if not allowed(request):
            raise PermissionDenied
        job = self.found(request, object_id)
        if not allowed(request, job):
            raise PermissionDenied
        return editing.page(self, request, job, act)

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._page(request, self.found(request, object_id))

    def history_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Redirects to the page of the job, whose timeline includes the actions of users."""
        return HttpResponseRedirect(f"{self.url_of(self.found(request, object_id))}#happened")

    def _page(self, request: HttpRequest, job: Job, form: Any = None, status: int = 200) -> HttpResponse:
        alone, sensitive = is_partial(request), self.allows(request, "view_sensitive")
        found = job_page.gather(request, job, self.get_queryset(request), sensitive=sensitive)
        row = schedule_views.schedule_of([job.pk]).get(job.pk) if PERIODIC in job.meta else None
        found["schedule"] = linked_schedule(self, request, row) if row else ""
        found["related"] = [each for each in found["related"] if self.has_view_permission(request, each[0])]
        stored = job_page.state_in_charge(job, found["live"])
        applying = {stored, *(ONCE if job.key and period_keys.of_job(job.pk) else ())}
        allowed = [verb for verb in VERBS.values() if verb.states & applying and self.may(request, verb, job)]
        if found["to_stop"]:  # a second click must not ask again
            allowed = [verb for verb in allowed if verb.name != "cancel"]
        page = self.page(
            request,
            "admin/delayq/job/page.html",
            f"{capfirst(word(stored))} · {task_name(job.task)} · {job.short_id}",  # browser tabs need different titles
            status=status,
            **found,
            verbs=[verb for verb in allowed if not verb.needs_date],
            dated=[verb for verb in allowed if verb.needs_date],
            form=form or form_for(VERBS["reschedule"]),
            refreshing=form is None and not found["over"],
            may_see_queues=self.allows(request, "view_queue"),
            may_edit=stored in REQUEUEABLE and self.has_edit_permission(request, job) and editing.EDIT.possible(job, sensitive),
            may_copy=stored in FINISHED and self.has_copy_permission(request, job) and editing.COPY.possible(job, sensitive),
        )
        return partial_response(request, page) if alone else page

    def _act(self, verb: Verb, request: HttpRequest, object_id: str) -> HttpResponse:
        if not self.may(request, verb):
            raise PermissionDenied
        job = self.found(request, object_id)
        if not self.may(request, verb, job):
            raise PermissionDenied
        form = form_for(verb, request.POST)
        if not form.is_valid():
            return self._page(request, job, form, status=400)
        if verb.asked and "confirmed" not in request.POST:
            again = form_for(verb, None, initial={"reason": visible(form.cleaned_data["reason"])})
            return ask_first(self, request, verb, again, [job], hidden=(), back=self.url_of(job), alone=True)
        carry_out(request, verb, [job], reason=form.cleaned_data["reason"], **form.date()).tell(request, verb)
        return HttpResponseRedirect(self.url_of(job))


def _action(verb: Verb) -> Callable[..., HttpResponse | None]:
    def act(self: JobAdmin, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._ask_then_act(request, queryset, verb)

    act.__name__ = verb.name  # Django identifies actions by it
    description: Any = verb.selected  # the stubs know only Django's kind of lazy text
    return admin.action(description=description, permissions=[verb.name])(act)


# Each verb is an action of the list. A subclass can restrict its permission.
for _verb in VERBS.values():
    setattr(JobAdmin, f"has_{_verb.name}_permission", permission(_verb.permission))
    setattr(JobAdmin, _verb.name, _action(_verb))


def _export_ending(search: Search, walk: export.Walk) -> str:
    """Returns the last line of a file that may be incomplete, or ""."""
    more = now("There are more matching jobs. This file ends here.") if walk.cut else ""
    return " ".join(filter(None, (more, selection.searched_in(search, partly=True) if walk.partly else "")))


async def _one_by_one(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Reads part by part in a thread. Under ASGI, Django would read all parts before it sends the first."""
    while part := await sync_to_async(lambda: next(lines, b""))():
        yield part
