"""Tells Redis how runs ended, in batches: a batch has all runs that ended during the previous call."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from django_delayq import clock
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.queue import MOST, Outcome
from django_delayq.worker.current import Run
from django_delayq.worker.error_pause import ErrorPause
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line
from django_delayq.worker.process.adopter import Adopter
from django_delayq.worker.tally import Tally

logger = Logger("django_delayq.worker")

AGAIN = 0.1  # seconds until runs that cannot be adopted yet are settled again

Ended = tuple[Run, Outcome]


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
        logger.error("Redis refused to settle jobs together (%d): %s They are settled one by one.", len(batch), error)
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
