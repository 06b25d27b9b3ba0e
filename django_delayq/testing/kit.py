"""The kit of a test: the fixture `delayq` of pytest, and `self.delayq` of the mixin."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import cache
from typing import Any, Final, cast
from unittest import mock

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.template.defaultfilters import pluralize
from django.utils.asyncio import async_unsafe

from django_delayq import clock, codec, conf, under_test
from django_delayq.exceptions import ConfigError
from django_delayq.mirror import checkpoint
from django_delayq.models import database
from django_delayq.producer import commit
from django_delayq.producer.outbox import rows
from django_delayq.producer.schedule import Bound, plan
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link, connect
from django_delayq.store.keys import NAMES, Keys
from django_delayq.store.scripts.site import WORKERS
from django_delayq.testing import project_commits
from django_delayq.testing.calling_thread import run_by_hand, without_tick
from django_delayq.testing.followed_schedules import FollowedSchedules, named, upcoming
from django_delayq.testing.jobs_clock import JobsClock, JobsLink, moment_ms
from django_delayq.testing.scheduled_jobs import ScheduledJob, Wanted, table, task_name, waiting
from django_delayq.testing.stepper import Due, Fault, Faults, Moment, Ran, RecordKeeper, Stepper, made
from django_delayq.text import did_you_mean
from django_delayq.worker.current import CURRENT
from django_delayq.worker.line import Line

__all__ = ["Kit", "Ran", "ScheduledJob"]

MOST_RUNS: Final = 10_000  # runs in one call
NEVER: Final = clock.LAST_MS
WITHIN_A_LOOP: Final = (
    "The test kit of delayq was called within an event loop. Call each of its functions with sync_to_async: await "
    "sync_to_async(delayq.advance)(…)."
)


class Kit:
    """Moves the time of jobs, runs due jobs, and shows the scheduled jobs. Everything happens in the caller's thread, on its
    connections. The time of jobs is Python's time until the test moves it. The fixture and the mixin call `start` and `stop` around a
    test.
    """

    def __init__(self) -> None:
        self._clock = JobsClock(stores.forget_clock)
        self._faults = Faults()
        self._links: dict[Any, JobsLink] = {}
        self._patched = ExitStack()
        self._happened: list[tuple[Any, list[Any]]] = []
        self._stepper: Stepper | None = None
        self._records: RecordKeeper | None = None
        self._followed = FollowedSchedules()
        self._busy = False

    # around a test

    def start(self) -> None:
        """The test begins: nothing is scheduled, nothing goes wrong, and it is Python's time.

        Raises:
            ConfigError: there is no server for tests; the text says what to give it.
            RuntimeError: another kit is in use, or Django's test environment is not in force.
        """
        if commit.is_open is project_commits.is_open:
            raise RuntimeError("The test kit of delayq is already in use. A test can have one kit, from the fixture or from the mixin.")
        self._clean()
        self._faults.waiting.clear()
        self._followed = FollowedSchedules()
        self._clock.reset()
        for forget in under_test.FORGETS:
            forget()
        if self._records is not None:
            self._records.may_lack = True
        for place, name, value in self._replaced():
            self._patched.enter_context(mock.patch.object(place, name, value))
        try:
            self._happened = project_commits.catch_up()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the test: restores everything."""
        self._patched.close()
        project_commits.give_back(self._happened)
        self._happened = []
        stores.stand_in(None)

    def _replaced(self) -> list[tuple[Any, str, Any]]:
        """The attributes of the package that the kit replaces during a test. They are restored after the test."""
        now_ms = self._clock.now_ms
        return [
            (clock, "wall_ms", now_ms),
            (clock, "monotonic", self._clock.monotonic),
            (clock, "now", lambda: clock.from_ms(now_ms())),
            (database, "SQL", {}),
            (rows, "VENDORS", ("sqlite",)),  # the others write the database's own time
            (checkpoint, "end_if_frozen", lambda _connection: None),  # a limit that would outlast the pass, in a test's transaction
            (commit, "is_open", project_commits.is_open),
            (transaction.Atomic, "__exit__", project_commits.leave),
            (BaseDatabaseWrapper, "on_commit", project_commits.on_commit),
        ]

    def _clean(self) -> None:
        config = conf.get()
        link = self._link(config)
        link.down = False
        lines = [(name, partition) for name, queue in config.queues.items() for partition in queue.served]
        own = [Keys.of(config.prefix, *line)[short] for line in (*lines, (WORKERS, 0)) for short in NAMES]
        own += (target.key for target in config.targets.values())
        link.execute("UNLINK", *own)
        stores.stand_in(link)

    def _link(self, config: conf.Config) -> JobsLink:
        spec = config.redis if isinstance(config.redis, str) else repr(sorted(config.redis.items()))
        if spec not in self._links:
            self._links[spec] = JobsLink(connect(config.redis, name="delayq:test"), self._clock.now_ms)
        return self._links[spec]

    @async_unsafe(WITHIN_A_LOOP)  # what runs would fail at its first query there, and be retried for that
    def _at_work(self) -> tuple[Stepper, RecordKeeper]:
        """Uses the current settings: a test may change them."""
        config = conf.get()
        if self._stepper is None or self._records is None or self._stepper.config is not config:
            link = self._link(config)
            stores.stand_in(link)
            if self._stepper is not None:
                self._stepper.close()
            self._stepper, self._records = Stepper(config, link, self._faults), RecordKeeper(config, link)
        return self._stepper, self._records

    # time

    @property
    def now(self) -> datetime:
        """The current time of jobs."""
        return clock.from_ms(self._clock.now_ms())

    def advance(self, by: clock.Delay) -> list[Ran]:
        """Lets this much time pass, and runs the jobs that fall due, in order, each at its own date. Retries, and jobs that runs
        schedule, run too. Returns the runs. An exception of a task is a normal outcome: the job is retried, or fails. Ctrl-C, and
        exceptions that end a test, such as `pytest.fail`, reach the test.

        Raises:
            RuntimeError: called within a task, or more than 10,000 runs fell due.
        """
        return self._run("advance", clock.milliseconds(by))

    def travel(self, to: datetime) -> None:
        """Sets the clock to that moment. Runs nothing: jobs that fell due in between are late, as after an outage of the workers.

        Raises:
            ValueError: `to` is not an aware datetime, or is outside the years that rows and clocks can hold.
        """
        self._refuse_within_a_task("travel")
        self._clock.move(moment_ms(to, "travel(): to"))

    def run_due(self) -> list[Ran]:
        """Runs what is due now. Returns the runs. Raises as `advance`."""
        return self._run("run_due", 0)

    def drain(self) -> list[Ran]:
        """Runs jobs until none is scheduled, and moves the clock from date to date. Returns the runs. A followed schedule runs its
        next tick, and no further ones. Raises as `advance`.
        """
        return self._run("drain", None)

    # schedules

    def follow(self, *schedules: Any) -> None:
        """From now on these schedules have their ticks in this test, each with its job. No schedule has any otherwise.

        Args:
            schedules: names, or tasks: then all that are declared for them.

        Raises:
            ConfigError: there is no such schedule.
        """
        self._refuse_within_a_task("follow")
        self._at_work()
        for schedule in schedules:
            self._followed.follow(named(schedule))
        with self._clock.held():
            self._followed.write()

    @async_unsafe(WITHIN_A_LOOP)
    def upcoming(self, schedule: Any, count: int = 1) -> list[datetime]:
        """The next dates of a schedule from now on, in UTC, whether it is followed or not. Empty if the schedule is off.

        Args:
            schedule: its name, or the task that it is declared for.

        Raises:
            ConfigError: no such schedule exists, or the task has several. ValueError: `count` is not a whole number from 0.
        """
        return upcoming(schedule, count)

    # what is scheduled

    def scheduled(self, task: Any = None, *, key: str | None = None, queue: str | None = None) -> list[ScheduledJob]:
        """The jobs that wait for their date, the earliest first. Those of a transaction that is open are not among them."""
        return Wanted(task, key=key, queue=queue).among(self._waiting())

    def assert_scheduled(
        self,
        task: Any,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        key: str | None = None,
        queue: str | None = None,
        delay: clock.Delay | None = None,
        run_at: datetime | None = None,
        within: clock.Delay | None = None,
        count: int | None = None,
    ) -> ScheduledJob:
        """Passes if such a job waits, or `count` of them, and returns the first. Arguments that are not given are not compared.

        Args:
            delay: from now on. run_at: an aware datetime.
            within: how far the date may be from that, by default a second; without either, the longest time from now.

        Raises:
            AssertionError: no such job waits; the message shows the scheduled jobs. ConfigError: `task` is not a task, or is None.
        """
        if task is None:
            raise ConfigError("assert_scheduled() was given None for the task. For any task, write assert delayq.scheduled().")
        wanted = Wanted(task, args=args, kwargs=kwargs, key=key, queue=queue, delay=delay, run_at=run_at, within=within)
        found = wanted.among(jobs := self._waiting())
        if not found or count not in (None, len(found)):
            number = len(found)
            many = "No job is" if count is None else f"{number} job{pluralize(number, ' is,s are')}"
            other = "" if count is None else f", not {count}"
            raise AssertionError(f"{many} scheduled{other}: {wanted}.\n{wanted.nearly(jobs)}{table(jobs)}")
        return found[0]

    def assert_not_scheduled(
        self,
        task: Any = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        key: str | None = None,
        queue: str | None = None,
    ) -> None:
        """Passes if no such job waits; without arguments, if none does.

        Raises:
            AssertionError: there is one; its text shows what is scheduled.
        """
        wanted = Wanted(task, args=args, kwargs=kwargs, key=key, queue=queue)
        if found := wanted.among(self._waiting()):
            raise AssertionError(f"A job is scheduled: {wanted}.\n{table(found)}")

    def offered(self, to: str) -> list[dict[str, Any]]:
        """The entries of that target, with `id` and `body`, the oldest first. Raises ConfigError if no target has that name."""
        link = self._link(conf.get())
        with link.aside():
            return _entries(link, to)

    def _waiting(self) -> list[ScheduledJob]:
        stepper, records = self._at_work()
        link = self._link(stepper.config)
        with link.aside():
            jobs = waiting(link, stepper.lines, self._clock.now_ms())
            return sorted(jobs + records.unpublished(), key=lambda job: (job.run_at, job.id))

    # one run by hand

    @async_unsafe(WITHIN_A_LOOP)
    def perform(
        self, task: Any, *args: Any, attempt: int = 1, crashes: int = 0, asked: int = 0, run_at: datetime | None = None, **kwargs: Any
    ) -> Any:
        """Runs a task with these arguments as a worker would, without a job: `delayq.current()` and `delayq.once()` work in it. Options
        of the job come by `task.using(key=…)`, and the tick of a schedule by `task.using(meta={"delayq.periodic": {"name": …, "tick":
        …}})`. Arguments and result go through JSON. Returns what the task returns, raises what it raises.

        Raises:
            PayloadError, ConfigError: as `schedule`. ValueError: `attempt` is no whole number from 1, or `crashes` or `asked` from 0.
        """
        if not isinstance(task, Bound):
            raise ConfigError(f"perform() was given {task!r}, which is not a task. Pass the function that @delayq.task decorates.")
        options, tick = without_tick(task.options)
        planned = plan(task.task, options, args, kwargs, None, tick=tick)
        due_ms = self._clock.now_ms() if run_at is None else moment_ms(run_at, "perform(): run_at")
        outcome = run_by_hand(planned, attempt=attempt, crashes=crashes, asked=asked, due_ms=due_ms)
        if outcome.error is not None:
            raise outcome.error
        return codec.loads(outcome.detail).get("r")

    # what goes wrong

    def crash_next(self, task: Any = None, *, at: Moment = "begin") -> None:
        """The worker of the next run (of that task) vanishes. The job comes back when its lease has run out: `advance` goes there.

        Args:
            at: "begin", before the task is called; "end", when all that it does is done and Redis has not been told: it runs again.
        """
        if at not in ("begin", "end"):
            raise ValueError(f'crash_next(at={at!r}): write "begin" or "end".')
        self._faults.waiting.append(Fault(task_name(task), None, at))

    def fail_next(self, error: BaseException | type[BaseException], task: Any = None) -> None:
        """The next run (of that task) raises that error, or an error of that class, instead of calling the task. Raises ValueError
        for other values.
        """
        self._faults.waiting.append(Fault(task_name(task), made(error)))

    @contextmanager
    def redis_down(self) -> Iterator[None]:
        """Makes Redis unreachable during the block, for calls that schedule and for workers, so no job runs. The next `advance`,
        `run_due` or `drain` after the block publishes committed rows.
        """
        link = self._link(conf.get())
        before, link.down = link.down, True
        try:
            yield
        finally:
            link.down = before
            stores.forget()

    # how jobs are run

    def _run(self, verb: str, by_ms: int | None) -> list[Ran]:
        """`by_ms` None: until nothing is left."""
        self._refuse_within_a_task(verb)
        self._busy = True
        try:
            with self._clock.held():
                until_ms = NEVER if by_ms is None else self._clock.now_ms() + by_ms
                down = self._link(conf.get()).down
                ran = [] if down else self._run_until(verb, until_ms)
                if down and by_ms:  # a worker writes ticks without Redis, and the relay publishes them
                    self._followed.write_until(until_ms, self._clock.move)
                if by_ms and until_ms > self._clock.now_ms():
                    self._clock.move(until_ms)
            return ran
        finally:
            self._busy = False

    def _run_until(self, verb: str, until_ms: int) -> list[Ran]:
        stepper, records = self._at_work()
        ran: list[Ran] = []
        stuck: frozenset[Line] = frozenset()
        idle: Due | None = None  # where no job was found to run
        records.publish()
        self._followed.write()
        while True:
            first = stepper.next(stuck)
            tick = self._followed.next_ms() if until_ms < NEVER else None
            if tick is not None and tick <= until_ms and (first is None or tick <= first[0]):
                self._clock.move(tick)
                self._followed.write()
                continue
            if first is None or first[0] > until_ms:
                if records.keep():
                    continue
                return ran
            date, line, lease = first
            if date > self._clock.now_ms():
                self._clock.move(date)
            one = stepper.step(line, self._clock.now_ms() if lease else None)
            if one is not None:
                ran.append(one)
                if one.ends_the_test:
                    raise cast(BaseException, one.error)
            elif idle == first:
                stuck |= {line}  # it can neither run nor end
            idle = first if one is None else None
            if len(ran) > MOST_RUNS:
                raise RuntimeError(self._too_many(verb, ran))

    def _too_many(self, verb: str, ran: Sequence[Ran]) -> str:
        tasks = ", ".join(f"{task} {count:,} times" for task, count in Counter(one.task for one in ran).most_common(3))
        return (
            f"delayq.{verb}() has run {len(ran) - 1:,} jobs and would continue: {tasks}. If a task schedules itself, advance() in "
            f"smaller steps."
        )

    def _refuse_within_a_task(self, verb: str) -> None:
        running = CURRENT.get(None)
        if self._busy or running is not None:
            raise RuntimeError(
                f"delayq.{verb}() was called within {running.task if running else 'a run'}: only the test can move the time. "
                f"Schedule the other job in the task; the call that runs this job also runs the other one."
            )


@cache
def one_kit() -> Kit:
    """The kit of this process: all its tests share one connection to Redis."""
    return Kit()


def _entries(link: Link, to: str) -> list[dict[str, Any]]:
    """The `id` and `body` of each entry of a target, the oldest first.

    Raises:
        ConfigError: `DELAYQ["TARGETS"]` does not list it.
    """
    targets = conf.get().targets
    if to not in targets:
        raise ConfigError(f"offered({to!r}): DELAYQ['TARGETS'] lists no such target{did_you_mean(to, targets)}.")
    target = targets[to]
    if target.kind == "list":
        return [json.loads(text) for text in link.execute("LRANGE", target.key, 0, -1)]
    found = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in link.execute("XRANGE", target.key, "-", "+")]
    return [{"id": fields[b"id"].decode(), "body": json.loads(fields[b"body"])} for fields in found]
