"""The link to Redis on which a test goes: scripts get the time of the test, and the server can be taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.link import Link, Opening, Reply

BEHIND: Final = "after"  # the policy of a job that may have to wait as a row
OWN_TIME: Final = ("", "!", b"", b"!")  # Redis' own clock is asked for


class JobsLink(Link):
    """A link whose server lives in the time of the test.

    Args:
        link: leads to the same server.
        now_ms: what scripts, and whoever asks for Redis' clock, take for the present.
    """

    def __init__(self, link: Link, now_ms: Callable[[], int]) -> None:
        super().__init__(link.factory, link.where)
        self._now_ms = now_ms
        self.stands_still = True
        self.down = False
        self.lacks_rows = False  # of some row Redis has not been told, or would not take it yet

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
        """For the kit itself: the server is there, though the project's code does not reach it."""
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
