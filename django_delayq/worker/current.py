"""The job that is running here: `delayq.current()` inside a task. Light, since the package imports it."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.exceptions import LeaseLost


class Grip(Protocol):
    """What ties a running job to the worker that holds it."""

    def progress(self, done: int, total: int) -> None:
        """Notes how far the job is; the supervisor passes it on within about a second."""

    def cancel_requested(self) -> bool:
        """Whether somebody asked to cancel the job while it runs."""

    def lost(self) -> bool:
        """Whether the lease is lost: another worker may run the job."""


class CurrentJob:
    """One run of one job, as its task sees it.

    `attempt` counts from 1; `crashes` are earlier runs whose worker vanished; `run_at` is when the job was due and
    `lateness` how much later the run began; `fence` is unique to this run; `key` is "" without a business key. `nonce` is that of the
    claim: all jobs that were claimed together have the same.
    """

    __slots__ = ("_due_ms", "_grip", "_short_id", "_started_ms", "attempt", "crashes", "key", "nonce", "queue", "task")

    def __init__(
        self,
        *,
        short_id: str,
        task: str,
        queue: str,
        key: str,
        attempt: int,
        crashes: int,
        nonce: str,
        due_ms: int,
        started_ms: int,
        grip: Grip,
    ) -> None:
        self._short_id = short_id
        self.task = task
        self.queue = queue
        self.key = key
        self.attempt = attempt
        self.crashes = crashes
        self.nonce = nonce
        self._due_ms = due_ms
        self._started_ms = started_ms
        self._grip = grip

    @property
    def id(self) -> UUID:
        """The job's id, the same in every run."""
        return ids.full(self._short_id)

    @property
    def fence(self) -> str:
        """Text that no other run of any job has."""
        return f"{self.nonce}/{self._short_id}"

    @property
    def run_at(self) -> datetime:
        """When the job was due."""
        return clock.from_ms(self._due_ms)

    @property
    def started_at(self) -> datetime:
        """When this run began."""
        return clock.from_ms(self._started_ms)

    @property
    def lateness(self) -> timedelta:
        """How long after `run_at` this run began, by this machine's clock; never negative."""
        return timedelta(milliseconds=max(0, self._started_ms - self._due_ms))

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked to cancel this job. The task may stop early; if it then fails, it is not retried."""
        return self._grip.cancel_requested()

    def progress(self, done: int, total: int = 0) -> None:
        """Shows how far the run is: `done` of `total` (0: unknown), whole numbers.

        Raises:
            LeaseLost: this run no longer owns its job, and another may be under way. Stop, and write nothing.
        """
        self.check_lease()
        self._grip.progress(int(done), int(total))

    def check_lease(self) -> None:
        """Does nothing while this run owns its job.

        Raises:
            LeaseLost: as for `progress`.
        """
        if self._grip.lost():
            raise LeaseLost(
                f"job {self.id}: the lease of attempt {self.attempt} is lost, and another worker may run the job; stop here"
            )

    def __repr__(self) -> str:
        return f"<CurrentJob {self.task} {self.id} attempt {self.attempt}>"


CURRENT: Final[ContextVar[CurrentJob]] = ContextVar("django_delayq.current")


def current() -> CurrentJob:
    """The job whose task is running in this thread or asyncio task.

    Raises:
        RuntimeError: no task of a worker is running here; also in threads that the task started itself, unless it ran
            them in a copy of its context (`contextvars.copy_context().run`).
    """
    return running("delayq.current()")


def running(asked: str) -> CurrentJob:
    """The same, `asked` by a function of the package that an error names."""
    try:
        return CURRENT.get()
    except LookupError:
        raise RuntimeError(
            f"{asked} was called outside a running task. A task called as a plain function has no job: in a test, run it by "
            "perform(task, …) of django_delayq.testing. A thread started by a task needs contextvars.copy_context().run(...)."
        ) from None
