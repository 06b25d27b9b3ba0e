"""Threads that run jobs, the buffer that they take them from, and their pace."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context

from django_delayq import clock
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.worker.current import Run
from django_delayq.worker.process.executor import Executor
from django_delayq.worker.process.settler import Settles

logger = Logger("django_delayq.worker")

AHEAD = 0.05  # seconds of work that a process takes beyond what its threads run
MOST_AHEAD = 200
UNKNOWN = 1.0  # seconds; the mean until the first job has ended
SOON = 0.05  # seconds in which a server usually answers a claim


class Pace:
    """The mean duration of jobs here, which follows the latest jobs, and the number of jobs to hold ready. A job that waits in a
    process is late if the job before it takes long. So only about 50 ms of work is taken ahead, and none before the first jobs have
    been measured. Threads update the mean without a lock: a lost update changes it a little.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._mean = UNKNOWN

    def note(self, seconds: float) -> None:
        """Records the duration of a job."""
        self._mean += 0.2 * (seconds - self._mean)

    def slow(self) -> None:
        """Records that jobs wait here too long: no work is taken ahead until the mean has fallen again."""
        self._mean = UNKNOWN

    def ahead(self) -> int:
        """How many jobs to hold beyond those that run. It is 0 while jobs take as long as a job may wait here, or before a
        measurement: with many threads even that mean would allow some jobs, and a full process would take the same jobs again and
        again.
        """
        if self._mean >= UNKNOWN:
            return 0
        return min(MOST_AHEAD, int(self._threads * AHEAD / max(self._mean, 1e-6)))


class JobBuffer:
    """Claimed jobs between the mover, which adds batches, and the consumers, which take one job each. Taking a job from a buffer that
    is not empty needs no lock. `call_at`: the number of jobs at which a consumer that has finished calls the mover (-1: never).
    `taken`: how many jobs were added, without those that were given back. `round`: increases with every claim that returned jobs.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._jobs: deque[Run] = deque()
        self._filled = threading.Condition()
        self._idle = 0
        self._closed = False
        self._call = call
        self._asked: dict[object, tuple[int, float]] = {}
        self.call_at = -1
        self.taken = 0
        self.round = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, batch: Sequence[Run]) -> bool:
        """Adds jobs, and wakes as many idle consumers. Returns False if the buffer is closed and does not take them."""
        with self._filled:
            if self._closed:
                return False
            self.taken += len(batch)
            self._jobs.extend(batch)
            if self._idle:
                self._filled.notify(len(batch))
        return True

    def went_back(self, count: int) -> None:
        """Records that this many added jobs are given back."""
        with self._filled:
            self.taken -= count

    def asking(self, mover: object, want: int, since: float) -> None:
        """Records that the mover has asked for this many jobs; 0: its answer has arrived."""
        self._asked[mover] = want, since

    def asked_by_others(self, mover: object, now: float) -> int:
        """How many jobs other movers may receive. A server that takes longer than usual is not counted."""
        return sum(want for other, (want, since) in list(self._asked.items()) if other is not mover and now - since < SOON)

    def take(self) -> Run | None:
        """Returns the next job, and waits for one. None: the buffer is closed and empty."""
        while True:
            try:
                return self._jobs.popleft()
            except IndexError:
                pass
            with self._filled:
                self._idle += 1  # before the last check: `put` checks in the other order, so one of the two sees the other
                if not self._jobs and not self._closed:
                    self._filled.wait()
                self._idle -= 1
                if self._closed and not self._jobs:
                    return None

    def freed(self) -> None:
        """Records that a consumer has finished a job. Calls the mover if it waits for that."""
        if len(self._jobs) <= self.call_at:
            self.call_at = -1
            self._call()

    def waiting_since_before(self, moment: float) -> list[Run]:
        """Removes and returns the jobs that were claimed before `moment`."""
        found: list[Run] = []
        while True:
            try:
                run = self._jobs.popleft()
            except IndexError:
                return found
            if run.claimed >= moment:
                self._jobs.appendleft(run)
                return found
            found.append(run)

    def close(self) -> list[Run]:
        """Removes and returns all jobs. Consumers end when they have finished their jobs."""
        with self._filled:
            left = self.waiting_since_before(float("inf"))
            self._closed = True
            self._filled.notify_all()
        return left


class Consumer:
    """A thread that runs jobs.

    1. It takes a job from the buffer.
    2. It runs the job.
    3. It passes the outcome to the settler.

    It ends when the buffer is closed. If its process is killed, the supervisor gives back the job that it ran.
    """

    def __init__(
        self, number: int, *, buffer: JobBuffer, executor: Executor, settler: Settles, pace: Pace, end_thread: Callable[[], None]
    ) -> None:
        self._buffer = buffer
        self._executor = executor
        self._settler = settler
        self._pace = pace
        self._end_thread = end_thread
        self.running: Run | None = None
        self.finished = 0
        self._thread = threading.Thread(target=self._work, name=f"delayq-{number}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Waits for the thread to end."""
        self._thread.join(seconds)

    def poll(self, run: Run) -> None:
        """Runs one job."""
        self.running = run
        try:
            failpoint("consumer.run")
            # In a separate context: a language, a time zone or a log field that a task sets ends with its job.
            outcome = copy_context().run(self._executor.run, run)
            failpoint("consumer.ran")
        except BaseException:
            # An error of the worker or of a hook, not of the task, which would be an outcome. The lease expires, which counts as a
            # crash.
            logger.exception("job %s: an error occurred in the worker. The job runs again when its lease expires", run.job.id)
            outcome = None
        self._pace.note(clock.monotonic() - run.started)
        self._settler.add(run, outcome)
        self.running = None
        self.finished += 1
        self._buffer.freed()

    def _work(self) -> None:
        try:
            while (run := self._buffer.take()) is not None:
                self.poll(run)
        finally:
            self._end_thread()
