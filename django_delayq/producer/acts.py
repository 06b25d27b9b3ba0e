"""Changes a scheduled job: cancel, reschedule, run now, requeue, mark an unresolved job as succeeded or as failed, and free the key
of a job before its period ends.

The changes take effect at once, not at the commit: the answer, a `Change`, is the truth at that moment. With `at_commit=True`, a
cancel or a reschedule is part of the open transaction. A change of a job that the open transaction schedules is always part of that
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Never
from uuid import UUID

from django_delayq import durations
from django_delayq.exceptions import ConfigError, DelayqError
from django_delayq.producer import changes, commit_requests, lookup, outbox
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.changes import Answer, Cancel, ChangeTarget, JobChange, Move
from django_delayq.producer.commit import JobRef, warn_immediate
from django_delayq.producer.lookup import check_words
from django_delayq.producer.options import date
from django_delayq.producer.outbox.shapes import Once, StoredJob
from django_delayq.producer.put_back import Requeue
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, Change, State
from django_delayq.store.scripts.queue import QueueStore


def cancel(
    job: JobRef | UUID | str | None = None,
    *,
    key: str | None = None,
    queue: str | None = None,
    abort: bool = False,
    at_commit: bool = False,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Cancels a job. You can pass a job, an id, or `key` and `queue`. With a key, all unfinished jobs with that key are cancelled. If
    the job is scheduled, it doesn't run anymore (`done`). If it is running, it is asked to stop (`running`). The task can check
    `current().cancel_requested`, and isn't retried if it fails. With `abort`, `Cancelled` is raised in the task, or its coroutine is
    cancelled. If the task doesn't end within five seconds, its process is killed.

    The change takes effect immediately. With `at_commit`, it takes effect when the open transaction of `DELAYQ["DATABASE"]` commits.
    The call then returns `pending`, and a rollback discards the change.

    Raises:
        ConfigError: You passed `at_commit`, but a transaction is only open on another database.
        StoreUnavailable: Redis can't be reached, so the result is unknown. You can safely repeat the call.
        DatabaseError: The row couldn't be read or changed, so the result is unknown. You can safely repeat the call.
    """
    refuse_loop("delayq.acancel(…)")
    check_words("cancel()", actor, reason)
    return _change("cancel()", Cancel(actor, reason, abort), job, key, queue, at_commit)


def reschedule(
    job: JobRef | UUID | str | None = None,
    *given: Never,
    delay: durations.Delay | None = None,
    run_at: datetime | None = None,
    key: str | None = None,
    queue: str | None = None,
    at_commit: bool = False,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Changes the date of a scheduled job, either to `delay` from now or to `run_at`. With `key` and `queue`, it changes all waiting
    jobs with that key. For `at_commit`, see `cancel`. A delay starts at the call.

    Raises:
        ConfigError: You passed neither or both, the datetime is naive, or, with `at_commit`, a transaction is only open on another
            database.
        StoreUnavailable, DatabaseError: See `cancel`.
    """
    refuse_loop("delayq.areschedule(…)")
    check_words("reschedule()", actor, reason)
    if given:
        raise ConfigError(f"reschedule() does not accept the positional argument {given[0]!r}. Use delay={given[0]!r} or run_at=….")
    if (delay is None) == (run_at is None):
        raise ConfigError("reschedule(): pass either delay or run_at.")
    delay_ms, due_ms = date(delay, run_at, "reschedule()")
    return _change("reschedule()", Move(actor, reason, delay_ms, due_ms), job, key, queue, at_commit)


def run_now(
    job: JobRef | UUID | str | None = None,
    *,
    key: str | None = None,
    queue: str | None = None,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Makes a scheduled job due now.

    Raises:
        StoreUnavailable: See `cancel`.
    """
    refuse_loop("delayq.arun_now(…)")
    return reschedule(job, delay=0, key=key, queue=queue, actor=actor, reason=reason)


def requeue(
    job: JobRef | UUID | str | None = None,
    *,
    key: str | None = None,
    queue: str | None = None,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Runs a failed or cancelled job again. The job is due now and gets all its attempts again. If it has expired, its expiry date is
    removed. With `key` and `queue`, it requeues the latest job with that key.

    The result is `conflict` if the job is scheduled or has succeeded, if another job has its key or has its concurrency name in another
    partition, or if the open transaction scheduled the job. It is also `conflict` if the job is unresolved. Users can requeue such a
    job in the admin or with the command.

    With `SIGNING`, the change is first stored in the database. In an open transaction, it takes effect at the commit.

    Raises:
        StoreUnavailable: See `cancel`. This is also raised while Redis is being compared with the database after a rollback.
        ConfigError: `SIGNING` is on, but `django_delayq` isn't in INSTALLED_APPS.
    """
    refuse_loop("delayq.arequeue(…)")
    return _requeue(job, key, queue, actor, reason, by_person=False)


def requeue_by_person(
    job: JobRef | UUID | str | None = None, *, key: str | None = None, queue: str | None = None, actor: str = "", reason: str = ""
) -> Change:
    """Like `requeue`, but also for an unresolved job: a person has found out that the job must run again."""
    return _requeue(job, key, queue, actor, reason, by_person=True)


def _requeue(
    job: JobRef | UUID | str | None, key: str | None, queue: str | None, actor: str, reason: str, *, by_person: bool
) -> Change:
    check_words("requeue()", actor, reason)
    return _change_latest(Requeue(actor, reason, by_person=by_person), job, key, queue)


def _change_latest(act: Requeue | Mark, job: JobRef | UUID | str | None, key: str | None, queue: str | None) -> Change:
    if key is None:
        return changes.one(act, *lookup.target(job, queue))
    named = lookup.keyed(key, queue, job)
    latest = lookup.latest_of_key(named, key)
    if latest is not None:
        return changes.one(act, latest, named)
    if isinstance(act, Requeue):
        lookup.holder(named, key)  # the queue of another site is refused, not unknown
    return Change.UNKNOWN


def _change(call: str, act: Cancel | Move, job: JobRef | UUID | str | None, key: str | None, queue: str | None, later: bool) -> Change:
    if key is not None:
        id, name, own = None, lookup.keyed(key, queue, job), key
    else:
        id, named = lookup.target(job, queue)
        name, own = named or "", job.key if isinstance(job, JobRef) else ""
    if later and commit_requests.has_transaction(call):
        return commit_requests.keep_for_commit(act, id, name, own)
    if not later:
        warn_immediate(call, id, name, own)
    return changes.of_key(act, name, own) if id is None else changes.one(act, id, name or None)


def mark_succeeded(
    job: JobRef | UUID | str | None = None, *, key: str | None = None, queue: str | None = None, actor: str = "", reason: str = ""
) -> Change:
    """Ends an unresolved job as succeeded, since a person knows that it did its work. `conflict`: it is not unresolved. No signal is
    sent. The job of `then` is scheduled. By job, by id, or by `key` and `queue`: the latest job of that key.
    """
    return _change_latest(Mark(actor, reason, State.SUCCEEDED), job, key, queue)


def mark_failed(
    job: JobRef | UUID | str | None = None, *, key: str | None = None, queue: str | None = None, actor: str = "", reason: str = ""
) -> Change:
    """The same as failed, since it did not do its work. It may be requeued later."""
    return _change_latest(Mark(actor, reason, State.FAILED), job, key, queue)


@dataclass
class Mark(JobChange):
    """Ends unresolved jobs in that state. Redis is not asked."""

    state: State

    def decided(self, row: StoredJob) -> Change | None:
        return None

    def carry_out(self, store: QueueStore, targets: Sequence[ChangeTarget], answers: dict[UUID, Answer]) -> None:
        jobs = [target.id for target in targets]
        done = outbox.jobs.resolve(store.queue, store.partition, jobs, self.state, self.actor, self.reason)
        for id, _, row in targets:
            other = Change.UNKNOWN if row is None else Change.FINISHED if row.state in FINISHED else Change.CONFLICT
            answers[id] = Change.DONE if id in done else other


# The same for many jobs. Each function yields the answer for each job, in order, see `changes.each`.


def cancel_each(jobs: Iterable[ChangeTarget], *, abort: bool = False, actor: str = "", reason: str = "") -> Iterator[Answer]:
    return changes.each(Cancel(actor, reason, abort), jobs)


def reschedule_each(
    jobs: Iterable[ChangeTarget],
    *,
    delay: durations.Delay | None = None,
    run_at: datetime | None = None,
    actor: str = "",
    reason: str = "",
) -> Iterator[Answer]:
    return changes.each(Move(actor, reason, *date(delay, run_at, "reschedule()")), jobs)


def run_now_each(jobs: Iterable[ChangeTarget], *, actor: str = "", reason: str = "") -> Iterator[Answer]:
    return reschedule_each(jobs, delay=0, actor=actor, reason=reason)


def requeue_each(
    jobs: Iterable[ChangeTarget], *, actor: str = "", reason: str = "", ends: Mapping[UUID, str] = MappingProxyType({})
) -> Iterator[Answer]:
    """As `requeue_by_person`. `ends`: see `put_back.ends`."""
    return changes.each(Requeue(actor, reason, by_person=True, ends=ends), jobs)


def mark_succeeded_each(jobs: Iterable[ChangeTarget], *, actor: str = "", reason: str = "") -> Iterator[Answer]:
    return changes.each(Mark(actor, reason, State.SUCCEEDED), jobs)


def mark_failed_each(jobs: Iterable[ChangeTarget], *, actor: str = "", reason: str = "") -> Iterator[Answer]:
    return changes.each(Mark(actor, reason, State.FAILED), jobs)


def forget(
    job: JobRef | UUID | str | None = None,
    *,
    key: str | None = None,
    queue: str | None = None,
    force: bool = False,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Frees a key that a job has because of `once_for`, before its period ends. The next call with that key schedules a new job. You
    can pass `key` and `queue`, a job, or an id. The change is part of the open transaction.

    The result is `unknown` if no job has the key, and `running` if the job is running. A second job could then repeat the same work at
    the same time. With `force`, the key is freed nevertheless.

    Raises:
        ConfigError: `django_delayq` isn't in INSTALLED_APPS.
        StoreUnavailable: Redis can't be reached, so it is unknown whether the job is running. Only raised without `force`.
    """
    refuse_loop("delayq.aforget(…)")
    check_words("forget()", actor, reason)
    outbox.check_installed()
    if key is not None:
        once = Once.of_job(lookup.keyed(key, queue, job), key)
        found = outbox.period_keys.find(once, stores.places.shared)
        taken = None if found is None else (once.digest, found.job)
    else:
        row = outbox.period_keys.of_job(lookup.target(job, queue)[0])
        taken = None if row is None or queue not in (None, row.queue) else (row.digest, row.job)
        queue = None if row is None else row.queue
    if taken is None or queue is None:
        return Change.UNKNOWN
    if not force:
        view = stores.view_of(taken[1], queue)
        if view is not None and view.state == "running":
            return Change.RUNNING
    return Change.DONE if outbox.period_keys.forget(*taken, queue, actor, reason) else Change.UNKNOWN


def forget_each(jobs: Iterable[ChangeTarget], *, force: bool = False, actor: str = "", reason: str = "") -> Iterator[Answer]:
    """As `forget`, for many jobs. Yields the answer for each job, in order."""
    for id, queue, _ in jobs:
        try:
            yield forget(id, queue=queue, force=force, actor=actor, reason=reason)
        except DelayqError as error:
            yield changes.for_caller(error)


acancel, areschedule, arun_now, arequeue = twin(cancel), twin(reschedule), twin(run_now), twin(requeue)
aforget = twin(forget)
