"""Why a job has not run yet, in one sentence."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as now
from django.utils.translation import ngettext

from django_delayq import clock, conf
from django_delayq.admin import asked
from django_delayq.admin.show import duration, second, visible
from django_delayq.console import overview
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.states import AttemptOutcome, State
from django_delayq.store.inspector import JobView, QueueDepth
from django_delayq.store.worker_registry import WorkerRegistry


def why_not_yet(job: Job, view: JobView | None, trouble: str) -> str:
    """One sentence for a job that waits; "" for one that does not.

    Raises:
        StoreUnavailable, StoreError: Redis cannot be asked any more.
    """
    if job.state != State.SCHEDULED or (view is not None and view.state != "scheduled"):
        return ""
    if job.queue not in conf.get().queues:
        return now("Its queue %(queue)s is not listed in the settings, so no worker serves it.") % {"queue": job.queue}
    if view is None:
        return _not_in_redis(job, trouble)
    wait = (view.date_ms - view.now_ms) / 1000
    depth, workers = _seen(job.queue)
    if depth.paused:
        return _paused(depth) if wait <= 0 else f"{_later(job, view, wait)} {_paused(depth)}"
    if conf.get().queue(job.queue).pulled:
        return _later(job, view, wait) if wait > 0 else now("It is due, and waits for a consumer to pull it.")
    serving = [worker for worker in workers if overview.claims(worker, job.queue)]
    if not serving:
        text = now("No worker serves the queue %(queue)s: start one that does.") % {"queue": job.queue}
        if any(not worker["silent"] and job.queue in overview.served(worker) for worker in workers):
            text = now("The workers of the queue %(queue)s are quiet or leaving, and claim no more.") % {"queue": job.queue}
        return text if wait <= 0 else f"{_later(job, view, wait)} {text}"
    if wait > 0:
        return f"{_later(job, view, wait)} {_put_off(job, view)}".rstrip()
    return _crowded(depth, serving)


def _not_in_redis(job: Job, trouble: str) -> str:
    if job.published is None and job.durable:
        if trouble:
            return now("It is not in Redis yet, since Redis cannot be reached; it is safe in the database, and will be pushed.")
        return now("It is safe in the database, but not in Redis yet: the relay of a worker pushes it.")
    if trouble:
        return now("Redis cannot be asked. The rows say that it is due at %(date)s.") % {"date": _date(clock.to_ms(job.run_at))}
    return now("Redis does not know it: it has ended a moment ago, or the mirror brings it back.")


def _later(job: Job, view: JobView, wait: float) -> str:
    values: dict[str, Any] = {"duration": duration(wait), "date": _date(view.date_ms), "number": view.attempt + 1}
    if asks := asked.shortly(job, view):
        return now("The answer was: not yet (%(asked)s). It asks again in %(duration)s, at %(date)s.") % {**values, "asked": asks}
    if view.attempt:
        return now("Attempt %(number)d is due in %(duration)s, at %(date)s.") % values
    return now("It is due in %(duration)s, at %(date)s.") % values


def _put_off(job: Job, view: JobView) -> str:
    """Who has snoozed it last, if that was its last run, and why: a host that is left alone, a secret that is missing there."""
    if view.asks:  # told already
        return ""
    last = Attempt.objects.using(job._state.db).filter(job_id=job.pk).order_by("-id").first()
    if last is None or last.outcome != AttemptOutcome.SNOOZED or not last.message:
        return ""
    return now("%(worker)s has put it off: %(reason)s") % {"worker": visible(last.worker), "reason": visible(last.message)}


def _paused(depth: QueueDepth) -> str:
    values = {"queue": depth.queue, "who": visible(depth.paused_by), "date": _date(depth.paused_ms)}
    if depth.paused_by:
        text = now("Its queue %(queue)s is paused, by %(who)s since %(date)s.") % values
    else:
        text = now("Its queue %(queue)s is paused since %(date)s.") % values
    if depth.paused_reason:
        text += " " + now("The reason: %(reason)s") % {"reason": visible(depth.paused_reason)}
    return text


def _crowded(depth: QueueDepth, serving: list[dict[str, Any]]) -> str:
    slots = sum(map(overview.slots, serving))
    busy = sum(overview.whole(worker, "busy") for worker in serving)
    if busy >= slots > 0:
        text = ngettext(
            "It is due and waits for a free slot: the only slot is busy, and %(due)d jobs are due.",
            "It is due and waits for a free slot: all %(slots)d slots are busy, and %(due)d jobs are due.",
            slots,
        )
        return text % {"slots": slots, "due": depth.due}
    return now("It is due, and a worker will claim it any moment.")


def _seen(queue: str) -> tuple[QueueDepth, list[dict[str, Any]]]:
    with stores.guarded():
        return stores.inspector().depth(queue), WorkerRegistry(stores.link, prefix=conf.get().prefix).all()


def _date(ms: int) -> str:
    return second(clock.from_ms(ms))
