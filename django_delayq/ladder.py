"""The ladder: the delays between attempts. Step n follows attempt n; the last repeats until `max_attempts` ends it."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Final, NoReturn, final

from django_delayq import durations
from django_delayq.text import cut

MAX_STEPS: Final = 1_000

_JITTER: Final = re.compile(r"~([0-9]{1,3}(?:\.[0-9]{1,2})?)%")
_EXAMPLE: Final = '"15s 3m 10m 1h"'


@final
class Ladder:
    """Delays between attempts. Ladders are immutable and hashable. They are equal if their steps and jitter are equal.

    The text form is a list of durations separated by spaces, optionally followed by the jitter: "15s 3m 10m ~10%". `str()` returns this
    text, and `Ladder(text)` parses it. Steps are rounded to milliseconds. Invalid values raise a ValueError that names the step.
    """

    __slots__ = ("_formula", "_jitter", "_start", "_steps", "_times")

    _formula: Callable[[int], durations.Delay] | None
    _jitter: float
    _start: int
    _steps: tuple[float, ...]
    _times: int

    def __init__(self, text: str, *, jitter: float | None = None) -> None:
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not a ladder; pass text such as {_EXAMPLE}, or a Ladder{self.spelled(text)}")
        words = text.split()
        found = _JITTER.fullmatch(words[-1]) if words else None
        if found is not None:
            if jitter is not None:
                raise ValueError(f"the ladder {cut(text)!r} already contains a jitter; remove jitter={jitter!r}")
            words.pop()
            jitter = float(found[1]) / 100
        if not words:
            raise ValueError(f"{cut(text)!r} has no steps; pass durations separated by spaces, such as {_EXAMPLE}")
        self._fill(tuple(_step(word, number) for number, word in enumerate(words, 1)), jitter)

    @classmethod
    def of(cls, value: Ladder | str) -> Ladder:
        """A ladder as it is, or the ladder of a text."""
        return value if isinstance(value, Ladder) else cls(value)

    @staticmethod
    def spelled(steps: object) -> str:
        """For the end of an error: a list of durations, as the text of a ladder; "" for anything else."""
        try:
            words = [durations.text(durations.seconds(step)) for step in steps] if isinstance(steps, list | tuple) else []
        except (ValueError, TypeError):
            words = []
        return f" (did you mean {' '.join(words)!r}?)" if words else ""

    @classmethod
    def every(cls, delay: durations.Delay, *, times: int, jitter: float = 0.0) -> Ladder:
        """Repeats the same delay `times` times."""
        return cls._made((_step(delay, 1),) * _checked_times(times), jitter)

    @classmethod
    def formula(cls, fn: Callable[[int], durations.Delay], *, times: int, jitter: float = 0.0, start: int = 1) -> Ladder:
        """Calculates the steps with `fn(n)`, where n starts at `start` (0 or 1). The ladder has `times` steps. `fn` is called when a
        step is first needed, and its results are stored.
        """
        if not callable(fn):
            raise ValueError(f"{fn!r} is not a formula; pass a function of the attempt, such as lambda n: 60 * n")
        if isinstance(start, bool) or start not in (0, 1):
            raise ValueError(f"start={start!r} is not a valid first number; pass 0 or 1")
        ladder = cls._made((), jitter)
        object.__setattr__(ladder, "_formula", fn)
        object.__setattr__(ladder, "_start", int(start))
        object.__setattr__(ladder, "_times", _checked_times(times))
        return ladder

    @classmethod
    def exponential(
        cls,
        *,
        base: durations.Delay = "1s",
        factor: float = 2,
        cap: durations.Delay = "1h",
        times: int = 20,
        jitter: float = 0.0,
    ) -> Ladder:
        """Starts with `base`. Each step is `factor` times the previous one, up to `cap`."""
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            raise ValueError(f"factor={factor!r} is not valid; pass a number of at least 1, such as 2 or 1.5")
        limit = durations.seconds(cap)
        step = min(durations.seconds(base), limit)
        steps = []
        for number in range(1, _checked_times(times) + 1):
            steps.append(_step(step, number))
            step = min(step * min(factor, durations.MAX_SECONDS), limit)
        return cls._made(tuple(steps), jitter)

    @property
    def jitter(self) -> float:
        """The fraction, from 0 to 1, by which a delay can be longer or shorter."""
        return self._jitter

    def delay(self, attempt: int, *, rand: Callable[[], float] = random.random) -> float:
        """Returns the seconds to wait after this attempt, counted from 1. The last step is repeated.

        With jitter, the result is `delay * (1 + jitter * (2 * rand() - 1))`, but never negative. `rand` returns a number from 0 to 1.
        """
        if attempt < 1:
            raise ValueError(f"attempt {attempt} is not valid, because attempts are counted from 1")
        steps = self._all()
        step = steps[min(attempt, len(steps)) - 1]
        if not self._jitter:
            return step
        return max(0.0, step * (1 + self._jitter * (2 * rand() - 1)))

    def steps(self, n: int | None = None) -> list[float]:
        """Returns the first `n` delays in seconds (all by default), without jitter. The last step is repeated if needed."""
        steps = self._all()
        count = len(steps) if n is None else max(n, 0)
        return [*steps[:count], *steps[-1:] * (count - len(steps))]

    def __len__(self) -> int:
        return self._times

    def __str__(self) -> str:
        words = [durations.text(step) for step in self._all()]
        if self._jitter:
            words.append(f"~{self._jitter * 100:.2f}".rstrip("0").rstrip(".") + "%")
        return " ".join(words)

    def __repr__(self) -> str:
        if self._formula is not None and not self._steps:  # a repr must not run the user's code
            return f"<Ladder of a formula, {self._times} steps>"
        return f"Ladder({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ladder):
            return NotImplemented
        return self._jitter == other._jitter and self._all() == other._all()

    def __hash__(self) -> int:
        return hash((self._all(), self._jitter))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Ladder is immutable: create a new one instead of setting {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Ladder is immutable: create a new one instead of deleting {name}")

    def __reduce__(self) -> tuple[type[Ladder], tuple[str]]:
        return Ladder, (str(self),)

    @classmethod
    def _made(cls, steps: tuple[float, ...], jitter: float) -> Ladder:
        ladder = object.__new__(cls)
        ladder._fill(steps, jitter)
        return ladder

    def _fill(self, steps: tuple[float, ...], jitter: float | None) -> None:
        if len(steps) > MAX_STEPS:
            raise ValueError(f"a ladder with {len(steps)} steps is too long; the maximum is {MAX_STEPS}, and the last step is repeated")
        object.__setattr__(self, "_formula", None)
        object.__setattr__(self, "_jitter", _checked_jitter(jitter))
        object.__setattr__(self, "_steps", steps)
        object.__setattr__(self, "_times", len(steps))

    def _all(self) -> tuple[float, ...]:
        if not self._steps and self._formula is not None:
            formula = self._formula
            numbers = range(self._start, self._start + self._times)
            object.__setattr__(self, "_steps", tuple(_computed(formula, n) for n in numbers))
        return self._steps


def _step(delay: durations.Delay, number: int) -> float:
    try:
        # Whole milliseconds, as Redis counts, so that text and ladder say exactly the same.
        return round(durations.seconds(delay) * 1_000) / 1_000
    except ValueError as error:
        raise ValueError(f"step {number} of the ladder: {error}") from None


def _computed(formula: Callable[[int], durations.Delay], number: int) -> float:
    try:
        delay = formula(number)
    except Exception as error:  # the user's code, called where a run has just failed: one kind of error is enough there
        raise ValueError(f"step {number} of the ladder: the function raised {error!r}") from error
    return _step(delay, number)


def _checked_times(times: int) -> int:
    if isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= MAX_STEPS:
        raise ValueError(f"times={times!r} is not a valid number of steps; pass a whole number from 1 to {MAX_STEPS}")
    return times


def _checked_jitter(jitter: float | None) -> float:
    if jitter is None:
        return 0.0
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise ValueError(
            f"jitter={jitter!r} is not a valid fraction; pass a number from 0 to 1, such as 0.1 for up to 10 % more or less"
        )
    return round(float(jitter), 4)


POLL: Final = Ladder("15s 3m 10m 30m 30m 1h 2h 6h 15h")  # of tasks that say nothing else: a day and an hour
