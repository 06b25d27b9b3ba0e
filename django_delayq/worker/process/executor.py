"""Runs one job in the thread of a consumer: a straight pipeline from a claimed job to one Outcome. It makes no calls to Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from django_delayq import clock, codec, durations, ids
from django_delayq.exceptions import Cancelled, DelayqError, LockTaken, PayloadError, UnknownTask, UnknownVersion
from django_delayq.signing import Signer
from django_delayq.states import PARKED_ARGUMENTS, PARKED_CARRIERS, PARKED_SIGNATURE, PARKED_TASK, PARKED_VERSION, PERIODIC
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.record import read
from django_delayq.worker import outcome
from django_delayq.worker.current import CURRENT, AnyTask, CurrentJob, Run, need_effects
from django_delayq.worker.lease_table import NEVER, UNKNOWN_TASK, LeaseTable
from django_delayq.worker.process import task_call, timeouts
from django_delayq.worker.process.task_call import Coroutines
from django_delayq.worker.process.timeouts import SoftTimer
from django_delayq.worker.receivers import Missing, Receiver, Receivers, Wrap

AT_ONCE: Final = 2.0  # seconds; a job begins within that time of its claim, or is given back


class Executor:
    """1. A job that may not run ends at once: its lease is in doubt, its record is not signed or cannot be read, its task is unknown or
    has another version or other parameters, or a carrier is missing. 2. Any other job is called as the current job, under its timeout.
    3. The result is one Outcome, and the receivers get it. It dies with its process, and loses nothing by that.
    """

    def __init__(
        self,
        *,
        leases: LeaseTable,
        find_task: Callable[[str], AnyTask],
        task_numbers: Mapping[str, int],
        receivers: Sequence[Receiver],
        coroutines: Coroutines,
        timer: SoftTimer,
        missing: Missing | None = None,
        wrap: Wrap | None = None,
        check_tick: Callable[[Any], None] | None = None,
    ) -> None:
        self._leases = leases
        self._find_task = find_task
        self._numbers = task_numbers
        self._receivers = Receivers(receivers)
        self._missing = missing
        self._wrap = wrap
        self._check_tick = check_tick
        self._timer = timer
        self._coroutines = coroutines
        self._parked = ParkedJobs()
        self._lock_waits = LockWaits()
        self._aborted: set[tuple[int, int]] = set()  # row and turn

    def run(self, run: Run) -> Outcome | None:
        """Runs the job. None: it is not ours any more, and there is nothing to settle."""
        run.started = clock.monotonic()
        if self._leases.is_lost(run.row, run.turn):
            return None
        # Each step fills in its part of the run. The first step that returns an outcome ends it.
        refused = self._check_lease(run) or (None if run.line.signer is None else self._check_signature(run, run.line.signer))
        ended = refused or self._decode(run) or self._find(run) or self._perform(run)
        self._receivers.ends(run, ended)
        return ended

    def abort(self, wanted: set[tuple[int, int]], running: Iterable[Run]) -> None:
        """Interrupts runs of other threads, and prevents runs that wait from starting. `wanted`: row and turn of all runs to end."""
        self._aborted.update(wanted)  # first: a run that starts now checks this set
        self._aborted.intersection_update(wanted)
        for run in running:
            if (run.row, run.turn) in wanted and run.current is not None:
                if run.task.is_async:
                    self._coroutines.interrupt(run)
                else:
                    task_call.raise_in_thread(run, Cancelled)

    # what may not run

    def _check_lease(self, run: Run) -> Outcome | None:
        if run.started < self._leases.good_until(run.row, run.turn):
            if run.started - run.claimed <= AT_ONCE:
                return None
            # Its claim was answered late, or this process was frozen. Its task may have been paused since.
            return run.outcome("snooze", reason="the job could not begin within two seconds after it was claimed")
        # The job has waited here so long, or Redis has been away so long, that the lease may have expired and another worker may have
        # the job. It is given back under its fence, which changes nothing in that case.
        return run.outcome("snooze", reason="the lease could not be extended before the job began")

    def _check_signature(self, run: Run, signer: Signer) -> Outcome | None:
        standing = signer.standing(run.job.record, queue=run.job.queue, id=run.job.id)
        if standing == "unsigned":
            return outcome.poison(
                run,
                "poison-signature",
                "its record is not signed, and SIGNING is on; if you trust it: delayq resign --unsigned, then requeue",
            )
        if standing == "wrong":  # it does not run in either case, and a deploy may bring the key
            reason = (
                "Its record was changed, or signed with a key that is neither SECRET_KEY nor in SECRET_KEY_FALLBACKS. If a deploy "
                "brings a new key, deploy workers; if a key was dropped too early: put it back, delayq resign, then requeue."
            )
            return self._park(run, None, reason, PARKED_SIGNATURE, "poison-signature")
        return None

    def _decode(self, run: Run) -> Outcome | None:
        try:
            ids.check(run.job.id)
            run.header, payload = read(run.job.record)
            run.args, run.kwargs, run.options = codec.decode_payload(payload)
        except (PayloadError, ValueError) as error:
            return outcome.poison(run, "poison-record", f"the job cannot be read: {error}")
        return None

    def _find(self, run: Run) -> Outcome | None:
        try:
            run.task = self._find_task(run.header.task)
        except UnknownTask as error:
            return self._park(run, error, str(error), PARKED_TASK, "poison-task")
        meta = run.options.get("meta")
        try:
            run.args, run.kwargs = run.task.understood(run.args, run.kwargs, meta)
        except UnknownVersion as error:
            return self._park(run, error, str(error), PARKED_VERSION, "poison-version")
        except PayloadError as error:  # before the call, which runs the task's code and counts as an attempt
            reason = f"{error} Check whether a parameter was added or removed, or whether a deploy is in progress."
            return self._park(run, error, reason, PARKED_ARGUMENTS, "poison-arguments")
        if self._missing is not None and meta and (names := self._missing(meta)):
            reason = f"DELAYQ['CARRIERS'] lacks {', '.join(names)}, which this job needs. Check whether a deploy is in progress."
            return self._park(run, None, reason, PARKED_CARRIERS, "poison-carriers")
        return None

    def _park(self, run: Run, error: DelayqError | None, reason: str, code: str, poison: str) -> Outcome:
        delay = self._parked.delay(run.job.id, run.job.unknown_ms / 1000)
        if delay is None:
            return outcome.poison(run, poison, f"{reason} It has waited for a day.")
        detail = outcome.park_detail(code, reason)
        return run.outcome("park", detail, durations.milliseconds(delay), error=error, reason=reason)

    # what runs

    def _perform(self, run: Run) -> Outcome:
        task = run.task
        run.timeout = run.options.get("timeout") or task.timeout or run.line.timeout
        run.started_ms = int(run.zero_ms + run.started * 1000)
        hard, retry_ms = 0.0, NEVER
        if run.timeout is not None:
            backoff = outcome.backoff_of(run.options, task.backoff, run.line.backoff)
            hard = run.started + timeouts.hard_limit(run.timeout)
            retry_ms = outcome.foreseen_ms(backoff, run.job.attempt, run.header.max_attempts, run.line.backoff)
        number = self._numbers.get(task.name, UNKNOWN_TASK)
        self._leases.start(run.row, started=run.started, task=number, hard=hard, retry_ms=retry_ms)
        run.current = CurrentJob(run)
        result, error = self._call_as_current(run)
        if isinstance(error, LockTaken):
            return outcome.of_error(run, error, self._lock_waits.delay_ms(run.job.id, run.started_ms, run.now_ms))
        if run.job.id in self._lock_waits.since_ms:
            self._lock_waits.forget(run.job.id)
        return outcome.of_result(run, result) if error is None else outcome.of_error(run, error)

    def _call_as_current(self, run: Run) -> tuple[Any, BaseException | None]:
        assert run.current is not None
        token = CURRENT.set(run.current)
        try:
            self._receivers.begins(run)
            return self._call(run, run.current), None
        except BaseException as error:  # SystemExit too: a task cannot end the worker
            return None, error
        finally:
            CURRENT.reset(token)

    def _call(self, run: Run, current: CurrentJob) -> Any:
        task, fn = run.task, run.task.fn
        meta = run.options.get("meta") or {}
        if PERIODIC in meta and self._check_tick is not None:
            self._check_tick(meta[PERIODIC])
        if self._wrap is not None:
            fn = self._wrap(fn, meta, task.is_async)
        if task.is_async:
            return self._coroutines.call(run, fn, self._aborted)
        if task.atomic:
            return need_effects("atomic=True").run(current, lambda: self._call_here(run, fn))
        return self._call_here(run, fn)

    def _call_here(self, run: Run, fn: Callable[..., Any]) -> Any:
        try:
            timeout, aborted = run.timeout, self._aborted
            result = task_call.call(run, fn, aborted) if timeout is None else self._timer.call(run, timeout, fn, aborted)
        except BaseException as error:
            task_call.end_fork(error)
            raise
        task_call.end_fork(None)  # here, so that a fork does not commit the transaction of an atomic run
        return result


STEPS: Final = (60.0, 120.0, 300.0, 600.0)  # seconds; the last repeats
PATIENCE: Final = 86_400.0
MOST: Final = 10_000  # ids remembered; beyond it the oldest are forgotten
LOCK_WAITS_MS: Final = (1_000, 10_000)  # the shortest and the longest; a lock can be released long before its lease ends


class ParkedJobs:
    """Remembers how often this process has parked each job. The entry of the job in `runs` has the time of the first park, which
    counts across all workers and deploys. If Redis has lost that time, the memory of this process counts, and a job may get another
    day.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def delay(self, job: str, waited: float = 0.0) -> float | None:
        """Seconds until the job may try again; None: it has waited long enough. `waited`: seconds since it was first parked, if the
        job has that time, otherwise 0.
        """
        now = clock.monotonic()
        with self._lock:
            since, times = self._seen.pop(job, (now, 0))
            since = now - waited if waited else since
            if now - since > PATIENCE:
                return None
            while len(self._seen) >= MOST:
                del self._seen[next(iter(self._seen))]
            self._seen[job] = since, times + 1
        return STEPS[min(times, len(STEPS) - 1)]


class LockWaits:
    """Remembers since when each job waits for a lock, as far as this process has seen. Another process starts again at the shortest
    wait.
    """

    def __init__(self) -> None:
        self.since_ms: dict[str, int] = {}
        self._lock = threading.Lock()

    def delay_ms(self, job: str, started_ms: int, now_ms: int) -> int:
        """The delay until the job tries again: as long as it has waited. `started_ms`: the start of the run that the lock ended."""
        shortest, longest = LOCK_WAITS_MS
        with self._lock:
            since = self.since_ms.pop(job, started_ms)
            while len(self.since_ms) >= MOST:
                del self.since_ms[next(iter(self.since_ms))]
            self.since_ms[job] = since
        return max(shortest, min(longest, now_ms - since))

    def forget(self, job: str) -> None:
        """The run ended in another way, so the next wait of the job starts at the shortest."""
        with self._lock:
            self.since_ms.pop(job, None)
