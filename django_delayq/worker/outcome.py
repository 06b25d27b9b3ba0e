"""How a run ends: the outcome of a result or an exception, the delay of the next attempt, and the detail that the mirror stores.
Threads of consumers call it. It has no side effects.

The detail is JSON with short names, all optional: s started ms, f finished ms, r result, c class of the error, m message, t traceback,
p fingerprint, d reason of a retry or snooze, e "evicted" if the process was killed because of another job in it, or "parked" if this
release cannot run the job (then p is one of `PARKED`), k code and v fields of one of our errors or of the end of the process, w delay
of the next attempt in ms, if the task chose it.
"""

from __future__ import annotations

import signal
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from random import random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from django_delayq import clock, codec, durations
from django_delayq.exceptions import DelayqError, Fail, GaveUp, LockTaken, NotYet, PayloadError, Retry, Skip, Snooze
from django_delayq.ladder import POLL, Ladder
from django_delayq.logger import Logger, class_name
from django_delayq.store.scripts.queue import Kind, Outcome
from django_delayq.text import clean as fit_to_store
from django_delayq.text import error_fingerprint
from django_delayq.worker.lease_table import ASK, NEVER

if TYPE_CHECKING:
    from django_delayq.worker.current import Run

logger = Logger("django_delayq.worker")

MAX_MESSAGE: Final = 2_000  # characters
MAX_FIELD: Final = 2_100  # characters; the reply of a host has up to 2 KB
MAX_TRACEBACK: Final = 32_768
HEAD: Final = "Traceback (most recent call last):\n"
MARK: Final = "  | "  # the mark of lines in exception groups
CAUSED: Final = "The above exception was the direct cause of the following exception:"
DURING: Final = "During handling of the above exception, another exception occurred:"

# Without the Python code that a named tuple runs for each value.
_made: Final[Callable[[tuple[str, int, str, Kind, int, bytes, int, int, None, str]], Outcome]] = partial(tuple.__new__, Outcome)

Backoff = Ladder | Callable[[int, BaseException], durations.Delay | None]


def of_result(run: Run, result: Any) -> Outcome:
    """The outcome of a run whose task returned `result`."""
    started_ms, finished_ms = run.started_ms, int(run.zero_ms + clock.monotonic() * 1000)
    detail, note = success_detail(started_ms, finished_ms, result, run.line.max_result)
    job = run.job
    return _made((job.id, job.attempt, job.fence, "ack", 0, detail, finished_ms - started_ms, run.late_ms, None, note))


def of_error(run: Run, error: BaseException, lock_wait_ms: int = 0) -> Outcome:
    """The outcome of a run whose task raised `error`. A cancel request turns it into a cancelled job. `lock_wait_ms`: the delay after
    LockTaken.
    """
    finished_ms = run.now_ms
    reason = message = ""
    shown: BaseException | None = error
    if isinstance(error, Skip):
        message, shown = error.reason, None
    elif isinstance(error, Retry | Snooze | NotYet | Fail | LockTaken):
        # A task that raises one of these has no error to show, unless another error caused it.
        reason, shown = error.reason, error.__cause__ or error.__context__
    kind, delay = kind_and_delay(run, error, lock_wait_ms)
    if kind == "fail" and isinstance(error, NotYet):
        gave_up = GaveUp(steps=run.job.asks, reason=error.reason)
        if shown is not None:
            gave_up.__cause__ = shown
            gave_up.__traceback__ = error.__traceback__
        error = shown = gave_up
    if kind == "fail" and shown is None:
        shown = error.with_traceback(None)
    if run.leases.is_cancelled(run.row, run.turn):
        kind, delay = "cancel", 0
    detail = failure_detail(
        started_ms=run.started_ms,
        finished_ms=finished_ms,
        error=shown,
        message=message,
        reason=reason,
        wait_ms=delay if kind == "retry" and isinstance(error, Retry) and error.delay is not None else None,
    )
    return run.outcome(kind, detail, delay, finished_ms - run.started_ms, error, reason)


def kind_and_delay(run: Run, error: BaseException, lock_wait_ms: int) -> tuple[Kind, int]:
    """Returns the kind of outcome for an exception, and the delay in ms."""
    if isinstance(error, LockTaken):
        return "snooze", lock_wait_ms
    if isinstance(error, Snooze):
        return "snooze", durations.milliseconds(error.delay)
    if isinstance(error, NotYet):
        wait = poll_ms(run.task.poll, run.job.asks)
        return ("fail", 0) if wait is None else ("ask", wait)
    if isinstance(error, Skip):
        return "cancel", 0
    if isinstance(error, Fail) or run.job.attempt >= run.header.max_attempts:
        return "fail", 0
    if isinstance(error, Retry) and error.delay is not None:
        return "retry", durations.milliseconds(error.delay)
    default = run.line.backoff
    cause = (error.__cause__ or error) if isinstance(error, Retry) else error
    delay = delay_ms(backoff_of(run.options, run.task.backoff, default), run.job.attempt, cause, default)
    return ("fail", 0) if delay is None else ("retry", delay)


def poison(run: Run, code: str, text: str) -> Outcome:
    """The outcome of a job that can never run."""
    run.poison = code
    return run.outcome("fail", codec.dumps({"c": "Poison", "m": clean(text), "p": code}), reason=text)


# when the next attempt follows


def backoff_of(options: Mapping[str, Any], backoff: Backoff | None, default: Ladder) -> Backoff:
    """The backoff of a job: from its own options, else of its task, else of its queue."""
    text = options.get("backoff")
    if text is not None:
        try:
            return Ladder(text)
        except ValueError as error:
            logger.error("the backoff of the job cannot be read, so the backoff of the queue is used: %s", error)
            return default
    return default if backoff is None else backoff


def delay_ms(
    backoff: Backoff, attempt: int, error: BaseException, default: Ladder, *, rand: Callable[[], float] = random
) -> int | None:
    """Milliseconds until the next attempt; None: no retry. `default` is used if the backoff fails."""
    try:
        found = backoff.delay(attempt, rand=rand) if isinstance(backoff, Ladder) else backoff(attempt, error)
        return None if found is None else durations.milliseconds(found)
    except Exception:
        # `repr`, because the text of a ladder would call the formula that has just failed.
        logger.exception("the backoff %s failed at attempt %d, so the backoff of the queue is used", repr(backoff), attempt)
        return durations.milliseconds(default.delay(attempt, rand=rand))


def poll_ms(poll: Ladder | None, asks: int, *, rand: Callable[[], float] = random) -> int | None:
    """Milliseconds until the next poll of a job that has polled `asks` times before this run; None: its ladder has ended, and the job
    gives up. The default poll ladder is used if a formula fails.
    """
    ladder = POLL if poll is None else poll
    if asks >= len(ladder):
        return None
    try:
        return durations.milliseconds(ladder.delay(asks + 1, rand=rand))
    except Exception:
        logger.exception("the poll ladder %s failed at step %d, so the default is used", repr(ladder), asks + 1)
        return durations.milliseconds(POLL.delay(asks + 1, rand=rand))


def foreseen_ms(backoff: Backoff, attempt: int, max_attempts: int, default: Ladder) -> int:
    """For the lease table: the delay that applies if the supervisor has to kill this run, or NEVER, or ASK."""
    if attempt >= max_attempts:
        return NEVER
    if not isinstance(backoff, Ladder):
        return ASK
    found = delay_ms(backoff, attempt, TimeoutError(), default)
    return NEVER if found is None else found


# the detail


def failure_detail(
    *,
    started_ms: int = 0,
    finished_ms: int = 0,
    error: BaseException | None = None,
    message: str = "",
    reason: str = "",
    wait_ms: int | None = None,
) -> bytes:
    """The detail of a run that did not succeed. `wait_ms`: the delay if the task chose it, and not its ladder."""
    fields: dict[str, Any] = {"s": started_ms, "f": finished_ms} if started_ms else {}
    if error is not None:
        fields |= _failure(error)
    if message:
        fields["m"] = clean(message)
    if reason:
        fields["d"] = clean(reason)
    if wait_ms is not None:
        fields["w"] = wait_ms
    return codec.dumps(fields)


def park_detail(code: str, reason: str) -> bytes:
    """The detail of a job that cannot run here yet. `code`: one of `PARKED`."""
    return codec.dumps({"d": clean(reason), "e": "parked", "p": code})


def crash_detail(exit_code: int | None) -> bytes:
    """The detail of a run whose process died. `exit_code`: negative for a signal, None if the whole worker died."""
    if exit_code is None:
        return codec.dumps({"d": "its whole worker died", "k": "worker_died", "v": {}})
    if exit_code < 0:
        name = signal_name(-exit_code)
        code, often = ("process_sigkill", ", perhaps out of memory") if -exit_code == signal.SIGKILL else ("process_signal", "")
        return codec.dumps({"d": f"its process was killed by {name}{often}", "k": code, "v": {"signal": name}})
    return codec.dumps({"d": f"its process ended with exit code {exit_code}", "k": "process_exit", "v": {"exit_code": exit_code}})


def signal_name(number: int) -> str:
    """9 -> "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # of real time, for example


def success_detail(started_ms: int, finished_ms: int, result: Any, limit: int) -> tuple[bytes, str]:
    """The detail of a run that returned `result`, and a note if the result cannot be stored. It is null then."""
    if result is None:
        return b'{"s":%d,"f":%d}' % (started_ms, finished_ms), ""
    note = ""
    fields: dict[str, Any] = {"s": started_ms, "f": finished_ms}
    try:
        codec.check(result, "result")
        raw = codec.dumps({**fields, "r": result})
        if len(raw) <= limit:
            return raw, ""
        note = f"the result is {len(raw):,} bytes of JSON, and the limit is {limit:,} (MAX_PAYLOAD); it was not kept"
    except PayloadError as error:
        note = f"the result was not kept: {error}"
    return codec.dumps({**fields, "d": clean(note)}), note


def clean(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text as every database accepts it: UTF-8, without NUL, shortened in the middle."""
    return fit_to_store(text, limit)


def fingerprint(error: BaseException) -> str:
    """See `error_fingerprint`."""
    return error_fingerprint(class_name(error), _message(error), _place(error.__traceback__))


def _failure(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {"c": class_name(error), "m": clean(_message(error)), "p": fingerprint(error)}
    if error.__traceback__ is not None:
        fields["t"] = clean(_traceback(error), MAX_TRACEBACK)
    if isinstance(error, DelayqError) and error.fields:
        fields["k"], fields["v"] = error.code, {name: _plain(value) for name, value in error.fields.items()}
    return fields


def _plain(value: Any) -> str | int | bool | None:
    """The value as a JSON scalar."""
    if isinstance(value, (bool, int)) or value is None:
        return value if not isinstance(value, int) or abs(value) < 2**53 else str(value)
    return clean(str(value), MAX_FIELD)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the project's own __str__ can fail
        return f"<{type(error).__name__} whose message cannot be shown>"


def _traceback(error: BaseException) -> str:
    own = error.__traceback__
    while own is not None and own.tb_next is not None and own.tb_frame.f_code.co_filename.startswith(_worker_path()):
        own = own.tb_next  # the worker's own frames do not help
    try:
        return "".join(_parts(traceback.TracebackException(type(error), error, own, compact=True)))
    except Exception:
        return f"<the traceback of {class_name(error)} cannot be shown>\n"


def _parts(error: traceback.TracebackException) -> Iterator[str]:
    """As Python formats it, but with a mark before each further line of an exception's text. Then no line of the text looks like a
    frame: the text can contain data of strangers.
    """
    chain: list[tuple[traceback.TracebackException, str]] = []
    one: traceback.TracebackException | None = error
    while one is not None:
        because, context = one.__cause__, None if one.__suppress_context__ else one.__context__
        chain.append((one, CAUSED if because else DURING if context else ""))
        one = because or context
    for one, how in reversed(chain):
        yield how and f"\n{how}\n\n"
        if one.exceptions:  # Python marks all lines of a group
            yield from one.format(chain=False)
            continue
        if one.stack:
            yield HEAD
            yield from one.stack.format()
        first, *others = "".join(one.format_exception_only()).rstrip("\n").split("\n")
        yield clean("\n".join((first, *(f"{MARK}{line}" for line in others)))) + "\n"


def _place(trace: TracebackType | None) -> str:
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_foreign_paths()):
            place = f"{trace.tb_frame.f_globals.get('__name__', '?')}:{code.co_name}"
        trace = trace.tb_next
    return place


@cache
def _worker_path() -> str:
    return str(Path(__file__).parent)


@cache
def _foreign_paths() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return (*{paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}, _worker_path(), "<frozen")
