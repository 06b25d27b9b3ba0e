"""Batches: jobs that are scheduled together, with one job that follows when all of them have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, Never
from uuid import UUID

from django.db import transaction

from django_delayq import conf, ids
from django_delayq.exceptions import ConfigError
from django_delayq.producer import acts, commit, lookup, outbox
from django_delayq.producer.async_api import refuse_loop
from django_delayq.producer.changes import ChangeTarget
from django_delayq.producer.commit import Plan
from django_delayq.producer.job import Job
from django_delayq.producer.lookup import check_words
from django_delayq.producer.options import OPTIONS
from django_delayq.producer.outbox import batches
from django_delayq.producer.schedule import Binding, Bound, follow_up, put_many
from django_delayq.states import Change
from django_delayq.store.scripts.record import validate_key

WHERE: Final = "batch()"
WAITS_FOR: Final = ("succeeded", "ended")
ASYNC: Final = "asgiref.sync.sync_to_async(…)"
made = False  # this process has made a batch
BatchState = Literal["running", "succeeded", "failed", "cancelled"]


class JobBatch:
    """A batch, identified by its id. `batch` and `get_batch` return it, and `current().batch` in the task of a member."""

    __slots__ = ("_adds", "id")

    def __init__(self, id: UUID, adds: Callable[[list[Plan]], object] | None = None) -> None:
        self.id = id
        self._adds = adds

    def __repr__(self) -> str:
        return f"<JobBatch {self.short_id}>"

    @property
    def short_id(self) -> str:
        """The id in its 22-character form, as shown on pages."""
        return ids.short(self.id)

    def schedule(self, task: Bound[Any, Any], *args: Any, **kwargs: Any) -> Job:
        """Schedules a member. It has the arguments and options of `delayq.schedule`."""
        given: Any = {name: kwargs.pop(name) for name in OPTIONS.keys() & kwargs.keys()}
        return self.schedule_many([task.using(**given).bind(*args, **kwargs)])[0]

    def schedule_many(self, bindings: Iterable[Binding], *given: Never) -> list[Job]:
        """Schedules members, see `delayq.schedule_many`. You can call it in the `with` block, and in the task of a member. If a job is
        merged into another one with the same key, it isn't a member.

        Raises:
            ConfigError: The batch can't get members here, or a job has redis durability.
            LeaseLost: The run of this member no longer owns its job.
            As `schedule`.
        """
        refuse_loop(ASYNC)
        if self._adds is None:
            raise ConfigError("Schedule members in the with block of batch(), or in the task of a member by current().batch.")
        return put_many(bindings, given, None, self._join)

    def _join(self, plans: list[Plan]) -> None:
        for plan in plans:
            if not (plan.durable or plan.template.inline):
                raise ConfigError(f"{plan.template.where}: a member of a batch requires durability='outbox'.")
            plan.batch = self.id
        if self._adds is not None:
            self._adds(plans)

    @property
    def counts(self) -> batches.Counts:
        """The number of members by state: `succeeded`, `failed`, `cancelled`, `left` and `total`. If the batch is over, these are the
        counts at its end.
        """
        return batches.counts([self._row()])[0]

    @property
    def state(self) -> BatchState:
        """The state: "running" until all members have ended. Then "succeeded" if all of them succeeded, "cancelled" if the batch was
        cancelled, or "failed".
        """
        row = self._row()
        return state_of(batches.counts([row])[0], cancelled=row.cancelled_at is not None)

    @property
    def then(self) -> Job | None:
        """The job that followed, or None if it isn't scheduled."""
        found = self._row().follow_up
        row = lookup.row_of(UUID(found)) if isinstance(found, str) else None
        return None if row is None else Job(row.record.id, row.queue, row.record.task, row.record.key)

    def cancel(self, *, abort: bool = False, actor: str = "", reason: str = "") -> Change:
        """Cancels all members that haven't ended, see `delayq.cancel`. The job of `then` isn't scheduled. A worker does this within
        seconds, and also cancels members that are added in the meantime. The change is part of the open transaction.

        The result is `pending`, or `finished` if the batch is over.
        """
        refuse_loop(ASYNC)
        check_words("batch.cancel()", actor, reason)
        return Change.PENDING if batches.cancel(self.id, actor, reason, aborts=abort) else Change.FINISHED

    def _row(self) -> Any:
        row = batches.find(self.id)
        if row is None:
            raise ConfigError(f"There is no batch {self.short_id}. Its transaction was rolled back, or its row was deleted.")
        return row


def state_of(counts: batches.Counts, *, cancelled: bool) -> BatchState:
    """The state of a batch."""
    if counts.left:
        return "running"
    if cancelled:
        return "cancelled"
    return "succeeded" if counts.succeeded == counts.total else "failed"


@contextmanager
def batch(then: Binding | None = None, *, key: str = "", when: Literal["succeeded", "ended"] = "succeeded") -> Iterator[JobBatch]:
    """Schedules jobs together, and another job when all of them have ended:

        with delayq.batch(then=report.using(delay="1m").bind(run_id), key=f"pay-run:{run_id}") as batch:
            batch.schedule_many(pay_out.bind(payout.pk) for payout in run.payouts.all())

    The block is one transaction on `DELAYQ["DATABASE"]`. If it raises an exception, nothing is scheduled.

    Args:
        then: The job to schedule, once. Its delay starts when the last member has ended.
        key: Text that identifies the batch until it is over, up to 200 characters.
        when: "succeeded" (when all members have succeeded) or "ended" (when all members have ended, whether or not they succeeded).

    Raises:
        KeyTaken: A batch with this key isn't over.
        ConfigError: `then` isn't a task with its arguments, or `django_delayq` isn't in INSTALLED_APPS.
        StoreUnavailable: Another open transaction has created a batch with this key more than two seconds ago.
        SynchronousOnlyOperation: The block was entered in async code.
    """
    global made
    refuse_loop(ASYNC)
    outbox.check_installed()
    validate_key(key)
    if when not in WAITS_FOR:
        raise ConfigError(f"{WHERE}: when={when!r} must be one of {', '.join(WAITS_FOR)}.")
    next_job = None if then is None else follow_up(then, WHERE)
    config, made = conf.get(), True
    plans: list[Plan] = []
    found = JobBatch(ids.new(), plans.extend if config.inline else lambda _: None)
    try:
        with transaction.atomic(using=config.database):
            if not config.inline:
                batches.create(found.id, key, when, next_job)
            yield found
            if config.inline and next_job is not None:
                commit.run_inline([next_job], after=plans, always=when == "ended")
    finally:
        found._adds = None


def get_batch(id: UUID | str | None = None, *, key: str = "") -> JobBatch | None:
    """Returns the batch with this id, or the latest batch with this key. Returns None if there is none.

    Raises:
        PayloadError: The id isn't valid.
    """
    refuse_loop(ASYNC)
    outbox.check_installed()
    row = batches.find(None if id is None else lookup.target(id, None)[0], key)
    return None if row is None else JobBatch(row.pk)


def of_member(job: UUID, check_lease: Callable[[], None]) -> JobBatch | None:
    """The batch of the job that runs here. None: it is no member."""
    found = batches.of_job(job)
    return None if found is None else JobBatch(found, lambda _: check_lease())


def cancel_members() -> bool:
    """Cancels members of cancelled batches, up to 200 of each. Returns whether there may be more.

    Raises:
        StoreUnavailable, DatabaseError: call again later.
    """
    more = False
    for row in batches.cancelled():
        left = [ChangeTarget(*one) for one in batches.to_cancel(row.pk)]
        answers = list(acts.cancel_each(left, abort=row.aborts, actor=row.cancelled_by, reason=row.cancelled_why))
        more = more or any(answer in (Change.DONE, Change.RUNNING) for answer in answers)
    return more
