"""The detail of an outcome, which the mirror stores. Nothing here acts.

It is JSON with short names, all optional: s started ms, f finished ms, r result, c class of the error, m message,
t traceback, p fingerprint, d reason of a retry or snooze, e "evicted" of a run whose process was killed for a neighbour's sake,
"parked" of a job that this release cannot run (then p is one of `PARKED`);
k code and v fields of an error of ours, or of how its process has ended; w ms after which its task wants to be tried again.
"""

from __future__ import annotations

import signal
import sysconfig
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from django_delayq import codec
from django_delayq.exceptions import DelayqError, PayloadError
from django_delayq.fingerprint import error_fingerprint
from django_delayq.logger import class_name
from django_delayq.text import clean as fit_to_store

MAX_MESSAGE: Final = 2_000  # characters
MAX_FIELD: Final = 2_100  # likewise; an answer of a host has 2 KB
MAX_TRACEBACK: Final = 32_768
HEAD: Final = "Traceback (most recent call last):\n"
MARK: Final = "  | "  # as groups of exceptions bear it
CAUSED: Final = "The above exception was the direct cause of the following exception:"
DURING: Final = "During handling of the above exception, another exception occurred:"


def of_failure(
    *,
    started_ms: int = 0,
    finished_ms: int = 0,
    error: BaseException | None = None,
    message: str = "",
    reason: str = "",
    wait_ms: int | None = None,
) -> bytes:
    """Of a run that did not succeed. `wait_ms`: after which the task, and not its ladder, wants it to be tried again."""
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


def of_park(code: str, reason: str) -> bytes:
    """The detail of a job that cannot run here yet. `code`: one of `PARKED`."""
    return codec.dumps({"d": clean(reason), "e": "parked", "p": code})


def of_crash(exit_code: int | None) -> bytes:
    """Of a run whose process has died. `exit_code`: of the process, negative: by that signal; None: its worker died as a whole."""
    if exit_code is None:
        return codec.dumps({"d": "its whole worker died", "k": "worker_died", "v": {}})
    if exit_code < 0:
        name = signal_name(-exit_code)
        code, often = ("process_sigkill", ", perhaps out of memory") if -exit_code == signal.SIGKILL else ("process_signal", "")
        return codec.dumps({"d": f"its process was killed by {name}{often}", "k": code, "v": {"signal": name}})
    return codec.dumps({"d": f"its process ended with exit code {exit_code}", "k": "process_exit", "v": {"exit_code": exit_code}})


def signal_name(number: int) -> str:
    """SIGKILL of 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # of real time, for example


def of_success(started_ms: int, finished_ms: int, result: Any, limit: int) -> tuple[bytes, str]:
    """Of a run that returned `result`, and a note if the result could not be stored: it is null then."""
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
    """Text that any database takes: UTF-8, without NUL, cut in the middle where it is long."""
    return fit_to_store(text, limit)


def fingerprint(error: BaseException) -> str:
    """The same for errors of one cause, see `error_fingerprint`."""
    return error_fingerprint(class_name(error), _message(error), _place(error.__traceback__))


def _failure(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {"c": class_name(error), "m": clean(_message(error)), "p": fingerprint(error)}
    if error.__traceback__ is not None:
        fields["t"] = clean(_traceback(error), MAX_TRACEBACK)
    if isinstance(error, DelayqError) and error.fields:
        fields["k"], fields["v"] = error.code, {name: _plain(value) for name, value in error.fields.items()}
    return fields


def _plain(value: Any) -> str | int | bool | None:
    """A field as JSON of one level has it."""
    if isinstance(value, (bool, int)) or value is None:
        return value if not isinstance(value, int) or abs(value) < 2**53 else str(value)
    return clean(str(value), MAX_FIELD)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a __str__ of the project's, which may itself err
        return f"<{type(error).__name__} whose message cannot be shown>"


def _traceback(error: BaseException) -> str:
    own = error.__traceback__
    while own is not None and own.tb_next is not None and own.tb_frame.f_code.co_filename.startswith(_worker_path()):
        own = own.tb_next  # the frames of the worker tell nothing about the task
    try:
        return "".join(_parts(traceback.TracebackException(type(error), error, own, compact=True)))
    except Exception:
        return f"<the traceback of {class_name(error)} cannot be shown>\n"


def _parts(error: traceback.TracebackException) -> Iterator[str]:
    """As Python writes it, but each further line of what an exception says bears a mark, so that none of them can pass for a frame:
    what it says may come from whoever chose the arguments.
    """
    chain: list[tuple[traceback.TracebackException, str]] = []
    one: traceback.TracebackException | None = error
    while one is not None:
        because, context = one.__cause__, None if one.__suppress_context__ else one.__context__
        chain.append((one, CAUSED if because else DURING if context else ""))
        one = because or context
    for one, how in reversed(chain):
        yield how and f"\n{how}\n\n"
        if one.exceptions:  # here all lines bear a mark
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
