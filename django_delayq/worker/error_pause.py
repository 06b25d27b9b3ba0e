"""How long a loop pauses after errors in a row."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from django_delayq import clock, signals
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.scripts.formats import FormatNewer
from django_delayq.store.scripts.site import SiteRefused, is_news

logger = Logger("django_delayq.worker")

SHORTEST: Final = 0.05  # seconds: the first pause after an error
LONGEST: Final = 5.0
OFTEN: Final = 60.0  # seconds in which breaks of a connection are counted
MANY: Final = 5  # breaks
HOUR: Final = 3600.0


class Together:
    """The loops of several that cannot reach their common server. The error is logged once for all of them."""

    def __init__(self) -> None:
        self._away: set[ErrorPause] = set()

    def begins(self, pause: ErrorPause) -> bool:
        """Records that a loop cannot reach the server. Returns whether it is the first."""
        self._away.add(pause)
        return len(self._away) == 1

    def ends(self, pause: ErrorPause) -> bool:
        """Records that a loop reaches the server. Returns whether it was the last that could not."""
        self._away.discard(pause)
        return not self._away


class ErrorPause:
    """How long to pause after errors in a row. The pause doubles, with jitter, so that a hundred workers do not return at the same
    time. It logs the first error and the end of the errors. With `together`, it logs them once for all these loops.
    """

    def __init__(self, name: str, *, longest: float = LONGEST, rand: Callable[[], float] = random.random) -> None:
        self.name = name
        self._longest = longest
        self._rand = rand
        self._since = 0.0
        self.failures = 0
        self.error: StoreUnavailable | None = None  # the last error, until a pass succeeds
        self.together: Together | None = None
        self._said_with: Together | None = None  # the loops with which it lost the server

    @property
    def lasts(self) -> float:
        """Seconds since the first of the errors in a row; 0 without an error."""
        return clock.monotonic() - self._since if self.failures else 0.0

    def failed(self, error: Exception) -> float:
        """Records an error. Returns the seconds to pause."""
        self.failures += 1
        self.error = error if isinstance(error, StoreUnavailable) else None
        if self.failures == 1:
            self._since = clock.monotonic()
            unreached = isinstance(error, StoreUnavailable) and not isinstance(error, StoreRefused)
            self._said_with = self.together if unreached else None
            if self._said_with is not None and not self._said_with.begins(self):
                pass  # another loop has logged it
            elif not is_news(error):
                pass  # it was reported within a minute
            elif isinstance(error, SiteRefused):
                logger.error("%s: %s Its jobs wait.", self.name, error)
            elif isinstance(error, (StoreUnavailable, FormatNewer)) or (isinstance(error, StoreError) and error.nothing_done):
                logger.warning("%s: %s The worker tries again until it succeeds.", self.name, error)
            else:
                logger.exception("%s: unexpected error; the next pass starts after a pause", self.name, exc_info=error)
        if isinstance(error, StoreUnavailable):
            signals.store_unavailable.send_robust(sender=None, error=error)
        pause = min(SHORTEST * 2.0 ** min(self.failures - 1, 20), self._longest)
        return pause * (0.5 + self._rand())

    def worked(self) -> None:
        """Records a pass without an error."""
        if self.failures:
            if self._said_with is None or self._said_with.ends(self):
                logger.warning("%s: works again after %.1f s; errors: %d", self.name, clock.monotonic() - self._since, self.failures)
            self.failures, self.error = 0, None


class LineBreaks:
    """Counts the breaks of a connection on which a loop only listens, and delays the next connection.

    It is separate from the pauses of the loop's own calls: these calls succeed, and would reset it. A single break is not logged: if
    the server is down, the next call reports it. A connection that breaks again and again is reported at most once an hour: something
    on the network path closes idle connections.
    """

    def __init__(self, name: str, *, rand: Callable[[], float] = random.random) -> None:
        self._name = name
        self._rand = rand
        self._moments: list[float] = []
        self._until = 0.0
        self._told_at = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the next connection may be opened."""
        return clock.monotonic() >= self._until

    def broke(self, error: StoreUnavailable) -> None:
        """Records a break."""
        now = clock.monotonic()
        self._moments = [at for at in self._moments if now - at < OFTEN] + [now]
        in_a_row = sum(now - at < LONGEST for at in self._moments)
        pause = min(SHORTEST * 2.0 ** (in_a_row - 1), LONGEST)
        self._until = now + pause * (0.5 + self._rand())
        if len(self._moments) >= MANY and now - self._told_at > HOUR:
            self._told_at = now
            logger.warning(
                "%s: %s This happened %d times within a minute. Check whether a proxy closes idle connections. Jobs run, but some "
                "start up to a second late.",
                self._name,
                error,
                MANY,
            )
