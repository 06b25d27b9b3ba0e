"""Adoption: when Redis has lost its contents, or may have lost the last of it, a process tells it what it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from django_delayq import clock
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.scripts.queue import MOST
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from django_delayq.worker.current import Run
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line

logger = Logger("django_delayq.worker")

FROZEN: Final = 1800.0  # seconds behind the end of its lease at which a run has surely been given up; half of a tombstone's hour


class Adopter:
    """1. The mover finds that a line stands in another epoch than before: all that waits or runs here is adopted, then it claims again.
    2. The settler is told that a run is gone: it is adopted, then settled once more. What Redis gives to nobody else goes on running
    here, and does not run twice; what another worker has by now is marked as lost.

    Args:
        lock: held by the settler while it settles, so that nothing is adopted that is just being given back.
    """

    def __init__(
        self,
        *,
        leases: LeaseTable,
        worker: str,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._leases = leases
        self._worker = worker
        self._monotonic = monotonic
        self._in_rows: dict[int, Run] = {}
        self.lock = threading.Lock()

    def took(self, run: Run) -> None:
        """A job has been claimed into its row."""
        self._in_rows[run.row] = run

    def ended(self, rows: Iterable[int]) -> None:
        """Redis knows how the jobs of those rows ended; their records need not be kept."""
        for row in rows:
            self._in_rows.pop(row, None)

    @property
    def lines(self) -> set[Line]:
        """Those of which something waits or runs here, or has ended and Redis does not know."""
        return {run.line for run in list(self._in_rows.values())}

    def adopt_line(self, line: Line) -> bool:
        """All that waits or runs here of a line. False while Redis is being swept of what it held: ask again.

        Raises:
            StoreUnavailable: Redis is away; call again.
        """
        with self.lock:
            held = [run for run in list(self._in_rows.values()) if run.line is line and self._leases.is_at_work(run.row, run.turn)]
            if not held:
                return True
            answers = self.adopt(line, held)
        if "wait" in answers:
            return False
        adopted = sum(answer == "adopted" for answer in answers)
        logger.warning(
            "queue %s: jobs of this process are confirmed after the change in Redis (%d of %d)",
            line.queue,
            adopted,
            len(held),
        )
        return True

    def adopt(self, line: Line, held: Sequence[Run]) -> list[str]:
        """Tells Redis that these runs are ours. Returns an answer per run; what is not ours any more is marked as lost; what has to
        wait goes on meanwhile.

        Raises:
            StoreUnavailable: Redis is away; call again.
        """
        now = self._monotonic()
        answers: dict[int, str] = {}
        by_epoch: dict[str, list[Run]] = {}
        for run in held:
            if now - self._leases.good_until(run.row, run.turn) > FROZEN:
                answers[run.row] = "lost"
            else:
                by_epoch.setdefault(run.job.epoch, []).append(run)
        for epoch, those in by_epoch.items():
            for start in range(0, len(those), MOST):
                batch = those[start : start + MOST]
                answers |= zip((run.row for run in batch), self._send(line, epoch, batch), strict=True)
        for run in held:
            if answers[run.row] not in ("adopted", "wait"):
                self._leases.lose(run.row, run.turn)
        return [answers[run.row] for run in held]

    def _send(self, line: Line, epoch: str, batch: Sequence[Run]) -> Iterable[str]:
        items = [
            RestoreItem(
                id=run.job.id,
                record=run.job.record,
                attempt=run.job.attempt,
                crashes=run.job.crashes,
                fence=run.job.fence,
                delay_ms=line.lease_ms,
                asks=run.job.asks,
            )
            for run in batch
        ]
        failpoint("adopter.adopt")
        _, answers = EpochStore(line.store).adopt(items, worker=self._worker, epoch=epoch)
        failpoint("adopter.adopted")
        return answers
