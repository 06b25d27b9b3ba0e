"""The only way in which this package logs: never a message of an exception that might quote an argument, and never a forged line. The
log has the class, the place and the frames of an exception. The job's row has its message.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from traceback import TracebackException, walk_tb
from types import CodeType
from typing import Any, Final
from uuid import UUID

from django.db import Error, InterfaceError, OperationalError

from django_delayq import ids
from django_delayq.exceptions import DelayqError, PayloadError
from django_delayq.text import one_line, visible

LOGGERS: Final[Mapping[str, str]] = {
    "django_delayq": "The parent of all other loggers. Edits and requeues of single jobs.",
    "django_delayq.gateway": "Requests that the gateway rejected because of a problem that an operator must fix.",
    "django_delayq.locks": "Locks that were lost, or whose lease could not be extended.",
    "django_delayq.messages": "Messages whose leases expired, and consumers that can't reach Redis.",
    "django_delayq.mirror": "Events that are written to the database, and events that the database rejects.",
    "django_delayq.operations": "Operations that staff start in the admin.",
    "django_delayq.periodic": "Schedules, and the jobs that they create.",
    "django_delayq.producer": "Jobs that were scheduled while Redis was down, and changes that were made too late at a commit.",
    "django_delayq.relay": "Committed jobs that are published to Redis.",
    "django_delayq.restore": "Jobs that are restored from the database after Redis has lost its data.",
    "django_delayq.store": "Optional commands that Redis rejects.",
    "django_delayq.worker": "The start and stop of a worker, and its processes.",
    "django_delayq.worker.job": "The end of each run of a job.",
}
LONGEST: Final = 2_000  # characters of one value
MOST: Final = 20  # exceptions that caused one another, or that came in one group
FIRST, LAST = 10, 30  # frames of one exception: the outermost and the innermost
# Errors about the server, its schema or the connection. All other messages of a database can quote the values to store.
TELLING: Final = ("08", "25", "28", "3D", "40", "42", "53", "55", "57", "58")
OF_CLIENTS: Final = range(2000, 3000)  # MySQL: there is no connection
BUSY: Final = frozenset({1040, 1044, 1045, 1049, 1053, 1205, 1213})  # MySQL: too many, no access, shutting down, a lock

NO_TABLE: Final = frozenset({"42P01", "42703", "1146", "1054"})  # PostgreSQL and MySQL: no such table, no such column
MIGRATE: Final = "; run manage.py migrate"


class Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger of that name. Values are written in one line. Exceptions among them are written by `told`. The log adds the class and
    place of the exception in `exc_info` to the message, and its frames to the record's field `traceback`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """See `logging.Logger.log`. The record never has `exc_info`, so no handler sees more than this."""
        if not self.isEnabledFor(level):
            return
        error = _given(kwargs.pop("exc_info", None))
        extra = kwargs.pop("extra", None)
        fields = {name: _plain(value) for name, value in extra.items()} if extra else {}
        if error is not None:
            msg, args = f"{msg}; %s", (*args, summary(error))
            fields["traceback"] = traceback(error)
        shown = tuple(map(_plain, args))
        self.logger.log(level, msg, *shown, extra=fields, stacklevel=kwargs.pop("stacklevel", 1) + 1, **kwargs)


def log_refused(where: str, command: str, cause: str, instead: str, **_: Any) -> None:
    """The receiver of `command_refused`."""
    text = "Redis at %s refuses %s: %s. %s Allow the command if you can: ACL SETUSER <user> +%s"
    Logger("django_delayq.store").warning(text, where, command.replace("|", " ").upper(), cause, instead, command)


def class_name(error: BaseException) -> str:
    """The full name of the class of an error: "app.errors.Declined"; builtins without a module."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def told(error: BaseException) -> str:
    """An error in one line, with its message only if that comes from this package, or from a server and is about itself."""
    if isinstance(error, DelayqError):
        return class_name(error) if isinstance(error, PayloadError) else _cut(str(error))
    if isinstance(error, Error):
        code, tells = _database(error)
        # Only PostgreSQL's message. After it, the driver quotes the statement, which can contain values.
        said = getattr(getattr(error.__cause__, "diag", None), "message_primary", None) or str(error)
        said = f": {_cut(said)}" if tells else ""
        return f"{class_name(error)}{f' {code}' if code else ''}{said}{MIGRATE if lacks_migrations(error) else ''}"
    if isinstance(error, (ssl.SSLError, socket.gaierror)):  # whose numbers are no errno
        return _cut(f"{class_name(error)}: {getattr(error, 'reason', '') or error.strerror}")
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return f"{class_name(error)}: {os.strerror(error.errno)}"
    if isinstance(error, SyntaxError) and isinstance(error.lineno, int):
        return f"{class_name(error)} in line {error.lineno}"
    return class_name(error)


def lacks_migrations(error: Error) -> bool:
    """Whether the database does not have a table or column of this package."""
    code, said = _database(error)[0], str(error)
    return "delayq_" in said and (code in NO_TABLE or (code == "SQLITE_ERROR" and "no such " in said))


def summary(error: BaseException) -> str:
    """Class and place of an error, the place in the project's own code where it has one: "ValueError at /srv/shop/tasks.py:12 pay"."""
    places = [_place(code, line) for code, line in _frames(error)]
    own = [_place(code, line) for code, line in _frames(error) if not code.co_filename.startswith(_foreign_paths())]
    place = (own or places or [""])[-1]
    return _cut(f"{class_name(error)}{f' at {place}' if place else ''}")


def traceback(error: BaseException) -> str:
    """Classes and frames of an error, of what caused it, and of those in its group; one per line, without a word that they say."""
    return "\n".join(_lines(error))


def debug_traceback(error: BaseException) -> str:
    """The traceback with messages and source lines, as Python prints it, without the frames of this package and of libraries. Only for
    development, because messages can quote arguments.
    """
    whole = TracebackException.from_exception(error)
    parts = [whole]
    for part in parts:
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(_foreign_paths())]
        parts += filter(None, (part.__cause__ or part.__context__, *(part.exceptions or ())))
    return "\n".join(visible(line) for line in "".join(whole.format()).rstrip("\n").split("\n"))


def _lines(error: BaseException) -> Iterator[str]:
    waiting, seen = [("", error)], set[int]()
    while waiting and len(seen) < MOST:
        how, one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield f"{how}{_cut(class_name(one))}"
        frames = [f'  File "{_cut(code.co_filename)}", line {line}, in {_cut(code.co_name)}' for code, line in _frames(one)]
        left_out = len(frames) - FIRST - LAST
        yield from frames if left_out <= 0 else (*frames[:FIRST], f"  … {left_out} more …", *frames[-LAST:])
        if isinstance(one, BaseExceptionGroup):
            waiting += [("in this group: ", inner) for inner in reversed(one.exceptions)]
        if one.__cause__ is not None:
            waiting.append(("caused by ", one.__cause__))
        elif one.__context__ is not None and not one.__suppress_context__:
            waiting.append(("while handling ", one.__context__))


def _frames(error: BaseException) -> list[tuple[CodeType, int]]:
    return [(frame.f_code, line or 0) for frame, line in walk_tb(error.__traceback__)]


def _place(code: CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} {code.co_name}"


def _given(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    return sys.exception() if exc_info else None


def _plain(value: object) -> object:
    if type(value) is str:  # before all else: most are
        return _cut(value)
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, BaseException):
        return _cut(told(value))
    if isinstance(value, UUID):
        return ids.short(value)
    if isinstance(value, Mapping):
        return {_cut(str(name)): _plain(inner) for name, inner in value.items()}
    return _cut(str(value))


def _cut(text: str) -> str:
    return one_line(text) if len(text) <= LONGEST else f"{one_line(text[:LONGEST])}…"


def _database(error: Error) -> tuple[str, bool]:
    """The code of a database's error, and whether its text can quote no value."""
    cause: Any = error.__cause__
    if state := getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None):
        return str(state), str(state).startswith(TELLING)
    if name := getattr(cause, "sqlite_errorname", None):
        return str(name), True  # SQLite names tables, columns, and paths in JSON, of which no statement of ours has any
    number = (getattr(cause or error, "args", None) or (0,))[0]
    if isinstance(number, int) and number:
        return str(number), number in OF_CLIENTS or number in BUSY
    return "", isinstance(error, (OperationalError, InterfaceError))


@cache
def _foreign_paths() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    installed = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*(f"{path}{os.sep}" for path in installed), f"{Path(__file__).parent}{os.sep}", "<")
