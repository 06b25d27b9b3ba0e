"""Time in a test: the clock of jobs, which a test moves, and a link whose Redis uses that clock and can be made unavailable. With
time-machine or freezegun, their clock moves, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.link import Link, Opening, Reply


def moment_ms(moment: Any, where: str) -> int:
    """A date to which a test moves, in milliseconds since 1970. `where`: for errors.

    Raises:
        ValueError: it is not an aware datetime, or is outside the years that rows and clocks can hold.
    """
    try:
        ms = clock.to_ms(moment)
    except ValueError as error:
        raise ValueError(f"{where}: {error}.") from None
    if not 0 <= ms <= clock.LAST_MS:
        raise ValueError(f"{where}: {moment!r} is before 1970, or at the end of the year 9999 or later, which clocks do not support.")
    return ms


class JobsClock:
    """The current time for scripts, rows and runs. It advances by itself, except while jobs run. So after a run, a ladder of "15s"
    ends exactly 15 seconds later, however long the run took.

    Args:
        moved: called after each move.
    """

    def __init__(self, moved: Callable[[], None]) -> None:
        self._python: Callable[[], int] = clock.wall_ms  # the clock before the kit replaced it
        self._passing: Callable[[], float] = clock.monotonic
        self._not_passed = 0.0  # seconds for which it was stopped
        self._stands_since: float | None = None
        self._moved = moved
        self._offset = 0
        self._held: int | None = None

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        if self._held is not None:
            return self._held
        return self._python() + (self._offset if _traveller() is None else 0)

    def monotonic(self) -> float:
        """Monotonic seconds, without the time for which the clock was stopped. So the rest of a delay does not shrink during a stop."""
        return (self._passing() if self._stands_since is None else self._stands_since) - self._not_passed

    def move(self, to_ms: int) -> None:
        """Sets the time."""
        if (traveller := _traveller()) is not None:
            passed = self._passing()
            (getattr(traveller, "shift", None) or traveller.tick)(timedelta(milliseconds=to_ms - self._python()))
            if self._stands_since is not None:
                self._stands_since += self._passing() - passed  # freezegun moves it, too, and this time counts as passed
        else:
            self._offset = to_ms - self._python()
        if self._held is not None:
            self._held = to_ms
        self._moved()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stops the clock, except for moves. After the block, the clock continues from the last move."""
        self._held, self._stands_since = self.now_ms(), self._passing()
        try:
            yield
        finally:
            self._not_passed += self._passing() - self._stands_since
            self._stands_since = None
            last, self._held = self._held, None
            if _traveller() is None:
                self._offset = last - self._python()

    def reset(self) -> None:
        """Returns to Python's time."""
        self._offset, self._held = 0, None
        self._moved()


def _traveller() -> Any:
    """The library that controls Python's time at the moment, time-machine or freezegun; None if neither does."""
    machine = sys.modules.get("time_machine")
    if machine is not None:
        stack = getattr(machine, "traveller_stack", None) or getattr(machine, "coordinates_stack", None)
        if stack:
            return stack[-1]
    freezer = sys.modules.get("freezegun.api")
    if freezer is not None and freezer.freeze_factories:
        return freezer.freeze_factories[-1]
    return None


BEHIND: Final = "after"  # the policy with which a job may have to wait as a row
OWN_TIME: Final = ("", "!", b"", b"!")  # a script argument that asks for Redis' own clock


class JobsLink(Link):
    """A link whose server uses the time of the test.

    Args:
        link: leads to the same server.
        now_ms: the time for scripts, and for calls that read Redis' clock.
    """

    def __init__(self, link: Link, now_ms: Callable[[], int]) -> None:
        super().__init__(link.factory, link.where)
        self._now_ms = now_ms
        self.stands_still = True
        self.down = False
        self.lacks_rows = False  # Redis lacks a row: it was not told, or did not accept it yet

    def execute_many(self, commands: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """See `Link`."""
        self._reach()
        replies = super().execute_many([self._dated(command) for command in commands])
        for place, command in enumerate(commands):
            if command[0] == "TIME":
                seconds, ms = divmod(self._now_ms(), 1000)
                replies[place] = [str(seconds).encode(), str(ms * 1000).encode()]
        return replies

    def start(self, *commands: tuple[Any, ...]) -> Callable[[], list[Reply]]:
        """See `Link`."""
        self._reach()
        return super().start(*map(self._dated, commands))

    def dedicated(self) -> Any:
        """See `Link`."""
        self._reach()
        return super().dedicated()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For calls of the kit itself: the server is reachable, even if it is down for the project's code."""
        down, self.down = self.down, False
        try:
            yield
        finally:
            self.down = down

    def _reach(self) -> None:
        if self.down:
            self.lacks_rows = True
            raise StoreUnavailable(code="redis_away", where=self.where, cause="a test made Redis unavailable with redis_down()")

    def _dated(self, command: tuple[Any, ...]) -> tuple[Any, ...]:
        if not isinstance(command[0], Opening):
            return command
        if BEHIND in command:
            self.lacks_rows = True
        script, now, *rest = command
        return (script, self._now_ms(), *rest) if now in OWN_TIME else command
