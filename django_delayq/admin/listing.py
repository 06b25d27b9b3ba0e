"""The list of jobs, for tables that may hold millions of rows: tabs with bounded counts, pages by keyset, states asked of Redis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import conf
from django_delayq.admin.columns import NAME_SHOWN, carried
from django_delayq.console import keyset, overview, schedule_views, selection
from django_delayq.console.search_fields import STATES
from django_delayq.console.search_parser import LONGEST
from django_delayq.console.selection import VIEWS, Selection
from django_delayq.console.wording import breakable, cut, error_text, task_name
from django_delayq.models import Job, Periodic
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import UNFINISHED
from django_delayq.store.reads.inspector import JobView
from django_delayq.text import visible

BEHIND, AHEAD, VIEW = "behind", "ahead", "state"  # parameters of the address, besides those of Django
NAMED = ("queue", "task")
NARROWING = ("q", *NAMED, VIEW)  # what a `Selection` is made of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A view over the list. `count` is None where counting would mean reading through rows."""

    label: str | Promise
    address: str
    count: str | None
    chosen: bool


def chosen(request: HttpRequest) -> Selection:
    """What the address of a list chooses."""
    view = request.GET.get(VIEW, "")
    return Selection(
        view=view if view in VIEWS else "",
        queue=_given(request, "queue"),
        task=_given(request, "task"),
        text=request.GET.get("q", "").strip(),
    )


def _given(request: HttpRequest, name: str) -> str:
    """Nothing for what no database takes; `doubtful` complains about it."""
    value = str(request.GET.get(name, ""))
    return "" if "\0" in value else value


def title(selection: Selection) -> str:
    """What a list is called, in the head of the page and among the tabs of a browser."""
    label = str(LABELS[selection.shown_view]).replace("\u00ad", "") if selection.shown_view in LABELS and selection.shown_view else ""
    task = task_name(selection.task or selection.search.value("task")) if selection.task or selection.search.value("task") else ""
    given = {"view": label, "task": cut(task, TITLE_PART)}
    if label:
        text = now("%(view)s %(task)s jobs") % given if task else now("%(view)s jobs") % given
    else:
        text = now("%(task)s jobs") % given if task else now("Jobs")
    more = [visible(part) for part in (selection.queue, selection.text) if part]
    return " · ".join([text, *(cut(part, TITLE_PART) for part in more)])


def doubtful(request: HttpRequest) -> list[str]:
    """Complaints about an address that names no view there is, one thing twice, or what no text holds: none is to mean all jobs."""
    view = request.GET.get(VIEW, "")
    found = []
    if view not in VIEWS:
        states = ", ".join(STATES)
        found.append(f"{VIEW}:{visible(view[:LONGEST])} – {now('possible states: %(states)s.') % {'states': states}}")
    for name in NARROWING:
        if len(request.GET.getlist(name)) > 1:
            found.append(now("%(word)s: can be used only once.") % {"word": name})
        if name in NAMED and "\0" in request.GET.get(name, ""):  # a search complains itself
            found.append(now("%(word)s contains a NUL character. Remove it.") % {"word": name})
    return found


def strange(request: HttpRequest) -> list[str]:
    """The same for an operation, which knows no filters of other apps: it would be about more jobs than the list."""
    names = [visible(name) for name in request.GET if name not in NARROWING]
    said = now("You cannot filter an operation by %(name)s.")
    return [*doubtful(request), *(said % {"name": name} for name in names)]


class JobList(ChangeList):
    """A page of jobs, each with what Redis knows of it now, since the mirror may be behind; `trouble`: why Redis could not be asked."""

    trouble = ""
    lag = overview.NO_LAG  # of the queue that is behind most, `lagging`; `more_lagging` are behind, too
    lagging, more_lagging, rowless = "", 0, 0

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Without what is no filter of Django's."""
        found: dict[str, Any] = super().get_filters_params(params)
        return {name: value for name, value in found.items() if name not in (BEHIND, AHEAD, VIEW)}

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Job]:
        """All that match, in the order of the view."""
        self.request = request
        self.cursors = {name: self.params.pop(name, "") for name in (BEHIND, AHEAD)}
        for name in (BEHIND, AHEAD):
            self.filter_params.pop(name, None)
        self.selection = replace(chosen(request), by=self._by())
        self.complaints = (*doubtful(request), *self.selection.search.complaints)
        self.unsearched: QuerySet[Job] = super().get_queryset(request, exclude_parameters)
        if self.complaints:
            self.unsearched = self.unsearched.none()
        return self.selection.rows(self.unsearched).order_by(*self.selection.order)

    def _by(self) -> str:
        """The field that the address names by the number of its column, as Django's heads of tables write it; the first of several."""
        given = str(self.params.get(ORDER_VAR, "")).split(".")[0]
        number = given.removeprefix("-")
        if not number.isdecimal() or len(number) > 3 or int(number) >= len(self.list_display):
            return ""
        field = str(self.get_ordering_field(self.list_display[int(number)]) or "")
        return f"-{field}" if given.startswith("-") else field

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Job]) -> list[str | Combinable]:
        """That of the selection, which knows what an index holds."""
        return list(self.selection.order)

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        """The column by which the list is ordered, by its number."""
        first = self.selection.order[0]
        for number, name in enumerate(self.list_display):
            if self.get_ordering_field(name) == first.removeprefix("-"):
                return {number: "desc" if first.startswith("-") else "asc"}
        return {}

    def get_results(self, request: HttpRequest) -> None:
        """The rows of one page."""
        self.leased = overview.leased(self.selection.queue)
        self.meant = self.selection.running(self.leased)  # by Redis' word: rows hear of it later
        if self.meant.only is not None and self.leased is not None:
            self.rowless = len(self.leased) - self.model_admin.get_queryset(request).filter(pk__in=self.leased).count()
        try:
            page = keyset.page(
                self.meant,
                self.unsearched,
                self.list_per_page,
                after=self.cursors[BEHIND],
                before=self.cursors[AHEAD],
            )
        except ValueError as error:
            raise IncorrectLookupParameters(error) from error
        self.unfinished, self.cut = page.unfinished, page.cut
        self._hints(page)
        self.earlier = self.get_query_string({AHEAD: page.before}) if page.before else ""
        self.later = self.get_query_string({BEHIND: page.after}) if page.after else ""
        self.first = self.get_query_string() if self.cursors[BEHIND] or self.cursors[AHEAD] else ""
        self.tabs = self._tabs(self._count(page))
        views, self.trouble = live(page.jobs)
        if not self.trouble:
            self._look_at_lags()
        came = schedule_views.schedule_of([job.pk for job in page.jobs], conf.get().database)
        mine: Any = self.model_admin  # the stubs know Django's own class only
        arguments = carried(mine.get_queryset(request), page.jobs)
        for job in page.jobs:
            job.carried = arguments.get(job.pk)  # type: ignore[attr-defined]  # for the templates and columns of this list alone
            job.live = views.get(job.pk)  # type: ignore[attr-defined]  # likewise
            job.schedule = self._linked(request, came.get(job.pk))  # type: ignore[attr-defined]  # likewise
        if self.complaints or self.result_count > overview.MOST_COUNTED:
            self.result_count = len(page.jobs)  # there may be millions: "all 10001" is not to be offered
        self.result_list = page.jobs
        # What the templates of Django ask for.
        self.show_full_result_count, self.show_admin_actions = False, True
        shown = self._is_counted(page) and any(request.GET.get(name) for name in NARROWING)
        self.full_result_count = None if shown else self.result_count  # the count is shown where the two differ
        self.can_show_all, self.multi_page, self.paginator = False, False, None

    def _hints(self, page: keyset.Page) -> None:
        """What is said of the search, and what else to try."""
        wanted, nothing = self.selection, not page.jobs
        self.remarks = [] if self.complaints else selection.search_remarks(wanted.search)
        self.searched = selection.searched_in(wanted.search, partly=page.partly) if page.partly or nothing else ""
        tried = selection.other_searches(wanted) if nothing and not self.complaints else []
        self.others = [(visible(other.words) or now("all jobs"), self._address(other)) for other in tried]

    def _address(self, wanted: Selection) -> str:
        parts = {"q": wanted.text, VIEW: wanted.view, "queue": wanted.queue, "task": wanted.task}
        return self.get_query_string({name: value or None for name, value in parts.items()})

    def _linked(self, request: HttpRequest, row: Periodic | None) -> str:
        """The schedule that has brought a job: to click at, for those who may see it; "" for none."""
        return linked_schedule(self.model_admin, request, row) if row is not None else ""

    def _count(self, page: keyset.Page) -> dict[str, int]:
        """Bounded counts: of each view, where indexes give them; of what was searched for, where it is on this page."""
        using, whole = conf.get().database, Selection(queue=self.selection.queue, task=self.selection.task)
        named = bool(whole.queue) + bool(whole.task)
        self.result_count = len(page.jobs)
        if self.selection.text or named > 1:
            if self.multiple(page):
                counted = keyset.count_up_to(self.meant, self.unsearched, overview.MOST_COUNTED, using)
                self.result_count = self.result_count if counted is None else counted
            return {}
        views = [view for view in VIEWS if not named or view not in ("retrying", "parked", "unpublished", "far", "unresolved")]
        rows = self.model_admin.get_queryset(self.request)
        parts = [self._of_view(view, rows) for view in views]
        counts = dict(zip(views, overview.count_many(parts, overview.MOST_COUNTED, using), strict=True))
        self.result_count = counts.get(self.selection.view, len(page.jobs))
        return counts

    def _of_view(self, view: str, rows: QuerySet[Job]) -> QuerySet[Job]:
        wanted = Selection(view=view, queue=self.selection.queue, task=self.selection.task)
        return wanted.running(self.leased).rows(rows)

    def _look_at_lags(self) -> None:
        lags = overview.mirror_lags()
        behind = [name for name, lag in lags.items() if lag.seconds >= 1]
        if behind:
            self.lagging, self.lag, self.more_lagging = visible(behind[0]), lags[behind[0]], len(behind) - 1

    def _is_counted(self, page: keyset.Page) -> bool:
        """Whether `result_count` is the number of all that match, and not only of this page."""
        return self.result_count > len(page.jobs) or not self.multiple(page)

    @staticmethod
    def multiple(page: keyset.Page) -> bool:
        """Whether there is more than this page."""
        return bool(page.before or page.after)

    def _tabs(self, counts: dict[str, int]) -> list[Tab]:
        found = []
        for view, label in LABELS.items():
            is_chosen = self.request.GET.get(VIEW, "") == view
            if view in ("parked", "unpublished", "far", "unresolved") and not (is_chosen or counts.get(view)):
                continue
            count = overview.count_shown(counts[view]) if view in counts else None
            address = self.get_query_string({VIEW: view or None, ORDER_VAR: None})
            found.append(Tab(label=label, address=address, count=count, chosen=is_chosen))
        return found


def live(jobs: Iterable[Job]) -> tuple[dict[UUID, JobView], str]:
    """What Redis knows of those that are not finished; and why not, if it could not be asked."""
    by_queue: dict[str, list[UUID]] = defaultdict(list)
    known = conf.get().queues
    for job in jobs:
        if job.state in UNFINISHED and job.queue in known and not job.far:
            by_queue[job.queue].append(job.pk)
    try:
        views, missing = stores.from_each(
            by_queue, lambda reach: [view for queue, jobs in by_queue.items() for view in stores.inspector(reach).jobs(queue, jobs)]
        )
    except overview.DOWN as error:
        return {}, error_text(error)
    return {view.id: view for view in views if view is not None}, error_text(missing.first) if missing else ""


def linked_schedule(jobs: Any, request: HttpRequest, row: Periodic) -> str:
    """A schedule by its name, to click at for those who may see it on the site of that admin of jobs."""
    site = jobs.admin_site
    seen = site.is_registered(Periodic) and site.get_model_admin(Periodic).has_view_permission(request, row)
    name = breakable(cut(row.name, NAME_SHOWN))
    return format_html('<a href="{}">{}</a>', jobs.address("delayq_periodic_change", row.pk), name) if seen else name


class QueueFilter(admin.SimpleListFilter):
    """The queues of the settings; asking the table for all values would read it whole."""

    title = _("queue")
    template = "admin/delayq/filter.html"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """By name."""
        return [(name, visible(name)) for name in sorted({*conf.get().queues, *filter(None, [request.GET.get("queue")])})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """As they are: `JobList` looks at the address itself."""
        return queryset


class TaskFilter(admin.SimpleListFilter):
    """The registered tasks."""

    title = _("task")
    template = "admin/delayq/filter.html"
    parameter_name = "task"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """By name."""
        return [(name, visible(name)) for name in sorted({*registry.names(), *filter(None, [request.GET.get("task")])})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """As they are: `JobList` looks at the address itself."""
        return queryset
