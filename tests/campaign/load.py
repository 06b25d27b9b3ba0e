"""A web process: random operations at a given pace, each recorded when it is invoked and when it is answered. The same seed, number
and life give the same operations; only which job a change picks depends on what went before.

`python -m tests.campaign.load FOLDER NUMBER LIFE SEED RATE` works until its input is closed.
"""

from __future__ import annotations

import os
import random
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.campaign.settings")
django.setup()

from django.db import DatabaseError, InterfaceError, connection, transaction  # noqa: E402

import django_delayq as delayq  # noqa: E402
from django_delayq import changes  # noqa: E402
from tests.campaign.app import tasks  # noqa: E402
from tests.campaign.record import Recorder  # noqa: E402

POLICIES = ("keep", "replace", "earliest", "latest", "error")
DELAYS = (0, 0, 0.2, 0.5, 1, 2, 3)
# What an operation may end in without telling whether it took effect.
UNSURE = (delayq.StoreUnavailable, DatabaseError, InterfaceError)
KEYS = 40
JOBS_PER_OP = 9.5  # on average, with the weights below


class Web:
    """Does operations, and remembers some of its jobs to change them later."""

    def __init__(self, folder: Path, name: str, seed: str) -> None:
        self.name = name
        self.random = random.Random(seed)
        self.record = Recorder(folder, f"web-{name}")
        self.recent: deque[tuple[str, str]] = deque(maxlen=200)  # id and queue
        self.ended: deque[tuple[str, str]] = deque(maxlen=50)  # of jobs that may be requeued
        self.number = 0
        self.op = ""
        self.kinds: list[tuple[Callable[[], None], int]] = [
            (self.single, 34), (self.many, 3), (self.rolled_back, 8), (self.with_key, 16), (self.cancel, 10),
            (self.cancel_key, 4), (self.reschedule, 8), (self.run_now, 4), (self.requeue, 6), (self.in_redis_only, 5),
        ]  # fmt: skip

    def step(self) -> None:
        """One operation."""
        self.number += 1
        self.op = f"{self.name}:{self.number}"
        kinds, weights = zip(*self.kinds, strict=True)
        self.random.choices(kinds, weights)[0]()

    # operations, each: draw everything from the dice first, then act

    def single(self) -> None:
        """One job, mostly in a transaction."""
        task, arguments = self._any_task()
        self._schedule(task, arguments, self._delay(), inside=self.random.random() < 0.7)

    def many(self) -> None:
        """A bulk of jobs at once."""
        count, delay = self.random.randint(100, 500), self._delay()
        calls = [self._any_task(0.995) for _ in range(count)]
        inside = self.random.random() < 0.5
        bindings = [task.using(delay=delay).bind(self.op, *arguments) for task, arguments in calls]
        self._invoked("schedule", count=count, delay=delay, inside=inside)
        self._scheduled(lambda: delayq.schedule_many(bindings), inside, requeueable=False)

    def rolled_back(self) -> None:
        """A job whose transaction is rolled back on purpose: it must never run."""
        task, arguments = self._any_task()
        delay = self._delay()
        self._invoked("schedule", task=task.fn.__name__, count=1, delay=delay, rolled=True)
        try:
            with transaction.atomic():
                job = delayq.schedule(task, self.op, *arguments, delay=delay)
                self._say("ids", ids=[job.id.hex])
                raise tasks.Trouble
        except tasks.Trouble:
            self._say("rolled")
        except UNSURE as error:
            self._say("unknown", error=repr(error)[:200])

    def with_key(self) -> None:
        """A job with one of a few keys, under a random policy."""
        key, policy = f"k{self.random.randrange(KEYS)}", self.random.choice(POLICIES)
        self._schedule(tasks.keyed, (), self._delay(), inside=self.random.random() < 0.5, key=key, on_conflict=policy)

    def in_redis_only(self) -> None:
        """A job of redis durability."""
        self._schedule(tasks.quick, (), self._delay(), inside=False, queue="redis")

    def cancel(self) -> None:
        """Of a recent job."""
        self._change("cancel", self._pick(self.recent), changes.cancel)

    def cancel_key(self) -> None:
        """By business key."""
        key = f"k{self.random.randrange(KEYS)}"
        self._invoked("cancel_key", key=key, queue="orders")
        self._answer(lambda: changes.cancel(key=key, queue="orders", actor=self.op))

    def reschedule(self) -> None:
        """Sooner or later."""
        delay = self._delay()
        self._change("reschedule", self._pick(self.recent), changes.reschedule, delay=delay)

    def run_now(self) -> None:
        """At once."""
        self._change("run_now", self._pick(self.recent), changes.run_now)

    def requeue(self) -> None:
        """Of a job that may have failed or may have been cancelled."""
        self._change("requeue", self._pick(self.ended), changes.requeue)

    # what they have in common

    def _any_task(self, quick: float = 0.5) -> tuple[Any, tuple[Any, ...]]:
        dice = self.random
        if dice.random() < quick:
            return tasks.quick, ()
        if quick < 0.9 and dice.random() < 0.2:  # some outlast a lease
            return tasks.long, (round(dice.uniform(1, 3) if dice.random() < 0.75 else dice.uniform(3, 8), 2),)
        name = dice.choice([name for name in tasks.NAMES if name not in ("quick", "keyed", "long")])
        if name in ("flaky", "stepwise"):
            return getattr(tasks, name), (dice.randint(1, 3),)
        return getattr(tasks, name), ()

    def _delay(self) -> float:
        return self.random.choice(DELAYS)

    def _pick(self, among: deque[tuple[str, str]]) -> tuple[str, str] | None:
        place = self.random.random()
        return among[int(place * len(among))] if among else None

    def _say(self, say: str, /, **fields: Any) -> None:
        self.record.write(op=self.op, say=say, **fields)

    def _invoked(self, what: str, /, **fields: Any) -> None:
        self._say("invoked", what=what, **fields)

    def _schedule(self, task: Any, arguments: tuple[Any, ...], delay: float, *, inside: bool, **options: Any) -> None:
        self._invoked(
            "schedule", task=task.fn.__name__, count=1, delay=delay, inside=inside, key=options.get("key", ""),
            policy=options.get("on_conflict", ""), queue=options.get("queue") or task.queue,
        )  # fmt: skip
        work = task.using(delay=delay, **options)
        self._scheduled(lambda: [work.schedule(self.op, *arguments)], inside, task in (tasks.hopeless, tasks.keyed))

    def _scheduled(self, work: Callable[[], list[Any]], inside: bool, requeueable: bool) -> None:
        jobs: list[Any] = []
        try:
            if inside:
                with transaction.atomic():
                    jobs = work()
                    self._say("ids", ids=[job.id.hex for job in jobs if job.created is not False])
            else:
                jobs = work()
        except delayq.KeyTaken as error:
            self._say("failed", error=repr(error)[:200])
            return
        except UNSURE as error:
            self._say("unknown", error=repr(error)[:200])
            return
        self._say("ok", jobs=[[job.id.hex, job.created, _ms(job.run_at)] for job in jobs])
        self.recent.extend((job.id.hex, job.queue) for job in jobs[-3:])
        if requeueable:
            self.ended.extend((job.id.hex, job.queue) for job in jobs)

    def _change(self, what: str, target: tuple[str, str] | None, change: Callable[..., Any], **options: Any) -> None:
        if target is None:
            return
        id, queue = target
        self._invoked(what, job=id, queue=queue, **options)
        if what == "cancel":
            self.ended.append(target)
        self._answer(lambda: change(id, queue=queue, actor=self.op, **options))

    def _answer(self, work: Callable[[], Any]) -> None:
        try:
            self._say("ok", reply=str(work()))
        except UNSURE as error:
            self._say("unknown", error=repr(error)[:200])


def _ms(moment: Any) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def main(folder: str, number: str, life: str, seed: str, rate: str) -> None:
    """Works at `rate` jobs per second until the input is closed."""
    web = Web(Path(folder), f"{number}.{life}", f"{seed}/{number}.{life}")
    pause, due = JOBS_PER_OP / float(rate), time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        web.step()
        if connection.connection is not None and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        due = max(due + pause, time.monotonic() - 2.0)
    web.record.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
