"""Adoption: when Redis has lost its contents, or may have lost the last of it, a process tells it what it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from django_delayq import clock
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.queue import MOST
from django_delayq.store.recovery import GroundStore, RestoreItem
from django_delayq.worker.holdings import Holdings
from django_delayq.worker.line import Line, Taken

logger = Logger("django_delayq.worker")

FROZEN: Final = 1800.0  # seconds behind the end of its lease at which a run has surely been given up; half of a tombstone's hour


class Adopter:
    """1. The mover finds that a line stands on other ground than before: all that waits or runs here is adopted, then it claims again.
    2. The settler is told that a run is gone: it is adopted, then settled once more. What Redis gives to nobody else goes on running
    here, and does not run twice; what another worker has by now is marked as lost.

    Args:
        lock: held by the settler while it settles, so that nothing is adopted that is just being given back.
    """

    def __init__(
        self,
        *,
        holdings: Holdings,
        worker: str,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._holdings = holdings
        self._worker = worker
        self._monotonic = monotonic
        self._in_rows: dict[int, Taken] = {}
        self.lock = threading.Lock()

    def took(self, taken: Taken) -> None:
        """A job has been claimed into its row."""
        self._in_rows[taken.row] = taken

    def ended(self, row: int) -> None:
        """Redis knows how the job of that row ended; its record need not be kept."""
        self._in_rows.pop(row, None)

    def adopt_line(self, line: Line) -> bool:
        """All that waits or runs here of a line. False while Redis is being swept of what it held: ask again.

        Raises:
            StoreUnavailable: Redis is away; call again.
        """
        with self.lock:
            held = [
                taken
                for taken in list(self._in_rows.values())
                if taken.line is line and self._holdings.is_at_work(taken.row, taken.turn)
            ]
            if not held:
                return True
            answers = self.adopt(line, held)
        if "wait" in answers:
            return False
        adopted = sum(answer == "adopted" for answer in answers)
        logger.warning(
            "queue %s: %d of %d jobs that this process holds are its own on the new ground",
            line.queue,
            adopted,
            len(held),
        )
        return True

    def adopt(self, line: Line, held: Sequence[Taken]) -> list[str]:
        """Tells Redis that these runs are ours. Returns an answer per run; what is not ours any more is marked as lost; what has to
        wait goes on meanwhile.

        Raises:
            StoreUnavailable: Redis is away; call again.
        """
        now = self._monotonic()
        answers: dict[int, str] = {}
        by_ground: dict[str, list[Taken]] = {}
        for taken in held:
            if now - self._holdings.good_until(taken.row, taken.turn) > FROZEN:
                answers[taken.row] = "lost"
            else:
                by_ground.setdefault(taken.job.ground, []).append(taken)
        for ground, those in by_ground.items():
            for start in range(0, len(those), MOST):
                batch = those[start : start + MOST]
                answers |= zip((taken.row for taken in batch), self._send(line, ground, batch), strict=True)
        for taken in held:
            if answers[taken.row] not in ("adopted", "wait"):
                self._holdings.lose(taken.row, taken.turn)
        return [answers[taken.row] for taken in held]

    def _send(self, line: Line, ground: str, batch: Sequence[Taken]) -> Iterable[str]:
        items = [
            RestoreItem(
                id=taken.job.id,
                record=taken.job.record,
                attempt=taken.job.attempt,
                crashes=taken.job.crashes,
                fence=taken.job.fence,
                delay_ms=line.lease_ms,
            )
            for taken in batch
        ]
        failpoint("adopter.adopt")
        _, answers = GroundStore(line.store).adopt(items, worker=self._worker, ground=ground)
        failpoint("adopter.adopted")
        return answers
