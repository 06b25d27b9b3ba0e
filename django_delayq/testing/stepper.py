"""A worker that does one step at a time: it claims a job, runs it in the caller's thread with the real executor, and settles it. A
test can make its runs fail. A mirror and a relay do one pass when they are called, and the loop of schedules makes the ticks of those
that the test follows.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, NoReturn
from uuid import UUID

from django_delayq import clock, ids, signals
from django_delayq.conf import Config
from django_delayq.exceptions import ConfigError
from django_delayq.mirror.batches import BatchLoop
from django_delayq.mirror.checkpoint import CheckpointTaken
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.relay import CommitRequestLoop, RelayLoop
from django_delayq.models import UNPUBLISHED, Job, Periodic
from django_delayq.models.database import FixedQuery
from django_delayq.periodic.declarations import Declarations, declarations
from django_delayq.periodic.due_ticks import TickLoop
from django_delayq.periodic.schedule_rows import dates_of
from django_delayq.producer import batch
from django_delayq.producer.commit import Pending
from django_delayq.producer.outbox.follow_ups import DueRow
from django_delayq.producer.schedule import Bound
from django_delayq.producer.task import registry
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.record import BANDS, ClaimedJob, read
from django_delayq.testing.calling_thread import OneRun, executor, taken
from django_delayq.testing.jobs_clock import JobsLink
from django_delayq.testing.scheduled_jobs import ScheduledJob, content, task_name
from django_delayq.text import did_you_mean
from django_delayq.worker.current import Run
from django_delayq.worker.line import Line, lines_of
from django_delayq.worker.logs import JobLog
from django_delayq.worker.process.settler import Adopter, Settler
from django_delayq.worker.receivers import SignalReceiver

WORKER: Final = "test:1:kit"
ENDS_OF_RUNS: Final = (Exception, SystemExit, GeneratorExit, CancelledError)  # exceptions that a worker treats as the end of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run of a job. `outcome` is "ack", "retry", "snooze", "ask", "park", "fail" or "cancel", or "crash" if the test simulated a
    crash. `error` is the task's exception. `attempt` is counted from 1.
    """

    id: UUID
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: str
    queue: str
    attempt: int
    outcome: str
    error: BaseException | None = field(default=None, compare=False)

    @property
    def ends_the_test(self) -> bool:
        """Whether Ctrl-C ended the run, or an exception that ends a test, such as that of `pytest.fail`."""
        return self.error is not None and not isinstance(self.error, ENDS_OF_RUNS)


class Due(NamedTuple):
    """A date in ms, of a waiting job or of the end of a lease, and its line."""

    date_ms: int
    line: Line
    lease: bool


class Stepper:
    """The lines of one set of settings, and the executor of their jobs."""

    def __init__(self, config: Config, link: Link, faults: Faults) -> None:
        self.config = config
        self.lines = [line.on(link, config.prefix) for line in lines_of(config, dict.fromkeys(config.queues, 1))]
        self._link = link
        self._faults = faults
        self._claims = 0
        self._leases = OneRun(len(self.lines))
        self._leases.worker = WORKER
        self._free: deque[int] = deque()
        adopter = Adopter(leases=self._leases, worker=WORKER)
        self._settler = Settler(leases=self._leases, free=self._free, adopter=adopter, worker=WORKER, settled=lambda: None)
        self._executor = executor(self._leases, SignalReceiver(), JobLog(WORKER), faults)

    def close(self) -> None:
        """Releases its memory."""
        self._leases.close()

    def next(self, stuck: frozenset[Line]) -> Due | None:
        """The first due job, or the return of a held one; None: no job waits. Lines that are paused, and lines in `stuck`, are
        skipped.
        """
        commands: list[tuple[Any, ...]] = []
        for line in self.lines:
            keys = line.store.keys
            commands += [("HMGET", keys["meta"], "paused", "paused_until")]
            commands += [("ZRANGE", keys[name], 0, 0, "WITHSCORES") for name in (*BANDS, "opens", "leases")]
        replies = self._link.execute_many(commands)
        dates: list[tuple[int, int, bool]] = []
        for number, line in enumerate(self.lines):
            (paused, until), *waiting, leases = replies[number * 6 : number * 6 + 6]
            opens = int(until) if until else 0
            if (opens or not paused) and line not in stuck and not self.config.queue(line.queue).pulled:
                dates += [(max(opens, int(float(found[1]))), number, False) for found in waiting if found]
                dates += [(max(opens, int(float(leases[1])) + 1), number, True)] if leases else []
        if not dates:
            return None
        date, number, lease = min(dates)
        return Due(date, self.lines[number], lease)

    def step(self, line: Line, alive_ms: int | None) -> Ran | None:
        """Runs the first due job of that line; None if no job is due. `alive_ms`: a worker was present all the time until then, so no
        lease is protected.
        """
        if alive_ms is not None:
            self._link.execute("HSET", line.store.keys["meta"], "alive", alive_ms)
        self._claims += 1
        reply = line.store.claim(
            WORKER, f"kit{self._claims:x}", want=1, lease_ms=line.lease_ms, max_crashes=line.max_crashes, max_events=line.max_events
        )
        return self._run(line, reply.jobs[0]) if reply.jobs else None

    def _run(self, line: Line, job: ClaimedJob) -> Ran:
        task = read(job.record)[0].task
        if self._faults.crash(task, "begin"):
            return _ran(job, "crash")
        run = taken(self._leases, line, self.lines.index(line), job)
        self._leases.run = run
        try:
            outcome = self._executor.run(run)
        finally:
            self._leases.run = None
        if self._faults.crash(task, "end"):
            return _ran(job, "crash")
        self._settler.add(run, outcome)
        self._settler.poll()
        return _ran(job, outcome.kind if outcome else "lost", outcome.error if outcome else None)


def _ran(job: ClaimedJob, outcome: str, error: BaseException | None = None) -> Ran:
    return Ran(id=ids.full(job.id), queue=job.queue, attempt=job.attempt, outcome=outcome, error=error, **content(job.record))


Moment = Literal["begin", "end"]


@dataclass(frozen=True, slots=True)
class Fault:
    """`task`: the name of the task that fails, "" for any. `error`: the exception of its run; None: its worker crashes at `moment`."""

    task: str
    error: BaseException | None = None
    moment: Moment = "begin"


def made(error: Any) -> BaseException:
    """Returns the given error, or an instance of the given class.

    Raises:
        ValueError: it is neither. Without this check, a run would fail with another error than the test wants, and use up an attempt.
    """
    if isinstance(error, BaseException):
        return error
    if not isinstance(error, type) or not issubclass(error, BaseException):
        raise ValueError(f"fail_next({error!r}): pass an exception or its class, such as ConnectionError('no route').")
    try:
        return error()
    except TypeError as problem:
        name = error.__name__
        raise ValueError(f"fail_next({name}): {problem}. Pass one that is made, {name}(…).") from None


class Faults:
    """A receiver of runs that makes them fail. Each fault happens once, in the order in which the test requested them."""

    def __init__(self) -> None:
        self.waiting: list[Fault] = []

    def crash(self, task: str, moment: Moment) -> bool:
        """Whether the worker crashes at that moment of a run of this task."""
        return self._take(task, lambda fault: fault.error is None and fault.moment == moment) is not None

    def begins(self, run: Run) -> None:
        """Raises the requested error of the run."""
        fault = self._take(run.task.name, lambda fault: fault.error is not None)
        if fault is not None and fault.error is not None:
            raise fault.error

    def ends(self, run: Run, outcome: Outcome) -> None:
        """Does nothing."""

    def _take(self, task: str, fits: Callable[[Fault], bool]) -> Fault | None:
        found = next((fault for fault in self.waiting if fault.task in ("", task) and fits(fault)), None)
        if found is not None:
            self.waiting.remove(found)
        return found


YOUNG: Final = -1.0  # seconds; below zero, so that a row of any age is published: the clock of a test does not run


class RecordKeeper:
    """The database side of a test: the mirrors, which update rows, and the relays, which publish them, of one set of settings. They are
    the real ones, on the test's own connection.
    """

    def __init__(self, config: Config, link: JobsLink) -> None:
        self._config = config
        self._link = link
        common: Any = {"prefix": config.prefix, "signer": config.signer}
        self._mirrors = [
            MirrorLoop(link, queue, partition=partition, hand_over=self._note_due, **common)
            for queue in config.queues.values()
            for partition in queue.served
        ]
        self._common = common
        self._requests = CommitRequestLoop(young=YOUNG)
        self._batches = BatchLoop(self._note_due)
        self._unpublished = FixedQuery(Job.objects.filter(UNPUBLISHED, durable=True, settled="").values_list("id", "queue"))
        self.may_lack = True  # Redis may lack rows: they are older than the test, it was away, or a job waits for another

    def _note_due(self, due: list[DueRow]) -> None:
        self.may_lack |= bool(due)  # the end of a job has written the row of another one

    def fold(self) -> bool:
        """Updates the rows from the events of Redis. Returns whether there were any events."""
        lengths = self._link.execute_many([("XLEN", mirror.log.keys["events"]) for mirror in self._mirrors])
        for mirror, length in zip(self._mirrors, lengths, strict=True):
            with suppress(CheckpointTaken):  # a mirror in another thread, or a worker of the test, holds it
                while length > 0 and (passed := mirror.fold()).more:
                    length -= len(passed.entries)
        return any(lengths)

    def publish(self) -> bool:
        """Carries out changes that were committed while Redis was away. Then publishes rows that Redis lacks: rows that were
        committed in the meantime, or that wait for a job of their key. Returns whether Redis accepted any.
        """
        self.end_batches()
        if self.may_lack or self._link.lacks_rows:
            self._requests.poll()
        if not self._lacking():
            return False
        self.fold()
        before = set(self._lacking())
        for queue, partition in {(queue, ids.partition(id)) for id, queue in before}:
            relay = RelayLoop(self._link, self._config.queues[queue], partition=partition, young=YOUNG, **self._common)
            while relay.poll() == 0.0:
                pass
        return bool(before - set(self._lacking()))

    def keep(self) -> bool:
        """Updates the rows, then publishes rows that Redis lacks. Returns whether there may be more to run: receivers may have
        scheduled jobs.
        """
        told = self.fold() and signals.job_ended.has_listeners()
        return self.publish() or told

    def end_batches(self) -> None:
        """Does what the loop of batches does, if the process has made one."""
        while batch.made and self._batches.poll() == 0.0:
            self.fold()

    def unpublished(self) -> list[ScheduledJob]:
        """Committed rows that Redis lacks, as jobs."""
        lacking = [id for id, _ in self._lacking()]
        if not lacking:
            return []
        now = clock.now()
        return [
            ScheduledJob(
                **{name: getattr(row, name) for name in ("id", "task", "args", "kwargs", "key", "queue", "run_at")},
                delay=row.run_at - now,
                published=False,
            )
            for row in Job.objects.filter(pk__in=lacking)
        ]

    def _lacking(self) -> list[tuple[UUID, str]]:
        if not (self.may_lack or self._link.lacks_rows):
            return []
        self.may_lack = self._link.lacks_rows = False
        found = [(id, queue) for id, queue in self._unpublished.rows() if queue in self._config.queues]
        keys = {(mirror.queue.name, mirror.partition): mirror.log.keys["jobs"] for mirror in self._mirrors}
        found = [(id, queue) for id, queue in found if (queue, ids.partition(id)) in keys]
        there = self._link.execute_many([("HEXISTS", keys[queue, ids.partition(id)], ids.short(id)) for id, queue in found])
        unknown = [job for job, known in zip(found, there, strict=True) if not known]
        self.may_lack = bool(unknown)
        return [job for job in unknown if not Pending.find(job[0])]


class FollowedLoop(TickLoop):
    """The loop of workers, limited to these schedules. An error in a schedule is raised in the test."""

    def __init__(self, *, names: frozenset[str]) -> None:
        self._names = names
        declared = Declarations()
        for one in declarations.all():
            if one.name in names:
                declared.add(one, registry.get(one.task))
        super().__init__(declared=declared)

    def _rows(self) -> Any:
        return super()._rows().filter(name__in=self._names)

    def _block(self, one: Any, error: Exception, now: datetime) -> NoReturn:
        raise error


class FollowedSchedules:
    """The schedules that one test follows; empty at the start."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._loop: FollowedLoop | None = None

    def follow(self, schedule: Any) -> None:
        """Follows this schedule, too, from now on, or all schedules of this task."""
        self._names |= named(schedule)
        self._loop = None  # made again, because settings may have changed

    def write(self) -> None:
        """Writes the ticks that are due. It costs nothing if no schedule is followed."""
        if not self._names:
            return
        if self._loop is None:
            self._loop = FollowedLoop(names=self._names)
        while self._loop.poll() == 0.0:
            pass

    def write_until(self, until_ms: int, move: Callable[[int], None]) -> None:
        """Writes the ticks until then, each at its time; `move` moves the clock."""
        self.write()
        while (tick := self.next_ms()) is not None and tick <= until_ms:
            move(tick)
            self.write()

    def next_ms(self) -> int | None:
        """The time of the next write in ms; None: never."""
        if not self._names:
            return None
        rows = Periodic.objects.filter(name__in=self._names, write_at__gt=clock.now())
        following = rows.order_by("write_at").values_list("write_at", flat=True).first()
        return None if following is None else clock.to_ms(following)


def named(schedule: Any) -> frozenset[str]:
    """The names of the schedules: the given name, or the names of all schedules that the code declares for a task.

    Raises:
        ConfigError: no such schedule exists.
    """
    if isinstance(schedule, Bound):
        task = task_name(schedule)
        found = frozenset(one.name for one in declarations.all() if one.task == task)
        if not found:
            raise ConfigError(f"No schedule is declared for {task}.", hint="Add @delayq.periodic(…) above the task.")
        return found
    if not isinstance(schedule, str):
        raise ConfigError(f"{schedule!r} is not a schedule.", hint="Pass the name of a schedule, or its task.")
    # A name is printable. A database may refuse other text in a query.
    if not schedule.isprintable() or (declarations.get(schedule) is None and not _rows(schedule).exists()):
        near = did_you_mean(schedule, [one.name for one in declarations.all()])
        raise ConfigError(f"No schedule is named {schedule!r}{near}.", hint="Pass the name of a schedule, or its task.")
    return frozenset((schedule,))


def upcoming(schedule: Any, count: int) -> list[datetime]:
    """The next dates of one schedule. They come from its row, if it has one, since people may have changed them there; otherwise from
    the code.

    Raises:
        ConfigError: no such schedule exists, or the task has several. ValueError: `count` is not a whole number from 0.
    """
    if type(count) is not int or count < 0:
        raise ValueError(f"upcoming(count={count!r}): count must be a whole number of at least 0.")
    names = named(schedule)
    if len(names) > 1:
        raise ConfigError(f"{schedule!r} has several schedules: {', '.join(sorted(names))}.", hint="Pass one of these names.")
    [name] = names
    row, declared = _rows(name).first(), declarations.get(name)
    if row is not None:
        return list(islice(dates_of(row).after(clock.now()), count)) if row.active else []
    assert declared is not None  # otherwise `named` has raised
    return list(islice(declared.dates.after(clock.now()), count))


def _rows(name: str) -> Any:
    return Periodic.objects.filter(name=name)
