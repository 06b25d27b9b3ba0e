"""Tells Redis how runs ended, in batches: a batch has all runs that ended during the previous call. If Redis has lost its contents, or
perhaps the last part of them, the adopter reports the jobs that this process holds. Consumers, the mover and the settler's own threads
call this code.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from django_delayq import clock
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.queue import MOST, Outcome
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from django_delayq.worker.current import Run
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line
from django_delayq.worker.loop import ErrorPause
from django_delayq.worker.tally import Tally

logger = Logger("django_delayq.worker")

AGAIN = 0.1  # seconds until runs that cannot be adopted yet are settled again

Ended = tuple[Run, Outcome]
FROZEN: Final = 1800.0  # seconds after the end of its lease at which a run has certainly been given up; half of a tombstone's hour


class Settles(Protocol):
    """The interface of `Settler` and `Settlers`: takes the outcomes of runs."""

    def start(self) -> None:
        """Starts the threads."""

    def end(self, seconds: float) -> None:
        """Lets the threads end, and waits for them."""

    def add(self, run: Run, outcome: Outcome | None) -> None:
        """Adds a run that has ended. `outcome` None: there is nothing to settle."""


class Settler:
    """Settles the runs of a process.

    1. Consumers add outcomes.
    2. Its thread settles them, in one script call per line and up to 200 runs.
    3. While Redis is away, it sends the same call again, for ever: settle is idempotent.
    4. Runs that Redis does not know are adopted, and settled once more.
    5. It ends on request, when nothing is left. Jobs whose runs were not settled when the process ends run again, as after a
       crash.

    Args:
        free: takes the rows of the lease table after Redis has confirmed the end of their jobs.
        settled: called whenever rows have become free, by any thread.
        tally: counts the ends, if metrics are used.
        counting: all settlers of a process hold it while they count.
    """

    def __init__(
        self,
        *,
        leases: LeaseTable,
        free: deque[int],
        adopter: Adopter,
        worker: str,
        settled: Callable[[], None],
        tally: Tally | None = None,
        counting: threading.Lock | None = None,
    ) -> None:
        self._counting = counting or threading.Lock()
        self._leases = leases
        self._free = free
        self._adopter = adopter
        self._worker = worker
        self._settled = settled
        self._tally = tally
        self._incoming: deque[Ended] = deque()
        self._batches: deque[tuple[Line, list[Ended]]] = deque()
        self._waiting: list[Ended] = []  # until Redis is ready to adopt them
        self._filled = threading.Event()
        self._ending = threading.Event()
        self.trouble = ErrorPause("settler", longest=1.0)
        self._resume_at = 0.0
        self._thread = threading.Thread(target=self._work, name="delayq-settler", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self, seconds: float) -> None:
        """Lets the thread end, and waits for that."""
        self.finish()
        self._thread.join(seconds)

    def finish(self) -> None:
        """Lets the thread end when nothing is left."""
        self._ending.set()
        self._filled.set()

    def add(self, run: Run, outcome: Outcome | None) -> None:
        """Adds a run that has ended. `outcome` None: there is nothing to settle."""
        if outcome is None:
            self._leases.empty(run.row)
            self._adopter.ended((run.row,))
            self._free.append(run.row)
            self._settled()
            return
        self._leases.settling(run.row)
        self._incoming.append((run, outcome))
        if not self._filled.is_set():
            self._filled.set()

    @property
    def over(self) -> bool:
        """Whether it must end, and nothing is left."""
        return self._ending.is_set() and not self._incoming and not self._batches and not self._waiting

    def fill(self, filled: threading.Event) -> None:
        """Sets the event that announces new outcomes from now on: the event of the thread that it shares."""
        self._filled = filled
        filled.set()  # the former event may have been set for an outcome that was added a moment ago

    def step(self) -> float:
        """Does one pass for a thread that has other settlers, too. Returns the seconds until the next pass, if nothing arrives
        before.
        """
        left = self._resume_at - clock.monotonic()
        if left > 0:
            return left
        if not self._incoming and not self._batches and not self._waiting:
            return float("inf")
        try:
            self.poll()
            self.trouble.worked()
        except Exception as error:
            pause = self.trouble.failed(error)
            self._resume_at = clock.monotonic() + pause
            return pause
        return AGAIN if self._waiting else float("inf")

    def poll(self) -> float:
        """Settles all outcomes so far. Returns the seconds until the next pass; a new outcome wakes it earlier.

        Raises:
            StoreUnavailable: Redis is away; the next pass sends the same batch again.
        """
        self._incoming.extend(self._waiting)
        self._waiting = []
        self._gather()
        while self._batches:
            line, batch = self._batches[0]
            try:
                answers = self._send(line, batch)
            except StoreError as error:
                answers = self._one_by_one(line, batch, error)
            self._batches.popleft()
            answered = list(zip(batch, answers, strict=True))
            if "wait" in answers:
                self._waiting += [ended for ended, answer in answered if answer == "wait"]
                answered = [(ended, answer) for ended, answer in answered if answer != "wait"]
            self._confirm(answered)
            self._gather()
        return AGAIN if self._waiting else 1.0

    def _gather(self) -> None:
        gathered: dict[Line, list[Ended]] = {}
        while True:
            try:
                ended = self._incoming.popleft()
            except IndexError:
                break
            batch = gathered.setdefault(ended[0].line, [])
            batch.append(ended)
            if len(batch) == MOST:
                self._batches.append((ended[0].line, gathered.pop(ended[0].line)))
        self._batches.extend(gathered.items())

    def _send(self, line: Line, batch: Sequence[Ended]) -> Sequence[str]:
        with self._adopter.lock:
            answers = self._settle(line, batch)
            if "gone" in answers:
                gone = [number for number, answer in enumerate(answers) if answer == "gone"]
                answers = list(answers)
                adopted = self._adopter.adopt(line, [batch[number][0] for number in gone])
                ours = [number for number, answer in zip(gone, adopted, strict=True) if answer == "adopted"]
                for number, answer in zip(gone, adopted, strict=True):
                    answers[number] = {"finished": "already", "wait": "wait"}.get(answer, "lost")
                if ours:
                    again = self._settle(line, [batch[number] for number in ours])
                    for number, answer in zip(ours, again, strict=True):
                        answers[number] = answer
        return answers

    def _settle(self, line: Line, batch: Sequence[Ended]) -> Sequence[str]:
        outcomes = [outcome for _, outcome in batch]
        failpoint("settler.settle")
        answers = line.store.settle(outcomes, worker=self._worker, max_crashes=line.max_crashes)
        failpoint("settler.settled")
        return answers

    def _one_by_one(self, line: Line, batch: Sequence[Ended], error: StoreError) -> Sequence[str]:
        # One item that Redis refuses must not hold up the others for ever.
        logger.error("Redis rejected a call that settles several jobs (%d): %s They will be settled one by one.", len(batch), error)
        answers: list[str] = []
        for ended in batch:
            try:
                answers += self._send(line, [ended])
            except StoreError as refusal:
                logger.error("job %s cannot be settled. It runs again when its lease expires: %s", ended[0].job.id, refusal)
                answers.append("refused")
        return answers

    def _confirm(self, answered: Sequence[tuple[Ended, str]]) -> None:
        done = failed = 0
        rows = []
        for (run, outcome), answer in answered:
            self._leases.empty(run.row)
            rows.append(run.row)
            if answer == "done":
                kind = outcome.kind
                done += kind not in ("snooze", "ask", "park")
                failed += kind in ("fail", "retry")
            elif answer in ("lost", "gone"):
                logger.warning(
                    "job %s: the lease of attempt %d was lost, so its outcome (%s) is discarded",
                    run.job.id,
                    run.job.attempt,
                    outcome.kind,
                )
        with self._counting:
            if self._tally is not None:
                self._tally.settled(answered, self._leases)
            self._leases.count(done, failed)
        self._adopter.ended(rows)
        self._free.extend(rows)
        self._settled()

    def _work(self) -> None:
        while not self.over:
            self._filled.wait(AGAIN if self._waiting else None)
            self._filled.clear()
            try:
                self.poll()
                self.trouble.worked()
            except Exception as error:
                clock.sleep(self.trouble.failed(error))
                self._filled.set()


class Adopter:
    """Reports the jobs of this process to a Redis that may have lost them.

    1. The mover finds that a line has another epoch than before. All jobs that wait or run here are adopted; then it claims again.
    2. The settler learns that a run is gone in Redis. The run is adopted, then settled once more.

    If Redis has not given a job to another worker, it continues here, and does not run twice. A job that another worker has by now is
    marked as lost.

    Args:
        lock: the settler holds it while it settles, so that a job is not adopted while it is given back.
    """

    def __init__(self, *, leases: LeaseTable, worker: str, monotonic: Callable[[], float] = clock.monotonic) -> None:
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
            "queue %s: this process has confirmed its running jobs after the change in Redis (%d of %d)", line.queue, adopted, len(held)
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
