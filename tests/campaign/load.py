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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.app.settings")
django.setup()

from django.db import DatabaseError, InterfaceError, connection, transaction  # noqa: E402  # Django first

import django_delayq as delayq  # noqa: E402  # Django first
from django_delayq import conf  # noqa: E402  # Django first
from django_delayq.producer import acts  # noqa: E402  # Django first
from django_delayq.producer.batch import JobBatch  # noqa: E402  # Django first
from tests.app import tasks  # noqa: E402  # Django first
from tests.app.record import CLOCK, FORGOTTEN, Recorder  # noqa: E402  # Django first
from tests.laws.history import NEXT  # noqa: E402  # Django first

POLICIES = ("keep", "replace", "earliest", "latest", "after", "error")
IN_BULK = POLICIES[:-1]  # "error" would refuse most calls
OTHERS = ("flaky", "hopeless", "snoozer", "asynchronous", "atomic", "stepwise", "asking")
DELAYS = (0, 0, 0.2, 0.5, 1, 2, 3)
# The exceptions of a call that leave its effect unknown.
UNSURE = (delayq.StoreUnavailable, DatabaseError, InterfaceError)
ORDERS = "orders"  # the queue of all that has a key
KEYS, MANY_KEYS = 40, 2000  # few that meet all the time, and many that are mostly free
BUSY, RARE = 4, 300  # names
DEBOUNCED = 5  # keys, each called so often that its jobs would wait for long
PROBES = 5
JOBS_PER_OP = 9.0  # on average, with the weights below


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
            (self.single, 34),
            (self.many, 3),
            (self.rolled_back, 8),
            (self.with_key, 16),
            (self.many_with_keys, 2),
            (self.cancel, 10),
            (self.cancel_key, 4),
            (self.reschedule, 8),
            (self.run_now, 4),
            (self.requeue, 6),
            (self.in_redis_only, 5),
            (self.key_in_a_row, 2),
            (self.changed_at_commit, 5),
            (self.once_more, 3),
            (self.with_name, 10),
            (self.debounced, 5),
            (self.with_rate, 4),
            (self.in_a_batch, 3),
            (self.with_next, 4),
        ]

    def step(self) -> None:
        """One operation."""
        self._next()
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
        """A job with a key, under a random policy."""
        key, policy = self._key(), self.random.choice(POLICIES)
        self._schedule(tasks.keyed, (), self._delay(), inside=self.random.random() < 0.5, queue=ORDERS, key=key, on_conflict=policy)

    def debounced(self) -> None:
        """A call of a debounce, which ends: its keys have no other calls."""
        key, inside = f"debounce:{self.random.randrange(DEBOUNCED)}", self.random.random() < 0.5
        self._schedule(tasks.keyed, (), 2, inside=inside, queue=ORDERS, key=key, on_conflict="latest", at_most=3)

    def many_with_keys(self) -> None:
        """A bulk of jobs with different keys, of which each has an operation of its own."""
        policy, delay, inside = self.random.choice(IN_BULK), self._delay(), self.random.random() < 0.5
        ops, bindings = [], []
        for key in {self._key(): None for _ in range(self.random.randint(20, 80))}:
            self._next()
            ops.append(self.op)
            bindings.append(self._using(tasks.keyed, delay, inside, queue=ORDERS, key=key, on_conflict=policy).bind(self.op))
        self._scheduled(lambda: delayq.schedule_many(bindings), inside, True, ops)

    def with_name(self) -> None:
        """Some jobs of one name, of which one runs at a time, or three. Some names are rare, and some so busy that jobs wait for them
        all the time; some jobs have a key as well, which is the name itself where a key and a name may have two homes. Some fail or put
        themselves off, and those of a rare name may outlast a lease.
        """
        dice = self.random
        busy, key, most, delay = dice.random() < 0.5, dice.random() < 0.2, dice.choice([1, 1, 3]), self._delay()
        name = f"{'busy' if busy else 'rare'}{most}:{dice.randrange(BUSY if busy else RARE)}"
        options: dict[str, Any] = {"serial": name} if most == 1 else {"concurrency": (name, most)}
        for place in range(1 if key else dice.randint(1, 4)):
            if place:
                self._next()
            if key:
                task, arguments = tasks.keyed, (round(dice.uniform(0.01, 0.3), 2),)
                number, divided = dice.randrange(KEYS), conf.get().queue(ORDERS).divided
                options |= {"key": name if divided else f"n{number}", "on_conflict": dice.choice(POLICIES)}
            else:
                task, arguments = dice.choice(self._named(busy))
            self._schedule(task, arguments, delay, inside=dice.random() < 0.3, queue=ORDERS, **options)

    def with_rate(self) -> None:
        """Some jobs for one of a few partners, which are due at once or soon and have a rate."""
        partner, delay = self.random.randrange(5), self._delay()
        for place in range(self.random.randint(1, 4)):
            if place:
                self._next()
            self._schedule(tasks.metered, (partner,), delay, inside=self.random.random() < 0.3)

    def in_a_batch(self) -> None:
        """Some jobs and one that follows when all have ended, or have succeeded. Some add others; some batches are cancelled."""
        dice, delay = self.random, self._delay()
        calls = [self._any_task(0.8) if dice.random() < 0.9 else (tasks.adding, ()) for _ in range(dice.randint(0, 30))]
        when, cancels, op = dice.choice(("succeeded", "ended")), dice.random() < 0.2, self.op
        made: list[delayq.JobBatch] = []
        self._invoked("schedule", count=len(calls), delay=delay, inside=True)
        self._announce_next()

        def work() -> list[Any]:
            with delayq.batch(tasks.quick.bind(op + NEXT), key=op, when=when) as batch:
                made.append(batch)
                return batch.schedule_many(task.using(delay=delay).bind(op, *arguments) for task, arguments in calls)

        self._scheduled(work, False, requeueable=True)
        if cancels and made:
            self._next()
            id = made[0].id
            self._asked("cancel_batch", lambda: JobBatch(id).cancel(actor=self.op), batch=id.hex)

    def with_next(self) -> None:
        """A job, and one that follows its success."""
        task, arguments = self._any_task()
        self._announce_next()
        self._schedule(task, arguments, self._delay(), inside=self.random.random() < 0.5, then=tasks.quick.bind(self.op + NEXT))

    def _announce_next(self) -> None:
        """The follow-up has an operation of its own, which gets no answer."""
        clock = {"clock": CLOCK} if CLOCK else {}
        self.record.write(op=self.op + NEXT, say="invoked", what="schedule", count=1, delay=0, **clock)

    def _named(self, busy: bool) -> list[tuple[Any, tuple[Any, ...]]]:
        seconds = round(self.random.uniform(0.05, 0.4), 2)
        usual = [(tasks.quick, ()), (tasks.quick, ()), (tasks.long, (seconds,)), (tasks.flaky, (1, seconds / 2)), (tasks.snoozer, ())]
        return usual if busy else [*usual, (tasks.long, (round(self.random.uniform(1, 5), 2),))]

    def in_redis_only(self) -> None:
        """A job of redis durability."""
        self._schedule(tasks.quick, (), self._delay(), inside=False, queue="redis")

    def cancel(self) -> None:
        """For a recent job."""
        self._change("cancel", self._pick(self.recent), acts.cancel)

    def cancel_key(self) -> None:
        """By business key."""
        self._by_key(self._key())

    def reschedule(self) -> None:
        """Sooner or later."""
        delay = self._delay()
        self._change("reschedule", self._pick(self.recent), acts.reschedule, delay=delay)

    def run_now(self) -> None:
        """At once."""
        self._change("run_now", self._pick(self.recent), acts.run_now)

    def requeue(self) -> None:
        """For a job that may have failed or been cancelled."""
        self._change("requeue", self._pick(self.ended), acts.requeue)

    def key_in_a_row(self) -> None:
        """Several jobs of one key, one after the other, then a cancel by key: it applies to all of them."""
        key, policies = f"k{self.random.randrange(KEYS)}", self.random.choices(POLICIES, k=3)
        delays = [self._delay() for _ in policies]
        for policy, delay in zip(policies, delays, strict=True):
            self._schedule(tasks.keyed, (), delay, inside=False, queue=ORDERS, key=key, on_conflict=policy)
            self._next()
        self._by_key(key)

    def once_more(self) -> None:
        """A running job, and others of its key that must run after it, because it may have read old data."""
        key = f"m{self.random.randrange(KEYS)}"
        seconds, others = self.random.choice((0.3, 0.6, 3.0)), self.random.randint(1, 3)
        delays = [self._delay() for _ in range(others)]
        self._schedule(tasks.keyed, (seconds,), 0, inside=False, queue=ORDERS, key=key, on_conflict="keep")
        time.sleep(0.15)  # it has begun by then, as a rule
        for delay in delays:
            self._next()
            self._schedule(tasks.keyed, (), delay, inside=self.random.random() < 0.3, queue=ORDERS, key=key, on_conflict="after")

    def changed_at_commit(self) -> None:
        """A job that is cancelled or moved after its row is committed and before it is published."""
        cancels, delay, later = self.random.random() < 0.5, self._delay(), self._delay()
        op, jobs = self.op, []
        self._invoked("schedule", task="quick", count=1, delay=delay, inside=True, queue="default")

        def change() -> None:
            for job in jobs:
                self._say("ok", jobs=[[job.id.hex, None, None]])  # its row is committed
                self._next()
                if cancels:
                    self._change("cancel", (job.id.hex, job.queue), acts.cancel)
                else:
                    self._change("reschedule", (job.id.hex, job.queue), acts.reschedule, delay=later)

        try:
            with transaction.atomic():
                transaction.on_commit(change)  # comes before the hook that publishes
                jobs.append(tasks.quick.using(delay=delay).schedule(self.op))
                self._say("ids", ids=[jobs[0].id.hex])
        except UNSURE as error:
            self.record.write(op=op, say="unknown", error=repr(error)[:200])

    def flood(self, count: int) -> None:
        """Many jobs of one queue at once, followed by a few of another."""
        self._next()
        bindings = [tasks.quick.bind(self.op) for _ in range(count)]
        self._invoked("schedule", count=count, delay=0, inside=False)
        self._scheduled(lambda: delayq.schedule_many(bindings), False, requeueable=False)
        for _ in range(PROBES):
            self._next()
            self._schedule(tasks.quick, (), 0, inside=False, queue=ORDERS, probe=True)

    def cancel_recent(self) -> None:
        """Some at once: Redis has just forgotten something."""
        for target in [*self.recent][-5:]:
            self._next()
            self._change("cancel", target, acts.cancel)

    # what they have in common

    def _next(self) -> None:
        self.number += 1
        self.op = f"{self.name}:{self.number}"

    def _any_task(self, quick: float = 0.5) -> tuple[Any, tuple[Any, ...]]:
        dice = self.random
        if dice.random() < quick:
            return tasks.quick, ()
        if quick < 0.9 and dice.random() < 0.2:  # some outlast a lease
            return tasks.long, (round(dice.uniform(1, 3) if dice.random() < 0.75 else dice.uniform(3, 8), 2),)
        name = dice.choice(OTHERS)
        if name in ("flaky", "stepwise", "asking"):
            return getattr(tasks, name), (dice.randint(1, 3),)
        return getattr(tasks, name), ()

    def _delay(self) -> float:
        return self.random.choice(DELAYS)

    def _pick(self, among: deque[tuple[str, str]]) -> tuple[str, str] | None:
        place = self.random.random()
        return among[int(place * len(among))] if among else None

    def _key(self) -> str:
        return f"k{self.random.randrange(KEYS if self.random.random() < 0.5 else MANY_KEYS)}"

    def _by_key(self, key: str) -> None:
        self._asked("cancel_key", lambda: acts.cancel(key=key, queue=ORDERS, actor=self.op), key=key, queue=ORDERS)

    def _say(self, say: str, /, **fields: Any) -> None:
        self.record.write(op=self.op, say=say, **fields)

    def _invoked(self, what: str, /, **fields: Any) -> None:
        self._say("invoked", what=what, **fields, **({"clock": CLOCK} if CLOCK else {}))

    def _schedule(
        self, task: Any, arguments: tuple[Any, ...], delay: float, *, inside: bool, probe: bool = False, **options: Any
    ) -> None:
        work = self._using(task, delay, inside, probe, **options)
        self._scheduled(lambda: [work.schedule(self.op, *arguments)], inside, task in (tasks.hopeless, tasks.keyed))

    def _using(self, task: Any, delay: float, inside: bool, probe: bool = False, **options: Any) -> Any:
        """The task with these options; the record has them as those of the current operation."""
        self._invoked(
            "schedule",
            task=task.fn.__name__,
            count=1,
            delay=delay,
            inside=inside,
            key=options.get("key", ""),
            policy=options.get("on_conflict", ""),
            **({"at_most": options["at_most"]} if "at_most" in options else {}),
            queue=options.get("queue") or task.queue,
            replicas=conf.get().queue(options.get("queue") or task.queue).replicas,
            **({"probe": True} if probe else {}),
            **_limit(options),
        )
        return task.using(delay=delay, **options)

    def _scheduled(self, work: Callable[[], list[Any]], inside: bool, requeueable: bool, each: Sequence[str] = ()) -> None:
        """`each`: the operation of each job; none if all belong to the current one."""
        jobs: list[Any] = []
        try:
            if inside:
                with transaction.atomic():
                    jobs = work()
                    for op, made in self._by_op(each, jobs):
                        self.record.write(op=op, say="ids", ids=[job.id.hex for job in made if job.created is not False])
            else:
                jobs = work()
        except (delayq.KeyTaken, *UNSURE) as error:
            say = "failed" if isinstance(error, delayq.KeyTaken) else "unknown"
            for op in each or [self.op]:
                self.record.write(op=op, say=say, error=repr(error)[:200])
            return
        for op, made in self._by_op(each, jobs):
            self.record.write(op=op, say="ok", jobs=[[job.id.hex, job.created, _ms(job.run_at)] for job in made])
        self.recent.extend((job.id.hex, job.queue) for job in jobs[-3:])
        if requeueable:
            self.ended.extend((job.id.hex, job.queue) for job in jobs[-3:])

    def _by_op(self, each: Sequence[str], jobs: list[Any]) -> list[tuple[str, list[Any]]]:
        return [(op, [job]) for op, job in zip(each, jobs, strict=True)] if each else [(self.op, jobs)]

    def _change(self, what: str, target: tuple[str, str] | None, change: Callable[..., Any], **options: Any) -> None:
        if target is None:
            return
        id, queue = target
        if what == "cancel":
            self.ended.append(target)
        self._asked(what, lambda: change(id, queue=queue, actor=self.op, **options), job=id, queue=queue, **options)

    def _asked(self, what: str, work: Callable[[], Any], **given: Any) -> None:
        """A call without an answer is repeated once."""
        self._invoked(what, **given)
        if not self._answered(work):
            self.op += "r"
            self._invoked(what, **given, repeat=True)
            self._answered(work)

    def _answered(self, work: Callable[[], Any]) -> bool:
        try:
            self._say("ok", reply=str(work()))
        except UNSURE as error:
            self._say("unknown", error=repr(error)[:200])
            return False
        return True


def _limit(options: dict[str, Any]) -> dict[str, Any]:
    """The name of a job and how many of it may run at a time, as the laws of names read them."""
    name, most = (options["serial"], 1) if "serial" in options else options.get("concurrency", ("", 0))
    return {"name": name, "most": most} if name else {}


def _ms(moment: Any) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def main(folder: str, number: str, life: str, seed: str, rate: str) -> None:
    """Works at `rate` jobs per second until the input is closed."""
    web = Web(Path(folder), f"{number}.{life}", f"{seed}/{number}.{life}")
    pause, due = JOBS_PER_OP / float(rate), time.monotonic()
    forgotten, seen = Path(folder) / FORGOTTEN, 0
    while not select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
        web.step()
        if forgotten.exists() and (at := forgotten.stat().st_mtime_ns) != seen:
            seen = at
            web.cancel_recent()
        if connection.connection is not None and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        due = max(due + pause, time.monotonic() - 2.0)
    web.record.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
