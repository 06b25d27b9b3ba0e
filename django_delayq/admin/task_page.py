"""Builds the page of a task: settings, figures and charts of its newest attempts, the slowest, and the last that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms import Media
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as now

from django_delayq.admin import charts, effective_settings
from django_delayq.admin.badges import badge
from django_delayq.admin.charts import brief
from django_delayq.admin.readonly import ReadOnlyAdmin
from django_delayq.console import trends
from django_delayq.console.search_fields import task_rows
from django_delayq.console.trends import EndedRun
from django_delayq.console.wording import task_name
from django_delayq.models import Job
from django_delayq.producer import outbox
from django_delayq.producer.task import registry
from django_delayq.states import MESSAGE, PUT_OFF, AttemptOutcome
from django_delayq.text import visible

CSS: Final = Media(css={"all": ("delayq/dashboard.css",)})
SHOWN: Final = 10  # of the slowest attempts, and of the latest failed ones
UNWELL: Final = frozenset({AttemptOutcome.FAILED, AttemptOutcome.RETRIED, AttemptOutcome.CRASHED})


def respond(admin: ReadOnlyAdmin, request: HttpRequest, name: str) -> HttpResponse:
    if not admin.has_view_permission(request):
        raise PermissionDenied
    task = unquote(name)
    found = gather(request, task, admin.get_queryset(request), partial(admin.has_view_permission, request), admin.list_url())
    if found is None:
        raise Http404(now("No task has this name."))
    found |= {"may_see_queues": admin.allows(request, "view_queue"), "media": admin.media + CSS}
    return admin.page(request, "admin/delayq/job/task.html", task_name(task), **found)


def gather(request: HttpRequest, name: str, jobs: QuerySet[Job], sees: Callable[[Job], bool], url: str) -> dict[str, Any] | None:
    """Returns the context of the page, or None if the task is not registered and no job has its name.

    Args:
        jobs: those that can be counted.
        sees: whether this user may see a job.
        url: of the list of jobs.
    """
    task, jobs = registry.find(name), jobs.defer(None)
    ends = trends.ends(jobs, task=name)
    runs = trends.runs(ends, jobs, name)
    if task is None and not runs.rows and not ends.rows and not jobs.filter(task_rows(name)).exists():
        return None
    chosen, span = charts.chosen(request.GET.get("span"), "7d")
    slowest = sorted((run for run in runs.rows if run.outcome not in PUT_OFF), key=lambda run: -run.ran)[:SHOWN]
    unwell = [run for run in runs.rows if run.outcome in UNWELL][:SHOWN]
    named = _named(jobs, {run.job for run in (*slowest, *unwell)}, sees)
    said = trends.messages(unwell, jobs) if unwell else {}
    module, place = effective_settings.defined(task) if task else ("", "")
    rows = charts.within(span, ends)
    times = {measure: charts.values(rows, measure) for measure in ("ran", "late")}
    return {
        "task": name,
        "registered": task is not None,
        "message": name == MESSAGE,
        "module": module,
        "place": place,
        "queue": task.queue if task else "",
        "pause": outbox.pauses.of_word(f"task:{name}"),
        "follower": task.on_failure.name if task and task.on_failure else "",
        "settings": effective_settings.of_task(task) if task else [],
        "attempts": len(runs.rows),
        "since": runs.since,
        "oldest": runs.rows[-1].finished_at if runs.rows else None,
        "outcomes": [(badge(outcome), count) for outcome, count in Counter(run.outcome for run in runs.rows).most_common()],
        "sums": charts.of_tasks(span, ends),
        "retries": charts.decimal(sum(max(0, one.attempts - 1) for one in rows) / len(rows)) if rows else "–",
        "figures": [_figures(charts.TITLES[measure], values) for measure, values in times.items()],
        "histograms": [charts.histogram(f"hist-{measure}", charts.TITLES[measure], values) for measure, values in times.items()],
        "slowest": [_line(run, named, {}) for run in slowest if run.job in named],
        "unwell": [_line(run, named, said) for run in unwell if run.job in named],
        **charts.of_task(span, ends, runs, charts.ListLinks(url, {"task": name})).context(chosen, span),
    }


def _figures(title: Any, seconds: Sequence[float]) -> list[Any]:
    """Returns the 50th, 95th and 99th percentile and the maximum."""
    found = [trends.quantile(seconds, share) for share in (0.5, 0.95, 0.99, 1.0)]
    return [title, *(brief(None if value is None else value * 1000) for value in found)]


def _named(jobs: QuerySet[Job], wanted: set[UUID], sees: Callable[[Job], bool]) -> dict[UUID, Job]:
    found = jobs.filter(pk__in=wanted).only("id", "key", "queue", "state", "task") if wanted else ()
    return {job.pk: job for job in found if sees(job)}


def _line(run: EndedRun, named: Mapping[UUID, Job], said: Mapping[int, str]) -> dict[str, Any]:
    job = named[run.job]
    return {
        "job": job,
        "key": visible(job.key),
        "queue": visible(job.queue),
        "number": run.number,
        "worker": visible(run.worker),
        "at": run.finished_at,
        "badge": badge(run.outcome),
        "ran": brief(run.ran * 1000),
        "error": visible(": ".join(filter(None, (run.error_class, said.get(run.id, ""))))),
    }
