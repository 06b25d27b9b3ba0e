"""What the outbox gives and takes. No models here: this is loaded before the apps are."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Literal, NamedTuple
from uuid import UUID

from django_delayq.exceptions import DelayqError
from django_delayq.states import UNFINISHED, State
from django_delayq.store.scripts.record import JobRecord


class StoredJob(NamedTuple):
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


class RowUpdate(NamedTuple):
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
