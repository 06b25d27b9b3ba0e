"""The whole of one queue as plain values, so that a test seeds it, makes one call, and compares all of it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from uuid import UUID

from django_delayq import ids
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.queue import Claim, Outcome, QueueStore, ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from tests.links import package_link

NOW = 1_800_000_000_000  # ms; every test passes its own time
LEASE = 30_000

LUA = files("django_delayq.store").joinpath("lua")
SCRIPTS = sorted(one.name.removesuffix(".lua") for one in LUA.iterdir() if one.name.endswith(".lua"))
ZSETS = ("high", "normal", "low", "blocked", "leases", "failed", "finished")
HASHES = ("runs", "asks", "names", "offered", "firsts", "cancels", "progress", "keys")
LEX = ("holders", "waiters")  # name, what orders, id


def job_id(number: int, partition: int = 0) -> UUID:
    """A made-up id that sorts by its number, of a job in that partition."""
    version, low = (6, number << 10 | partition) if partition else (7, number)
    return UUID(int=(0x018F << 112) | (version << 76) | (2 << 62) | low)


def record(number: int, **fields: Any) -> JobRecord:
    """A record of task `shop.close`, from Redis durability unless said otherwise."""
    return JobRecord(**{"id": job_id(number), "task": "shop.close", "durable": False, "payload": b"[[]]", **fields})


def numbers(claim: Claim) -> list[int]:
    """The runs of the claimed jobs."""
    return [_number(job.id.encode()) for job in claim.jobs]


class Board:
    """A queue under test: short calls to its store with fixed times, and a dump of all it holds, ids as their numbers."""

    def __init__(self, link: Link, package: Link | None = None) -> None:
        self.link = link
        self.store = QueueStore(package or package_link(link), prefix="t", queue="q")
        self.keys: Keys = self.store.keys
        self.log = EventLog(link, self.keys)

    def put(self, number: int, due: int = NOW, *, now: int = NOW, on_conflict: Any = "keep", **fields: Any) -> str:
        item = ScheduleItem.of(record(number, **fields), due_ms=due, on_conflict=on_conflict)
        return self.store.schedule([item], now_ms=now)[0].status

    def claim(
        self,
        nonce: str = "n1",
        worker: str = "w1",
        *,
        want: int = 10,
        now: int = NOW,
        max_crashes: int = 3,
        wary: bool = False,
        away: int = 0,
    ) -> Claim:
        told: dict[str, Any] = {"away_ms": away} if away else {}
        if wary:
            told["wary"] = True
        return self.store.claim(worker, nonce, want=want, lease_ms=LEASE, max_crashes=max_crashes, now_ms=now, **told)

    def pass_lease(self, start: int = NOW, worker: str = "w2") -> int:
        """Lets a lease that began at `start` run out while `worker` asks in vain, as a live one does. Returns the time."""
        for step in (10_000, 20_000, 29_000):
            assert self.claim(f"idle{start + step}", worker, now=start + step).jobs == []
        return start + LEASE + 1

    def settle(
        self, number: int, outcome: Any, *, attempt: int = 1, fence: str = "n1", delay: int = 0, ran: int = -1, now: int = NOW
    ) -> str:
        item = Outcome(
            id=ids.short(job_id(number)), attempt=attempt, fence=fence, kind=outcome, delay_ms=delay, detail=b"{}", ran_ms=ran
        )
        return self.store.settle([item], worker="w1", max_crashes=3, now_ms=now)[0]

    def extend(self, number: int, *, fence: str = "n1", now: int = NOW, progress: str = "") -> str:
        short = ids.short(job_id(number))
        return self.store.extend(
            [(short, fence)], worker="w1", lease_ms=LEASE, progress={short: progress} if progress else None, now_ms=now
        )[short]

    def dump(self) -> dict[str, Any]:
        """Every key but the bookkeeping of movers (meta, claims, wake, stats, events); empty ones left out."""
        found: dict[str, Any] = {}
        jobs = self.link.execute("HKEYS", self.keys["jobs"])
        if jobs:
            found["jobs"] = sorted(_number(id) for id in jobs)
        for name in ZSETS:
            flat = self.link.execute("ZRANGE", self.keys[name], 0, -1, "WITHSCORES")
            if flat:
                found[name] = {_number(id): int(float(score)) - NOW for id, score in zip(flat[::2], flat[1::2], strict=True)}
        for name in LEX:
            members = self.link.execute("ZRANGE", self.keys[name], 0, -1)
            if members:
                found[name] = [(one.split(b"\0")[0].decode(), _number(one.split(b"\0")[-1])) for one in members]
        for name in HASHES:
            flat = self.link.execute("HGETALL", self.keys[name])
            if flat:
                pairs = zip(flat[::2], flat[1::2], strict=True)
                found[name] = (
                    {key.decode(): _number(id) for key, id in pairs}
                    if name == "keys"
                    else {_number(id): value.decode() for id, value in pairs}
                )
        return found

    def happened(self) -> list[str]:
        """Kind and job number of every event item so far, oldest first."""
        return [
            f"{item.kind} {_number(item.fields[0].encode())}" if item.fields and len(item.fields[0]) == 22 else item.kind
            for entry in self.log.read("0-0", 1000)
            for item in entry.items
        ]

    def tokens(self) -> int:
        return int(self.link.execute("LLEN", self.keys["wake"]))


def _number(short: bytes) -> int:
    return ids.full(short.decode()).int & 0xFFFF
