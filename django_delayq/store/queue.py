"""One partition of one queue: a method per script, in the order of a job's life. Arguments and replies are translated here and
nowhere else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

from django_delayq import ids
from django_delayq.job import ClaimedJob, JobRecord
from django_delayq.signing import Signer
from django_delayq.spread import bucket
from django_delayq.states import Change
from django_delayq.store import read, scripts, write
from django_delayq.store.connection import Link, StoreError
from django_delayq.store.keys import Keys

MOST: Final = 200  # jobs per script call
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

OnConflict = Literal["keep", "replace", "earliest", "latest", "error"]
ScheduleStatus = Literal["created", "again", "finished", "cancelled", "kept", "moved", "replaced", "taken", "running"]
STATUSES: Final[dict[bytes, ScheduleStatus]] = {status.encode(): status for status in get_args(ScheduleStatus)}
Outcome = Literal["ack", "retry", "snooze", "fail", "crash", "cancel"]
Extended = Literal["ok", "cancel", "lost", "gone"]
Settled = Literal["done", "already", "lost", "gone"]
Resigned = Literal["done", "changed", "gone"]


class ScheduleItem(NamedTuple):
    """A job to put in. Exactly one of `due_ms` (a date) and `delay_ms` (from Redis' now) is given."""

    record: JobRecord
    due_ms: int | None = None
    delay_ms: int | None = None
    on_conflict: OnConflict = "keep"


class ScheduleReply(NamedTuple):
    """What became of it. `id` is the job itself or the one that holds its key; `due_ms` the date of what was asked for;
    0 where it was in already, and has begun to run or has ended: what its date was, Redis does not keep.

    created, replaced: it is in. again: it was in already (a re-send). finished, cancelled: it has ended already. kept, moved, taken,
    running: another job holds the key, and this one was not created.
    """

    status: ScheduleStatus
    id: UUID
    due_ms: int

    @property
    def created(self) -> bool:
        """Whether the job itself is in the queue, or was."""
        return self.status in ("created", "again", "finished", "cancelled", "replaced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer to a claim. `wait_ms`: when to ask again; `more`: due jobs remain; `generation`: of the store's data; `server`: the
    run of the server that holds it ("" where INFO is not allowed).
    """

    jobs: list[ClaimedJob]
    wait_ms: float
    now_ms: int
    generation: str
    server: str
    more: bool
    paused: bool

    @property
    def ground(self) -> str:
        """What was claimed on. Another one later means that Redis was wiped, rolled back, restarted, or replaced."""
        return f"{self.generation}:{self.server}"


class SettleItem(NamedTuple):
    """How a run ended. `id` is short; `delay_ms` counts for retry and snooze; `detail` is JSON for the mirror, opaque here;
    `ran_ms`: how long it ran, below 0 if nobody knows.
    """

    id: str
    attempt: int
    fence: str
    outcome: Outcome
    delay_ms: int = 0
    detail: bytes = b""
    ran_ms: int = -1


@dataclass(frozen=True, slots=True)
class Tidied:
    """What one call of tidy dropped, and where to go on (`cursor` "0": done)."""

    tombstones: int
    failed: int
    cursor: str


class QueueStore:
    """The transitions of one partition. Every call is one script, atomic, and safe to repeat with the same arguments.

    Args:
        signer: signs every record that this store writes; None writes them unsigned.

    Every method takes `now_ms`, a time for tests to pass in; by default Redis' own clock counts. At most 200 jobs a call.

    Raises (all methods):
        StoreUnavailable: Redis cannot be reached or refuses for the time being.
        StoreError: it answered with another error.
    """

    def __init__(
        self, link: Link, *, prefix: str, queue: str, partition: int = 0, signer: Signer | None = None
    ) -> None:
        self.link = link
        self.signer = signer
        self.queue = queue
        self.partition = partition
        self.keys = Keys.of(prefix, queue, partition)

    @property
    def offer(self) -> str:
        """The generation that a store without one gets: another with each call, for one that is wiped twice must not look the same."""
        return os.urandom(8).hex()

    def run(self, script: str, now_ms: int | None, by: str, why: str, *arguments: Any) -> Any:
        """A script on this partition, with its arguments as they are. Returns the raw reply."""
        return scripts.run(self.link, scripts.load(script), self.keys, *write.head(now_ms, by, why), *arguments)

    def written(self, record: JobRecord) -> bytes:
        """The record as this queue keeps it. No other function makes the bytes that go into Redis."""
        raw = record.encode()
        return raw if self.signer is None else self.signer.sign(raw, queue=self.queue, id=ids.short(record.id))

    def schedule(
        self,
        items: Sequence[ScheduleItem],
        *,
        actor: str = "",
        reason: str = "",
        max_events: int = 0,
        now_ms: int | None = None,
    ) -> list[ScheduleReply]:
        """Nothing -> scheduled. One reply per item, in order. `max_events` above 0 refuses (StoreError "EVENTSFULL") while
        the mirror is that many entries behind.
        """
        return self.start_schedule(items, actor=actor, reason=reason, max_events=max_events, now_ms=now_ms)()

    def start_schedule(
        self,
        items: Sequence[ScheduleItem],
        *,
        actor: str = "",
        reason: str = "",
        max_events: int = 0,
        now_ms: int | None = None,
    ) -> Callable[[], list[ScheduleReply]]:
        """As `schedule`, but only sends the call; returns a function that waits for the replies, to be called once."""
        bounded(items)
        arguments: list[Any] = [self.offer, max_events]
        for item in items:
            if (item.due_ms is None) == (item.delay_ms is None):
                raise ValueError(f"job {item.record.id}: give either due_ms or delay_ms")
            record = item.record
            arguments += (
                ids.short(record.id), self.written(record), item.on_conflict,
                "" if item.due_ms is None else item.due_ms, "" if item.delay_ms is None else item.delay_ms,
            )  # fmt: skip
        answer = scripts.start(
            self.link, scripts.load("schedule"), self.keys, *write.head(now_ms, actor, reason), *arguments
        )
        return lambda: _scheduled(items, arguments[2::5], answer())

    def claim(
        self,
        worker: str,
        nonce: str,
        *,
        want: int,
        lease_ms: int,
        max_crashes: int,
        ground: str = "",
        now_ms: int | None = None,
    ) -> Claim:
        """Scheduled and due, or lease run out -> running. Repeated with the same `worker` and `nonce` it gives the same jobs.
        `ground`: what the worker stands on; on another one it gets nothing.

        `want` 0 claims nothing and hands the timer over. `nonce` must be new for each new claim; letters and digits.
        """
        wanted = min(want, MOST)
        reply = self.run("claim", now_ms, worker, "", nonce, wanted, lease_ms, max_crashes, ground)
        queue, partition = self.queue, self.partition
        generation, server = read.text(reply[0]), read.text(reply[1])
        ground = f"{generation}:{server}"
        jobs = [
            ClaimedJob(id.decode(), int(attempt), int(crashes), int(due), record, nonce, queue, partition, ground)
            for id, attempt, crashes, due, record in zip(*[iter(reply[6:])] * 5, strict=True)
        ]
        return Claim(
            jobs=jobs,
            generation=generation,
            server=server,
            now_ms=int(reply[2]),
            wait_ms=float(reply[3]),
            more=reply[4] == b"1",
            paused=reply[5] == b"1",
        )

    def extend(
        self,
        items: Sequence[tuple[str, str]],
        *,
        worker: str,
        lease_ms: int,
        progress: Mapping[str, str] | None = None,
        now_ms: int | None = None,
    ) -> dict[str, Extended]:
        """Running -> running, later lease, for pairs of short id and fence. `progress`: short id -> "done/total"."""
        bounded(items)
        done = progress or {}
        arguments = [value for id, fence in items for value in (id, fence, done.get(id, ""))]
        reply = self.run("extend", now_ms, worker, "", lease_ms, *arguments)
        return {id: answer.decode() for (id, _), answer in zip(items, reply, strict=True)}

    def settle(
        self, items: Sequence[SettleItem], *, worker: str, max_crashes: int, now_ms: int | None = None
    ) -> list[Settled]:
        """Running -> succeeded, scheduled, failed or cancelled. One answer per item, in order."""
        bounded(items)
        arguments: list[Any] = []
        for id, attempt, fence, outcome, delay_ms, detail, ran_ms in items:
            arguments += (id, attempt, fence, outcome, delay_ms, detail, bucket(ran_ms) if ran_ms >= 0 else b"")
        return [answer.decode() for answer in self.run("settle", now_ms, worker, "", max_crashes, *arguments)]

    def cancel(
        self,
        jobs: Sequence[UUID],
        *,
        actor: str = "",
        reason: str = "",
        tombstone: bool = False,
        now_ms: int | None = None,
    ) -> list[Change]:
        """Scheduled -> cancelled; a running job gets a request. `tombstone`: an unknown id counts as finished from now on,
        so that a publication under way cannot start it.
        """
        bounded(jobs)
        reply = self.run("cancel", now_ms, actor, reason, write.flag(tombstone), "", *map(ids.short, jobs))
        return [Change(status.decode()) for status in reply[1::2]]

    def cancel_one(
        self,
        job: UUID | str,
        *,
        actor: str = "",
        reason: str = "",
        tombstone: bool = False,
        unless: str = "",
        now_ms: int | None = None,
    ) -> tuple[Change, UUID | None, str]:
        """As `cancel`. `job`: an id, or the business key as text. Returns change, id, and the ground on which it happened (see
        `Claim.ground`); `unless`: on that ground nothing is done, and the change is `unknown`.
        """
        ground, *found = self.run("cancel", now_ms, actor, reason, write.flag(tombstone), unless, write.target(job))
        status, id = found or (b"unknown", b"")
        return Change(status.decode()), _id(id), read.text(ground)

    def reschedule(
        self,
        job: UUID | str,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        actor: str = "",
        reason: str = "",
        now_ms: int | None = None,
    ) -> tuple[Change, UUID | None, int]:
        """Scheduled -> scheduled at another date. `job`: an id, or the business key as text. Returns change, id, new due ms."""
        status, id, due = self.run(
            "reschedule", now_ms, actor, reason, "" if due_ms is None else due_ms, delay_ms or 0, write.target(job)
        )
        return Change(status.decode()), _id(id), int(due)

    def requeue(
        self,
        job: UUID,
        record: JobRecord | None = None,
        *,
        vouched: bool = True,
        due_ms: int | None = None,
        delay_ms: int = 0,
        actor: str = "",
        reason: str = "",
        now_ms: int | None = None,
    ) -> tuple[Change, UUID]:
        """Failed or cancelled -> scheduled, with a fresh ladder. `record`: for a job that Redis has forgotten; `vouched`:
        the caller knows that it failed or was cancelled, else Redis must still know of its cancel. Returns the change, and the
        job or the holder of its key (conflict).
        """
        given = self.written(record) if record else b""
        status, holder, _ = self.run(
            "requeue",
            now_ms,
            actor,
            reason,
            "" if due_ms is None else due_ms,
            delay_ms,
            ids.short(job),
            given,
            "1" if vouched else "",
        )
        return Change(status.decode()), ids.full(holder.decode())

    def pause(self, *, actor: str = "", reason: str = "", now_ms: int | None = None) -> bool:
        """No job is claimed until `resume`; running ones go on. False when the queue was paused already."""
        return bool(self.run("pause", now_ms, actor, reason, "1"))

    def resume(self, *, actor: str = "", reason: str = "", now_ms: int | None = None) -> bool:
        """Jobs are claimed again. False when the queue was not paused."""
        return bool(self.run("pause", now_ms, actor, reason, "0"))

    def purge(
        self, *, limit: int = MOST, actor: str = "", reason: str = "", now_ms: int | None = None
    ) -> tuple[int, int]:
        """Cancels scheduled jobs, at most `limit` (up to 200). Returns how many, and how many are left."""
        cancelled, left = self.run("purge", now_ms, actor, reason, min(limit, MOST))
        return int(cancelled), int(left)

    def resign(self, items: Sequence[tuple[str, bytes]]) -> list[Resigned]:
        """Gives records another signature: pairs of short id and record as it was read. Nothing is done about one that has
        changed since. Needs a signer.
        """
        bounded(items)
        if self.signer is None:
            raise ValueError("a store without a signer cannot sign")
        arguments: list[Any] = []
        for id, record in items:
            read_as = hashlib.sha1(record, usedforsecurity=False).hexdigest()
            arguments += (id, read_as, self.signer.sign(record, queue=self.queue, id=id))
        return [answer.decode() for answer in self.run("resign", None, "", "", *arguments)]

    def tidy(
        self,
        *,
        tombstones_ms: int = HOUR_MS,
        failed_before_ms: int | None = None,
        stats_minutes: int = 8 * 24 * 60,
        claims_ms: int = DAY_MS,
        cursor: str = "0",
        now_ms: int | None = None,
    ) -> Tidied:
        """Drops old tombstones, counters and claims, and failed records that the caller knows to be in the database. Tombstones of
        what the mirror has not heard of stay, also when the clock was put on: nothing else tells that these jobs have ended.
        """
        if now_ms is None:
            unread_ms = self._unread_ms()
            tombstones_ms = tombstones_ms if unread_ms is None else max(tombstones_ms, unread_ms)
        failed = "" if failed_before_ms is None else failed_before_ms
        tombstones, dropped, next_cursor = self.run(
            "tidy", now_ms, "", "", tombstones_ms, failed, stats_minutes, claims_ms, cursor
        )
        return Tidied(int(tombstones), int(dropped), next_cursor.decode())

    def _unread_ms(self) -> int | None:
        """How old the first event is that the mirror has not read, by Redis' clock, and a minute more, since time goes on until the
        tombstones are looked at; None without one.
        """
        time, first = self.link.execute_many([("TIME",), ("XRANGE", self.keys["events"], "-", "+", "COUNT", 1)])
        if isinstance(time, Exception) or isinstance(first, Exception) or not first:
            return None
        return max(0, int(time[0]) * 1000 + int(time[1]) // 1000 - int(first[0][0].partition(b"-")[0])) + MINUTE_MS


def _scheduled(items: Sequence[ScheduleItem], shorts: Sequence[str], reply: Sequence[bytes]) -> list[ScheduleReply]:
    return [
        # Mostly the job itself: its id need not be read again.
        ScheduleReply(STATUSES[status], item.record.id if given == holder else ids.full(holder), int(due))
        for item, given, status, holder, due in zip(
            items, shorts, reply[::3], map(bytes.decode, reply[1::3]), reply[2::3], strict=True
        )
    ]


def bounded(items: Sequence[Any]) -> None:
    if len(items) > MOST:
        raise StoreError(f"{len(items)} jobs in one call; a script takes at most {MOST}. Send them in several calls.")


def _id(short: bytes) -> UUID | None:
    return ids.full(short.decode()) if short else None
