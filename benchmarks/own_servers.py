"""How fast django-delayq is on the servers of your own project, in about a minute, with a verdict.

DJANGO_SETTINGS_MODULE=shop.settings python -m benchmarks.own_servers

It uses its own Redis prefix and queue name, and removes everything that it has written.
"""

from __future__ import annotations

import argparse
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Final, Literal, TextIO
from uuid import UUID

import django
from django.db import transaction

django.setup()

from django_delayq import clock, codec, conf, ids
from django_delayq.conf import Config, QueueConfig
from django_delayq.exceptions import DelayqError
from django_delayq.management.output import print_json
from django_delayq.mirror.database_connections import hooks
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Attempt, Checkpoint, Event, Job
from django_delayq.producer import outbox
from django_delayq.producer.task import Task
from django_delayq.store.connection.places import place
from django_delayq.store.keys import NAMES, Keys
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.record import JobRecord, ScheduleItem
from django_delayq.store.scripts.site import WORKERS
from django_delayq.worker.current import current
from django_delayq.worker.line import Line
from django_delayq.worker.spec import WorkerSpec
from django_delayq.worker.supervisor import worker_beat
from django_delayq.worker.supervisor.supervisor import Supervisor

QUEUE: Final = "bench"

PATIENCE: Final = 60.0
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: seconds per step, jobs for lateness and seconds over which they are due, jobs for the rate."""

    seconds: float = 3.0
    late: int = 500
    spread: float = 5.0
    rate: int = 10_000


class Notes:
    """Numbers that tasks leave for the process that started the worker, in memory that both share."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._map = mmap.mmap(-1, room * 8)
        self._cells = memoryview(self._map).cast("q")
        self._turn = count().__next__

    def add(self, number: int) -> None:
        """A number that is not 0. Threads do not meet: taking a turn is one step."""
        turn = self._turn()
        if turn < self.room:
            self._cells[turn] = number

    def all(self) -> list[int]:
        """The numbers left so far."""
        return [number for number in self._cells if number]

    def full(self) -> bool:
        """Whether there is a number in every place."""
        return self._cells[self.room - 1] != 0 and 0 not in self._cells.tolist()


class Bench:
    """The measurements, in order. Use as a context: it removes what it has put in, whatever happens."""

    def __init__(self, config: Config, size: Size) -> None:
        self.size = size
        self.tag = f"{QUEUE}-{ids.short(ids.new())[-10:]}"
        self._config = config
        self._prefix = f"{config.prefix}:{self.tag}"
        self._base = next(iter(config.queues.values()))
        self._queue: QueueConfig = replace(self._base, name=self.tag, partitions=1)
        self._places = place(config.redis, name="delayq-bench", timeout=5.0)
        self._link = self._places.of(self.tag, 0)
        self._store = QueueStore(self._places, prefix=self._prefix, queue=self.tag, signer=config.signer)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        keys = Keys(self._prefix, self.tag)
        try:
            self._link.execute("UNLINK", *(keys[name] for name in NAMES))
            workers = Keys.of(self._prefix, WORKERS, 0)
            self._places.shared.execute("UNLINK", *(workers[name] for name in NAMES))
        finally:
            self._places.close()
            self._delete_rows()

    def ping(self) -> Figures:
        """How long the server takes to answer, in ms."""
        took = []
        for _ in self._for(self.size.seconds / 3):
            began = clock.monotonic()
            self._link.execute("PING")
            took.append((clock.monotonic() - began) * 1000)
        return quantiles(took)

    def schedule(self) -> Figures:
        """Jobs per second that one process puts into Redis, one by one and 200 a call."""
        return {
            "single": self._rate(lambda: self._store.schedule([self._item("bench.wait", 3600)]), 1),
            "many": self._rate(lambda: self._store.schedule([self._item("bench.wait", 3600) for _ in range(MOST)]), MOST),
        }

    def outbox(self) -> Figures:
        """Jobs per second that one process writes into the database, a transaction each and 200 a transaction; ms of a commit."""
        took: list[float] = []

        def commit(number: int) -> None:
            began = clock.monotonic()
            with transaction.atomic(using=self._config.database):
                outbox.jobs.insert([self._row() for _ in range(number)])
            took.append((clock.monotonic() - began) * 1000)

        single = self._rate(lambda: commit(1), 1)
        return {**quantiles(took), "single": single, "many": self._rate(lambda: commit(MOST), MOST)}

    def work(self) -> Figures:
        """Lateness of jobs spread over some seconds in ms, then jobs per second when all are due; one worker process."""
        late, rate = Notes(self.size.late), Notes(self.size.rate)

        def note_late(number: int) -> None:
            lateness = current().lateness
            late.add(1 + lateness.seconds * 1000 + lateness.microseconds // 1000)

        def note_rate(text: str) -> None:
            rate.add(clock.wall_ms())

        self._link.execute("UNLINK", Keys(self._prefix, self.tag)["events"])  # the mirror's share is measured on these jobs alone
        begin = clock.wall_ms() + 2000
        many = [
            self._item("bench.late", 0, args=(n,), due_ms=begin + int(n * self.size.spread * 1000 / late.room))
            for n in range(late.room)
        ]
        burst = begin + int(self.size.spread * 1000) + 500
        many += [self._item("bench.rate", 0, due_ms=burst) for _ in range(rate.room)]
        for start in range(0, len(many), MOST):
            self._store.schedule(many[start : start + MOST])
        deadline = clock.monotonic() + self.size.spread + PATIENCE
        tasks = {task.name: task for task in (_task(note_late, "bench.late"), _task(note_rate, "bench.rate"))}
        Trial(self._spec(tasks), lambda: (rate.full() and late.full()) or clock.monotonic() > deadline).run()
        ended = sorted(rate.all())
        found = quantiles([number - 1.0 for number in late.all()])
        found["lost"] = float(late.room + rate.room - len(late.all()) - len(ended))
        # From the first to the last tenth: how a batch of threads gets going is another matter.
        first, last = ended[len(ended) // 10], ended[-1 - len(ended) // 10]
        found["rate"] = len(ended) * 0.8 / max(0.001, (last - first) / 1000)
        return found

    def mirror(self) -> Figures:
        """Jobs per second whose events (scheduled, claimed, succeeded) become rows."""
        loop = MirrorLoop(self._places, self._queue, prefix=self._prefix, signer=self._config.signer)
        entries, began = loop.log.length(), clock.monotonic()
        while loop.log.length() and clock.monotonic() - began < PATIENCE / 3:
            loop.poll()
        share = (entries - loop.log.length()) / max(1, entries)
        return {"rate": (self.size.late + self.size.rate) * share / (clock.monotonic() - began)}

    def _spec(self, tasks: dict[str, Task[Any, Any]]) -> WorkerSpec:
        line = Line(
            queue=self.tag,
            partition=0,
            lease=self._base.lease,
            lease_ms=self._base.lease_ms,
            max_crashes=self._base.max_crashes,
            max_result=self._base.max_payload,
            backoff=self._base.backoff,
            timeout=None,
            signer=self._config.signer,
        )
        return WorkerSpec(
            worker=worker_beat.new_worker_id(),
            prefix=self._prefix,
            connect=lambda name: place(self._config.redis, name=name),
            lines=[line],
            tasks=list(tasks),
            find_task=tasks.__getitem__,
            hooks=hooks(),
            tidy=False,
        )

    def _item(self, task: str, seconds: float, *, args: Sequence[Any] = ("x" * 100,), due_ms: int | None = None) -> ScheduleItem:
        delay = None if due_ms is not None else round(seconds * 1000)
        return ScheduleItem.of(self._record(task, tuple(args)), due_ms=due_ms, delay_ms=delay)

    def _record(self, task: str, args: tuple[Any, ...]) -> JobRecord:
        payload = codec.encode_payload(args, {}, None, limit=self._queue.max_payload, task=task)
        return JobRecord(id=ids.new(), task=task, durable=False, payload=payload)

    def _row(self) -> ScheduleItem:
        record = self._record("bench.wait", ("x" * 100,))
        return ScheduleItem.of(record, queue=self.tag, due_ms=clock.wall_ms())

    def _rate(self, call: Callable[[], Any], jobs: int) -> float:
        began, calls = clock.monotonic(), 0
        for _ in self._for(self.size.seconds):
            call()
            calls += 1
            if calls * jobs >= self.size.rate:  # enough to know, and no more of the server's memory
                break
        return calls * jobs / (clock.monotonic() - began)

    def _for(self, seconds: float) -> Iterator[None]:
        end = clock.monotonic() + seconds
        yield
        while clock.monotonic() < end:
            yield

    def _delete_rows(self) -> None:
        using = self._config.database
        while batch := list(Job.objects.using(using).filter(queue=self.tag).values_list("id", flat=True)[:1000]):
            _delete(batch, using)
        Checkpoint.objects.using(using).filter(queue=self.tag).delete()


def _delete(batch: Sequence[UUID], using: str) -> None:
    with transaction.atomic(using=using):
        Attempt.objects.using(using).filter(job_id__in=batch).delete()
        Event.objects.using(using).filter(job_id__in=batch).delete()
        Job.objects.using(using).filter(pk__in=batch)._raw_delete(using)


def _task(fn: Callable[..., Any], name: str) -> Task[Any, Any]:
    return Task(fn, name=name, queue=QUEUE, priority=0, max_attempts=1, backoff=None, timeout=None)


def quantiles(numbers: Sequence[float]) -> Figures:
    """p50 and p99."""
    found = sorted(numbers) or [0.0]
    return {"p50": found[len(found) // 2], "p99": found[int(len(found) * 0.99)]}


class Trial(Supervisor):
    """A worker that stops, without a grace period, soon after `done()` is true."""

    def __init__(self, spec: WorkerSpec, done: Callable[[], bool]) -> None:
        super().__init__(spec)
        self._done_yet = done

    def _tend(self) -> None:
        if not self._stopping and self._done_yet():
            self._stop(0.0)
        super()._tend()


Grade = Literal["good", "fair", "poor"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judgement: a figure in words, how good it is, and what to look at if it is not."""

    text: str
    grade: Grade
    advice: str = ""


ASK: Final = (
    "For about a minute this writes some ten thousand jobs into Redis and the database, runs them, and removes them. "
    "Other users of these servers will notice. Continue? [y/N] "
)


SIZE: Final = Size()


def bench(out: TextIO, options: dict[str, Any]) -> int:
    """Measures and judges. Exit code 1 if a job was lost."""
    if not options["yes"]:
        _ask()
    config = conf.get()
    figures: dict[str, Figures] = {}
    with Bench(config, SIZE) as trial:
        for name in ("ping", "schedule", "outbox", "work", "mirror"):
            if not options["json"]:
                sys.stderr.write(f"{STEPS[name]} …\n")
                sys.stderr.flush()
            figures[name] = getattr(trial, name)()
    lines = list(judge(figures))
    verdict = _verdict(figures, lines)
    if options["json"]:
        print_json(out, {"figures": figures, "judgements": [asdict(line) for line in lines], "verdict": verdict})
    else:
        for line in lines:
            out.write(f"{line.grade:<5} {line.text}\n")
            if line.advice:
                out.write(f"      {line.advice}\n")
        out.write(f"\n{verdict}\n")
    return 1 if figures["work"]["lost"] else 0


STEPS: Final = {
    "ping": "asking Redis",
    "schedule": "putting jobs into Redis",
    "outbox": "putting jobs into the database",
    "work": "running jobs",
    "mirror": "writing what happened into the database",
}


def judge(figures: dict[str, Figures]) -> Iterator[Verdict]:
    """The meaning of the figures."""
    ping, outbox, work, mirror = (figures[name] for name in ("ping", "outbox", "work", "mirror"))
    yield Verdict(
        f"Redis answers within {ping['p50']:.2f} ms, and within {ping['p99']:.2f} ms 99 times of 100.",
        *_graded(ping["p99"], 2, 20, "Redis is far away or busy: every claim and every schedule() waits that long."),
    )
    yield Verdict(
        f"schedule() with redis durability: {figures['schedule']['single']:,.0f} jobs a second per process; "
        f"schedule_many: {figures['schedule']['many']:,.0f}.",
        "good",
    )
    yield Verdict(
        f"A row in the outbox takes {outbox['p50']:.2f} ms, and {outbox['p99']:.2f} ms 1 time of 100; "
        f"schedule_many writes {outbox['many']:,.0f} rows a second.",
        *_graded(outbox["p50"], 10, 50, "Commits are slow: look at the disk and the network of the database."),
    )
    yield Verdict(
        f"A job starts {work['p50']:.0f} ms after its date, and at most {work['p99']:.0f} ms 99 times of 100.",
        *_graded(work["p99"], 50, 500, "Jobs start late on an idle queue: the machine or Redis is busy with something else."),
    )
    yield Verdict(
        f"One worker process runs {work['rate']:,.0f} jobs a second that do nothing.",
        *_graded(-work["rate"], -2000, -200, "The machine or Redis is slow or busy."),
    )
    yield Verdict(
        f"The mirror writes {mirror['rate']:,.0f} jobs a second into the database.",
        *_graded(
            -mirror["rate"],
            -500,
            -50,
            "If more jobs run than that for long, the mirror falls behind and events fill Redis.",
        ),
    )
    if work["lost"]:
        yield Verdict(
            f"{work['lost']:.0f} jobs did not run within a minute.",
            "poor",
            "`delayq doctor` may say why; the worker's log too.",
        )


def _graded(value: float, good: float, fair: float, advice: str) -> tuple[Grade, str]:
    if value <= good:
        return "good", ""
    return ("fair" if value <= fair else "poor"), advice


def _verdict(figures: dict[str, Figures], lines: list[Verdict]) -> str:
    sustained = {"the worker process": figures["work"]["rate"], "the mirror": figures["mirror"]["rate"]}
    narrowest = min(sustained, key=lambda name: sustained[name])
    if figures["work"]["lost"]:
        return "Verdict: not fit for work as it is: jobs did not run."
    worst = "poor" if any(line.grade == "poor" for line in lines) else "fair" if any(line.grade == "fair" for line in lines) else "good"
    begin = {
        "good": "fit for work",
        "fair": "fit for work, but look at the lines marked fair",
        "poor": "look at the lines marked poor",
    }
    return (
        f"Verdict: {begin[worst]}. One worker process lasts for {sustained[narrowest]:,.0f} short jobs a second, "
        f"{sustained[narrowest] * 86_400 / 1e6:,.0f} million a day; {narrowest} is the narrowest place."
    )


def _ask() -> None:
    if not sys.stdin.isatty():
        raise SystemExit("Nobody can confirm this. Add --yes.")
    sys.stderr.write(ASK)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SystemExit("Nothing was done.")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_servers", description=__doc__.splitlines()[0])
    parser.add_argument("--yes", action="store_true", help="do not ask before the servers are used")
    parser.add_argument("--json", action="store_true", help="print JSON")
    try:
        return bench(sys.stdout, vars(parser.parse_args(argv)))
    except DelayqError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
