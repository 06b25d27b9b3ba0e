"""Jobs that a commit publishes, and the cancels of those jobs in the same transaction. With `DELAYQ["INLINE"]`, the commit runs
the jobs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import connections

from django_delayq import clock, conf, ids
from django_delayq.job_meta import SharedName
from django_delayq.producer import outbox
from django_delayq.producer.options import JobTemplate
from django_delayq.producer.outbox.shapes import Once
from django_delayq.states import Change
from django_delayq.store.scripts.record import ScheduleItem

PACKAGE: Final = "django_delayq"


def is_open(connection: Any) -> bool:
    """Whether the caller has an open transaction. In tests, the kit ignores the transactions that Django's TestCase opens."""
    return bool(connection.in_atomic_block)


class JobRef:
    """A reference to a job, made without a call to Redis or the database. `created`: False if another job has the key, and this
    object refers to that job; None while the transaction that decides it is open.
    """

    __slots__ = ("created", "due_ms", "id", "key", "queue", "task")

    def __init__(
        self,
        id: UUID,
        queue: str,
        task: str = "",
        key: str = "",
        due_ms: int | None = None,
        created: bool | None = None,
    ) -> None:
        self.id = id
        self.queue = queue
        self.task = task
        self.key = key
        self.due_ms = due_ms
        self.created = created

    def __repr__(self) -> str:
        return f"<Job {ids.short(self.id)} {self.task} on {self.queue}>"

    @property
    def short_id(self) -> str:
        """The id in its 22-character form, as shown in lists, logs and pages."""
        return ids.short(self.id)

    @property
    def run_at(self) -> datetime | None:
        """The date of the job, as far as this object knows it."""
        return None if self.due_ms is None else clock.from_ms(self.due_ms)


class Plan(ScheduleItem):
    """A job that has passed every check: the record for its row and for Redis, its date and its policy.

    Args:
        job: the `Job` that the caller gets. The plan takes its date from it, unless there is a delay.
        delay_ms: counts from now.

    `shared_name`: the concurrency name, of which a limited number of jobs runs at a time; `started`: when the delay began
    (monotonic); `epoch`: the epoch of the queue, as it was known then; `withdrawn`: the same transaction has cancelled the job;
    `once`: the key that schedules one job per period; `ran`: under INLINE, it has succeeded.

    Raises:
        PayloadError: the record cannot hold the key, or the expiry.
    """

    __slots__ = ("epoch", "job", "once", "partition", "ran", "shared_name", "started", "template", "withdrawn")

    # Not the __init__ of the dataclass: one plan is made per job, and most values come from the checked template.
    def __init__(self, template: JobTemplate, job: Any, payload: bytes, expires_ms: int, delay_ms: int | None) -> None:
        self.template, self.job = template, job
        self.id, self.task, self.queue, self.key = job.id, job.task, job.queue, job.key
        self.band, self.durable, self.max_attempts = template.band, template.durable, template.max_attempts
        self.on_conflict, self.priority = template.on_conflict, template.priority
        self.payload = payload
        self.then: Plan | None = None
        self.batch: UUID | None = None
        self.expires_ms = expires_ms
        self.delay_ms = delay_ms
        self.due_ms = job.due_ms if delay_ms is None else None
        self.started = clock.monotonic()
        self.epoch = ""
        # From this id: the job may later point to another job.
        self.partition = ids.partition(job.id) if template.divided else 0
        self.shared_name: SharedName | None = None
        self.once: Once | None = None
        self.withdrawn = self.ran = False
        if expires_ms or self.key != "":
            self.__post_init__()
        else:
            self._line = template.line

    def left_ms(self, now: float) -> int | None:
        """The rest of the delay. So the duration of the transaction does not lengthen the delay."""
        if self.delay_ms is None:
            return None
        left = self.delay_ms - int((now - self.started) * 1000)
        return left if left > 0 else 0

    def told_name(self) -> str:
        """The shared name as its task made it, so that the payload need not be decoded for it."""
        return self.shared_name.told() if self.shared_name else ""

    def redate(self, delay_ms: int | None, due_ms: int, started: float) -> None:
        """Sets another date. A delay counts from `started`."""
        self.delay_ms, self.due_ms, self.started = delay_ms, due_ms if delay_ms is None else None, started
        self.job.due_ms = due_ms


class Publication:
    """The commit hook of jobs that are published together."""

    def __init__(self, plans: Sequence[Plan], publish: Callable[[list[Plan]], None]) -> None:
        self.plans = plans
        self._publish = publish
        self.__qualname__ = "Publication"  # by which Django logs a robust hook

    def __call__(self) -> None:
        plans = [plan for plan in self.plans if not plan.withdrawn]
        if plans:
            self._publish(plans)


class Withdrawal:
    """A hook that runs before the publication: its job is not published."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __call__(self) -> None:
        self.plan.withdrawn = True


class Pending:
    """A job of the open transaction. A change of the job is part of that transaction, and a rollback to an earlier savepoint undoes
    it.
    """

    def __init__(self, plan: Plan, connection: Any, publication: Publication) -> None:
        self._plan = plan
        self._connection = connection
        self._publication = publication

    @classmethod
    def find(cls, job: UUID) -> Pending | None:
        """The job, if an open transaction will publish it."""
        return cls.among({job}).get(job)

    @classmethod
    def among(cls, jobs: Collection[UUID]) -> dict[UUID, Pending]:
        """Those of these jobs that open transactions will publish."""
        among = {}
        for found in cls._all():
            if found._plan.id in jobs:
                among[found._plan.id] = found
        return among

    @classmethod
    def keyed(cls, queue: str, key: str) -> list[UUID]:
        """The jobs of that key that open transactions will publish."""
        keyed = []
        for found in cls._all():
            if found._plan.key == key and found._plan.queue == queue and not found.withdrawn:
                keyed.append(found._plan.id)
        return keyed

    @classmethod
    def _all(cls) -> Iterator[Pending]:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                for hook in _hooks(connection):
                    if isinstance(hook, Publication):
                        yield from (cls(plan, connection, hook) for plan in hook.plans)

    @property
    def withdrawn(self) -> bool:
        """Whether the open transaction has cancelled it, and has not rolled the cancel back."""
        hooks = _hooks(self._connection)
        return any(isinstance(hook, Withdrawal) and hook.plan is self._plan for hook in hooks)

    def cancel(self, actor: str, reason: str) -> Change:
        """Cancels the job before it is published."""
        plan = self._plan
        if not self.withdrawn:
            if plan.durable:
                outbox.jobs.withdraw(plan.id, actor, reason)
            self._before_publication(Withdrawal(plan))
        return Change.DONE

    def reschedule(self, delay_ms: int | None, due_ms: int, actor: str, reason: str) -> Change:
        """Gives it another date."""
        if self.withdrawn:
            return Change.FINISHED
        plan = self._plan
        if plan.durable:
            outbox.jobs.move(plan.id, due_ms, delay_ms, actor, reason)
        self._before_publication(partial(plan.redate, delay_ms, due_ms, clock.monotonic()))
        return Change.DONE

    def _before_publication(self, change: Callable[[], None]) -> None:
        """Adds a hook before the publication, in the savepoint that is open now. Django drops the hook when that savepoint is rolled
        back.
        """
        hooks = self._connection.run_on_commit
        place = next(n for n, hook in enumerate(hooks) if hook[1] is self._publication)
        hooks.insert(place, (set(self._connection.savepoint_ids), change, False))


def warn_immediate(call: str, job: UUID | None, queue: str, key: str) -> None:
    """With DEBUG, warns about a change that acts at once although the caller's transaction may be rolled back: once per place. Calls by
    this package, as from the admin, are meant to act at once.
    """
    if not conf.is_debug() or not is_open(connections[conf.get().database]):
        return
    if Pending.keyed(queue, key) if job is None else Pending.find(job) is not None:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(f"{PACKAGE}.producer"):
        frame, level = frame.f_back, level + 1
    if frame.f_globals.get("__name__", "").split(".")[0] == PACKAGE:
        return
    said = (
        f"{call} takes effect immediately: a rollback of the open transaction does not undo it. "
        "Pass at_commit=True to make it part of the transaction."
    )
    warnings.warn(said, RuntimeWarning, stacklevel=level)


def _hooks(connection: Any) -> list[Any]:
    return [hook for _, hook, _ in connection.run_on_commit]


_run_now: Callable[[Plan], object] | None = None  # set by the app, since it imports the worker


def install_inline(run: Callable[[Plan], object]) -> None:
    """Sets the function that runs a job at once and raises the exceptions of its task."""
    global _run_now
    _run_now = run


def run_inline(plans: Sequence[Plan], *, after: Sequence[Plan] = (), always: bool = True) -> None:
    """Runs the jobs at the commit, in their order, whatever their dates. Without an open transaction, an exception stops the run and
    reaches the caller. At a commit, Django logs the exception, and the next hooks run: with a worker, the exception would not reach
    the commit either. `after`: jobs that have run by then; `always`: even if one of these failed.
    """
    for plan in plans:
        run = partial(_run_plans, after=after, always=always)
        connection = connections[plan.template.using]
        if is_open(connection):
            connection.on_commit(Publication([plan], run), robust=True)
        else:
            run([plan])


def _run_plans(plans: list[Plan], *, after: Sequence[Plan] = (), always: bool = True) -> None:
    assert _run_now is not None  # the app installs it, and settings need the app
    if not (always or all(plan.ran for plan in after)):
        return
    for plan in plans:
        plan.job.created = True
        try:
            _run_now(plan)
            plan.ran = True
            if plan.then is not None:
                _run_plans([plan.then])
        finally:
            if plan.once is not None and plan.once.after_end:
                outbox.period_keys.ended([plan.id])
