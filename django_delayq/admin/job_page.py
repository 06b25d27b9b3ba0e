"""What the page of a job shows, gathered: the row, Redis' word, the timeline, the sentence, related jobs."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf, ids
from django_delayq.admin import arguments, timeline
from django_delayq.admin.listing import live
from django_delayq.admin.show import allowed, badge
from django_delayq.console import job_links, masking, why_not_yet
from django_delayq.console.overview import DOWN
from django_delayq.console.wording import duration, error_text
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.states import MESSAGE, EndingKind, State
from django_delayq.store.reads.inspector import JobView
from django_delayq.text import visible

RELATED: Final = 10  # jobs of the same key
AHEAD: Final = 3  # lines that lie ahead, before the others are folded
DISPLACED: Final[dict[str, Promise]] = {  # what is said of the job that displaced this one
    EndingKind.MERGED: _("this job was merged into it because it had the key"),
    EndingKind.REPLACED: _("it replaced this one"),
}


def gather(request: HttpRequest, job: Job, jobs: QuerySet[Job], *, sensitive: bool) -> dict[str, Any]:
    """The context of the page, without the buttons. `jobs`: those that may stand beside it; `sensitive`: with what is masked for
    others.
    """
    views, trouble = live([job])
    view = views.get(job.pk)
    try:
        why = why_not_yet.sentences(why_not_yet.of(job, view, trouble))
    except DOWN as error:
        why, trouble = "", trouble or error_text(error)
    by = displaced_by(job)
    moments, cut = timeline.of(job, view, sensitive=sensitive)
    past = [moment for moment in moments if not moment.ahead]
    ahead = moments[len(past) :]
    near = AHEAD if len(ahead) > AHEAD + 1 else len(ahead)  # a fold for one line is none
    return {
        "job": job,
        "original": job,
        "live": view,
        "trouble": trouble,
        "why": why,
        "error": visible(job.error),
        "key": visible(job.key),
        "partition": ids.partition(job.pk) if job.queue in conf.get().partitions else None,
        "place": visible(stores.places.of(job.queue, ids.partition(job.pk)).where) if job.queue in conf.get().partitions else "",
        "state": badge(timeline.state_of(job, view)),
        "allowed": allowed(job.max_attempts),
        "asked": why_not_yet.poll_progress(job, view),
        "message": job.task == MESSAGE,
        "held": clock.from_ms(view.date_ms) if view and view.state == "running" and job.task == MESSAGE else None,
        "to_stop": timeline.to_stop(job, view),
        "run_at": timeline.run_date(job, view),
        "late": duration(late) if (late := timeline.late(job, view)) >= 1 else "",
        "moments": moments,
        "near": [*past, *ahead[:near]],
        "later": ahead[near:],
        "links": job_links.of(job),
        "zone": now("Time zone: %(zone)s") % {"zone": visible(get_current_timezone_name())},
        "cut": cut,
        "behind": timeline.behind(job, view),
        "over": job.state == State.SUCCEEDED,  # every other state may be left, by a worker or by somebody
        "progress": timeline.progress_of(view),
        "related": [
            (other, badge(other.derived), DISPLACED[job.ending or ""] if other.pk == by else "") for other in related(job, jobs, by)
        ],
        "raw": visible(view.raw.decode("utf-8", "backslashreplace")) if view and request.user.is_superuser else "",
        **_carried(job, sensitive),
    }


def state_in_charge(job: Job, view: JobView | None) -> str:
    """The state that decides which buttons there are: Redis' where it has one, unless the row is unresolved."""
    if job.unresolved:
        return job.derived
    return State(view.state) if view and view.state in set(State) else State(job.state)


def related(job: Job, jobs: QuerySet[Job], by: UUID | None) -> list[Job]:
    """The newest of `jobs` with the same key; the job that has displaced this one comes first, however old it is."""
    if not job.key:
        return []
    same = jobs.filter(queue=job.queue, key=job.key).exclude(pk=job.pk)
    same = same.defer("args", "kwargs", "options", "result", "error")
    if by is None:
        return list(same.order_by("-pk")[:RELATED])
    return [*same.filter(pk=by), *same.exclude(pk=by).order_by("-pk")[:RELATED]]


def displaced_by(job: Job) -> UUID | None:
    """The job into which this one was merged, or which has replaced it."""
    return job.merged_into if job.ending in DISPLACED else None


def _carried(job: Job, sensitive: bool) -> dict[str, Any]:
    """Arguments and result line by line, meta as JSON."""
    if sensitive:
        args, kwargs, meta, result = job.args, job.kwargs, job.meta, job.result
    else:
        args, kwargs = masking.arguments(job.task, job.args, job.kwargs)
        meta, result = (
            masking.attached(job.task, job.meta),
            masking.result(job.task, job.result),
        )
    return {
        "arguments": arguments.of(job.task, args, kwargs),
        "meta": timeline.pretty(meta) if meta else "",
        "result": arguments.of_result(result),
    }
