"""Reads values in Redis as the types that they should have. Other programs may have written other values. These must not stop a loop
or a page, so a wrong value counts as empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from django_delayq import clock, ids

MOST: Final = 2**53  # Redis' scores are floats, and so are Lua's numbers


def number(raw: bytes | str | None) -> int:
    """A whole number, as int or float text, at least 0 and at most 2**53; 0 for anything else."""
    try:
        return int(max(0.0, min(float(raw or 0), float(MOST))))
    except ValueError:
        return 0


def moment_ms(raw: bytes | str | None) -> int:
    """A date in ms since 1970 that a datetime can hold in every time zone; 0 for anything else."""
    return min(number(raw), clock.LAST_MS)


def time_ms(reply: Sequence[bytes]) -> int:
    """The reply of TIME as ms."""
    seconds, micros = reply
    return int(seconds) * 1000 + int(micros) // 1000


def text(raw: bytes | None) -> str:
    """Text; what is not UTF-8 is replaced."""
    return (raw or b"").decode("utf-8", "replace")


def job_id(raw: bytes | str | None) -> UUID | None:
    """The id of 22 characters; None for anything else."""
    if not raw:
        return None
    try:
        return ids.full(raw if isinstance(raw, str) else text(raw))
    except ValueError:
        return None


def position(stream_id: str) -> tuple[int, int]:
    """A stream id as numbers that compare; (0, 0) for none."""
    ms, _, number = stream_id.partition("-")
    return (int(ms), int(number)) if ms.isdigit() and number.isdigit() else (0, 0)
