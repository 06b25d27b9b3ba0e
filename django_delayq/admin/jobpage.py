"""What the page of a job shows, gathered: the row, Redis' word, the timeline, the sentence, related jobs."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest

from django_delayq import ids
from django_delayq.admin import forecast, timeline
from django_delayq.admin.listing import live
from django_delayq.admin.show import badge, duration, visible
from django_delayq.admin.wording import worded
from django_delayq.models import Job
from django_delayq.overview import DOWN
from django_delayq.states import State
from django_delayq.store.inspector import JobView

RELATED: Final = 10  # jobs of the same key


def gather(request: HttpRequest, job: Job) -> dict[str, Any]:
    """The context of the page, without the buttons."""
    views, trouble = live([job])
    view = views.get(job.pk)
    try:
        why = forecast.why_not_yet(job, view, trouble)
    except DOWN as error:
        why, trouble = "", trouble or worded(error)
    moments, cut = timeline.of(job, view, sensitive=request.user.has_perm("delayq.view_sensitive"))
    return {
        "job": job,
        "original": job,
        "short_id": ids.short(job.pk),
        "live": view,
        "trouble": trouble,
        "why": why,
        "error": visible(job.error),
        "key": visible(job.key),
        "state": badge(timeline.state_of(job, view)),
        "late": duration(job.late) if job.late >= 1 else "",
        "moments": moments,
        "cut": cut,
        "behind": timeline.behind(job, view),
        "progress": timeline.progress_of(view),
        "related": [(other, badge(other.derived)) for other in related(job)],
        "raw": visible(view.raw.decode("utf-8", "backslashreplace")) if view and request.user.is_superuser else "",
        **_carried(request, job),
    }


def state_in_charge(job: Job, view: JobView | None) -> State:
    """The state that decides which buttons there are: Redis' where it has one."""
    return State(view.state) if view and view.state in set(State) else State(job.state)


def related(job: Job) -> list[Job]:
    """The newest jobs of the same key."""
    if not job.key:
        return []
    same = Job.objects.using(job._state.db).filter(queue=job.queue, key=job.key).exclude(pk=job.pk)
    return list(same.defer("args", "kwargs", "options", "result", "error").order_by("-pk")[:RELATED])


def _carried(request: HttpRequest, job: Job) -> dict[str, str]:
    """Arguments, meta and result as JSON; what is sensitive is masked for those without the permission."""
    if request.user.has_perm("delayq.view_sensitive"):
        args, kwargs, meta, result = job.args, job.kwargs, job.meta, job.result
    else:
        (args, kwargs), meta, result = job.shown_arguments, job.shown_meta, job.shown_result
    return {
        "args": timeline.pretty(args) if args else "",
        "kwargs": timeline.pretty(kwargs) if kwargs else "",
        "meta": timeline.pretty(meta) if meta else "",
        "result": "" if result is None else timeline.pretty(result),
    }
