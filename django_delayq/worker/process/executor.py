"""Runs one job: a straight pipeline from a claimed record to one Outcome. Nothing here speaks to Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.dispatch import Signal

from django_delayq import clock, codec, ids, signals
from django_delayq.exceptions import Fail, PayloadError, Retry, Snooze, UnknownTask
from django_delayq.record import Header, read
from django_delayq.worker import atomic, logs, outcome, retry
from django_delayq.worker.current import CURRENT, CurrentJob
from django_delayq.worker.holdings import NEVER, UNKNOWN_TASK, Holdings
from django_delayq.worker.line import Line, Taken
from django_delayq.worker.outcome import Outcome
from django_delayq.worker.process import forks, timeouts
from django_delayq.worker.process.coroutines import Coroutines
from django_delayq.worker.process.timeouts import SoftTimer
from django_delayq.worker.process.unknown_tasks import Parking
from django_delayq.worker.spec import AnyTask, Hooks

FRESH: Final = 1.0  # seconds
ENDS: Mapping[str, Signal] = {
    "ack": signals.job_succeeded,
    "retry": signals.job_retried,
    "snooze": signals.job_snoozed,
    "fail": signals.job_failed,
    "cancel": signals.job_cancelled,
}


class _Grip:
    """Ties a running job to its row in the holdings."""

    __slots__ = ("_holdings", "_row", "_turn")

    def __init__(self, holdings: Holdings, row: int, turn: int) -> None:
        self._holdings, self._row, self._turn = holdings, row, turn

    def progress(self, done: int, total: int) -> None:
        self._holdings.progress(self._row, f"{done}/{total}")

    def cancel_requested(self) -> bool:
        return self._holdings.is_cancelled(self._row, self._turn)

    def lost(self) -> bool:
        return self._holdings.is_lost(self._row, self._turn)


class _Decoded(NamedTuple):
    header: Header
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


class _Thread(threading.local):
    tidied = -FRESH  # when `after_job` was called last


class Executor:
    """1. Decode; what cannot be decoded fails at once. 2. Look the task up by name; an unknown one parks the job. 3. Run it as
    the current job, under its timeout. 4. Say how it ended. It dies with its process: it has nothing of its own to lose.
    """

    def __init__(
        self,
        *,
        lines: Sequence[Line],
        holdings: Holdings,
        find_task: Callable[[str], AnyTask],
        task_numbers: Mapping[str, int],
        hooks: Hooks,
        worker: str,
    ) -> None:
        self._lines = lines
        self._holdings = holdings
        self._find_task = find_task
        self._numbers = task_numbers
        self._hooks = hooks
        self._worker = worker
        self._thread = _Thread()
        self._timer = SoftTimer()
        self._coroutines = Coroutines(hooks.end_thread)
        self._parking = Parking()

    def run(self, taken: Taken) -> Outcome | None:
        """Runs the job. None: it is not ours any more, and there is nothing to settle."""
        if self._holdings.is_lost(taken.row, taken.turn):
            return None
        if clock.monotonic() >= self._holdings.good_until(taken.row, taken.turn):
            # It has waited here so long, or Redis has been away so long, that the lease may have run out: another worker
            # may have it. Given back under its fence, which changes nothing if so.
            return Outcome("snooze", b"", reason="the lease could not be extended before it began")
        if (doubt := self._doubt(taken)) is not None:
            return self._poison(taken, "poison-signature", doubt)
        try:
            decoded = _decode(taken)
        except (PayloadError, ValueError) as error:
            text = f"the job cannot be read: {error}"
            return self._poison(taken, "poison-record", text, "it cannot be read; the job's row says why")
        try:
            task = self._find_task(decoded.header.task)
        except UnknownTask as error:
            return self._park(taken, error)
        return self._run(taken, decoded, task)

    def _doubt(self, taken: Taken) -> str | None:
        """Why this record must not run: it is not signed by any of our keys."""
        signer, job = self._lines[taken.line].signer, taken.job
        if signer is None:
            return None
        standing = signer.standing(job.record, queue=job.queue, id=job.id)
        if standing == "unsigned":
            return (
                "its record is not signed, and SIGNING is on; if you trust it: delayq resign --unsigned, then requeue"
            )
        if standing == "wrong":
            return (
                "its record was changed, or signed with a key that is neither SECRET_KEY nor in SECRET_KEY_FALLBACKS; if a key "
                "was dropped too early: put it back, delayq resign, then requeue"
            )
        return None

    def _park(self, taken: Taken, error: UnknownTask) -> Outcome:
        delay = self._parking.delay(taken.job.id, taken.job.unknown_ms / 1000)
        reason = str(error)
        if delay is None:
            return self._poison(taken, "poison-task", f"{reason} It has waited for a day.")
        logs.parked(taken, reason, delay, self._worker)
        return Outcome("park", outcome.detail(reason=reason), clock.milliseconds(delay), error, reason)

    def _poison(self, taken: Taken, fingerprint: str, text: str, logged: str = "") -> Outcome:
        written = codec.dumps({"c": "Poison", "m": outcome.clean(text), "p": fingerprint})
        logs.poison(taken, logged or text, self._worker)
        return Outcome("fail", written, reason=text)

    def _run(self, taken: Taken, decoded: _Decoded, task: AnyTask) -> Outcome:
        job, line = taken.job, self._lines[taken.line]
        timeout = decoded.options.get("timeout") or task.timeout or line.timeout
        started_ms, started = clock.wall_ms(), clock.monotonic()
        self._mark_running(taken, decoded, task, started, timeout)
        current = CurrentJob(
            short_id=job.id, task=task.name, queue=job.queue, key=decoded.header.key, attempt=job.attempt,
            crashes=job.crashes, nonce=job.fence, due_ms=job.due_ms, started_ms=started_ms,
            grip=_Grip(self._holdings, taken.row, taken.turn),
        )  # fmt: skip
        result, error = None, None
        token = CURRENT.set(current)
        try:
            if started - self._thread.tidied > FRESH:
                self._hooks.before_job()
            if signals.job_started.receivers:
                signals.job_started.send_robust(sender=task, job=current)
            result = self._call(task, decoded, timeout, current)
        except BaseException as raised:  # SystemExit too: a task cannot end the worker
            error = raised
        finally:
            CURRENT.reset(token)
        if error is None:
            finished_ms = clock.wall_ms()
            detail, note = outcome.success(
                started_ms=started_ms, finished_ms=finished_ms, result=result, limit=line.max_result
            )
            ended = Outcome("ack", detail, reason=note, ran_ms=max(0, finished_ms - started_ms))
        else:
            ended = self._failure(taken, decoded, task, error, started_ms)
        logs.ended(taken, task.name, ended, clock.monotonic() - started, self._worker)
        end = ENDS[ended.kind]
        if end.receivers:
            end.send_robust(sender=task, job=current, outcome=ended)
        self._hooks.after_job()
        self._thread.tidied = clock.monotonic()
        return ended

    def _mark_running(
        self, taken: Taken, decoded: _Decoded, task: AnyTask, started: float, timeout: float | None
    ) -> None:
        hard, retry_ms = 0.0, NEVER
        if timeout is not None:
            default = self._lines[taken.line].backoff
            backoff = retry.choose(decoded.options, task.backoff, default)
            hard = started + timeouts.hard_limit(timeout)
            retry_ms = retry.foreseen_ms(backoff, taken.job.attempt, decoded.header.max_attempts, default)
        number = self._numbers.get(task.name, UNKNOWN_TASK)
        self._holdings.start(taken.row, started=started, task=number, hard=hard, retry_ms=retry_ms)

    def _call(self, task: AnyTask, decoded: _Decoded, timeout: float | None, current: CurrentJob) -> Any:
        if task.is_async:
            return self._coroutines.call(task.fn, decoded.args, decoded.kwargs, timeout, current)
        if task.atomic:
            return atomic.need().run(current, lambda: self._call_here(task, decoded, timeout))
        return self._call_here(task, decoded, timeout)

    def _call_here(self, task: AnyTask, decoded: _Decoded, timeout: float | None) -> Any:
        try:
            if timeout is None:
                result = task.fn(*decoded.args, **decoded.kwargs)
            else:
                result = self._timer.call(task.fn, decoded.args, decoded.kwargs, timeout)
        except BaseException as error:
            forks.end(error)
            raise
        forks.end(None)  # here, so that a copy does not commit the transaction of an atomic run
        return result

    def _failure(
        self, taken: Taken, decoded: _Decoded, task: AnyTask, error: BaseException, started_ms: int
    ) -> Outcome:
        finished_ms = clock.wall_ms()
        told = isinstance(error, Retry | Snooze | Fail)
        reason = error.reason if isinstance(error, Retry | Snooze | Fail) else ""
        # A task that says how its run ends has nothing to trace, unless it says so because of an error.
        shown: BaseException | None = error
        if told:
            shown = error.__cause__ or error.__context__
        kind, delay = self._verdict(taken, decoded, task, error)
        if kind == "fail" and shown is None:
            shown = error.with_traceback(None)
        if self._holdings.is_cancelled(taken.row, taken.turn):
            kind, delay = "cancel", 0
        written = outcome.detail(started_ms=started_ms, finished_ms=finished_ms, error=shown, reason=reason)
        return Outcome(kind, written, delay, error, reason, max(0, finished_ms - started_ms))

    def _verdict(
        self, taken: Taken, decoded: _Decoded, task: AnyTask, error: BaseException
    ) -> tuple[outcome.Kind, int]:
        if isinstance(error, Snooze):
            return "snooze", clock.milliseconds(error.delay)
        if isinstance(error, Fail) or taken.job.attempt >= decoded.header.max_attempts:
            return "fail", 0
        if isinstance(error, Retry) and error.delay is not None:
            return "retry", clock.milliseconds(error.delay)
        default = self._lines[taken.line].backoff
        cause = (error.__cause__ or error) if isinstance(error, Retry) else error
        delay = retry.delay_ms(retry.choose(decoded.options, task.backoff, default), taken.job.attempt, cause, default)
        return ("fail", 0) if delay is None else ("retry", delay)


def _decode(taken: Taken) -> _Decoded:
    ids.check(taken.job.id)
    header, payload = read(taken.job.record)
    return _Decoded(header, *codec.decode_payload(payload))
