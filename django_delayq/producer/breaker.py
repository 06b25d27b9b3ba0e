"""The circuit breaker of schedules. After a failure the next schedules fail at once, so that a web process does not wait for the
timeout in every request while Redis is down; after a short while one tries again. What people ask for by name, a cancel above all,
is tried always.
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
    """Open for a while after each call that failed.

    Args:
        where: the address of a node of a Cluster. A call may be led on to another node, whose silence is none of this one's. "":
            whatever fails, counts.
    """

    def __init__(self, where: str = "") -> None:
        self.open_until = 0.0
        self._where = where
        self._whole = Guard(self, True, True)  # mostly; a guard has nothing of one call
        self._last: dict[str, Any] = {"where": "?", "cause": "?"}

    def guarded(self, *, schedules: bool = False, asks: bool = True, answers: bool = True) -> Guard:
        """Runs calls, and notes how they went. Of a call in two halves the first only `asks` and the second only `answers`: what was
        sent is waited for, whatever has happened to others meanwhile.

        Args:
            schedules: it obeys the breaker: a row waits, and the relay publishes it.

        Raises:
            StoreUnavailable: at once while the breaker is open, or because the call failed, which opens it; or because Redis
                refused it, which does not: a refusal is quick, and says nothing about the next call.
        """
        if self.open_until and schedules and asks and clock.monotonic() < self.open_until:
            raise CircuitOpen(code="redis_left_alone", seconds=COOLDOWN, **self._last)
        return self._whole if asks and answers else Guard(self, asks, answers)

    def note(self, error: StoreUnavailable | None) -> None:
        """How a call went: an error opens the breaker, unless it is about another node."""
        if error is None:
            self.open_until = 0.0
        elif not self._where or error.fields.get("where", self._where) == self._where:
            self._last = {"where": error.fields.get("where", "?"), "cause": error.fields.get("cause", str(error).rstrip("."))}
            self.open_until = clock.monotonic() + COOLDOWN


class Guard:
    """See `Breaker.guarded`. A class, since a generator would take a good part of a call's time."""

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
