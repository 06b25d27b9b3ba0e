"""Decides whether an error of the database is provably about the data of one row. This is the only list of such errors. It knows
classes, SQLSTATEs and error numbers. The text of a message decides nothing: servers speak other languages.

All other errors are temporary or concern every row alike: timeouts, locks, missing columns and rights, a full disk, a lost
connection. A NULL in a NOT NULL column (23502, 1048, 1364) is also such an error. Folding writes no such NULL, so the schema is not
ours.
"""

from __future__ import annotations

from typing import Final

from django.db import DataError, Error

# Errors that a foreign item may raise while it is folded.
FOLDING: Final = (ValueError, OverflowError, LookupError, TypeError, RecursionError)
# Errors that a driver raises about a value that it cannot send.
SENDING: Final = (ValueError, OverflowError, RecursionError)

POSTGRESQL_CLASS: Final = "22"  # data exceptions: too long, out of range, not in this encoding
# 54000: larger than an index takes. The others are constraints: they count once the row has been read anew, since it may have been a
# race.
POSTGRESQL: Final = frozenset({"54000", "23503", "23505", "23514", "23P01"})
# 1153: a packet larger than max_allowed_packet. 1264 to 1441: out of range, truncated, no such value, not in this character set, too
# long. The others are constraints.
MYSQL: Final = frozenset({1153, 1264, 1265, 1292, 1366, 1406, 1441, 1062, 1452, 1586, 3819, 4025})
SQLITE_CONSTRAINTS: Final = ("UNIQUE", "PRIMARYKEY", "CHECK", "FOREIGNKEY")
SQLITE: Final = frozenset({"SQLITE_TOOBIG", "SQLITE_MISMATCH", *(f"SQLITE_CONSTRAINT_{name}" for name in SQLITE_CONSTRAINTS)})
CUT: Final = frozenset({1153, 2006, 2013})  # MySQL ends a connection so, also when it was sent too much


class Unfoldable(Exception):
    """Folding failed on an item. The cause of this error says why."""


def about_data(error: BaseException) -> str:
    """Returns a code for the reason if the error is about the data of a row, else ""."""
    if isinstance(error, Unfoldable):
        return f"fold:{type(error.__cause__).__name__}"
    if isinstance(error, SENDING):
        return f"value:{type(error).__name__}"
    if not isinstance(error, Error):
        return ""
    cause = error.__cause__
    if state := getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None):
        return state if state.startswith(POSTGRESQL_CLASS) or state in POSTGRESQL else ""
    if name := getattr(cause, "sqlite_errorname", None):
        return name if name in SQLITE else ""
    if number := _number(error):
        return str(number) if number in MYSQL else ""
    return "DataError" if isinstance(error, DataError) else ""  # the driver refused to send it


def may_be_size(error: BaseException) -> bool:
    """Whether the connection is gone. A server also ends it when one statement is larger than it accepts."""
    return isinstance(error, Error) and _number(error) in CUT


def _number(error: Error) -> int:
    """The number that MySQL and MariaDB give an error; 0 for none."""
    given = getattr(error.__cause__ or error, "args", None) or (0,)
    return given[0] if isinstance(given[0], int) else 0
