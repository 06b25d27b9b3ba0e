"""Adoption: when Redis has lost its contents, or perhaps the last part of them, a process reports the jobs that it holds."""

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

FROZEN: Final = 1800.0  # seconds after the end of its lease at which a run has certainly been given up; half of a tombstone's hour


class Adopter:
    """Reports the jobs of this process to a Redis that may have lost them.

    1. The mover finds that a line has another epoch than before. All jobs that wait or run here are adopted; then it claims again.
    2. The settler learns that a run is gone in Redis. The run is adopted, then settled once more.

    If Redis has not given a job to another worker, it continues here, and does not run twice. A job that another worker has by now is
    marked as lost.

    Args:
        lock: the settler holds it while it settles, so that a job is not adopted while it is given back.
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
        """Stores a run that has been claimed into its row."""
        self._in_rows[run.row] = run

    def ended(self, rows: Iterable[int]) -> None:
        """Forgets the runs of these rows, because Redis has confirmed how their jobs ended."""
        for row in rows:
            self._in_rows.pop(row, None)

    @property
    def lines(self) -> set[Line]:
        """The lines that have a job here: one that waits or runs, or has ended without a confirmation of Redis."""
        return {run.line for run in list(self._in_rows.values())}

    def adopt_line(self, line: Line) -> bool:
        """Adopts all jobs of a line that wait or run here. Returns False while Redis is still removing its old contents: call again.

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
        """Reports to Redis that this process holds these runs. Returns an answer per run. Runs that another worker has are marked as
        lost. Runs that must wait continue in the meantime.

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
