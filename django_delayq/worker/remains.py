"""Gives back what a killed process held, so that others run it at once and not when its leases have run out."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from django_delayq import signals
from django_delayq.failpoints import failpoint
from django_delayq.store.queue import MOST, Outcome, QueueStore, SettleItem
from django_delayq.worker.children import Child
from django_delayq.worker.holdings import WAITING, Held
from django_delayq.worker.lines import Line

logger = logging.getLogger("django_delayq.worker")

STOPPED: Final = b'{"d":"its process was stopped"}'


class Served(Protocol):
    """What has to be known of a line whose jobs are given back."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def lease_ms(self) -> int:
        """Of what is claimed."""

    @property
    def max_crashes(self) -> int:
        """More are poison."""


@dataclass(slots=True, kw_only=True)
class Estate:
    """What one process left behind.

    Args:
        claims: a nonce per line, of a claim whose jobs may stand nowhere yet.
        ran: what becomes of the jobs that were running: crash, or snooze.
        settled: called when Redis knows about all of it.
    """

    worker: str
    lines: Sequence[Served]
    stores: Sequence[QueueStore]
    held: list[Held]
    claims: list[str]
    ran: Outcome
    settled: Callable[[], None] = lambda: None
    asked: bool = False
    items: list[tuple[int, SettleItem]] = field(default_factory=list)


class Remains:
    """1. `inherit` notes what the holdings of a killed process say. 2. Redis is asked for what a claim took that was under way when it
    died; that call also hands over the timers which it kept. 3. What ran is settled as a crash, or as snoozed if we ended the
    process ourselves; what only waited is snoozed, and counts as nothing. While Redis is away, the next pass tries again.
    """

    def __init__(self, *, lines: Sequence[Line], stores: Sequence[QueueStore]) -> None:
        self._lines = lines
        self._stores = stores
        self._estates: deque[Estate] = deque()

    def __bool__(self) -> bool:
        return bool(self._estates)

    def inherit(self, child: Child, ran: Outcome) -> None:
        """Takes over what an ended child held, and frees its memory. `ran`: "crash" or "snooze", for what was running."""
        if child.holdings is None:
            return
        estate = Estate(
            worker=child.worker, lines=self._lines, stores=self._stores, held=list(child.holdings.held()),
            claims=child.holdings.nonces(self._lines), ran=ran, settled=child.forget_trace,
        )  # fmt: skip
        child.holdings.close()
        child.holdings = None
        self.add(estate)

    def add(self, estate: Estate) -> None:
        """Takes over what a process of another worker held."""
        self._estates.append(estate)

    def poll(self) -> float:
        """Settles what is left.

        Raises:
            StoreUnavailable: Redis is away; the next pass goes on.
        """
        while self._estates:
            estate = self._estates[0]
            if not estate.asked:
                self._ask(estate)
            self._settle(estate)
            self._estates.popleft()
            estate.settled()
        return 1.0

    def _ask(self, estate: Estate) -> None:
        known = {(held.id, held.fence) for held in estate.held}
        items = []
        for held in estate.held:
            waited = held.state == WAITING
            kind: Outcome = "snooze" if waited else estate.ran
            detail = STOPPED if kind == "snooze" and not waited else b""
            items.append((held.line, _item(held.id, held.attempt, held.fence, kind, detail)))
        for number, line in enumerate(estate.lines):
            nonce = estate.claims[number] or secrets.token_hex(8)
            failpoint("remains.claim")
            claim = estate.stores[number].claim(
                estate.worker, nonce, want=0, lease_ms=line.lease_ms, max_crashes=line.max_crashes
            )
            failpoint("remains.claimed")
            items += [
                (number, _item(job.id, job.attempt, job.fence, "snooze"))
                for job in claim.jobs
                if (job.id, job.fence) not in known
            ]
        estate.items = items
        estate.asked = True

    def _settle(self, estate: Estate) -> None:
        if estate.items:
            crashed = sum(item.outcome == "crash" for _, item in estate.items)
            logger.warning(
                "%s held %d jobs, which are given back: %d were running and count a crash",
                estate.worker, len(estate.items), crashed,
            )  # fmt: skip
        while estate.items:
            number = estate.items[0][0]
            batch = [item for line, item in estate.items if line == number][:MOST]
            failpoint("remains.settle")
            answers = estate.stores[number].settle(
                batch, worker=estate.worker, max_crashes=estate.lines[number].max_crashes
            )
            failpoint("remains.settled")
            sent = {id(item) for item in batch}
            estate.items = [pair for pair in estate.items if id(pair[1]) not in sent]
            for item, answer in zip(batch, answers, strict=True):
                if item.outcome == "crash" and answer == "done":
                    signals.job_crashed.send_robust(sender=None, job_id=item.id, queue=estate.lines[number].queue)


def _item(id: str, attempt: int, fence: str, outcome: Outcome, detail: bytes = b"") -> SettleItem:
    return SettleItem(id=id, attempt=attempt, fence=fence, outcome=outcome, detail=detail)
