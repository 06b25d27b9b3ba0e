"""What the producer asks of the database, as a protocol: floor 2 knows no models. The mirror's package implements it, and the app
installs it when it is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

from django_delayq.exceptions import ConfigError, DelayqError
from django_delayq.states import UNFINISHED, EndingKind, State
from django_delayq.store.scripts.items import ScheduleItem, ScheduleReply
from django_delayq.store.scripts.record import JobRecord


class OutboxRow(NamedTuple):
    """A row as the producer needs it. `left_ms`: until its date, by the database's clock, where a delay was asked for; else None.
    `published`: Redis has confirmed it; `seen`: the last event that it has folded; `holder`: the job into which it was merged; `far`:
    Redis has never heard of it; `unresolved`: no event says how the job ended, or whether it ran.
    """

    record: JobRecord
    queue: str
    state: State
    run_at_ms: int
    left_ms: int | None
    on_conflict: str
    created_at: datetime
    attempts: int
    crashes: int
    asked: int
    published: bool
    settled: bool
    cancel_requested: bool
    seen: str
    ending: str
    holder: UUID | None
    far: bool = False
    unresolved: bool = False

    @property
    def unpublished(self) -> bool:
        """Whether it is to be published still."""
        return self.unfinished and self.state is State.SCHEDULED and not self.published

    @property
    def unfinished(self) -> bool:
        """Whether Redis must have it."""
        return self.state in UNFINISHED and self.record.durable and not (self.settled or self.far or self.unresolved)


class Ending(NamedTuple):
    """How far a row is, for who asks what came of its job. `error`: of its last attempt; `unpublished`: Redis has not confirmed it;
    `merged_into`: the job that took it in; `unresolved`: no event says how the job ended, or whether it ran.
    """

    state: State
    result: Any
    error: str
    attempts: int
    asked: int
    unpublished: bool
    merged_into: UUID | None
    unresolved: bool = False


class WaitingRow(NamedTuple):
    """A row that Redis has not confirmed. `unresolved`: it is not to be published, and holds its key."""

    id: UUID
    key: str
    unresolved: bool
    task: str


class ChangeRequest(NamedTuple):
    """A change that a transaction carries out when it commits, kept as a row of that transaction. `job`, or `queue` and `key`, name the
    job. `delay_ms`: the delay that was asked for; `left_ms`: what is left of it, by the database's clock. `at`: when it was asked for,
    by the same clock. `id`: 0 before it is kept.
    """

    job: UUID | None
    queue: str
    key: str
    verb: Literal["cancel", "reschedule"]
    abort: bool = False
    delay_ms: int | None = None
    due_ms: int = 0
    actor: str = ""
    reason: str = ""
    id: int = 0
    at: datetime | None = None
    left_ms: int | None = None


class Told(NamedTuple):
    """A change that Redis has made and answered, for the row: `event` is the stream id of what tells the mirror of it. `kind`: of that
    event; `run_at_ms`: its date, of one that was moved; `proposed`: another call of `schedule` moved it; the last time is noted.
    `abort`: the request is one to abort. `request`: the change at a commit that this carries out, 0 for none; its row goes with this.
    """

    event: str
    kind: str
    run_at_ms: int = 0
    actor: str = ""
    reason: str = ""
    proposed: bool = False
    abort: bool = False
    request: int = 0


class Requests(Protocol):
    """Changes that transactions carry out when they commit."""

    def keep_request(self, request: ChangeRequest, using: str) -> int:
        """Writes it in the caller's transaction. Returns its id."""

    def requests(self, using: str, **which: Any) -> list[ChangeRequest]:
        """Those that are kept, in their order. `which`: conditions on the columns, as Django's `filter` takes them."""

    def requests_of(self, queue: str, jobs: Collection[UUID], keys: Collection[str], using: str) -> list[ChangeRequest]:
        """Those that are about one of these jobs, or one of these keys of a queue."""

    def end_requests(self, requests: Collection[int], using: str) -> None:
        """They have been carried out, or a later call takes their place."""

    def spared(self, request: ChangeRequest, jobs: Collection[UUID], using: str, *, late: bool) -> set[UUID]:
        """Those of these jobs that the request leaves alone. A request by key leaves jobs that were scheduled after it. If it is
        carried out `late`, it also leaves jobs that were requeued since, and a new date leaves jobs that have another new date since.
        """


class Once(NamedTuple):
    """A key that schedules one job in a period of so many milliseconds. `digest`: see `of`."""

    digest: str
    ms: int

    @classmethod
    def of(cls, scope: str, queue: str, key: str, ms: int) -> Once:
        """The key of a queue in a scope: keys of two scopes never meet."""
        parts = (part.encode("utf-8", "surrogatepass") for part in (scope, queue, key))
        return cls(sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest(), ms)


class TakenKey(NamedTuple):
    """The job that has the key of a period, and since how many milliseconds, by the database's clock."""

    job: UUID
    age_ms: float


class AlreadyScheduled(DelayqError):
    """The key of a period has its job. Nothing was written."""

    def __init__(self, job: UUID) -> None:
        super().__init__(f"the job {job} has the key of this period")
        self.job = job


class FarRows(Protocol):
    """Rows that are far: the database alone has them. Each change asks in its own statement whether the row is still far, takes the
    lock on it, and writes its event row; all of it is part of the caller's transaction.

    Raises (what waits for another's lock):
        StoreUnavailable: it was held for two seconds.
    """

    def contest_far(self, item: ScheduleItem, horizon_ms: int, using: str, *, far: bool) -> ScheduleReply | None:
        """Applies the policy of an item with a key to the far row that holds it. None: no far row does (any more), and a `far` item was
        inserted. Else what schedule.lua would answer; "moved" with a date of 0: the holder is near by that, and is to be published.
        """

    def cancel_far(self, job: UUID, queue: str, actor: str, reason: str, using: str) -> bool:
        """Cancels a row that is far; False: it is not."""

    def move_far(
        self, job: UUID, queue: str, due_ms: int, delay_ms: int | None, horizon_ms: int, actor: str, reason: str, using: str
    ) -> Literal["", "far", "near"]:
        """Gives a row that is far another date. Returns what it is now; "": it was not far."""

    def bring_in(self, jobs: Sequence[UUID], using: str) -> list[UUID]:
        """Makes rows near, by their ids; nobody has published them then. Returns those that were far."""

    def bring_in_keys(self, queue: str, keys: Collection[str], using: str) -> bool:
        """The same of the far rows of these keys; whether there were any."""

    def far_of_key(self, queue: str, key: str, using: str) -> UUID | None:
        """The far row that holds a key, if Redis was asked whether another job does."""

    def checked(self, job: UUID, using: str) -> None:
        """Redis was asked."""

    def purge_far(self, queue: str, limit: int, actor: str, reason: str, using: str) -> int:
        """Cancels so many of the far rows of a queue. Returns how many."""


class Outbox(FarRows, Requests, Protocol):
    """The database side, installed by the mirror's package when the app is ready."""

    def add(self, items: Sequence[ScheduleItem], using: str, *, far: bool = False) -> None:
        """Inserts rows in the caller's transaction; far ones have no keys."""

    def rows(self, jobs: Sequence[UUID], using: str) -> list[OutboxRow]:
        """The rows of these jobs that can be read, oldest first by the database's clock."""

    def ending(self, job: UUID, using: str) -> Ending | None:
        """How far the row of a job is; None if there is none."""

    def keyed(self, queue: str, keys: Collection[str], using: str) -> list[tuple[UUID, str]]:
        """The durable rows of these keys that are not finished, whether published or not, each with its key, oldest first by the
        database's clock.
        """

    def waiting(self, queue: str, keys: Collection[str], using: str) -> list[WaitingRow]:
        """The rows of these keys that Redis has not confirmed, and the unresolved ones, oldest first by the database's clock."""

    def find_latest(self, queue: str, key: str, using: str) -> UUID | None:
        """The latest row of that key; not one that was merged into another job, since it never held the key."""

    def unpublished(self, queue: str, after: UUID | None, limit: int, using: str) -> list[UUID]:
        """Scheduled rows of a queue that Redis has not confirmed, behind the id `after`, by id."""

    def tell(self, row: OutboxRow, told: Told, using: str) -> bool:
        """Writes a change into the row, and its event beside it, unless the mirror was first. False: it has succeeded, of which Redis
        does not know, and the row ends with that.
        """

    def take_key(self, once: Once, job: UUID, using: str) -> UUID | None:
        """Takes the key of a period for a job, in the caller's transaction. Returns the job that has it, else None.

        Raises:
            StoreUnavailable: another transaction that takes it is open for two seconds.
        """

    def find_key(self, once: Once, using: str) -> TakenKey | None:
        """The job that has the key of a period."""

    def release_key(self, once: Once, job: UUID, using: str) -> None:
        """Gives the key of a period back: the job was refused."""

    def now_ms(self, using: str) -> int:
        """The database's clock."""

    def servers(self, queue: str, partition: int, using: str) -> list[str]:
        """The runs of servers that were confirmed to hold it, the last one first: nobody sees what another of them answers."""

    def end(self, ending: EndingKind, holders: Mapping[UUID, UUID | None], using: str) -> None:
        """Unpublished rows end: each merged into the job that holds its key, or replaced by it."""

    def withdraw(self, job: UUID, actor: str, reason: str, using: str) -> None:
        """Ends a row of the caller's transaction, in it."""

    def move(self, job: UUID, run_at_ms: int, delay_ms: int | None, actor: str, reason: str, using: str) -> None:
        """Gives a row of the caller's transaction another date, in it."""

    def resolve(self, job: UUID, state: State, actor: str, reason: str, using: str) -> bool:
        """Ends an unresolved row in that state, as a person has decided. False: it is not unresolved."""

    def note_requeue(self, job: UUID, queue: str, actor: str, reason: str, using: str) -> int:
        """Notes that a requeue is asked for, before Redis is. Returns what `forget_requeue` takes."""

    def forget_requeue(self, note: int, using: str) -> None:
        """Takes that note back: Redis has refused it."""

    def edit(
        self,
        job: UUID,
        args: list[Any],
        kwargs: dict[str, Any],
        options: dict[str, Any],
        act: Callable[[], bool],
        actor: str,
        reason: str,
        using: str,
    ) -> bool:
        """Gives a failed or cancelled row other arguments, and options, calls `act` while the row is locked, and takes it all back
        unless that answers True.
        """

    def note_pause(self, queue: str, partition: int, actor: str, reason: str, using: str, *, first: bool) -> None:
        """Notes that a partition of a queue was paused, by this call or (not `first`) before; without the database, nothing."""

    def forget_pause(self, queue: str, using: str) -> None:
        """Notes that a queue, all of it, goes on; without the database, nothing."""


_installed: Outbox | None = None


def install(outbox: Outbox | None) -> None:
    """Gives the producer its database side; None takes it away."""
    global _installed
    _installed = outbox


def installed() -> Outbox | None:
    """The database side, if there is one."""
    return _installed


def need() -> Outbox:
    """The database side.

    Raises:
        ConfigError: the app is not installed.
    """
    if _installed is None:
        raise ConfigError('The outbox is not installed. Add "django_delayq" to INSTALLED_APPS, and migrate.')
    return _installed
