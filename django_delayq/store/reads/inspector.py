"""Reads for people: depths, single jobs, the server. The worker does not import this module: what the engine decides, scripts
decide. Numbers of several keys are read in one write and may differ by what happens between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.exceptions import PayloadError
from django_delayq.setting_readers import OfferTarget
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.reads.queue_depth import QueueDepth, depth_commands, depth_of
from django_delayq.store.reads.reach import ONE, WHOLE, Partitions, Reach
from django_delayq.store.scripts import decode, loader, site
from django_delayq.store.scripts.queue import holder_of
from django_delayq.store.scripts.record import JobRecord

T = TypeVar("T")
INSPECTED: Final = 20  # values per job, see inspect.lua


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job in its present state in Redis. `state`: scheduled, running, failed, or finished (a tombstone: succeeded or cancelled).

    `date_ms`: by state, when it is due, its lease ends, it failed, or it finished. `asks`: how often it has raised NotYet. `name`:
    its concurrency name, of which `most` jobs run at a time; "" for none. `turn`: the number of the holder that the job is or was, 0
    before. `blocked`: it is due, and waits for its name. `name_holder`: the first of the jobs that hold the name. `paused`: the word
    whose pause holds the job, "" for none. `rate`: the name of its rate, "" for none; `token_ms`: when the next token of it comes, if
    the job waits for one, else 0. `fair`: its fair word, "" for none; `place`: how many jobs of the word come before it, with the one
    that has the turn; 0: it has the turn itself, or waits for something else. `stopped`: its queue is paused. `record` is None for a
    tombstone or an unreadable record.
    """

    id: UUID
    queue: str
    state: Literal["scheduled", "running", "failed", "finished"]
    date_ms: int
    now_ms: int
    attempt: int
    crashes: int
    asks: int
    name: str
    most: int
    turn: int
    blocked: bool
    name_holder: UUID | None
    paused: str
    rate: str
    token_ms: int
    fair: str
    place: int
    stopped: bool
    fence: str
    cancel_by: str
    aborts: bool
    progress: str
    record: JobRecord | None
    raw: bytes

    @property
    def is_paused(self) -> bool:
        """Whether a pause holds the job, or will hold it when it is due."""
        return self.stopped or self.paused != ""

    @property
    def is_held(self) -> bool:
        """Whether a pause, its rate or the turns of its fair word decide when the job starts. Then it is not shown as late."""
        return self.is_paused or self.token_ms > 0 or (self.place > 0 and self.date_ms <= self.now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The facts about a server for checks. `flavour`: redis or valkey. `version`: of that flavour. `skew`: its clock minus ours, in
    seconds, without the round trip. `policy` and `maxmemory` may be "" and 0 if CONFIG and INFO do not report them.
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
    """Reads the queues of one prefix. The numbers of a queue are summed over its partitions.

    Args:
        partitions: see `Partitions`.
        reach: if it leaves servers out, the results do not include their partitions.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, places: Places, *, prefix: str, partitions: Mapping[str, int] = ONE, reach: Reach = WHOLE) -> None:
        self._places = places
        self._reach = reach
        self.prefix = prefix
        self._parts = Partitions(prefix, partitions)

    def by_partition(self, queues: Sequence[str]) -> list[list[QueueDepth]]:
        """For each queue, in the given order, the counts of its partitions in their order; without those that `parts` leaves out."""
        found = self.parts(queues)
        return [[found[keys] for keys in self._parts.of(queue) if keys in found] for queue in queues]

    def parts(self, queues: Sequence[str]) -> dict[Keys, QueueDepth]:
        """The counts of the partitions of several queues, by their keys. It always needs two round trips per server."""
        return self._depths(self._parts.of_each(queues))

    def part(self, queue: str, partition: int) -> QueueDepth:
        """The counts of one partition, whether it is served or not."""
        keys = self._parts.at(queue, partition)
        return self._depths([keys])[keys]

    def _depths(self, parts: Sequence[Keys]) -> dict[Keys, QueueDepth]:
        found: dict[Keys, QueueDepth] = {}

        def look(link: Link, there: list[Keys]) -> None:
            now_ms = decode.time_ms(link.execute("TIME"))
            commands = [depth_commands(keys, now_ms) for keys in there]
            replies = iter(link.ask(*(command for of_one in commands for command in of_one)))
            for keys, of_one in zip(there, commands, strict=True):
                own = list(islice(replies, len(of_one)))
                site.check(keys.prefix, keys.queue, link.home, decode.text(own[-1][-1]))
                found[keys] = depth_of(keys.queue, now_ms, own)

        self._reach.each(self._places, parts, look)
        return {keys: found[keys] for keys in parts if keys in found}

    def jobs(self, queue: str, jobs: Sequence[UUID]) -> list[JobView | None]:
        """The jobs with these ids, at most 200; None for a job that Redis does not know."""
        return self._inspected(queue, jobs, _view)

    def nowhere(self, queue: str, jobs: Sequence[UUID]) -> list[UUID]:
        """The jobs among these, at most 200, that have a record and no place, see nowhere.lua."""
        return [job for job, is_nowhere in zip(jobs, self._inspected(queue, jobs, _is_nowhere), strict=True) if is_nowhere]

    def _inspected(self, queue: str, jobs: Sequence[UUID], read: Callable[[UUID, str, int, Sequence[bytes]], T]) -> list[T | None]:
        numbers: dict[Keys, list[int]] = {}
        for number, job in enumerate(jobs):
            numbers.setdefault(self._parts.with_job(queue, job), []).append(number)
        found: list[T | None] = [None] * len(jobs)

        def look(_link: Link, there: list[Keys]) -> None:
            for keys in there:
                those = numbers[keys]
                wanted = [ids.short(jobs[number]) for number in those]
                reply = loader.run(self._link(keys), loader.load("inspect", keys), keys, "", "", "", *wanted)
                now_ms = int(reply[0])
                for n, number in enumerate(those):
                    found[number] = read(jobs[number], queue, now_ms, reply[1 + n * INSPECTED : 1 + (n + 1) * INSPECTED])

        self._reach.each(self._places, numbers, look)
        return found

    def leased(self, queues: Sequence[str], most: int) -> list[UUID]:
        """The jobs of these queues that are under a lease: at most `most` of each partition, those whose leases end first."""
        return self._first(queues, "leases", most)

    def job(self, queue: str, job: UUID) -> JobView | None:
        """The job with this id; None if Redis does not know it."""
        return self.jobs(queue, [job])[0]

    def blocked(self, queues: Sequence[str], most: int) -> list[UUID]:
        """The due jobs of these queues that wait for their name: at most `most` of each partition, in the order of the names."""
        found: list[UUID] = []

        def look(link: Link, there: list[Keys]) -> None:
            replies = link.ask(*(("ZRANGE", keys["waiters"], "[ ", "+", "BYLEX", "LIMIT", 0, most) for keys in there))
            members = (member.rpartition(b"\0")[2] for found in replies for member in found)
            found.extend(id for member in members if (id := decode.job_id(member)) is not None)

        self._reach.each(self._places, self._parts.of_each(queues), look)
        return found

    def _first(self, queues: Sequence[str], key: str, most: int) -> list[UUID]:
        found: list[UUID] = []

        def look(link: Link, there: list[Keys]) -> None:
            replies = link.ask(*(("ZRANGEBYSCORE", keys[key], 0, "+inf", "LIMIT", 0, most) for keys in there))
            found.extend(id for members in replies for member in members if (id := decode.job_id(member)) is not None)

        self._reach.each(self._places, self._parts.of_each(queues), look)
        return found

    def records(self, queue: str) -> Iterator[list[tuple[str, bytes]]]:
        """All records of a queue, in batches of about 200, as (short id, record), in no order. A record may come twice. A record that
        is added meanwhile may be missing. Entries without a job id are skipped.
        """
        for keys in self._parts.of(queue):
            for flat in self._scanned(keys, "jobs"):
                named = ((name.decode("ascii", "replace"), record) for name, record in zip(flat[::2], flat[1::2], strict=True))
                yield [(name, record) for name, record in named if decode.job_id(name) is not None]

    def _scanned(self, keys: Keys, key: str, count: int = 200) -> Iterator[list[bytes]]:
        link, cursor = self._link(keys), b"0"
        while True:
            cursor, flat = link.execute("HSCAN", keys[key], cursor, "COUNT", count)
            yield flat
            if cursor == b"0":
                return

    def names(self, queue: str, partition: int, name: str, *, failed: bool) -> bool:
        """Whether an unfinished job of a partition has that concurrency name, or that rate. With `failed`, failed jobs that Redis still
        has also count. It reads the names of all jobs that have one.
        """
        wanted, keys = name.encode(), self._parts.at(queue, partition)
        for flat in self._scanned(keys, "names", 1000):
            bear = [id for id, value in zip(flat[::2], flat[1::2], strict=True) if wanted in _texts(value)]
            if (bear and failed) or any(self._link(keys).execute("ZSCORE", keys["failed"], id) is None for id in bear):
                return True
        return False

    def find(self, queue: str, key: str) -> UUID | None:
        """The id of the unfinished job that holds the business key, in any partition.

        Raises:
            SiteRefused: a partition belongs to another site.
        """
        return next((id for keys in self._parts.of(queue) if (id := holder_of(self._link(keys), keys, key)) is not None), None)

    def unread(self, queues: Sequence[str]) -> list[tuple[int, int]]:
        """For each of these queues, the number of events that the mirror has not folded yet, and the age of the oldest in ms by the
        clock of its server.
        """
        found: dict[str, tuple[int, int]] = dict.fromkeys(queues, (0, 0))

        def look(link: Link, there: list[Keys]) -> None:
            keys = [part["events"] for part in there]
            looks = (("XRANGE", key, "-", "+", "COUNT", 1) for key in keys)
            time, *replies = link.ask(("TIME",), *(("XLEN", key) for key in keys), *looks)
            now_ms = decode.time_ms(time)
            for part, length, first in zip(there, replies[: len(keys)], replies[len(keys) :], strict=True):
                date = decode.moment_ms(first[0][0].partition(b"-")[0]) if first else now_ms
                events, age = found[part.queue]
                found[part.queue] = (events + length, max(age, now_ms - date))

        self._reach.each(self._places, self._parts.of_each(queues), look)
        return [found[queue] for queue in queues]

    def _link(self, keys: Keys) -> Link:
        return self._places.of(keys.queue, keys.partition)

    def server(self, trips: int = 1, *, link: Link | None = None) -> ServerFacts:
        """Version, memory, persistence, eviction policy and clock of a server, by default the shared one. `trips`: the number of
        looks at the clock. The median counts, because one look may be slow by chance.
        """
        link = link or self._places.shared
        round_trip, skew = sorted(_trip(link) for _ in range(trips))[trips // 2]
        lines = link.execute("INFO").decode("utf-8", "replace").splitlines()
        facts: dict[str, str] = dict(line.split(":", 1) for line in lines if ":" in line)
        flavour = "valkey" if "valkey_version" in facts else "redis"
        version = facts.get(f"{flavour}_version", facts.get("redis_version", "0"))
        return ServerFacts(
            flavour=flavour,
            version=tuple(int(part) for part in version.split(".") if part.isdigit()),
            policy=facts.get("maxmemory_policy", ""),
            maxmemory=int(facts.get("maxmemory", 0)),
            used_memory=int(facts.get("used_memory", 0)),
            aof=facts.get("aof_enabled") == "1",
            rdb=_snapshots(link),
            role=facts.get("role", ""),
            skew=skew,
            round_trip=round_trip,
        )

    def targets(self, targets: Iterable[OfferTarget], *, link: Link | None = None) -> list[tuple[OfferTarget, str]]:
        """The fault of each target on a server, by default the shared one. "": offers work. "type": the key has another type.
        "rights": our user may not write. Nothing is changed: a list is trimmed to its present length.
        """
        link = link or self._places.shared
        found: list[tuple[OfferTarget, str]] = []
        for target in targets:
            looks: list[tuple[Any, ...]] = [("XLEN", target.key)]
            if target.kind == "list":
                looks = [("LLEN", target.key), ("LTRIM", target.key, 0, -1)]
            errors = [reply for reply in link.execute_many(looks) if isinstance(reply, StoreError)]
            wrong = any(error.reply.startswith("WRONGTYPE") for error in errors)
            found.append((target, "type" if wrong else "rights" if errors else ""))
        return found

    def may(self, *commands: tuple[str, ...], link: Link | None = None) -> list[tuple[str, ...]]:
        """The commands among these that a server, by default the shared one, would accept from our user. None of them is sent.
        Returns none if the user may not ask (a restricted one may not), or the server does not report it.
        """
        link = link or self._places.shared
        user = link.execute_many([("ACL", "WHOAMI")])[0]
        if isinstance(user, Exception):
            return []
        replies = link.execute_many([("ACL", "DRYRUN", user, *command) for command in commands])
        if any(isinstance(reply, Exception) for reply in replies):  # before Redis 7: the rules of the user, if they allow everything
            rules = link.execute_many([("ACL", "GETUSER", user)])[0]
            return list(commands) if isinstance(rules, list) and b"+@all" in rules else []
        return [command for command, reply in zip(commands, replies, strict=True) if reply == b"OK"]


def _trip(link: Link) -> tuple[float, float]:
    """The time of the round trip, and how far the clock of Redis is ahead, both in seconds."""
    before, started = clock.wall_ms(), clock.monotonic()
    seconds, micros = link.execute("TIME")
    took = clock.monotonic() - started
    return took, int(seconds) + int(micros) / 1e6 - (before / 1000 + took / 2)


def _snapshots(link: Link) -> bool:
    reply = link.execute_many([("CONFIG", "GET", "save")])[0]
    if isinstance(reply, Exception):
        return True  # a managed server hides CONFIG; we cannot claim that it has no persistence
    return len(reply) == 2 and bool(reply[1])


def _texts(value: bytes) -> tuple[bytes, bytes]:
    """The concurrency name and the rate of a value of `names`, see lines.lua."""
    name, _, rate = value.split(b":", 3)[-1].partition(b"\3")[0].partition(b"\2")
    return name, rate.split(b":", 3)[-1]


def _is_nowhere(job: UUID, _queue: str, _now_ms: int, values: Sequence[bytes]) -> bool:
    state, raw = values[0], values[8]
    if state != b"unknown" or not raw:
        return False
    try:
        JobRecord.decode(job, raw)
    except PayloadError:
        return False  # claim sets it aside
    return True


def _view(job: UUID, queue: str, now_ms: int, values: Sequence[bytes]) -> JobView | None:
    state, date, attempt, crashes, asks, fence, cancel_by, progress, raw, *limits = values
    name, most, turn, blocked, holder, paused, rate, token, fair, place, stopped = limits
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
        name=decode.text(name),
        most=decode.number(most),
        turn=decode.number(turn),
        blocked=blocked == b"1",
        name_holder=decode.job_id(holder) if holder else None,
        paused=decode.text(paused),
        rate=decode.text(rate),
        token_ms=decode.moment_ms(token),
        fair=decode.text(fair),
        place=decode.number(place),
        stopped=stopped == b"1",
        fence=decode.text(fence),
        cancel_by=decode.text(cancel_by).lstrip("\1"),
        aborts=cancel_by.startswith(b"\1"),  # see cancel.lua
        progress=progress.decode("utf-8", "replace"),
        record=record,
        raw=raw,
    )
