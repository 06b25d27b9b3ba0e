"""The model's state of a job, and of a worker's last claim."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from django_delayq.job_meta import Rate, SharedName, in_payload
from django_delayq.states import State
from django_delayq.store.scripts.record import JobRecord

name_in = cache(in_payload)
RANKS: Final = {"high": 1, "normal": 2, "low": 3}


@dataclass
class Job:
    """An unfinished or failed job. `date`: when it is due, its lease ends, or it failed."""

    id: str
    record: JobRecord
    date: int
    state: State = State.SCHEDULED
    attempt: int = 0
    crashes: int = 0
    fence: str = ""
    progress: str = ""
    keyless: bool = False  # it was adopted when another job had its key
    evictions: int = 0
    unknown: int = 0  # since when its task has been unknown
    asks: int = 0  # how often it has asked
    small: bool = False  # its run does not say that it has a key
    blocked: bool = False  # it is due, and waits for its name
    held: str = ""  # it is due, and the pause of this word holds it
    early: bool = False  # it is due, and waits for a token of its rate
    behind: bool = False  # it waits for the turn of its fair word
    ahead: bool = False  # it has that turn
    score: float | None = None  # its place in its band, if that is not its date
    turn: int = 0  # of the last run that held its name
    since: int = 0  # the date with which that run was claimed, or its own date if it has a fair word

    @property
    def letter(self) -> str:
        return self.record.band[0]

    @property
    def body(self) -> bytes:
        return b"" if self.record.durable else self.record.encode()

    @property
    def shared(self) -> SharedName | None:
        """Its name, its rate and its fair word."""
        return name_in(self.record.payload)

    @property
    def name(self) -> SharedName | None:
        """That it shares with others."""
        return self.shared if self.shared and self.shared.text else None

    @property
    def line(self) -> str:
        """The line of its fair word; "" without one."""
        if not self.shared or not self.shared.fair:
            return ""
        return f"\3{RANKS[self.record.band]}{self.shared.fair}" + (f"\2{self.rate.text}" if self.rate else "")

    @property
    def rate(self) -> Rate | None:
        """Its rate."""
        return self.shared.rate if self.shared else None

    @property
    def place(self) -> float:
        """Its place in its band or its line: its date, or the time of its turn."""
        return self.date if self.score is None else self.score

    @property
    def words(self) -> list[str]:
        """By which it can be paused."""
        scope = [f"scope:{self.record.scope}"] if self.record.scope else []
        return [f"task:{self.record.task}", *scope, *([f"name:{self.name.text}"] if self.name else [])]

    @property
    def begun(self) -> bool:
        """Whether `runs` has something to say of it."""
        return bool(self.state is State.RUNNING or self.attempt or self.crashes or self.past or self.asks)

    def run(self) -> str:
        letter = self.letter.upper() if self.record.key and not self.small else self.letter
        return f"{self.attempt}:{self.crashes}:{letter}:{self.fence}" + (f":{self.past}" if self.past else "")

    @property
    def past(self) -> str:
        return (f"e{self.evictions}" if self.evictions else "") + (f"u{self.unknown}" if self.unknown else "")


@dataclass
class Bucket:
    """The tokens of a rate during a claim: the ms of each, the most that are there at once, and since or from when the next one is
    there. `changed`: it must be written.
    """

    each: float
    burst: int
    at: float
    changed: bool = False


@dataclass(frozen=True)
class LastClaim:
    """The IDs and dates of the last claim that returned jobs."""

    nonce: str
    at: int
    jobs: tuple[tuple[str, int], ...]

    def line(self) -> str:
        return " ".join([self.nonce, str(self.at), *(f"{id}={due}" for id, due in self.jobs)])


@dataclass(frozen=True, kw_only=True)
class OutageGuard:
    """Leases that were good at `start` are not taken over until `until`. `since`: from then to now Redis was there, outages left out.
    When that was a lease, the guard goes on for leases alone that were good at `next`.
    """

    start: int
    until: int
    since: int
    next: int

    def renewed(self, began: int, now: int, lease: int) -> OutageGuard:
        """By an outage from `began` till now."""
        there = now - self.since
        if there > lease:
            return OutageGuard(start=max(self.start, min(self.next, began)), until=now + lease, since=now, next=began)
        then = began if there <= lease / 2 else self.next
        return OutageGuard(start=min(self.start, began), until=now + lease, since=self.since, next=then)

    def fields(self) -> dict[str, str]:
        """As Redis has them."""
        names = {"guard_from": self.start, "guard_until": self.until, "guard_since": self.since, "guard_next": self.next}
        return {name: f"{value}" for name, value in names.items()}
