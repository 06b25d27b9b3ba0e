"""Thousands of absurd records, events and fields next to the work of honest loops. No row is more wrong than the docs allow, and no
pass takes long. Every run is the same. The full run is marked slow.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.mirror import restore
from django_delayq.mirror.fold import KEPT
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.relay import RelayLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Job
from django_delayq.producer.outbox.rows import STUB
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, EventKind
from django_delayq.store.scripts import recovery
from django_delayq.store.scripts.record import JobRecord
from tests.tasks_for_tests import close_order
from tests.worker.bench import Bench, task

pytestmark = pytest.mark.slow

NAME = "tests.tasks_for_tests.close_order"
BATCH = 200
PATIENCE = 30.0  # seconds until a due job must have run
FIELDS = (
    "generation", "seen:0", "seen:1", "server", "mirrored", "mirror_token", "run", "moved_to", "moved_at", "surplus", "restoring",
    "rolled", "timer", "timer_until", "backup", "backup_until", "others_until", "asked", "armed", "alive", "guard_from", "guard_until",
    "guard_since", "guard_next",
)  # fmt: skip  # without `paused` and a newer `format`: these stop the queue, as the docs say
NUMBERS = ("0", "-1", "1", "2", "1e999", "nan", "-inf", "99999999999999999999", "1.5", "x", "", "9e15", "2147483648")


class Absurd:
    """Makes commands, each of which writes something that this package would not write. `known`: jobs whose state the commands may
    forge.
    """

    def __init__(self, seed: int, prefix: str, now_ms: int, known: list[str]) -> None:
        self.random = Random(seed)
        self.keys = f"{prefix}:{{q}}"
        self.now_ms = now_ms
        self.known = known

    def one(self) -> list[tuple[Any, ...]]:
        make: Callable[[], list[tuple[Any, ...]]] = self.random.choice((self.record, self.event, self.event, self.meta))
        return make()

    def number(self) -> str:
        near = str(self.now_ms + self.random.randrange(-90_000, 90_000))
        return self.random.choice((*NUMBERS, near, near))

    def id(self) -> str:
        return self.random.choice((self.random.choice(self.known), ids.short(ids.new()), "no-id", "z" * 22, ""))

    def text(self) -> str:
        piece = self.random.choice(("a", "1", "a1", "é", '"', "\\", "[", "{", "\x00", "\n", " 9", "\u202e"))
        return piece * self.random.choice((1, 3, 50, 50, 50, 30_000 if self.random.random() < 0.03 else 5))

    def body(self) -> str:
        forged = {
            "c": self.text(),
            "m": self.text(),
            "r": {"paid": True},
            "s": self.random.random() * 1e15,
            "p": self.text()[:9],
        }
        record = f"1n{self.random.choice('or')} {NAME}\n[[666],{{}}]"
        return self.random.choice((json.dumps(forged), json.dumps({"m": self.text()}), self.text(), record, "a date without a job"))

    def event(self) -> list[tuple[Any, ...]]:
        kind = self.random.choice([kind.value for kind in EventKind if kind not in (EventKind.PAUSED, EventKind.RESUMED)])
        fields = " ".join([self.id(), *(self.number() for _ in range(self.random.randrange(5)))])
        value = fields + ("\n" + self.body() if self.random.random() < 0.7 else "")
        at = self.number() if self.random.random() < 0.1 else self.now_ms
        return [("XADD", f"{self.keys}:events", "*", "at", at, "by", "admin:alice", kind, value)]

    def record(self) -> list[tuple[Any, ...]]:
        id, band = self.id(), self.random.choice(("high", "normal", "low"))
        most = self.random.choice(("", "5", "9" * 3000, "1:5", ":::"))
        header = f"1{self.random.choice('nhlx')}{self.random.choice('orx')}{most} {NAME}"
        raw = self.random.choice((f"{header}\n[[666],{{}}]", f"{header} key\n{self.body()}", self.text()))
        run = self.random.choice((f"1:0:n:{self.text()[:90]}", self.text(), f"{self.number()}:{self.number()}:n:a", "1:0:n:"))
        more = self.random.choice(
            (
                ("ZADD", f"{self.keys}:schedule:{band}", "1", id),
                ("ZADD", f"{self.keys}:leases", "1", id),
                ("ZADD", f"{self.keys}:failed", "1", id),
                ("ZADD", f"{self.keys}:finished", "1.5", id),
                ("HSET", f"{self.keys}:keys", self.text()[:90], id),
                ("HSET", f"{self.keys}:cancels", id, self.text()),
                ("HSET", f"{self.keys}:claims", "w/1", f"n {self.text()} {id}={self.number()}"),
                ("ZREM", f"{self.keys}:finished", id),
                ("HDEL", f"{self.keys}:jobs", id),
            )
        )
        return [("HSET", f"{self.keys}:jobs", id, raw), ("HSET", f"{self.keys}:runs", id, run), more]

    def meta(self) -> list[tuple[Any, ...]]:
        value = self.random.choice((self.number(), self.number(), self.text()))
        return [("HSET", f"{self.keys}:meta", self.random.choice(FIELDS), value)]


class Scene:
    """A project with two queues, its loops, and jobs in every state."""

    def __init__(self, link: Any, signed: bool) -> None:
        config, self.link, self.ran = conf.get(), link, []
        self.slowest = self.longest = ("", 0.0)
        self.bench = Bench(link, signer=config.signer)
        self.bench.tasks[NAME] = task(lambda number, **_: self.ran.append(number), name=NAME)
        common: dict[str, Any] = {"prefix": "t", "signer": config.signer}
        link = self.bench.board.store.link
        self.mirror = MirrorLoop(link, config.queue("q"), **common)
        self.relay = RelayLoop(link, config.queue("q"), young=0, **common)
        self.restore = RestoreLoop(link, config.queue("q"), **common)
        self.scheduled: set[int] = set()
        self.honest: set[Any] = set()
        self.ended: dict[Any, tuple[Any, ...]] = {}
        self.signed = signed

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began, worked = time.perf_counter(), self._worked()
        yield
        self.slowest = max(self.slowest, (name, self._worked() - worked), key=lambda one: one[1])
        self.longest = max(self.longest, (name, time.perf_counter() - began), key=lambda one: one[1])

    def _worked(self) -> float:
        """Returns the seconds that this process and Redis have worked. A busy machine increases neither."""
        cpu = stores.link.execute("INFO", "cpu").decode()
        return time.process_time() + sum(float(used) for used in re.findall(r"used_cpu_(?:sys|user):([\d.]+)", cpu))

    def put(self, number: int, queue: str = "q", **options: Any) -> delayq.Job:
        job = delayq.schedule(close_order.using(queue=queue, **options), number)
        self.scheduled.add(number)
        self.honest.add(job.id)
        return job

    def work(self) -> None:
        """Runs one pass of each loop."""
        with self.timed("restore"):
            self.restore.poll()
        with self.timed("mover"):
            self.bench.move()
        while len(self.bench.buffer):
            taken = self.bench.buffer.take()
            assert taken is not None
            with self.timed("consumer"):
                self.bench.consumers[0].poll(taken)
        with self.timed("settler"):
            self.bench.settler.poll()
        with self.timed("mirror"):
            self.mirror.poll()
        with self.timed("relay"):
            self.relay.poll()

    def judge(self) -> None:
        """Checks what the docs promise."""
        rows = {row["id"]: row for row in Job.objects.values("id", "queue", "task", "args", "durable", *KEPT)}
        assert rows[self.other.id] == self.before
        if not self.signed:
            return
        for id, kept in self.ended.items():
            assert tuple(rows[id][name] for name in KEPT) == kept, id
        for id, row in rows.items():
            assert id in self.honest or (row["task"], row["durable"]) == (STUB, False)
            if id in self.honest and row["state"] in FINISHED:
                self.ended.setdefault(id, tuple(row[name] for name in KEPT))
        assert set(self.ran) <= self.scheduled

    def fill(self) -> list[str]:
        """Schedules jobs in every state. Returns the ids of the jobs whose state may be forged."""
        self.other = self.put(1, "other", delay="1h")
        done, gone, far = self.put(2), self.put(3, delay="1h"), self.put(4, delay="1h")
        assert gone.cancel() is delayq.Change.DONE
        for _ in range(4):
            self.work()
        assert {row.state for row in Job.objects.filter(pk__in=[done.id, gone.id])} == {"succeeded", "cancelled"}
        MirrorLoop(self.link, conf.get().queue("other"), prefix="t").drain()
        self.before = Job.objects.values("id", "queue", "task", "args", "durable", *KEPT).get(pk=self.other.id)
        return [ids.short(job.id) for job in (self.other, done, gone, far)]


def play(scene: Scene, link: Any, acts: int, seed: int) -> None:
    """Writes `acts` absurd things. After each batch, an honest job must run."""
    seconds, us = link.execute("TIME")
    absurd = Absurd(seed, "t", int(seconds) * 1000 + int(us) // 1000, scene.fill())
    scene.judge()
    for number in range(acts // BATCH):
        for reply in link.execute_many([command for _ in range(BATCH) for command in absurd.one()]):
            if isinstance(reply, Exception):
                assert "not a valid float" in str(reply)
        scene.put(1000 + number)
        until = time.monotonic() + PATIENCE
        while 1000 + number not in scene.ran or link.execute("XLEN", "t:{q}:events"):
            assert time.monotonic() < until, (number, scene.ran, link.execute("HGETALL", "t:{q}:meta"))
            scene.work()
        scene.judge()
    assert scene.slowest[1] < 1.0, scene.slowest
    assert scene.longest[1] < 10.0, f"{scene.longest}: it waited"


@pytest.fixture
def scene(redis_server, transactional_db, settings, monkeypatch) -> Iterator[Callable[[bool], Scene]]:
    made: list[Scene] = []
    monkeypatch.setattr(restore, "LOOK", 0.0)
    monkeypatch.setattr(recovery, "ADOPTION_MS", 0)  # no worker runs due jobs here; the wait for them is most of the time

    def make(signed: bool) -> Scene:
        settings.DELAYQ = {**settings.DELAYQ, "PREFIX": "t", "SIGNING": signed, "QUEUES": {"q": {}, "other": {}}}
        made.append(Scene(redis_server.link, signed))
        return made[0]

    yield make
    for one in made:
        one.bench.close()


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_a_thousand_absurd_things_make_no_row_lie_and_no_pass_long(scene, redis_server, signed):
    play(scene(signed), redis_server.link, 1_000, seed=1)


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_ten_thousand_absurd_things_make_no_row_lie_and_no_pass_long(scene, redis_server, signed):
    play(scene(signed), redis_server.link, 10_000, seed=2)


def test_a_record_is_one_that_this_package_would_write():
    """The forged records would run if signatures were not checked."""
    assert JobRecord.decode(ids.new(), f"1no {NAME}\n[[666],{{}}]".encode()).task == NAME
