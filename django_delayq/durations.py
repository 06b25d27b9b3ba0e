"""Durations: reads "1h30m", a number or a timedelta, and writes the shortest text."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Final

Delay = timedelta | int | float | str

MAX_SECONDS: Final = 36_500 * 86_400.0  # 100 years: longer is a slip of units, and now + delay must stay a datetime

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_UNITS: Final = (
    ("w", Fraction(604_800)),
    ("d", Fraction(86_400)),
    ("h", Fraction(3_600)),
    ("m", Fraction(60)),
    ("s", Fraction(1)),
    ("ms", Fraction(1, 1_000)),
)
# "m" must not swallow the first letter of "ms".
_TEXT: Final = re.compile("".join(f"(?:({_NUMBER}){unit}{'(?!s)' if unit == 'm' else ''})?" for unit, _ in _UNITS))
_WORDED: Final = re.compile(
    rf"({_NUMBER})\s*(ms|msecs?|millis|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|wks?|weeks?|)"
)
_ACCEPTED: Final = 'a timedelta, a number of seconds, or text such as "90s", "1h30m", "2d", "1w", "500ms" or "1.5h"'


def seconds(delay: Delay) -> float:
    """A duration as float seconds, from a timedelta, a number of seconds or text ("90s", "1h30m", "2d", "1.5h").

    In text, units are in descending order, each once. Raises ValueError for anything else: negative, NaN, infinite, empty,
    a bool, more than 100 years.
    """
    if isinstance(delay, str):
        result = _parse(delay)
    elif isinstance(delay, timedelta):
        result = delay.total_seconds()
    elif isinstance(delay, int | float) and not isinstance(delay, bool):
        if not -MAX_SECONDS <= delay <= MAX_SECONDS:  # also false for NaN; and float() of a vast int would overflow
            raise _refusal(delay, "is not a duration of at most 100 years")
        result = float(delay)
    else:
        raise _refusal(delay, "is not a duration")
    if result < 0:
        raise ValueError(f"{delay!r} is negative. The minimum is 0")
    if result > MAX_SECONDS:
        raise _refusal(delay, "is more than 100 years")
    return result + 0.0  # -0.0 becomes 0.0


def milliseconds(delay: Delay) -> int:
    """A duration as whole milliseconds, rounded up so that nothing happens early. ValueError as `seconds`."""
    if type(delay) is int and 0 <= delay <= MAX_SECONDS:
        return delay * 1_000
    return _text_milliseconds(delay) if type(delay) is str else _milliseconds(delay)


def _milliseconds(delay: Delay) -> int:
    # Rounding to a microsecond first takes the float noise away: 1.1 * 1000 is 1100.0000000000002, and means 1100. The
    # noise stays below half a microsecond up to 100 years, where floats of milliseconds are 0.49 microseconds apart.
    return math.ceil(round(seconds(delay) * 1_000, 3))


def text(duration: float) -> str:
    """The shortest usual text of `duration` seconds, to the millisecond: "1h30m", "1m30s", "1.5s", "500ms", "0s", "2w".

    `seconds(text(x)) == x` for whole milliseconds. Weeks only for whole weeks: "8d" is read faster than "1w1d".
    """
    rest = round(seconds(duration) * 1_000)
    if rest and rest % 604_800_000 == 0:
        return f"{rest // 604_800_000}w"
    if rest < 1_000:
        return f"{rest}ms" if rest else "0s"
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    if rest:
        whole, fraction = divmod(rest, 1_000)
        parts.append(f"{whole}.{fraction:03d}".rstrip("0") + "s" if fraction else f"{whole}s")
    return "".join(parts)


_text_milliseconds = lru_cache(maxsize=512)(_milliseconds)  # a view passes the same few texts again and again


def _parse(delay: str) -> float:
    found = _TEXT.fullmatch(delay.strip().removeprefix("-"))
    if found is not None and any(found.groups()) and delay.strip().startswith("-"):
        raise ValueError(f"{delay!r} is negative. The minimum is 0")
    if found is None or not any(found.groups()):
        raise _refusal(delay, "is not a duration")
    # Fractions, so that "1.1h" is 3960.0 and not 3960.0000000000005.
    return float(sum(Fraction(n) * size for n, (_, size) in zip(found.groups(), _UNITS, strict=True) if n))


def _refusal(delay: object, why: str) -> ValueError:
    try:
        given = repr(delay)
    except ValueError:  # an int of more digits than Python will print
        given = "this number"
    given = given if len(given) <= 80 else given[:77] + "..."
    return ValueError(f"{given} {why}{_guess(delay)}; pass {_ACCEPTED}")


def _guess(delay: object) -> str:
    """Suggests a duration for a text with another unit, without a unit, or with spaces."""
    if not isinstance(delay, str):
        return ""
    joined = "".join(delay.lower().split())
    meant = joined if joined != delay and _TEXT.fullmatch(joined) else ""
    if found := _WORDED.fullmatch(joined):
        number, word = found.groups()
        meant = number + ("ms" if word.startswith(("ms", "milli")) else word[:1] or "s")
    # Too long in its right spelling, too, or refused for its length alone: then it is no spelling that helps.
    return f" (did you mean {meant!r}?)" if meant and _parse(meant) <= MAX_SECONDS else ""
