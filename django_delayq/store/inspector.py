"""Reads for people: depths, single jobs, the server. The worker does not import this module: what the engine decides, scripts
decide. Numbers of several keys are read in one write and may differ by what happens between two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.exceptions import PayloadError
from django_delayq.lanes import LANES
from django_delayq.record import JobRecord
from django_delayq.store import decode, scripts
from django_delayq.store.connection import Link, StoreError
from django_delayq.store.keys import Keys
from django_delayq.target import OfferTarget

MOST_BESIDE = 399  # items of an entry beside the first, as lua/include/untold.lua has it


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """How full a queue is. Times in ms since 1970 (0: none), `oldest_late_ms` and `events_late_ms` (the age of the
    oldest event that no mirror has folded) durations; `due` is part of `scheduled`; `untold`: of how many jobs `events` entries tell.
    """

    queue: str
    scheduled: int
    due: int
    running: int
    retrying: int
    failed: int
    oldest_late_ms: int
    next_due_ms: int
    paused_ms: int
    paused_by: str
    paused_reason: str
    events: int
    untold: int
    events_late_ms: int
    generation: str
    restoring: str

    @property
    def paused(self) -> bool:
        """Whether somebody has paused the queue."""
        return self.paused_ms > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as Redis knows it now. `state`: scheduled, running, failed, or finished (a tombstone: succeeded or cancelled).

    `date_ms`: due, lease end, failed at, finished at, by state. `asks`: how often it has
    asked, and heard "not yet". `record` is None for a tombstone or an unreadable record.
    """

    id: UUID
    queue: str
    state: Literal["scheduled", "running", "failed", "finished"]
    date_ms: int
    now_ms: int
    attempt: int
    crashes: int
    asks: int
    fence: str
    cancel_by: str
    aborts: bool
    progress: str
    record: JobRecord | None
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What matters about the server. `flavour`: redis or valkey; `version` of that flavour; `skew`: its clock minus ours, in
    seconds, without the round trip; `policy` and `maxmemory` may be "" and 0 where CONFIG and INFO do not tell.
    """

    flavour: str
    version: tuple[int, ...]
    policy: str
    maxmemory: int
    used_memory: int
    aof: bool
    rdb: bool
    role: str
    skew: float
    round_trip: float


class Inspector:
    """Looks into the queues of one prefix.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, link: Link, *, prefix: str) -> None:
        self._link = link
        self.prefix = prefix

    def depth(self, queue: str) -> QueueDepth:
        """The counts of one queue."""
        return self.depths([queue])[0]

    def depths(self, queues: Sequence[str]) -> list[QueueDepth]:
        """The counts of several queues, in two round trips however many they are."""
        now_ms = self._now_ms()
        commands = [_depth_commands(Keys(self.prefix, queue), now_ms) for queue in queues]
        replies = iter(self._ask(*(command for of_queue in commands for command in of_queue)))
        return [_depth(queue, now_ms, list(islice(replies, len(of_queue)))) for queue, of_queue in zip(queues, commands, strict=True)]

    def jobs(self, queue: str, jobs: Sequence[UUID]) -> list[JobView | None]:
        """The jobs of these ids, at most 200; None for one that Redis does not know."""
        keys = Keys(self.prefix, queue)
        reply = scripts.run(self._link, scripts.load("inspect"), keys, "", "", "", *map(ids.short, jobs))
        now_ms = int(reply[0])
        return [_view(job, queue, now_ms, reply[1 + n * 9 : 10 + n * 9]) for n, job in enumerate(jobs)]

    def job(self, queue: str, job: UUID) -> JobView | None:
        """The job of this id; None if Redis does not know it."""
        return self.jobs(queue, [job])[0]

    def records(self, queue: str) -> Iterator[list[tuple[str, bytes]]]:
        """All records of a queue, in batches of about 200, as (short id, record), in no order. One may come twice; one that is
        put in meanwhile may come or not. What is not called by an id is left out.
        """
        keys, cursor = Keys(self.prefix, queue), b"0"
        while True:
            cursor, flat = self._link.execute("HSCAN", keys["jobs"], cursor, "COUNT", 200)
            named = ((name.decode("ascii", "replace"), record) for name, record in zip(flat[::2], flat[1::2], strict=True))
            yield [(name, record) for name, record in named if decode.job_id(name) is not None]
            if cursor == b"0":
                return

    def find(self, queue: str, key: str) -> UUID | None:
        """The id of the unfinished job that holds the business key."""
        keys = Keys(self.prefix, queue)
        holder = self._link.execute("HGET", keys["keys"], key)
        id = None if holder is None else decode.job_id(holder)
        if id is None:
            return None
        try:  # as the scripts do: a job holds a key only if it says so itself
            return id if JobRecord.decode(id, self._link.execute("HGET", keys["jobs"], holder) or b"").key == key else None
        except PayloadError:
            return None

    def unread(self, queues: Sequence[str]) -> tuple[int, int]:
        """How many events of these queues the mirror has not folded yet, and the age of the oldest in ms by Redis' clock."""
        keys = [Keys(self.prefix, queue)["events"] for queue in queues]
        replies = self._ask(("TIME",), *(("XLEN", key) for key in keys), *(("XRANGE", key, "-", "+", "COUNT", 1) for key in keys))
        (seconds, micros), lengths, firsts = replies[0], replies[1 : 1 + len(keys)], replies[1 + len(keys) :]
        dates = [decode.moment_ms(first[0][0].partition(b"-")[0]) for first in firsts if first]
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return sum(lengths), max(0, now_ms - min(dates, default=now_ms))

    def server(self) -> ServerFacts:
        """Version, memory, persistence, eviction policy and clock of the server."""
        before, started = clock.wall_ms(), clock.monotonic()
        seconds, micros = self._link.execute("TIME")
        round_trip = clock.monotonic() - started
        facts = _info(self._link.execute("INFO"))
        flavour = "valkey" if "valkey_version" in facts else "redis"
        version = facts.get(f"{flavour}_version", facts.get("redis_version", "0"))
        skew = (int(seconds) + int(micros) / 1e6) - (before / 1000 + round_trip / 2)
        return ServerFacts(
            flavour=flavour,
            version=tuple(int(part) for part in version.split(".") if part.isdigit()),
            policy=facts.get("maxmemory_policy", ""),
            maxmemory=int(facts.get("maxmemory", 0)),
            used_memory=int(facts.get("used_memory", 0)),
            aof=facts.get("aof_enabled") == "1",
            rdb=self._snapshots(),
            role=facts.get("role", ""),
            skew=skew,
            round_trip=round_trip,
        )

    def targets(self, targets: Iterable[OfferTarget]) -> list[tuple[OfferTarget, str]]:
        """What stands in the way of offers to each: "" for nothing; "type", something else is there; "rights", our user may not.
        Nothing is changed: a list is cut to what it has.
        """
        found: list[tuple[OfferTarget, str]] = []
        for target in targets:
            looks: list[tuple[Any, ...]] = [("XLEN", target.key)]
            if target.kind == "list":
                looks = [("LLEN", target.key), ("LTRIM", target.key, 0, -1)]
            errors = [reply for reply in self._ask(*looks, strict=False) if isinstance(reply, StoreError)]
            wrong = any(error.reply.startswith("WRONGTYPE") for error in errors)
            found.append((target, "type" if wrong else "rights" if errors else ""))
        return found

    def may(self, *commands: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Which of these commands the server would let our user send; none is sent. None of them, too, where the user may not even ask
        (a narrow one may not), or the server does not tell.
        """
        user = self._ask(("ACL", "WHOAMI"), strict=False)[0]
        if isinstance(user, Exception):
            return []
        replies = self._ask(*(("ACL", "DRYRUN", user, *command) for command in commands), strict=False)
        if any(isinstance(reply, Exception) for reply in replies):  # before Redis 7: by the user's rules, if they say all
            rules = self._ask(("ACL", "GETUSER", user), strict=False)[0]
            return list(commands) if isinstance(rules, list) and b"+@all" in rules else []
        return [command for command, reply in zip(commands, replies, strict=True) if reply == b"OK"]

    def _snapshots(self) -> bool:
        reply = self._ask(("CONFIG", "GET", "save"), strict=False)[0]
        if isinstance(reply, Exception):
            return True  # a managed server hides CONFIG; it is not for us to call it without persistence
        return len(reply) == 2 and bool(reply[1])

    def _now_ms(self) -> int:
        seconds, micros = self._link.execute("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def _ask(self, *commands: tuple[Any, ...], strict: bool = True) -> list[Any]:
        replies = self._link.execute_many(commands)
        for reply in replies:
            if strict and isinstance(reply, Exception):
                raise reply
        return replies


def _depth_commands(keys: Keys, now_ms: int) -> list[tuple[Any, ...]]:
    return [
        *(("ZCARD", keys[lane]) for lane in LANES),
        *(("ZCOUNT", keys[lane], "-inf", now_ms) for lane in LANES),
        *(("ZRANGE", keys[lane], 0, 0, "WITHSCORES") for lane in LANES),
        ("ZCARD", keys["leases"]),
        ("HLEN", keys["runs"]),
        ("HLEN", keys["asks"]),
        ("ZCARD", keys["failed"]),
        ("XLEN", keys["events"]),
        ("XRANGE", keys["events"], "-", "+", "COUNT", 1),
        ("HMGET", keys["meta"], "paused", "paused_by", "paused_why", "generation", "restoring", "surplus"),
    ]


def _depth(queue: str, now_ms: int, replies: Sequence[Any]) -> QueueDepth:
    dates = [decode.moment_ms(first[1]) for first in replies[6:9] if first]
    running, runs, asks, failed, events, oldest, meta = replies[9:]  # oldest: [[id, [b"at", ms, …]]]
    first = min(dates, default=0)
    paused, by, why, generation, restoring, surplus = ((value or b"").decode("utf-8", "replace") for value in meta)
    return QueueDepth(
        queue=queue,
        scheduled=sum(replies[0:3]),
        due=sum(replies[3:6]),
        running=running,
        retrying=max(0, runs - running - asks),  # who has asked has not failed; of those that did both, too few are told
        failed=failed,
        oldest_late_ms=max(0, now_ms - first) if first else 0,
        next_due_ms=first,
        paused_ms=decode.moment_ms(paused) or int(bool(paused)),
        paused_by=by,
        paused_reason=why,
        events=events,
        untold=events + min(decode.number(surplus), events * MOST_BESIDE),
        events_late_ms=max(0, now_ms - decode.moment_ms(oldest[0][1][1])) if oldest else 0,
        generation=generation,
        restoring=" of ".join(restoring.split(" ")[-2:]),
    )


def _info(raw: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in raw.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


def _view(job: UUID, queue: str, now_ms: int, values: Sequence[bytes]) -> JobView | None:
    state, date, attempt, crashes, asks, fence, cancel_by, progress, raw = values
    if state == b"unknown":
        return None
    try:
        record = JobRecord.decode(job, raw) if raw else None
    except PayloadError:
        record = None
    return JobView(
        id=job,
        queue=queue,
        state=state.decode(),  # type: ignore[arg-type]  # inspect.lua answers with these words only
        date_ms=decode.moment_ms(date),
        now_ms=now_ms,
        attempt=int(attempt),
        crashes=int(crashes),
        asks=int(asks),
        fence=decode.text(fence),
        cancel_by=decode.text(cancel_by).lstrip("\1"),
        aborts=cancel_by.startswith(b"\1"),  # see cancel.lua
        progress=progress.decode("utf-8", "replace"),
        record=record,
        raw=raw,
    )
