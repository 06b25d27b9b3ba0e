"""The kit of a test: the fixture `delayq` of pytest, and `self.delayq` of the mixin."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, cast
from unittest import mock

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.template.defaultfilters import pluralize
from django.utils.asyncio import async_unsafe

from django_delayq import clock, codec, conf, durations, under_test
from django_delayq.exceptions import ConfigError
from django_delayq.mirror import checkpoint
from django_delayq.models import database
from django_delayq.producer import commit
from django_delayq.producer.batch import JobBatch
from django_delayq.producer.outbox import rows
from django_delayq.producer.schedule import Bound, plan
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import connect
from django_delayq.store.keys import NAMES, Keys
from django_delayq.store.scripts.site import WORKERS
from django_delayq.testing import project_commits
from django_delayq.testing.calling_thread import run_by_hand, without_tick
from django_delayq.testing.jobs_clock import JobsClock, JobsLink, moment_ms
from django_delayq.testing.scheduled_jobs import ScheduledJob, Wanted, table, task_name, waiting
from django_delayq.testing.stepper import Due, Fault, Faults, FollowedSchedules, Moment, Ran, RecordKeeper, Stepper, made, upcoming
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
    """Controls the clock that jobs use, runs due jobs, and returns scheduled jobs. Everything happens in the caller's thread and on its
    connections. The clock starts at the current time. The fixture and the mixin call `start` and `stop` around each test.
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
        self._began = 0.0

    # around a test

    def start(self) -> None:
        """Starts a test with no scheduled jobs and no simulated failures, at Python's time.

        Raises:
            ConfigError: There is no server for tests. The message explains how to provide one.
            RuntimeError: Another kit is in use, or Django's test environment isn't set up.
        """
        if commit.is_open is project_commits.is_open:
            raise RuntimeError("The test kit of delayq is already in use. A test can have one kit, from the fixture or from the mixin.")
        self._clean()
        self._faults.waiting.clear()
        self._followed = FollowedSchedules()
        self._clock.reset()
        self._began = os.times().elapsed  # no library that controls the time changes it
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
        """Ends the test and restores everything."""
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
        """The current time of the clock that jobs use."""
        return clock.from_ms(self._clock.now_ms())

    def advance(self, by: durations.Delay) -> list[Ran]:
        """Advances the time, and runs each job when it becomes due, including retries and jobs that are scheduled by other jobs.
        Returns the runs. Exceptions in a task aren't raised here, because the job is retried or fails. Ctrl-C, and exceptions that end
        a test, such as `pytest.fail`, are raised.

        Raises:
            RuntimeError: It was called in a task, or more than 10,000 jobs would run.
        """
        return self._run("advance", durations.milliseconds(by))

    def travel(self, to: datetime) -> None:
        """Sets the time without running anything. Jobs that become due in the meantime are late, as if no worker had been running.

        Raises:
            ValueError: `to` isn't an aware datetime, or its year isn't supported.
        """
        self._refuse_within_a_task("travel")
        self._clock.move(moment_ms(to, "travel(): to"))

    def run_due(self) -> list[Ran]:
        """Runs the jobs that are due now. Returns the runs. It raises the same exceptions as `advance`."""
        return self._run("run_due", 0)

    def drain(self) -> list[Ran]:
        """Runs all scheduled jobs, and advances the time as needed. Returns the runs. For a schedule that you follow, only the next
        tick runs. It raises the same exceptions as `advance`.
        """
        return self._run("drain", None)

    def finish(self, batch: JobBatch) -> list[Ran]:
        """Runs jobs, and advances the time as needed, until all members of the batch have ended. Returns the runs. The job that follows
        is then scheduled, but hasn't run. It raises the same exceptions as `advance`.
        """
        return self._run("finish", None, batch)

    # schedules

    def follow(self, *schedules: Any) -> None:
        """Makes these schedules create jobs for the rest of the test. By default, schedules don't create jobs in tests.

        Args:
            schedules: Names of schedules, or tasks. For a task, all of its schedules are followed.

        Raises:
            ConfigError: There is no such schedule.
        """
        self._refuse_within_a_task("follow")
        self._at_work()
        for schedule in schedules:
            self._followed.follow(schedule)
        with self._clock.held():
            self._followed.write()

    @async_unsafe(WITHIN_A_LOOP)
    def upcoming(self, schedule: Any, count: int = 1) -> list[datetime]:
        """Returns the next dates of a schedule, in UTC, even if you don't follow it. The list is empty if the schedule is off.

        Args:
            schedule: The name of a schedule, or its task.

        Raises:
            ConfigError: There is no such schedule, or the task has several.
            ValueError: `count` isn't a whole number of at least 0.
        """
        return upcoming(schedule, count)

    # what is scheduled

    def scheduled(self, task: Any = None, *, key: str | None = None, queue: str | None = None) -> list[ScheduledJob]:
        """Returns the scheduled jobs, sorted by date. Jobs in an open transaction are not included."""
        return Wanted(task, key=key, queue=queue).among(self._waiting())

    def assert_scheduled(
        self,
        task: Any,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        key: str | None = None,
        queue: str | None = None,
        delay: durations.Delay | None = None,
        run_at: datetime | None = None,
        within: durations.Delay | None = None,
        count: int | None = None,
    ) -> ScheduledJob:
        """Asserts that a matching job is scheduled, and returns the first one. With `count`, asserts the number of matching jobs. Only
        the arguments that you pass are compared.

        Args:
            delay: The expected delay from now. `run_at`: The expected date, as an aware datetime.
            within: The tolerance for `delay` or `run_at`. By default, it is one second, and a delay may also be shorter by the time
                that the test has taken. Without `delay` and `run_at`, this is the maximum delay from now.

        Raises:
            AssertionError: There is no such job. The message lists the scheduled jobs.
            ConfigError: `task` isn't a task, or is None.
        """
        if task is None:
            raise ConfigError("assert_scheduled() was given None for the task. For any task, write assert delayq.scheduled().")
        passed = timedelta(seconds=os.times().elapsed - self._began)
        wanted = Wanted(task, args=args, kwargs=kwargs, key=key, queue=queue, delay=delay, run_at=run_at, within=within, passed=passed)
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
        """Asserts that no matching job is scheduled. Without arguments, asserts that no job is scheduled.

        Raises:
            AssertionError: There is such a job. The message lists the scheduled jobs.
        """
        wanted = Wanted(task, args=args, kwargs=kwargs, key=key, queue=queue)
        if found := wanted.among(self._waiting()):
            raise AssertionError(f"A job is scheduled: {wanted}.\n{table(found)}")

    def offered(self, to: str) -> list[dict[str, Any]]:
        """Returns the entries in a target, oldest first, each with its `id` and `body`. Raises ConfigError if the target is unknown."""
        config = conf.get()
        if to not in config.targets:
            raise ConfigError(f"offered({to!r}): DELAYQ['TARGETS'] lists no such target{did_you_mean(to, config.targets)}.")
        target, link = config.targets[to], self._link(config)
        with link.aside():
            if target.kind == "list":
                return [json.loads(text) for text in link.execute("LRANGE", target.key, 0, -1)]
            found = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in link.execute("XRANGE", target.key, "-", "+")]
        return [{"id": fields[b"id"].decode(), "body": json.loads(fields[b"body"])} for fields in found]

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
        """Runs a task with these arguments, without a job. `delayq.current()` and `delayq.once()` work as in a worker. To set options
        of the job, use `task.using(key=…)`. To set the tick of a schedule, use `task.using(meta={"delayq.periodic": {"name": …, "tick":
        …}})`. Arguments and the result are converted to JSON and back. Returns the task's return value, or raises its exception.

        Raises:
            PayloadError, ConfigError: See `schedule`.
            ValueError: `attempt` isn't a whole number of at least 1, or `crashes` or `asked` isn't one of at least 0.
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
        """Simulates that the worker dies during the next run, or the next run of this task. The job runs again when its lease has
        expired. `advance` can go past that time.

        Args:
            at: "begin" means before the task is called. "end" means after the task, but before Redis has recorded this, so the task
                runs twice.
        """
        if at not in ("begin", "end"):
            raise ValueError(f'crash_next(at={at!r}): write "begin" or "end".')
        self._faults.waiting.append(Fault(task_name(task), None, at))

    def fail_next(self, error: BaseException | type[BaseException], task: Any = None) -> None:
        """Makes the next run, or the next run of this task, raise this exception or an exception of this class. The task isn't called.
        Raises ValueError for other values.
        """
        self._faults.waiting.append(Fault(task_name(task), made(error)))

    @contextmanager
    def redis_down(self) -> Iterator[None]:
        """Makes Redis unreachable during the block, both for calls that schedule jobs and for workers, so no jobs run. After the block,
        the next `advance`, `run_due` or `drain` publishes the committed rows.
        """
        link = self._link(conf.get())
        before, link.down = link.down, True
        try:
            yield
        finally:
            link.down = before
            stores.forget()

    # how jobs are run

    def _run(self, verb: str, by_ms: int | None, batch: JobBatch | None = None) -> list[Ran]:
        """`by_ms` None: until nothing is left, or the batch has ended."""
        self._refuse_within_a_task(verb)
        self._busy = True
        try:
            with self._clock.held():
                until_ms = NEVER if by_ms is None else self._clock.now_ms() + by_ms
                down = self._link(conf.get()).down
                ran = [] if down else self._run_until(verb, until_ms, batch)
                if down and by_ms:  # a worker writes ticks without Redis, and the relay publishes them
                    self._followed.write_until(until_ms, self._clock.move)
                if by_ms and until_ms > self._clock.now_ms():
                    self._clock.move(until_ms)
            return ran
        finally:
            self._busy = False

    def _run_until(self, verb: str, until_ms: int, batch: JobBatch | None) -> list[Ran]:
        stepper, records = self._at_work()
        ran: list[Ran] = []
        stuck: frozenset[Line] = frozenset()
        idle: Due | None = None  # where no job was found to run
        records.publish()
        self._followed.write()
        while True:
            if batch is not None:
                records.keep()
                if not batch.counts.left:
                    return ran
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
                tasks = ", ".join(f"{task} {count:,} times" for task, count in Counter(one.task for one in ran).most_common(3))
                so_far = f"delayq.{verb}() has run {len(ran) - 1:,} jobs and would continue: {tasks}."
                raise RuntimeError(f"{so_far} If a task schedules itself, advance() in smaller steps.")

    def _refuse_within_a_task(self, verb: str) -> None:
        running = CURRENT.get(None)
        if self._busy or running is not None:
            raise RuntimeError(
                f"delayq.{verb}() was called in {(running.task if running else 'a run')}, but only the test can advance "
                "the time. Schedule the other job in the task. It runs in the same call as this job."
            )


@cache
def one_kit() -> Kit:
    """The kit of this process: all its tests share one connection to Redis."""
    return Kit()
