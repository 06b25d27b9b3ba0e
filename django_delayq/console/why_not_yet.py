"""Why a job has not run yet: the reasons, as codes with fields, and the sentences for them. Also how often a job has polled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import clock, conf, ids
from django_delayq.console import masking, overview, target_figures
from django_delayq.console.wording import duration, second
from django_delayq.exceptions import StoreUnavailable
from django_delayq.ladder import POLL, Ladder
from django_delayq.models import Attempt, Job
from django_delayq.producer.outbox import pauses
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import DELIVERY, OFFER, PARKED, AttemptOutcome, State
from django_delayq.store.reads.inspector import JobView
from django_delayq.store.reads.queue_depth import QueueDepth
from django_delayq.store.scripts.limits import LimitStore
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.text import visible

PULLED_LATELY: Final = 600.0  # seconds after the last pull from which on the reason says that no consumer pulls

SENTENCES: Final[Mapping[str, Promise]] = {
    "unresolved": _(
        "The outcome of this job is unknown: no event shows how it ended. It may have done its work. It keeps its key "
        "and does not run again by itself. Find out what it did. Then mark it as succeeded or as failed, or requeue it."
    ),
    "queue_unlisted": _("The queue %(queue)s is not listed in the settings, so no worker serves it."),
    "far": _("The job is due at %(date)s and waits in the database. A relay moves it into Redis %(horizon)s before that."),
    "far_no_horizon": _(
        "The job is due at %(date)s and waits in the database. Its queue no longer has a horizon, so a relay "
        "will move the job into Redis."
    ),
    "outbox_away": _(
        "The job is not in Redis yet because Redis cannot be reached. It is saved in the database and will be published later."
    ),
    "outbox": _("The job is saved in the database but is not in Redis yet. The relay of a worker will publish it."),
    "redis_away": _("Redis cannot be reached. According to the database, the job is due at %(date)s."),
    "redis_unknown": _("Redis does not have this job. Either it has just finished, or the mirror will restore it."),
    "asks_later": _("The condition was not met yet (%(asked)s). The next check is in %(duration)s, at %(date)s."),
    "attempt_later": _("Attempt %(number)d is due in %(duration)s, at %(date)s."),
    "later": _("The job is due in %(duration)s, at %(date)s."),
    "put_off": _("%(worker)s has postponed it: %(reason)s"),
    "parked_task": _("The job is parked: worker %(worker)s does not know its task. It fails one day after it was first parked."),
    "parked_version": _(
        "The job is parked: worker %(worker)s does not understand the version of the task with which it was scheduled. It fails one "
        "day after it was first parked. %(reason)s"
    ),
    "parked_arguments": _(
        "The job is parked: its task accepts different arguments in worker %(worker)s. It fails one day after it was "
        "first parked. %(reason)s"
    ),
    "parked_carriers": _(
        "The job is parked: worker %(worker)s does not have a carrier that the job needs. It fails one day after it was "
        "first parked. %(reason)s"
    ),
    "parked_signature": _(
        "The job is parked: worker %(worker)s does not have the key that signed it. It fails one day after it was first "
        "parked. %(reason)s"
    ),
    "host_asked": _("%(target)s asked to wait for %(duration)s."),
    "task_asked": _("The task asked to be retried after %(duration)s."),
    "circuit_open": _(
        "Worker %(worker)s reports that the circuit of %(target)s is open until %(date)s. The delivery waits and uses no attempt."
    ),
    "circuit_over": _(
        "Worker %(worker)s reports that the circuit of %(target)s was open until %(date)s. The next delivery is the probe."
    ),
    "target_unlisted": _("The target %(target)s is not in TARGETS of the workers that serve the queue, so they do not run the job."),
    "paused_by": _("The queue %(queue)s has been paused by %(who)s since %(date)s."),
    "paused": _("The queue %(queue)s has been paused since %(date)s."),
    "task_paused_by": _("The task %(name)s has been paused by %(who)s since %(date)s."),
    "task_paused": _("The task %(name)s has been paused since %(date)s."),
    "name_paused_by": _("The name %(name)s has been paused by %(who)s since %(date)s."),
    "name_paused": _("The name %(name)s has been paused since %(date)s."),
    "paused_until": _("The pause ends at %(date)s."),
    "returns": _("The pause of %(name)s has ended. The jobs that it held return gradually."),
    "paused_reason": _("Reason: %(reason)s"),
    "rate": _("The job is due and is waiting for the rate %(name)s. The next start is at %(date)s. Waiting jobs: %(count)s."),
    "rate_thread": _("The job is due, and its rate %(name)s allows a start. It is waiting for an idle thread of a worker."),
    "name_taken": _("The job is due and is waiting for the name %(name)s. The job %(job)s has held this name since %(date)s."),
    "names_taken": _(
        "The job is due and is waiting for the name %(name)s. At most %(number)d jobs with this name run at the same "
        "time. One of them is %(job)s, since %(date)s."
    ),
    "name_free": _("The job is due and is waiting for the name %(name)s, which has just become free."),
    "to_be_pulled": _("The message is due and is waiting for a consumer to pull it."),
    "never_pulled": _("The message is due, but no consumer has ever pulled from the queue %(queue)s."),
    "not_pulled": _("The message is due, but no consumer pulls from the queue %(queue)s. The last pull was %(duration)s ago."),
    "no_worker": _("No worker serves the queue %(queue)s. Start one."),
    "workers_unseen": _(
        "The job is due. Workers register on another server, which cannot be reached, so it is unknown whether a worker serves "
        "the queue %(queue)s."
    ),
    "quiet_workers": _("The workers of the queue %(queue)s are quiet or shutting down and claim no more jobs."),
    "soon": _("The job is due. A worker will claim it at any moment."),
}


class Why(NamedTuple):
    """One reason. `fields`: dates are datetimes, durations are float seconds."""

    code: str
    fields: Mapping[str, Any] = {}


def of(job: Job, view: JobView | None, trouble: str) -> list[Why]:
    """The reasons why a job waits, the most immediate first; empty if it does not wait. `trouble`: why Redis could not be read.

    Raises:
        StoreUnavailable, StoreError: Redis cannot be reached any more.
    """
    if job.unresolved:
        return [Why("unresolved")]
    if job.state != State.SCHEDULED or (view is not None and view.state != "scheduled"):
        return []
    if job.queue not in conf.get().queues:
        return [Why("queue_unlisted", {"queue": job.queue})]
    if view is None:
        return [_not_in_redis(job, trouble)]
    wait = (view.date_ms - view.now_ms) / 1000
    later = [_later(job, view, wait)] if wait > 0 else []
    depth, workers = _seen(job)
    if depth.paused:
        return [*later, *_paused(depth)]
    if view.paused:
        return [*later, *_paused_word(view)]
    if view.token_ms:
        return [_rate(view)]
    if conf.get().queue(job.queue).pulled:
        return later or [_pulled(depth, view.now_ms)]
    if wait <= 0 and workers is None:
        return [_blocked(job, view) if view.blocked else Why("workers_unseen", {"queue": job.queue})]
    if workers is None:
        return later
    serving = [worker for worker in workers if overview.claims(worker, job.queue)]
    if not serving:
        present = any(not worker["silent"] and job.queue in overview.served(worker) for worker in workers)
        return [*later, Why("quiet_workers" if present else "no_worker", {"queue": job.queue})]
    if wait <= 0 and view.blocked:
        return [_blocked(job, view)]
    if found := [*later, *_outside(job, view, serving, due=wait <= 0)]:
        return found
    slots, busy = sum(map(overview.slots, serving)), sum(overview.whole(worker, "busy") for worker in serving)
    return [Why("crowded", {"slots": slots, "due": depth.due}) if busy >= slots > 0 else Why("soon")]


def sentences(found: Sequence[Why], date: Callable[[datetime], str] = second) -> str:
    """The reasons as sentences in the active language. `date`: formats a date."""
    return " ".join(_sentence(one, date) for one in found)


def _sentence(one: Why, date: Callable[[datetime], str]) -> str:
    fields = {name: _shown(value, date) for name, value in one.fields.items()}
    if one.code == "crowded":
        text = ngettext(
            "The job is due and is waiting for a free slot. The only slot is busy. Jobs due: %(due)d.",
            "The job is due and is waiting for a free slot. All %(slots)d slots are busy. Jobs due: %(due)d.",
            fields["slots"],
        )
        return text % fields
    if one.code == "asks_later":
        fields["asked"] = poll_text(fields["times"], fields["most"])
    return str(SENTENCES[one.code]) % fields


def _shown(value: Any, date: Callable[[datetime], str]) -> Any:
    if isinstance(value, datetime):
        return date(value)
    if isinstance(value, float):
        return duration(value)
    return visible(value) if isinstance(value, str) else value


def _not_in_redis(job: Job, trouble: str) -> Why:
    if job.derived == "far":
        horizon = conf.get().queue(job.queue).horizon
        return Why("far", {"date": job.run_at, "horizon": float(horizon)}) if horizon else Why("far_no_horizon", {"date": job.run_at})
    if job.published is None and job.durable:
        return Why("outbox_away" if trouble else "outbox")
    return Why("redis_away", {"date": job.run_at}) if trouble else Why("redis_unknown")


def _later(job: Job, view: JobView, wait: float) -> Why:
    fields: dict[str, Any] = {"duration": wait, "date": clock.from_ms(view.date_ms)}
    if found := polls(job, view):
        return Why("asks_later", {**fields, "times": found.times, "most": found.most})
    if view.attempt:
        return Why("attempt_later", {**fields, "number": view.attempt + 1})
    return Why("later", fields)


def _outside(job: Job, view: JobView, serving: Sequence[dict[str, Any]], *, due: bool) -> list[Why]:
    """Reasons outside of the queue: a host with an open circuit or a requested delay, a target that workers do not have, or the result
    of the last run.
    """
    if job.task == OFFER and (target := _place(job, "to")) and all(target not in worker.get("targets", [target]) for worker in serving):
        return [Why("target_unlisted", {"target": target})]
    if not due and job.fingerprint in PARKED:
        return [Why(job.fingerprint.replace("-", "_"), {"worker": job.worker, "reason": job.error})]
    last = None
    if not due and not view.asks:  # otherwise "asks_later" reports it
        last = Attempt.objects.filter(job_id=job.pk).order_by("-id").first()
    put_off = last is not None and last.outcome == AttemptOutcome.SNOOZED
    if job.task == DELIVERY and (due or put_off) and (host := _place(job, "host")):
        for circuit in target_figures.circuits_of_host(serving, host):
            code = "circuit_open" if circuit.until_ms > view.now_ms else "circuit_over"
            fields = {"target": circuit.target, "date": clock.from_ms(circuit.until_ms), "worker": circuit.worker}
            return [Why(code, fields)]
    if last is None:
        return []
    if put_off:
        return [Why("put_off", {"worker": last.worker, "reason": last.message})] if last.message else []
    problem = last.problem if isinstance(last.problem, dict) else {}  # with the delay of `Retry-After`, or of `Retry`
    if last.outcome != AttemptOutcome.RETRIED or "wait_ms" not in problem:
        return []
    seconds = problem["wait_ms"] / 1000
    asks = (problem.get("fields") or {}).get("target")
    return [Why("host_asked", {"target": asks, "duration": seconds}) if asks else Why("task_asked", {"duration": seconds})]


def _place(job: Job, argument: str) -> str:
    """The host or target of a job, unless it is masked."""
    found = masking.arguments(job.task, [], job.kwargs)[1].get(argument)
    return found if isinstance(found, str) and found != masking.MASK else ""


def _blocked(job: Job, view: JobView) -> Why:
    """The job waits for its concurrency name."""
    held = stores.view_of(view.name_holder, job.queue) if view.name_holder else None
    if held is None:
        return Why("name_free", {"name": view.name})
    fields = {"name": view.name, "job": ids.short(held.id), "date": clock.from_ms(held.turn // 1000)}
    return Why("name_taken", fields) if view.most == 1 else Why("names_taken", {**fields, "number": view.most})


def _rate(view: JobView) -> Why:
    """The job waits for a token of its rate."""
    if view.token_ms <= view.now_ms:
        return Why("rate_thread", {"name": view.rate})
    store = stores.queue(view.queue, ids.partition(view.id))
    return Why("rate", {"name": view.rate, "date": clock.from_ms(view.token_ms), "count": LimitStore(store).waiting(view.rate)})


def _paused(depth: QueueDepth) -> list[Why]:
    fields = {"queue": depth.queue, "date": clock.from_ms(depth.paused_ms)}
    found = Why("paused_by", {**fields, "who": depth.paused_by}) if depth.paused_by else Why("paused", fields)
    more = [Why("paused_until", {"date": clock.from_ms(depth.paused_until_ms)})] if depth.paused_until_ms else []
    more += [Why("paused_reason", {"reason": depth.paused_reason})] if depth.paused_reason else []
    return [found, *more]


def _paused_word(view: JobView) -> list[Why]:
    kind, _, name = view.paused.partition(":")
    row = pauses.of_word(view.paused)
    if row is None or row.paused_at is None or 0 < pauses.until_ms(row) <= view.now_ms:
        return [Why("returns", {"name": name})]
    found = [
        Why(f"{kind}_paused_by" if row.paused_by else f"{kind}_paused", {"name": name, "who": row.paused_by, "date": row.paused_at})
    ]
    if row.until:
        found.append(Why("paused_until", {"date": row.until}))
    return [*found, Why("paused_reason", {"reason": row.paused_why})] if row.paused_why else found


def _pulled(depth: QueueDepth, now_ms: int) -> Why:
    ago = max(0, now_ms - depth.asked_ms) / 1000
    if not depth.asked_ms:
        return Why("never_pulled", {"queue": depth.queue})
    return Why("to_be_pulled") if ago < PULLED_LATELY else Why("not_pulled", {"queue": depth.queue, "duration": ago})


def _seen(job: Job) -> tuple[QueueDepth, list[dict[str, Any]] | None]:
    """The partition of the job, and the workers. None: the workers are on another server, which cannot be reached."""
    partition = ids.partition(job.pk)
    with stores.guarded(job.queue, partition):
        depth = stores.inspector().part(job.queue, partition)
    elsewhere = stores.places.of(job.queue, partition) is not stores.link
    try:
        with stores.guarded(schedules=elsewhere):
            return depth, WorkerRegistry(stores.link, prefix=conf.get().prefix).all()
    except StoreUnavailable:
        if elsewhere:
            return depth, None
        raise


class Polls(NamedTuple):
    """`times`: how often a job has polled; `ladder`: the ladder of its task, None if the task is not registered here."""

    times: int
    ladder: Ladder | None

    @property
    def most(self) -> int | None:
        """How often it can poll."""
        return None if self.ladder is None else len(self.ladder)

    @property
    def next_wait(self) -> float | None:
        """Seconds until the next poll, if the condition is still not met; None: then the job gives up."""
        if self.ladder is None or self.times >= len(self.ladder):
            return None
        try:
            return self.ladder.steps(self.times + 1)[-1]
        except ValueError:  # the formula of the project is wrong
            return None


def polls(job: Job, view: JobView | None = None) -> Polls | None:
    """The polls of a job, from Redis if `view` has an unfinished job; None if it has never polled."""
    times = view.asks if view is not None and view.state in ("scheduled", "running") else job.asked
    if not times:
        return None
    task = registry.find(job.task)
    return Polls(times, None if task is None else task.poll or POLL)


def poll_count(job: Job, view: JobView | None = None) -> str:
    """A text such as "polled 3 of 9"; "" if the job has never polled."""
    found = polls(job, view)
    return "" if found is None else poll_text(found.times, found.most)


def poll_text(times: int, most: int | None) -> str:
    """The text for this number of polls. `most`: None if it is unknown."""
    if most is None:
        return ngettext("polled once", "polled %(times)d times", times) % {"times": times}
    return now("polled %(times)d of %(most)d") % {"times": times, "most": most}


def poll_progress(job: Job, view: JobView | None) -> str:
    """The same, with ", next in 10m" if the job waits for its next poll."""
    text = poll_count(job, view)
    waits = job.state == State.SCHEDULED if view is None else view.state == "scheduled"
    if not text or not waits:
        return text
    wait = (job.run_at - clock.now()).total_seconds() if view is None else (view.date_ms - view.now_ms) / 1000
    if wait <= 0:
        return text
    return now("%(asked)s, next in %(duration)s") % {"asked": text, "duration": duration(wait)}
