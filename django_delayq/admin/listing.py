"""The list of jobs, for tables that may hold millions of rows: tabs with bounded counts, pages by keyset, states asked of Redis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import conf
from django_delayq.admin.show import breakable, visible
from django_delayq.console import counting, keyset, overview, schedule_views
from django_delayq.console.error_texts import worded
from django_delayq.console.search import LONGEST, STATES
from django_delayq.console.selection import VIEWS, Selection
from django_delayq.models import Job, Periodic
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import UNFINISHED
from django_delayq.store.inspector import JobView

BEHIND, AHEAD, VIEW = "behind", "ahead", "state"  # parameters of the address, besides those of Django
NARROWING = ("q", "queue", "task", VIEW)  # what a `Selection` is made of
LABELS: dict[str, str | Promise] = {
    "": _("All"),
    "due": _("Due"),
    "scheduled": _("Scheduled"),
    "running": _("Running"),
    "retrying": _("Retrying"),
    "failed": _("Failed"),
    "cancelled": _("Cancelled"),
    "succeeded": _("Succeeded"),
    "unpublished": _("Unpublished"),
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
        queue=request.GET.get("queue", ""),
        task=request.GET.get("task", ""),
        text=request.GET.get("q", "").strip(),
    )


def doubtful(request: HttpRequest) -> list[str]:
    """Complaints about an address that names no view there is, or one thing twice: neither is to mean all jobs."""
    view = request.GET.get(VIEW, "")
    found = []
    if view not in VIEWS:
        states = ", ".join(STATES)
        found.append(f"{VIEW}:{visible(view[:LONGEST])} – {now('the states are: %(states)s.') % {'states': states}}")
    for name in NARROWING:
        if len(request.GET.getlist(name)) > 1:
            found.append(now("%(word)s: may stand there once.") % {"word": name})
    return found


def strange(request: HttpRequest) -> list[str]:
    """The same for an operation, which knows no filters of other apps: it would be about more jobs than the list."""
    names = [visible(name) for name in request.GET if name not in NARROWING]
    said = now("An operation cannot be narrowed down by %(name)s.")
    return [*doubtful(request), *(said % {"name": name} for name in names)]


class JobList(ChangeList):
    """A page of jobs, each with what Redis knows of it now, since the mirror may be behind; `trouble`: why Redis could not be asked."""

    trouble = ""
    lag = overview.NO_LAG

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
        self.selection = chosen(request)
        self.complaints = (*doubtful(request), *self.selection.search.complaints)
        self.unsearched: QuerySet[Job] = super().get_queryset(request, exclude_parameters)
        if self.complaints:
            self.unsearched = self.unsearched.none()
        return self.selection.rows(self.unsearched).order_by(*self.selection.order)

    def get_results(self, request: HttpRequest) -> None:
        """The rows of one page."""
        try:
            page = keyset.page(
                self.selection,
                self.unsearched,
                self.list_per_page,
                after=self.cursors[BEHIND],
                before=self.cursors[AHEAD],
            )
        except ValueError as error:
            raise IncorrectLookupParameters(error) from error
        self.unfinished, self.cut = page.unfinished, page.cut
        self.earlier = self.get_query_string({AHEAD: page.before}) if page.before else ""
        self.later = self.get_query_string({BEHIND: page.after}) if page.after else ""
        self.first = self.get_query_string() if self.cursors[BEHIND] or self.cursors[AHEAD] else ""
        self.tabs = self._tabs(self._count(page))
        views, self.trouble = live(page.jobs)
        if not self.trouble:
            self.lag = overview.mirror_lag()
        came = schedule_views.schedule_of([job.pk for job in page.jobs], conf.get().database)
        for job in page.jobs:
            job.live = views.get(job.pk)  # type: ignore[attr-defined]  # for the templates and columns of this list alone
            job.schedule = self._linked(request, came.get(job.pk))  # type: ignore[attr-defined]  # likewise
        if self.complaints or self.result_count > overview.MOST_COUNTED:
            self.result_count = len(page.jobs)  # there may be millions: "all 10001" is not to be offered
        self.result_list = page.jobs
        # What the templates of Django ask for.
        self.show_full_result_count, self.show_admin_actions = False, True
        shown = self._is_counted(page) and any(request.GET.get(name) for name in NARROWING)
        self.full_result_count = None if shown else self.result_count  # the count is shown where the two differ
        self.can_show_all, self.multi_page, self.paginator = False, False, None

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
                counted = counting.count(self.selection, self.unsearched, overview.MOST_COUNTED, using)
                self.result_count = self.result_count if counted is None else counted
            return {}
        views = [view for view in VIEWS if not named or view not in ("retrying", "unpublished")]
        rows = self.model_admin.get_queryset(self.request)
        parts = [Selection(view=view, queue=whole.queue, task=whole.task).rows(rows) for view in views]
        counts = dict(zip(views, counting.count_many(parts, overview.MOST_COUNTED, using), strict=True))
        self.result_count = counts.get(self.selection.view, len(page.jobs))
        return counts

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
            if view == "unpublished" and not (is_chosen or counts.get(view)):
                continue
            count = overview.count_shown(counts[view]) if view in counts else None
            found.append(Tab(label=label, address=self.get_query_string({VIEW: view or None}), count=count, chosen=is_chosen))
        return found


def live(jobs: Iterable[Job]) -> tuple[dict[UUID, JobView], str]:
    """What Redis knows of those that are not finished; and why not, if it could not be asked."""
    by_queue: dict[str, list[UUID]] = defaultdict(list)
    known = conf.get().queues
    for job in jobs:
        if job.state in UNFINISHED and job.queue in known:
            by_queue[job.queue].append(job.pk)
    found: dict[UUID, JobView] = {}
    try:
        with stores.guarded():
            for queue, wanted in by_queue.items():
                views = stores.inspector().jobs(queue, wanted)
                found |= {view.id: view for view in views if view is not None}
    except overview.DOWN as error:
        return found, worded(error)
    return found, ""


def linked_schedule(jobs: Any, request: HttpRequest, row: Periodic) -> str:
    """A schedule by its name, to click at for those who may see it on the site of that admin of jobs."""
    site = jobs.admin_site
    seen = site.is_registered(Periodic) and site.get_model_admin(Periodic).has_view_permission(request, row)
    name = breakable(row.name)
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
