"""How long calls of a link fail at once after one that failed, or that took too long."""

from __future__ import annotations

from django_delayq import clock


class Cooldown:
    """`seconds`: after a failed call, in which the next ones fail without waiting, for a thread that has more to do. `late`: a call
    that was answered, and took longer than this, is followed by the same; 0: none is. `failed`: the last call has.
    """

    def __init__(self) -> None:
        self.seconds = self.late = 0.0
        self.failed = False
        self._since = 0.0

    @property
    def active(self) -> bool:
        """Whether calls fail at once just now."""
        return bool(self._since) and clock.monotonic() - self._since < self.seconds

    def start(self) -> None:
        """A call has failed."""
        self.failed = True
        self._since = clock.monotonic()

    def end(self) -> None:
        """The next call is sent again."""
        self._since = 0.0

    def answered(self, began: float) -> None:
        """A call that began then (monotonic) was answered now."""
        self.failed = False
        self._since = clock.monotonic() if self.late and clock.monotonic() - began > self.late else 0.0
