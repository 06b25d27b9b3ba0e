"""The list of jobs, for tables with millions of rows: bounded counts, keyset pages, and states from Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.db.models import Case, F, QuerySet, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Length
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf
from django_delayq.admin import job_page
from django_delayq.admin.badges import allowed, badge
from django_delayq.admin.readonly import ChoiceFilter, column
from django_delayq.console import keyset, masking, overview, schedule_views, selection, why_not_yet
from django_delayq.console.search_fields import ASKING, BLOCKED, CRASHED, STATES, WORDS, possible_states
from django_delayq.console.search_parser import LONGEST
from django_delayq.console.selection import VIEWS, Selection
from django_delayq.console.wording import breakable, cut, dated, duration, moment, second, task_name
from django_delayq.models import Job, Periodic, meta_of
from django_delayq.producer.task import registry
from django_delayq.states import State
from django_delayq.text import visible

MOST_COMPLETED: Final = 300  # tasks that the search completes
NAME_SHOWN: Final = 80  # characters of a task or a key in the list
ERROR_SHOWN: Final = 70  # characters of an error in the list
ARGUMENTS_READ: Final = 4000  # characters of JSON; longer arguments are not fetched, because a page has fifty jobs
ARGUMENTS_SHOWN: Final = 80  # characters of all arguments together
VALUE_SHOWN: Final = 40  # characters of one argument
TOLD: Final = 1000  # characters of a tooltip

_JOB: Final = ("state_now", "task_shown", "arguments_shown", "key_shown", "queue_shown")
_WAITING: Final = (*_JOB, "run_at_and_late", "attempts_made")
_ENDED: Final = (*_JOB, "finished_shown", "took_shown", "attempts_made")
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("", "due", "retrying", "parked", "unresolved"), (*_WAITING, "last_error")),
    "scheduled": _WAITING,
    "unpublished": _WAITING,
    "far": (*_JOB, "run_at_and_late"),
    "running": (*_JOB, "running_for", "progress_shown", "worker_shown", "attempts_made"),
    "failed": (*_ENDED, "last_error"),
    "cancelled": (*_JOB, "finished_shown", "attempts_made", "last_error"),
    "succeeded": _ENDED,
}


class JobColumns:
    """The columns of the list. `JobList` adds to each job `live` (its state in Redis), `carried` (its arguments), `customer` and
    `schedule`.
    """

    # The state in Redis, if it has the job.
    state_now = column(_("state"), lambda job: badge(job_page.state_of(job, getattr(job, "live", None))))
    task_shown = column(_("task"), lambda job: _named(task_name(job.task)))
    arguments_shown = column(_("arguments"), lambda job: getattr(job, "carried", "-"))
    finished_shown = column(_("finished"), lambda job: moment(job.finished_at) if job.finished_at else "-", "finished_at")
    customer_shown = column(_("customer"), lambda job: getattr(job, "customer", "-"))
    scope_shown = column(_("scope"), lambda job: _searched(job.scope, f"scope:{selection.quoted(job.scope)}") if job.scope else "-")
    queue_shown = column(_("queue"), lambda job: visible(job.queue))
    worker_shown = column(_("worker"), lambda job: breakable(job.worker) or "-")

    @admin.display(description=_("key"))
    def key_shown(self, job: Job) -> str:
        """Returns the key, and the schedule of the job."""
        schedule = getattr(job, "schedule", "")
        shown = _named(visible(job.key))
        return format_html('{} <span class="delayq-soft">{} {}</span>', shown, now("schedule"), schedule) if schedule else shown or "-"

    @admin.display(description=_("run at"), ordering="run_at")
    def run_at_and_late(self, job: Job) -> str:
        """Returns the date, and the time until it or since then."""
        view = getattr(job, "live", None)
        date, seconds = job_page.run_date(job, view), job_page.lateness(job, view)
        if held := why_not_yet.held_by(view):
            return format_html('{} <span class="delayq-soft">{}</span>', dated(date), held)
        if seconds < 1:
            return moment(date)
        late = now("%(duration)s late") % {"duration": duration(seconds)}
        return format_html('{} <span class="delayq-error">{}</span>', dated(date), late)

    @admin.display(description=_("running for"))
    def running_for(self, job: Job) -> str:
        """Returns the time since the start, or a dash if the row is behind."""
        if job.state != State.RUNNING or job.started_at is None:
            return "-"
        return format_html('<span title="{}">{}</span>', second(job.started_at), duration(_whole(clock.now(), job.started_at)))

    @admin.display(description=_("progress"))
    def progress_shown(self, job: Job) -> str:
        view = getattr(job, "live", None)
        told = job_page.progress_of(view)
        if told is None:
            return visible(view.progress) or "-" if view else "-"
        bar = '<progress max="{}" value="{}" aria-label="{}"></progress> {}/{}'
        return format_html(bar, told.total, told.done, now("progress"), told.done, told.total)

    @admin.display(description=_("took"))
    def took_shown(self, job: Job) -> str:
        if job.finished_at is None or job.started_at is None or job.ending:  # an expired job never ran
            return "-"
        return duration(max(0.0, (job.finished_at - job.started_at).total_seconds()))

    @admin.display(description=_("attempts"), ordering="attempts")
    def attempts_made(self, job: Job) -> str:
        """Returns the attempts, the limit, and the number of polls."""
        crashes = f" +{job.crashes}\u2009✗" if job.crashes else ""
        text = f"{job.attempts}/{allowed(job.max_attempts)}{crashes}"
        return ", ".join(filter(None, (text, why_not_yet.poll_count(job, getattr(job, "live", None)))))

    @admin.display(description=_("last error"))
    def last_error(self, job: Job) -> str:
        line = visible(job.error.strip().split("\n", 1)[0])
        look = "delayq-soft" if job.state == State.CANCELLED else "delayq-error"  # here it is the reason of a user
        return (
            format_html('<span class="{}" title="{}">{}</span>', look, line[:TOLD], breakable(cut(line, ERROR_SHOWN))) if line else "-"
        )


def _arguments(task: str, args: Any, kwargs: Any, size: int, *, sensitive: bool) -> str:
    """Returns the arguments cut, with more of them in the tooltip, or the size of long ones, which are not fetched."""
    if size > ARGUMENTS_READ:
        return format_html('<span class="delayq-soft">{}</span>', now("%(size)d KB") % {"size": max(1, size // 1000)})
    given = masking.by_name(task, *masking.arguments(task, args or [], kwargs or {}, sensitive=sensitive))
    if not given:
        return "-"
    texts = [(name, visible(json.dumps(value, ensure_ascii=False))) for name, value in given]
    whole = ", ".join(f"{name}={text}" if name else text for name, text in texts)
    short = ", ".join(f"{name}={cut(text, VALUE_SHOWN)}" if name else cut(text, VALUE_SHOWN) for name, text in texts)
    return format_html('<span title="{}">{}</span>', cut(whole, TOLD), breakable(cut(short, ARGUMENTS_SHOWN)))


def carried(rows: QuerySet[Job], jobs: Iterable[Job], *, sensitive: bool) -> dict[UUID, tuple[str, str]]:
    """Reads the arguments and the customer of these jobs in one query, without long arguments, and returns them for the list."""
    size = Length("args") + Length("kwargs")
    short = {name: Case(When(size__lte=ARGUMENTS_READ, then=F(name))) for name in ("args", "kwargs")}
    named = rows.order_by().filter(pk__in=[job.pk for job in jobs]).annotate(size=size)
    options = "options" if selection.has_customers() else Value("")
    found = named.values_list("pk", "task", short["args"], short["kwargs"], "size", options)
    return {
        pk: (_arguments(task, *given, sensitive=sensitive), _customer(task, options, sensitive=sensitive))
        for pk, task, *given, options in found
    }


def _customer(task: str, options: Any, *, sensitive: bool) -> str:
    """Returns the customer as a link to its jobs, if a search can find it."""
    name, words = selection.customer_of(masking.attached(task, meta_of(options), sensitive=sensitive))
    return _searched(name, words)


def _searched(name: str, words: str) -> str:
    """Returns a name as a link to the jobs that a search finds."""
    text = breakable(cut(name, NAME_SHOWN))
    return format_html('<a href="?{}">{}</a>', urlencode({"q": words}), text) if words else text or "-"


def _named(name: str) -> SafeString:
    """Returns a name, cut if long, with the whole name in the tooltip."""
    short = breakable(cut(name, NAME_SHOWN))
    return short if len(name) <= NAME_SHOWN else format_html('<span title="{}">{}</span>', name, short)


def _whole(later: datetime, earlier: datetime) -> float:
    """Returns the seconds between two dates, rounded so that a refreshed page changes at most once a second."""
    seconds = max(0.0, (later - earlier).total_seconds())
    return float(int(seconds)) if seconds >= 1 else seconds


BEHIND, AHEAD, VIEW = "behind", "ahead", "state"  # our query parameters
NAMED = ("queue", "task")
NARROWING = ("q", *NAMED, VIEW)  # the parameters of a `Selection`
TITLE_PART = 60  # characters of a name or a search in the title of a page
LABELS: dict[str, str | Promise] = {
    "": _("All"),
    "due": _("Due"),
    "scheduled": _("Scheduled"),
    "running": _("Running"),
    "retrying": _("Retrying"),
    "failed": _("Failed"),
    "cancelled": _("Cancelled"),
    "succeeded": _("Succeeded"),
    "parked": _("Parked"),
    "unpublished": _("Unpublished"),
    "far": _("Far"),
    "unresolved": _("Unresolved"),
}


def chosen(request: HttpRequest) -> Selection:
    """Returns the selection in the URL of a list."""
    view = request.GET.get(VIEW, "")
    return Selection(
        view=view if view in VIEWS else "",
        queue=_given(request, "queue"),
        task=_given(request, "task"),
        text=request.GET.get("q", "").strip(),
    )


def _given(request: HttpRequest, name: str) -> str:
    """Returns "" for values that no database accepts; `invalid_parameters` reports them."""
    value = str(request.GET.get(name, ""))
    return "" if "\0" in value else value


def title(selection: Selection) -> str:
    """Returns the title of a list."""
    label = str(LABELS[selection.shown_view]).replace("\u00ad", "") if selection.shown_view in LABELS and selection.shown_view else ""
    task = task_name(selection.task or selection.search.value("task")) if selection.task or selection.search.value("task") else ""
    given = {"view": label, "task": cut(task, TITLE_PART)}
    if label:
        text = now("%(view)s %(task)s jobs") % given if task else now("%(view)s jobs") % given
    else:
        text = now("%(task)s jobs") % given if task else now("Jobs")
    more = [visible(part) for part in (selection.queue, selection.text) if part]
    return " · ".join([text, *(cut(part, TITLE_PART) for part in more)])


def invalid_parameters(request: HttpRequest) -> list[str]:
    """Returns errors for unknown views, repeated parameters and NUL characters. Such a URL must not select all jobs."""
    view = request.GET.get(VIEW, "")
    found = []
    if view not in VIEWS:
        found.append(f"{VIEW}:{visible(view[:LONGEST])} – {possible_states(view)}")
    for name in NARROWING:
        if len(request.GET.getlist(name)) > 1:
            found.append(now("%(word)s: can be used only once.") % {"word": name})
        if name in NAMED and "\0" in request.GET.get(name, ""):  # a search reports this itself
            found.append(now("%(word)s contains a NUL character. Remove it.") % {"word": name})
    return found


def unknown_parameters(request: HttpRequest) -> list[str]:
    """Returns errors for an operation. It does not support filters of other apps, so it would change more jobs than the list shows."""
    names = [visible(name) for name in request.GET if name not in NARROWING]
    said = now("You cannot filter an operation by %(name)s.")
    return [*invalid_parameters(request), *(said % {"name": name} for name in names)]


class JobList(ChangeList):
    """A page of jobs, each with its state in Redis. `trouble`: why Redis could not be reached."""

    trouble = ""
    lag = overview.NO_LAG  # the largest lag, of the queue `lagging`; `more_lagging` other queues have one
    lagging, more_lagging, rowless = "", 0, 0

    @property
    def completions(self) -> list[str]:
        """Returns the suggestions of the search field: the terms, and those of states, queues, tasks and `is:` with each value."""
        values = {
            "state": STATES,
            "queue": conf.get().queues,
            "task": registry.names()[:MOST_COMPLETED],
            "is": (ASKING, BLOCKED, CRASHED),
        }
        return [f"{word}:{value}" for word in WORDS for value in values.get(word, [""])]

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = super().get_filters_params(params)
        return {name: value for name, value in found.items() if name not in (BEHIND, AHEAD, VIEW)}

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        self.request = request
        self.cursors = {name: self.params.pop(name, "") for name in (BEHIND, AHEAD)}
        for name in (BEHIND, AHEAD):
            self.filter_params.pop(name, None)
        self.selection = replace(chosen(request), by=self._by())
        self.complaints = (*invalid_parameters(request), *self.selection.search.complaints)
        self.unsearched: QuerySet[Job] = super().get_queryset(request, exclude_parameters)
        if self.complaints:
            self.unsearched = self.unsearched.none()
        return self.selection.rows(self.unsearched).order_by(*self.selection.order)

    def _by(self) -> str:
        """Returns the first field that the URL sorts by. Django writes the number of its column."""
        given = str(self.params.get(ORDER_VAR, "")).split(".")[0]
        number = given.removeprefix("-")
        if not number.isdecimal() or len(number) > 3 or int(number) >= len(self.list_display):
            return ""
        field = str(self.get_ordering_field(self.list_display[int(number)]) or "")
        return f"-{field}" if given.startswith("-") else field

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Job]) -> list[str | Combinable]:
        return list(self.selection.order)

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        first = self.selection.order[0]
        for number, name in enumerate(self.list_display):
            if self.get_ordering_field(name) == first.removeprefix("-"):
                return {number: "desc" if first.startswith("-") else "asc"}
        return {}

    def get_results(self, request: HttpRequest) -> None:
        self.leased = overview.leased(self.selection.queue)
        self.meant = self.selection.running(self.leased)  # according to Redis, because rows are updated later
        if self.meant.only is not None and self.leased is not None:
            self.rowless = len(self.leased) - self.model_admin.get_queryset(request).filter(pk__in=self.leased).count()
        try:
            page = keyset.page(self.meant, self.unsearched, self.list_per_page, after=self.cursors[BEHIND], before=self.cursors[AHEAD])
        except ValueError as error:
            raise IncorrectLookupParameters(error) from error
        self.unfinished, self.cut = page.unfinished, page.cut
        self._hints(page)
        self.earlier = self.get_query_string({AHEAD: page.before}) if page.before else ""
        self.later = self.get_query_string({BEHIND: page.after}) if page.after else ""
        self.first = self.get_query_string() if self.cursors[BEHIND] or self.cursors[AHEAD] else ""
        self.tabs = self._tabs(self._count(page))
        views, self.trouble = job_page.live(page.jobs)
        lags = {} if self.trouble else overview.mirror_lags()
        if lagging := [name for name, lag in lags.items() if lag.seconds >= 1]:
            self.lagging, self.lag, self.more_lagging = visible(lagging[0]), lags[lagging[0]], len(lagging) - 1
        came = schedule_views.schedule_of([job.pk for job in page.jobs])
        mine: Any = self.model_admin  # the stubs know only Django's class
        texts = carried(mine.get_queryset(request), page.jobs, sensitive=mine.allows(request, "view_sensitive"))
        for job in page.jobs:
            arguments, customer = texts.get(job.pk, ("-", "-"))
            row = came.get(job.pk)
            schedule = linked_schedule(mine, request, row) if row else ""
            vars(job).update(live=views.get(job.pk), carried=arguments, customer=customer, schedule=schedule)  # see `JobColumns`
        if self.complaints or self.result_count > overview.MOST_COUNTED:
            self.result_count = len(page.jobs)  # there may be millions, so do not offer "all 10001"
        self.result_list = page.jobs
        # Django's templates need these.
        self.show_full_result_count, self.show_admin_actions = False, True
        counted = self.result_count > len(page.jobs) or not self.multiple(page)  # all matches, and not only this page
        shown = counted and any(request.GET.get(name) for name in NARROWING)
        self.full_result_count = None if shown else self.result_count  # the count is shown if the two differ
        self.can_show_all, self.multi_page, self.paginator = False, False, None

    def _hints(self, page: keyset.Page) -> None:
        """Adds remarks about the search, and other searches."""
        wanted, nothing = self.selection, not page.jobs
        self.remarks = [] if self.complaints else selection.search_remarks(wanted.search)
        self.searched = selection.searched_in(wanted.search, partly=page.partly) if page.partly or nothing else ""
        tried = selection.other_searches(wanted) if nothing and not self.complaints else []
        self.others = [(visible(other.words) or now("all jobs"), self._address(other)) for other in tried]

    def _address(self, wanted: Selection) -> str:
        parts = {"q": wanted.text, VIEW: wanted.view, "queue": wanted.queue, "task": wanted.task}
        return self.get_query_string({name: value or None for name, value in parts.items()})

    def _count(self, page: keyset.Page) -> dict[str, int]:
        """Returns bounded counts of the views that have an index, or of the matches of a search."""
        whole = Selection(queue=self.selection.queue, task=self.selection.task)
        named = bool(whole.queue) + bool(whole.task)
        self.result_count = len(page.jobs)
        if self.selection.text or named > 1:
            if self.multiple(page):
                counted = keyset.count_up_to(self.meant, self.unsearched, overview.MOST_COUNTED)
                self.result_count = self.result_count if counted is None else counted
            return {}
        views = [view for view in VIEWS if not named or view not in ("retrying", "parked", "unpublished", "far", "unresolved")]
        rows = self.model_admin.get_queryset(self.request)
        parts = [self._of_view(view, rows) for view in views]
        counts = dict(zip(views, overview.count_many(parts, overview.MOST_COUNTED), strict=True))
        self.result_count = counts.get(self.selection.view, len(page.jobs))
        return counts

    def _of_view(self, view: str, rows: QuerySet[Job]) -> QuerySet[Job]:
        wanted = Selection(view=view, queue=self.selection.queue, task=self.selection.task)
        return wanted.running(self.leased).rows(rows)

    @staticmethod
    def multiple(page: keyset.Page) -> bool:
        return bool(page.before or page.after)

    def _tabs(self, counts: dict[str, int]) -> list[dict[str, Any]]:
        """Returns the tabs. `count` is None if counting would read all rows."""
        found = []
        for view, label in LABELS.items():
            is_chosen = self.request.GET.get(VIEW, "") == view
            if view in ("parked", "unpublished", "far", "unresolved") and not (is_chosen or counts.get(view)):
                continue
            count = overview.count_shown(counts[view]) if view in counts else None
            address = self.get_query_string({VIEW: view or None, ORDER_VAR: None})
            found.append({"label": label, "address": address, "count": count, "chosen": is_chosen})
        return found


def linked_schedule(jobs: Any, request: HttpRequest, row: Periodic) -> str:
    """Returns the name of a schedule, with a link if the user may view it on this site."""
    site = jobs.admin_site
    seen = site.is_registered(Periodic) and site.get_model_admin(Periodic).has_view_permission(request, row)
    name = breakable(cut(row.name, NAME_SHOWN))
    return format_html('<a href="{}">{}</a>', jobs.address("delayq_periodic_change", row.pk), name) if seen else name


class NameFilter(ChoiceFilter):
    """Known names, and the one in the URL. A query for all values would read the whole table."""

    parameter_name: str
    names: Callable[[], Iterable[str]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, visible(name)) for name in sorted({*self.names(), *filter(None, [request.GET.get(self.parameter_name)])})]


class QueueFilter(NameFilter):
    title, parameter_name = _("queue"), "queue"
    names = staticmethod(lambda: conf.get().queues)


class TaskFilter(NameFilter):
    title, parameter_name = _("task"), "task"
    names = staticmethod(registry.names)
