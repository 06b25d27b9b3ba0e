"""What the producer does about servers that do not answer.

`Breaker`: the circuit breaker of `schedule`. After a failure the next schedules fail at once, so that a web process does not wait for
the timeout in every request while Redis is down. After a short cooldown one call tries again. The breaker never stops calls that a
person asks for by name, such as a cancel. `Untaken`: the log lines about jobs that Redis did not take.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from django_delayq import clock, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError, StoreRefused, for_callers, is_refusal
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.record import JobRecord
from django_delayq.store.scripts.replicas import ReplicasLack
from django_delayq.store.scripts.site import REPEAT

logger = Logger("django_delayq.producer")

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


class Untaken:
    """Reports committed jobs that Redis did not take: one warning per server in two seconds, however many jobs there are; of another
    site's queue, which a person must look at, one error in a minute.
    """

    def __init__(self) -> None:
        self._servers: dict[Link, tuple[float, int]] = {}  # when it was reported last, and how many jobs have come since

    def note(self, server: Link, jobs: int, error: StoreUnavailable) -> None:
        """So many were not taken by that server."""
        told_at, untold = self._servers.get(server, (float("-inf"), 0))
        now = clock.monotonic()
        strange = is_refusal(error)
        if now - told_at < (REPEAT if strange else COOLDOWN):
            self._servers[server] = told_at, untold + jobs
            return
        self._servers[server] = now, 0
        # The relay has published the jobs of a former outage by now.
        since = untold if now - told_at < 2 * COOLDOWN else 0
        level = logging.ERROR if strange else logging.WARNING
        logger.log(level, "Redis did not accept committed jobs (%d). The relay will publish them: %s", jobs + since, error)


def with_jobs(error: StoreUnavailable, batch: Sequence[JobRecord]) -> StoreUnavailable:
    """The same error, which says what is known of these jobs; `jobs` has their ids."""
    jobs = tuple(job.id for job in batch)
    which, is_, was = (f"the job {ids.short(jobs[0])}", "is", "was") if len(jobs) == 1 else (f"{len(jobs)} jobs", "are", "were")
    then = "`jobs` of this error has the ids, for delayq.get(id, queue=…). Calling schedule() again makes another job."
    if isinstance(error, ReplicasLack):
        where, found, wanted = (error.fields[name] for name in ("where", "found", "wanted"))
        said = f"Now {which} {is_} in Redis and on {found} of {wanted} replicas. If Redis at {where} fails now, this may be lost. "
        return ReplicasLack(f"{said}Check that its replicas run. {then}", jobs=jobs, code=error.code, **error.fields)
    if not error.nothing_done:
        return StoreUnavailable(f"{error} Whether {which} {is_} in Redis is not known: {then}", jobs=jobs)
    again = type(error)(f"{error} {which[0].upper()}{which[1:]} {was} not accepted.", jobs=jobs, code=error.code, **error.fields)
    again.nothing_done = True
    return again
