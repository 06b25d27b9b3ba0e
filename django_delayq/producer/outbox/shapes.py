"""The parameters and results of the outbox. This module imports no models, because it is loaded before the apps are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from django_delayq import ids
from django_delayq.exceptions import DelayqError
from django_delayq.states import UNFINISHED, State
from django_delayq.store.scripts.record import JobRecord, ScheduleItem, band_of

STORED: Final = ("queue", "task", "key", "priority", "max_attempts", "expires_ms", "on_conflict", "due_ms", "delay_ms")


def packed(item: ScheduleItem) -> dict[str, Any]:
    """A job that is not scheduled yet, as JSON. `home`: its partition."""
    found = {name: getattr(item, name) for name in STORED}
    then = {} if item.then is None else {"then": packed(item.then)}
    return found | {"payload": item.payload.decode(), "home": ids.partition(item.id)} | then


def unpacked(found: Mapping[str, Any], seed: str, at_ms: int) -> ScheduleItem:
    """The job of `packed`. Its id is made of the seed and the time."""
    fields: dict[str, Any] = {name: found[name] for name in STORED}
    return ScheduleItem(
        id=ids.derived(seed, at_ms, found["home"]),
        payload=found["payload"].encode(),
        band=band_of(found["priority"]),
        then=unpacked(found["then"], seed, at_ms) if "then" in found else None,
        **fields,
    )


class StoredJob(NamedTuple):
    """A row as the producer needs it.

    `left_ms`: for a job with a delay, the time until its date by the database's clock; otherwise None. `published`: Redis has
    confirmed it. `seen`: the last event that the mirror has applied to it. `holder`: the job that it was merged into. `far`: Redis
    does not know it. `unresolved`: no event shows how the job ended, or whether it ran. `unfinished`: Redis must have it.
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
    far: bool
    unresolved: bool
    unfinished: bool

    @property
    def unpublished(self) -> bool:
        """Whether it must still be published."""
        return self.unfinished and self.state is State.SCHEDULED and not self.published

    @property
    def redis_only(self) -> bool:
        """Whether only Redis decides about it: the row of a job of redis durability that has not ended."""
        return self.state in UNFINISHED and not (self.record.durable or self.settled or self.unresolved)


class WaitingRow(NamedTuple):
    """A row that Redis has not confirmed. `unresolved`: it must not be published, and it holds its key. `requests`: whether there were
    any stored requests, of whatever job, if that was asked for.
    """

    id: UUID
    key: str
    unresolved: bool
    task: str
    requests: bool = False


class ChangeRequest(NamedTuple):
    """A change that a transaction carries out when it commits, stored as a row of that transaction. `job`, or `queue` and `key`, name
    the job. `delay_ms`: the requested delay; `left_ms`: the rest of it, by the database's clock. `at`: the time of the request, by
    the same clock. `id`: 0 before it is stored.
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
    """A change that Redis has made and answered, for the row.

    `event`: the stream id of the event that reports the change to the mirror, `item`: the place there, and `kind`: its kind.
    `run_at_ms`: the new date of a moved job. `proposed`: another call of `schedule` moved it; only the last such move is recorded.
    `abort`: the cancel request is an abort. `request`: the stored request that this change carries out, 0 for none; its row is
    deleted with this update.
    """

    event: str
    kind: str
    run_at_ms: int = 0
    actor: str = ""
    reason: str = ""
    proposed: bool = False
    abort: bool = False
    request: int = 0
    item: int = 0


class Once(NamedTuple):
    """A key that schedules one job per period, in milliseconds. `digest`: see `of`. `after_end`: the period begins when the job has
    succeeded or failed, not when it gets the key.
    """

    digest: str
    ms: int
    after_end: bool = False

    @classmethod
    def of(cls, scope: str, queue: str, key: str, ms: int) -> Once:
        """The key of a queue in a scope. Keys of two scopes never collide."""
        parts = (part.encode("utf-8", "surrogatepass") for part in (scope, queue, key))
        return cls(sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest(), ms)

    @classmethod
    def of_job(cls, queue: str, key: str, ms: int = 0) -> Once:
        """The key of a job with `once_for`. The scope is none that a token can have."""
        return cls.of("period:", queue, key, ms)._replace(after_end=True)


class WantedKey(NamedTuple):
    """A key, and the job that takes it."""

    once: Once
    job: UUID
    queue: str
    task: str


class TakenKey(NamedTuple):
    """The job that has the key of a period, its task, and for how many milliseconds it has had the key, by the database's clock.
    `until`: the end of the period; None: the job has not ended.
    """

    job: UUID
    task: str
    age_ms: float
    until: datetime | None


class AlreadyScheduled(DelayqError):
    """Another job has the key of the period. Nothing was written."""

    def __init__(self, job: UUID) -> None:
        super().__init__(f"the job {job} has the key of this period")
        self.job = job
