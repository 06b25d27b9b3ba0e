"""The circuit breaker of `schedule`. After a failure the next schedules fail at once, so that a web process does not wait for the
timeout in every request while Redis is down. After a short cooldown one call tries again. The breaker never stops calls that a person
asks for by name, such as a cancel.
"""

from __future__ import annotations

from typing import Any, Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.store.connection.error_replies import StoreError, StoreRefused, for_callers
from django_delayq.store.scripts.replicas import ReplicasLack

COOLDOWN: Final = 2.0  # seconds for which the breaker stays open


class CircuitOpen(StoreUnavailable):
    """The breaker is open: nothing was sent."""

    nothing_done = True


class Breaker:
    """Open for a short cooldown after each call that failed.

    Args:
        where: the address of a node of a Cluster. Redis may redirect a call to another node; a failure of that node does not count
            here. "": every failure counts.
    """

    def __init__(self, where: str = "") -> None:
        self.open_until = 0.0
        self._where = where
        self._whole = Guard(self, True, True)  # most calls share it, because a guard keeps no state
        self._last: dict[str, Any] = {"where": "?", "cause": "?"}

    def guarded(self, *, schedules: bool = False, asks: bool = True, answers: bool = True) -> Guard:
        """Runs calls, and records whether they failed. A call may be split in two: the first half only `asks`, the second only
        `answers`. The second half always waits for the reply to what was sent, even if the breaker has opened since.

        Args:
            schedules: whether the call obeys the breaker. If it is refused, its row waits, and the relay publishes it.

        Raises:
            StoreUnavailable: at once while the breaker is open, or because the call failed, which opens it. Also if Redis refused the
                call. A refusal does not open the breaker: it is quick, and says nothing about the next call.
        """
        if self.open_until and schedules and asks and clock.monotonic() < self.open_until:
            raise CircuitOpen(code="redis_left_alone", seconds=COOLDOWN, **self._last)
        return self._whole if asks and answers else Guard(self, asks, answers)

    def note(self, error: StoreUnavailable | None) -> None:
        """Records the result of a call: an error opens the breaker, unless another node caused it."""
        if error is None:
            self.open_until = 0.0
        elif not self._where or error.fields.get("where", self._where) == self._where:
            self._last = {"where": error.fields.get("where", "?"), "cause": error.fields.get("cause", str(error).rstrip("."))}
            self.open_until = clock.monotonic() + COOLDOWN


class Guard:
    """See `Breaker.guarded`. It is a class, because a generator would take a good part of a call's time."""

    __slots__ = ("_answers", "_asks", "_breaker")

    def __init__(self, breaker: Breaker, asks: bool, answers: bool) -> None:
        self._breaker, self._asks, self._answers = breaker, asks, answers

    def __enter__(self) -> None:
        if self._asks:
            failpoint("producer.ask")

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            if self._answers:
                failpoint("producer.asked")
            if self._asks and self._answers:
                self._breaker.open_until = 0.0
        elif isinstance(error, StoreUnavailable):
            if not isinstance(error, (StoreRefused, CircuitOpen, ReplicasLack)):  # of these the server has answered, or was not asked
                self._breaker.note(error)
        elif isinstance(error, StoreError):  # callers know one error only
            raise for_callers(error) from error
