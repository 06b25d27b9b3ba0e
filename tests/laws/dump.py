"""All of one queue as plain values, read in one go: what the model is compared with, and what laws are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from django_delayq.job_meta import Quota, Rate, SharedName
from django_delayq.states import State
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.record import JobRecord

BANDS: Final = ("high", "normal", "low")
WAITING: Final = (*BANDS, "blocked")  # where jobs wait: for their date, for their name, or for the end of a pause
ZSETS: Final = (*WAITING, "opens", "rates", "leases", "failed", "finished")
HASHES: Final = (
    *("jobs", "runs", "cancels", "progress", "asks", "names", "offered", "firsts", "keys", "claims"),
    *("pauses", "limits", "meta"),
)
TEXTS: Final = ("holders", "waiters")  # zsets that are ordered by their members
HELD: Final = (*WAITING, *TEXTS, "leases", "runs", "cancels", "progress", "asks", "keys")  # empty when nothing goes on
BOOKKEEPING: Final = (
    "paused",
    "paused_by",
    "paused_why",
    "paused_until",
    "alive",
    "guard_from",
    "guard_until",
    "guard_since",
    "guard_next",
    "generation",
    "server",
    "run",
    "mirrored",
    "rolled",
    "restoring",
    "brought_back",
    "moved_to",
    "moved_at",
)

Dates = dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """A value of the hash `runs`, taken apart."""

    attempt: int
    crashes: int
    band: str
    fence: str
    past: str = ""


@dataclass(kw_only=True)
class Dump:
    """Ids are short ones, dates are ms. `meta` has only what a queue's behaviour depends on; `jobs` has the records' bytes."""

    jobs: dict[str, bytes] = field(default_factory=dict)
    high: Dates = field(default_factory=dict)
    normal: Dates = field(default_factory=dict)
    low: Dates = field(default_factory=dict)
    blocked: Dates = field(default_factory=dict)
    opens: Dates = field(default_factory=dict)
    rates: Dates = field(default_factory=dict)
    holders: list[bytes] = field(default_factory=list)
    waiters: list[bytes] = field(default_factory=list)
    leases: Dates = field(default_factory=dict)
    failed: Dates = field(default_factory=dict)
    finished: Dates = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    cancels: dict[str, str] = field(default_factory=dict)
    progress: dict[str, str] = field(default_factory=dict)
    asks: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    offered: dict[str, str] = field(default_factory=dict)
    firsts: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    pauses: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    def band(self, name: str) -> Dates:
        """One of the three bands, or what waits in a line: by the negative of its date while a pause or a rate holds it."""
        dates: Dates = getattr(self, name)
        return dates

    def shared(self, id: str) -> SharedName | None:
        """The concurrency name, the rate and the fair word of a job, see lines.lua."""
        if id not in self.names:
            return None
        most, _, _, text = self.names[id].split(":", 3)
        text, _, fair = text.partition("\3")
        name, _, rate = text.partition("\2")
        *pace, line = rate.split(":", 3)
        return SharedName(name, int(most), Rate(line, Quota(*map(int, pace))) if rate else None, fair)

    def due(self, id: str) -> float | None:
        """The date of a job that waits; None for any other. With a fair word, its place in its band can have the time of its turn."""
        place = next((abs(self.band(name)[id]) for name in WAITING if id in self.band(name)), None)
        if place is not None and "\3" in self.names.get(id, ""):
            return float(self.names[id].split(":", 3)[2])
        return place

    def state(self, id: str) -> State | str | None:
        """The job's state. "ended": a tombstone without the outcome; None: unknown."""
        if id in self.jobs:
            if id in self.leases:
                return State.RUNNING
            return State.FAILED if id in self.failed else State.SCHEDULED
        if id in self.finished:
            return {0.5: State.CANCELLED, 0.75: State.CANCELLED, 0.25: State.SUCCEEDED}.get(self.finished[id] % 1, "ended")
        return None

    def difference(self, other: Dump) -> list[str]:
        """The differences, one per key."""
        return [
            f"{name}: {getattr(self, name)} != {getattr(other, name)}"
            for name in (*ZSETS, *HASHES, *TEXTS)
            if getattr(self, name) != getattr(other, name)
        ]

    def renamed(self, name: Callable[[str], str]) -> Dump:
        """The same with other ids, without claims and bookkeeping."""
        by_id: dict[str, Any] = {
            part: {name(id): value for id, value in getattr(self, part).items()}
            for part in (*ZSETS, *HASHES[:8])
            if part not in ("opens", "rates")
        }
        return Dump(**by_id, keys={key: name(id) for key, id in self.keys.items()})


def read(link: Link, keys: Keys) -> Dump:
    """The queue as it is at one moment (inside MULTI, so that a running queue may be read as well)."""
    return read_with(link, keys)[0]


def read_with(link: Link, keys: Keys, *more: tuple[Any, ...]) -> tuple[Dump, list[Any]]:
    """The queue, and the replies to more commands, all of one moment."""
    commands: list[tuple[Any, ...]] = [("ZRANGE", keys[name], 0, -1, "WITHSCORES") for name in ZSETS]
    commands += [("HGETALL", keys[name]) for name in HASHES]
    commands += [("ZRANGE", keys[name], 0, -1) for name in TEXTS]
    replies = link.execute_many([("MULTI",), *commands, *more, ("EXEC",)])[-1]
    if isinstance(replies, Exception):
        raise replies
    dump, rest = Dump(), replies[len(commands) :]
    for name, flat in zip(ZSETS, replies, strict=False):
        setattr(dump, name, {id.decode(): float(score) for id, score in _pairs(flat)})
    for name, flat in zip(HASHES, replies[len(ZSETS) :], strict=False):
        setattr(dump, name, {field.decode(): value if name == "jobs" else value.decode() for field, value in _pairs(flat)})
    dump.holders, dump.waiters = replies[len(commands) - len(TEXTS) : len(commands)]
    dump.meta = {name: value for name, value in dump.meta.items() if name in BOOKKEEPING}
    return dump, rest


@lru_cache(4096)
def run_of(value: str) -> Run:
    """`attempt:crashes:band:nonce[:past]`, taken apart."""
    attempt, crashes, band, fence, *past = value.split(":")
    return Run(int(attempt), int(crashes), band, fence, *past)


@lru_cache(4096)
def record_of(raw: bytes) -> JobRecord:
    """A decoded record. Its ID is not part of it and stays 0."""
    return JobRecord.decode(UUID(int=0), raw)


def _pairs(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
