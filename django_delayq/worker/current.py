"""The job that runs here: `delayq.current()` and `delayq.once()` for its task. The package imports this module, so it loads little."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.exceptions import ConfigError, LeaseLost
from django_delayq.job_meta import NAMED, ONLY, in_meta
from django_delayq.states import CARRIED, NO_LIMIT
from django_delayq.store.scripts.queue import Kind, Outcome

if TYPE_CHECKING:
    from django_delayq.ladder import Ladder
    from django_delayq.store.scripts.record import ClaimedJob, Header
    from django_delayq.worker.lease_table import LeaseTable
    from django_delayq.worker.line import Line


class AnyTask(Protocol):
    """The attributes of a registered task that a worker uses."""

    name: str
    fn: Callable[..., Any]
    backoff: Any
    poll: Ladder | None
    timeout: float | None
    is_async: bool
    atomic: bool

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises PayloadError if the function cannot be called with them."""


class Run:
    """One claimed job in this process, with the results of the executor: each of its steps fills in its part.

    `row` and `turn`: the place of the job in `leases`. `claimed`: when it was claimed (monotonic seconds). `zero_ms`: the time of
    Redis' clock at monotonic 0. The clock of this host may be wrong, so it decides nothing. `poison`: the reason why it is set aside
    without a run: "poison-signature", "poison-record", "poison-task", "poison-arguments" or "poison-carriers". `header`, `args`,
    `kwargs` and `options` are set once the record has been read, `task` once it was found. `started`: when a consumer took the job
    (monotonic seconds). `current` is None until the run begins; then `timeout` (seconds, None for none) and `started_ms` (by Redis'
    clock) are set too. `cancel_token` has an item while the run may be interrupted, and is empty after the interruption, see
    `process/task_call.py`.
    """

    __slots__ = (
        "args",
        "cancel_token",
        "claimed",
        "current",
        "header",
        "job",
        "kwargs",
        "leases",
        "line",
        "options",
        "poison",
        "row",
        "started",
        "started_ms",
        "task",
        "timeout",
        "turn",
        "zero_ms",
    )

    header: Header
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    task: AnyTask
    timeout: float | None
    started_ms: int

    def __init__(self, job: ClaimedJob, line: Line, leases: LeaseTable, row: int, turn: int, claimed: float, zero_ms: float) -> None:
        self.job = job
        self.line = line
        self.leases = leases
        self.row = row
        self.turn = turn
        self.claimed = claimed
        self.zero_ms = zero_ms
        self.poison = ""
        self.started = claimed
        self.current: CurrentJob | None = None
        self.cancel_token: dict[str, int] | None = None

    @property
    def now_ms(self) -> int:
        """The current time by Redis' clock."""
        return int(self.zero_ms + clock.monotonic() * 1000)

    @property
    def late_ms(self) -> int:
        """The time between the date of the job and the start of this run, for figures: after a pause, it counts from the claim. It is
        never negative.
        """
        return max(0, int(self.started_ms - (self.zero_ms + self.claimed * 1000 if self.job.held else self.job.due_ms)))

    @property
    def interrupted(self) -> bool:
        """Whether the function of the task was interrupted, at any place."""
        return self.cancel_token is not None and not self.cancel_token

    def outcome(
        self, kind: Kind, detail: bytes = b"", delay_ms: int = 0, ran_ms: int = -1, error: BaseException | None = None, reason: str = ""
    ) -> Outcome:
        """The value that the job ends in."""
        job = self.job
        return Outcome(
            job.id, job.attempt, job.fence, kind, delay_ms, detail, ran_ms, self.late_ms if ran_ms >= 0 else 0, error, reason
        )


class CurrentJob:
    """The current run of a job, for its task."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def id(self) -> UUID:
        """The id of the job, which is the same for every run."""
        return ids.full(self._run.job.id)

    @property
    def short_id(self) -> str:
        """The id in its 22-character form, as shown in lists, logs and pages."""
        return self._run.job.id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._run.task.name

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self._run.job.queue

    @property
    def key(self) -> str:
        """The key of the job, or ""."""
        return self._run.header.key

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self._run.job.attempt

    @property
    def crashes(self) -> int:
        """How many earlier runs ended because the worker crashed."""
        return self._run.job.crashes

    @property
    def asked(self) -> int:
        """How many times the task has raised `NotYet` before this run."""
        return self._run.job.asks

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts, or 0 if there is no limit until the job expires."""
        most = self._run.header.max_attempts
        return 0 if most == NO_LIMIT else most

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job fails permanently if this attempt fails."""
        return self.attempt >= self._run.header.max_attempts

    @property
    def args(self) -> list[Any]:
        """A copy of the positional arguments."""
        return list(self._run.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        """A copy of the keyword arguments."""
        return dict(self._run.kwargs)

    @property
    def meta(self) -> dict[str, Any]:
        """A copy of the job's `meta`."""
        return {name: value for name, value in (self._run.options.get("meta") or {}).items() if name not in (CARRIED, NAMED, ONLY)}

    def propagated_context(self, name: str) -> Any:
        """Returns the value that the carrier with this name packed for the job, or None."""
        found = (self._run.options.get("meta") or {}).get(CARRIED)
        return found.get(name) if isinstance(found, dict) else None

    @property
    def nonce(self) -> str:
        """Text that identifies the claim. Jobs that were claimed together have the same value."""
        return self._run.job.fence

    @property
    def fence(self) -> str:
        """Text that is unique to this run."""
        return f"{self.nonce}/{self._run.job.id}"

    @property
    def name(self) -> str:
        """The concurrency name that the job holds, or ""."""
        found = in_meta(self._run.options.get("meta"))
        return found.text if found else ""

    @property
    def turn(self) -> int | None:
        """A number that increases each time a job gets the concurrency name. Another system can use it to reject writes of an older
        run. It is None if the job has no name.
        """
        return self._run.job.turn or None

    @property
    def worker(self) -> str:
        """The id of the worker."""
        return self._run.leases.worker

    @property
    def run_at(self) -> datetime:
        """When the job was due."""
        return clock.from_ms(self._run.job.due_ms)

    @property
    def now(self) -> datetime:
        """The current time according to Redis's clock. This host's clock may be wrong."""
        return clock.from_ms(self._run.now_ms)

    @property
    def started_at(self) -> datetime:
        """When this run started, according to Redis's clock."""
        return clock.from_ms(self._run.started_ms)

    @property
    def expires_at(self) -> datetime | None:
        """The date after which the job doesn't start again, or None."""
        expires_ms = self._run.header.expires_ms
        return clock.from_ms(expires_ms) if expires_ms else None

    @property
    def lateness(self) -> timedelta:
        """The time between `run_at` and the start of this run. It is never negative."""
        return timedelta(milliseconds=max(0, self._run.started_ms - self._run.job.due_ms))

    @property
    def time_left(self) -> float | None:
        """The seconds until the timeout of this run, or 0 if it has passed. None if there is no timeout."""
        run = self._run
        return None if run.timeout is None else max(0.0, run.started + run.timeout - clock.monotonic())

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancellation was requested. The task can stop early. If it fails, it isn't retried."""
        run = self._run
        return run.leases.is_cancelled(run.row, run.turn)

    @property
    def batch(self) -> Any:
        """The `JobBatch` of this job, to which the task can add members, or None."""
        return need_effects().batch(self.id, self.check_lease)

    def progress(self, done: int, total: int = 0) -> None:
        """Records the progress of the run as whole numbers: `done` out of `total`, or out of an unknown number if `total` is 0.

        Raises:
            LeaseLost: This run no longer owns the job, and another run may be in progress. Stop, and don't write anything.
        """
        self.check_lease()
        self._run.leases.progress(self._run.row, f"{int(done)}/{int(total)}")

    def check_lease(self) -> None:
        """Checks that this run still owns the job.

        Raises:
            LeaseLost: See `progress`.
        """
        run = self._run
        if run.leases.is_lost(run.row, run.turn):
            raise LeaseLost(
                f"job {self.short_id}: the lease of attempt {self.attempt} is lost, and another worker may be running the "
                "job. Stop here"
            )
        if not run.leases.is_at_work(run.row, run.turn):
            raise LeaseLost(f"job {self.short_id}: attempt {self.attempt} has ended, but its code is still running. Stop here")

    def __repr__(self) -> str:
        return f"<CurrentJob {self.task} {self.short_id} attempt {self.attempt}>"


CURRENT: Final[ContextVar[CurrentJob]] = ContextVar("django_delayq.current")


def current() -> CurrentJob:
    """Returns the job that is running in this thread or asyncio task.

    Raises:
        RuntimeError: No job is running here. A thread that a task starts has access to the job only if you run it in a copy of the
            task's context (`contextvars.copy_context().run`).
    """
    return running("delayq.current()")


def running(asked: str) -> CurrentJob:
    """Like `current`. `asked`: the function of the package that calls this; errors name it."""
    try:
        return CURRENT.get()
    except LookupError:
        raise RuntimeError(
            f"{asked} was called outside a running task. A task called as a plain function has no job: in a test, run it by "
            "perform(task, …) of django_delayq.testing. A thread started by a task needs contextvars.copy_context().run(...)."
        ) from None


class Effects(NamedTuple):
    """The database side, installed by the app. The worker itself knows no database.

    `run` calls a function in a transaction that also records that it is done, unless an earlier run recorded it. Returns its result.
    `once` opens a transaction that keeps its effects the first time only. Yields whether this is the first time. `batch` returns the
    batch of a job that runs here.
    """

    run: Callable[[CurrentJob, Callable[[], Any]], Any]
    once: Callable[[CurrentJob, str], AbstractContextManager[bool]]
    batch: Callable[[UUID, Callable[[], None]], Any]


_installed: Effects | None = None


def install_effects(effects: Effects | None) -> None:
    """Sets the database side of the worker; None removes it."""
    global _installed
    _installed = effects


def need_effects() -> Effects:
    """The database side.

    Raises:
        ConfigError: the app is not installed.
    """
    if _installed is None:
        raise ConfigError(
            'delayq.once() and current().batch require the database. Add "django_delayq" to INSTALLED_APPS, and run manage.py migrate.'
        )
    return _installed


def once(name: str) -> AbstractContextManager[bool]:
    """Protects a part of a task, so that its database writes take effect only once per job, no matter how often the job runs:

        with delayq.once("charge") as first:
            if first:
                Payment.objects.create(...)

    The block is a transaction on `DELAYQ["DATABASE"]`. The commit also records that the block is done. In a later run, `first` is
    False, and the writes in the block are rolled back. Effects outside the database, such as an email or a network call, aren't
    protected. Only cause them if `first` is True, and expect them to happen more than once.

    Raises:
        RuntimeError: No task is running here. See `current`.
        LeaseLost: At the end of the block, another worker has the job, or another run has completed this block in the meantime. The
            writes are rolled back. Don't catch this exception, and don't write anything else. The other run continues the job.
        ValueError: The name is empty or longer than 100 characters.
    """
    return need_effects().once(running("delayq.once()"), name)
