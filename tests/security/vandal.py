"""An attacker who can write to Redis: records and entries that the package never wrote. The package must survive each of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from django_delayq import ids
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.record import JobRecord

LONG_AGO = "1000"  # ms since 1970: due


@dataclass
class Vandal:
    """Writes into one queue. `harm()` does one thing, chosen by the seed, and returns its name."""

    link: Link
    keys: Keys
    task: str
    seed: int = 1
    done: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def due(self, id: str | bytes, record: bytes | None, *, band: str = "normal", score: str = LONG_AGO) -> None:
        if record is not None:
            self.link.execute("HSET", self.keys["jobs"], id, record)
        self.link.execute("ZADD", self.keys[band], score, id)

    def id(self) -> str:
        found = ids.short(ids.new())
        self.ids.add(found)
        return found

    def record(self, payload: bytes = b"[[1]]", **fields: object) -> bytes:
        return JobRecord(**{"id": ids.new(), "task": self.task, "durable": False, "payload": payload, **fields}).encode()

    def harm(self) -> str:
        name = self.random.choice(sorted(POISON))
        POISON[name](self)
        self.done.append(name)
        return name


def _payload(payload: bytes) -> Callable[[Vandal], None]:
    return lambda self: self.due(self.id(), self.record(payload))


def _raw(record: bytes) -> Callable[[Vandal], None]:
    return lambda self: self.due(self.id(), record)


def _named(id: bytes) -> Callable[[Vandal], None]:
    return lambda self: self.due(id + str(self.random.random()).encode(), self.record())


def _lease(run: bytes, score: str = LONG_AGO) -> Callable[[Vandal], None]:
    def write(self: Vandal) -> None:
        id = self.id()
        self.link.execute("HSET", self.keys["jobs"], id, self.record())
        self.link.execute("HSET", self.keys["runs"], id, run)
        self.link.execute("ZADD", self.keys["leases"], score, id)

    return write


HEAD = b"1nr vandal.task\n"
# Each is one job that must be set aside, because it is not a registered task with arguments.
POISON: dict[str, Callable[[Vandal], None]] = {
    "no record": lambda self: self.due(self.id(), None),
    "an empty record": _raw(b""),
    "a garbage record": _raw(b"\x00\xff garbage"),
    "a header without end": _raw(b"1nr task "),
    "a header of a later version": _raw(b"2nr task\n[[],{}]"),
    "a band that is none": _raw(b"1xr task\n[[],{}]"),
    "attempts beyond all numbers": _raw(b"1nr99999999999999999999999 task\n[[],{}]"),
    "no attempts": _raw(b"1nr0 task\n[[],{}]"),
    "an expiry beyond all dates": _raw(b"1nr10:99999999999999999999999999 task\n[[],{}]"),
    "a task that is not text": _raw(b"1nr \xff\xfe\n[[],{}]"),
    "a task without end": _raw(b"1nr " + b"t" * 5000 + b"\n[[],{}]"),
    "a key without end": _raw(b"1nr task " + b"k" * 5000 + b"\n[[],{}]"),
    "a missing payload": _payload(b""),
    "a payload that is no JSON": _payload(b"["),
    "a payload of another shape": _payload(b'{"args": []}'),
    "a payload that is not UTF-8": _payload(b'[["\xff"],{}]'),
    "a payload with NaN": _payload(b"[[NaN],{}]"),
    "a payload with infinity": _payload(b"[[1e999],{}]"),
    "a payload too deep": _payload(b"[[" + b"[" * 5000 + b"]" * 5000 + b"],{}]"),
    "half a surrogate pair": _payload(b'[["\\ud800"],{}]'),
    "options that are none": _payload(b'[[1],{},{"timeout":-1}]'),
    "an unknown option": _payload(b'[[1],{},{"run_as":"root"}]'),
    "an id that is none": _named(b"id"),
    "an id with spaces": _named(b"a b\n"),
    "an id that is not text": _named(b"\xff\xfe"),
    "an empty id": lambda self: self.due(b"", self.record()),
    "an id beyond 128 bits": lambda self: self.due(f"z{self.random.randrange(10**20):021d}", self.record()),
    "an id as long as a page": lambda self: self.due(b"x" * 4000 + str(self.random.random()).encode(), None),
    "a lease without a run": lambda self: self.link.execute("ZADD", self.keys["leases"], LONG_AGO, self.id()),
    "a lease with a garbage run": _lease(b"garbage"),
    "a lease with a run beyond all numbers": _lease(b"99999999999999999999:9:n:abc"),
    "a lease in a band that is none": _lease(b"1:0:z:abc", "-inf"),
    "a lease under a nonce that is none": _lease(b"1:0:n:a b\nc"),
}


def litter(link: Link, keys: Keys) -> None:
    """Garbage beside the jobs: in every key, of the right type, where it harms code that trusts it."""
    for name in ("cancels", "progress", "keys", "claims", "stats", "runs"):
        link.execute("HSET", keys[name], b"\xff garbage", b"\xfe\n", "key", "no id", "", "")
    link.execute("HSET", keys["claims"], "host:9:w", "n1 x zzzz=99999999999999999999999 =")
    guard = ("guard_from", "guard_until", "guard_since", "guard_next")
    for name in ("timer_until", "backup_until", "others_until", "armed", "alive", *guard, "moved_at", "restoring"):
        link.execute("HSET", keys["meta"], name, "garbage")
    link.execute("LPUSH", keys["wake"], *[b"\xff"] * 10)
    for name in ("failed", "finished"):
        link.execute("ZADD", keys[name], "-inf", b"\xff", "+inf", "no id", "1.75", "")
    for name in ("high", "normal", "low", "leases"):
        link.execute("ZADD", keys[name], "+inf", "for ever", "1e300", "z" * 22)
    minute = int(link.execute("TIME")[0]) // 60
    for step in range(60):
        for kind in ("scheduled", "succeeded", "failed", "retried", "crashed", "snoozed", "cancelled", "requeued"):
            link.execute("HSET", keys["stats"], f"{minute + step}:{kind}", "many")
    workers = f"{keys.prefix}:{{workers}}"
    for number, facts in enumerate(
        (
            b"\xff",
            b"[]",
            b"{}",
            b'{"beat":"x","started":"y"}',
            b'{"beat":1e400}',
            b'{"beat":99999999999999999999}',
            json.dumps({"beat": 2**52, "queues": 5, "sides": {}, "memory": "much", "processes": [], "busy": None}).encode(),
            b"[" * 100_000,
        )
    ):
        link.execute("HSET", workers, f"w{number}", facts)
    link.execute("HSET", workers, b"\xff\xfe", json.dumps({"beat": 2**52, "queues": [1, "default"]}))


def babble(link: Link, keys: Keys) -> None:
    """Entries in the stream of events that make no sense."""
    id = ids.short(ids.new())
    for pairs in (
        ("at", "x"),
        ("at", "-5", "by", b"\xff"),
        ("at", "9" * 30, "scheduled", f"{id} x n"),
        ("nothing", "at all"),
        ("scheduled", ""),
        ("scheduled", id),
        ("scheduled", f"{id} 99999999999999999999 n\nno record"),
        ("claimed", f"{id} -1 x"),
        ("claimed", f"{id} 99999999999 99999999999 {'f' * 500}"),
        ("retried", f"{id} 1 1 f 1e9"),
        ("succeeded", f"{id} 1 0 f\n" + "[" * 5000),
        ("failed", f"{id} 1 0 f\n\x00\xff"),
        ("aside", "no id\nwhy"),
        ("merged", f"{id} nobody keep"),
        ("purged", "many"),
        ("paused", ""),
        ("requeued", f"{id} soon"),
        ("rescheduled", id),
        ("restored", f"{id} 1 2"),
        ("dropped", id),
        ("expired", id),
        ("crashed", f"{id} 1 1 f soon"),
        ("snoozed", f"{id} a b c d"),
        ("cancelled", f'{id} 0 0 -\n"\\u0000"'),
        ("cancel_requested", id),
        ("", ""),
    ):
        link.execute("XADD", keys["events"], "*", *pairs)
