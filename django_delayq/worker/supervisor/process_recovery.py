"""Returns the jobs of killed processes to their queues, so that they need not wait until their leases expire: processes of this
worker, and of workers of this machine that were killed completely. Runs in the supervisor.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from django_delayq import ids, signals
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts.queue import MOST, Kind, Outcome, QueueStore
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker.lease_table import UNKNOWN_TASK, WAITING, LeaseSlot
from django_delayq.worker.line import Line
from django_delayq.worker.outcome import crash_detail
from django_delayq.worker.supervisor import lease_files
from django_delayq.worker.supervisor.fork import Child
from django_delayq.worker.supervisor.lease_files import LeaseFile, Origin

logger = Logger("django_delayq.worker")

MOST_NAMED: Final = 50  # crashed jobs of one process that the log names
# The detail of runs that were given back. "e" tells the mirror of an eviction, which is a snooze in the stream.
SAID: Final[Mapping[Kind, bytes]] = {
    "snooze": b'{"d":"its process was stopped"}',
    "evict": b'{"e":"evicted","d":"its process was killed: another job there did not end when it had to"}',
}


class Served(NamedTuple):
    """The values that the recovery of a line needs: its jobs in Redis, the lease in ms, and the number of crashes after which a job
    is poison.
    """

    store: QueueStore
    lease_ms: int
    max_crashes: int


@dataclass(slots=True, kw_only=True)
class DeadProcess:
    """The jobs that a process held when it died.

    Args:
        claims: a nonce per line, of a claim whose jobs may not be in the lease table.
        ran: the outcome of the running jobs: crash, snooze, or evict. exit_code: see `crash_detail`.
        ended: the line and the outcome of jobs that are known to have ended in another way.
        settled: called when Redis knows about all jobs.
        left: the lines that are not settled yet; `items`: the outcomes for Redis, by line.
    """

    worker: str
    lines: Sequence[Served]
    held: list[LeaseSlot]
    claims: list[str]
    ran: Kind
    exit_code: int | None = None
    ended: Sequence[tuple[int, Outcome]] = ()
    settled: Callable[[], None] = lambda: None
    left: set[int] = field(init=False)
    items: dict[int, list[Outcome]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.left = set(range(len(self.lines)))


class ProcessRecovery:
    """Gives back the jobs of killed processes.

    1. `take_over` copies the lease table of a killed process.
    2. The next pass repeats the claim that was under way when the process died. That call also hands over its timers.
    3. Running jobs are settled as a crash; as snoozed, if this worker ended the process itself; or as evicted, if it ended the
       process because of another job. Waiting jobs are snoozed, and their attempt does not count.

    While Redis is away, the next pass tries again. If Redis refuses a line, the other lines do not wait for it.
    """

    def __init__(self, *, lines: Sequence[Line], tasks: Sequence[str] = ()) -> None:
        self._lines = [Served(line.store, line.lease_ms, line.max_crashes) for line in lines]
        self._tasks = tasks
        self._dead: deque[DeadProcess] = deque()
        self.ended: Counter[tuple[str, int, Kind]] = Counter()  # runs that were given back: queue, number of the task, outcome

    def __bool__(self) -> bool:
        return bool(self._dead)

    @property
    def hindered(self) -> bool:
        """Whether all remaining lines wait for servers that did not answer the last call."""
        return all(dead.lines[number].store.link.away for dead in self._dead for number in dead.left)

    def take_over(self, child: Child, ran: Kind, ended: Sequence[tuple[int, Outcome]] = ()) -> None:
        """Takes over the jobs of an ended child, and frees its memory. `ran`, `ended`: see `DeadProcess`."""
        if child.leases is None:
            return
        dead = DeadProcess(
            worker=child.worker,
            lines=self._lines,
            held=list(child.leases.held()),
            claims=child.leases.nonces(self._lines),
            ran=ran,
            exit_code=child.exit_code,
            ended=ended,
            settled=child.remove_lease_file,
        )
        child.leases.close()
        child.leases = None
        self.add(dead)

    def add(self, dead: DeadProcess) -> None:
        """Takes over the jobs of a process of another worker."""
        self._dead.append(dead)

    def poll(self) -> float:
        """Settles the remaining lines.

        Raises:
            StoreUnavailable: a server is away; the jobs of other servers have been given back, and the next pass continues.
            StoreError: Redis refused a line; the jobs of other lines have been given back.
        """
        refused: DelayqError | None = None
        away: set[Link] = set()
        for dead in list(self._dead):
            for number in sorted(dead.left):
                node = dead.lines[number].store.link.server
                if node in away:
                    continue
                try:
                    self._give_back(dead, number)
                except (StoreError, StoreRefused) as error:  # only this line failed; the other lines do not wait for it
                    refused = error
                except StoreUnavailable as error:
                    refused = error
                    away.add(node)
                else:
                    dead.left.discard(number)
            if not dead.left:
                self._dead.remove(dead)
                dead.settled()
        if refused:
            raise refused
        return 1.0

    def _give_back(self, dead: DeadProcess, number: int) -> None:
        line, items = dead.lines[number], dead.items.get(number)
        if items is None:
            items = dead.items[number] = self._ask(dead, number)
            if items:
                crashed = sum(item.kind == "crash" for item in items)
                logger.warning(
                    "%s held jobs of the queue %s, which are returned to it: %d jobs, %d of them running. For these, a crash is "
                    "counted",
                    dead.worker,
                    line.store.queue,
                    len(items),
                    crashed,
                )
                self._name_crashed(dead, line.store.queue, items)
        while items:
            batch = items[:MOST]
            failpoint("remains.settle")
            answers = line.store.settle(batch, worker=dead.worker, max_crashes=line.max_crashes)
            failpoint("remains.settled")
            del items[: len(batch)]
            for item, answer in zip(batch, answers, strict=True):
                if answer == "done":
                    self._done(dead, line.store.queue, item)

    def _name_crashed(self, dead: DeadProcess, queue: str, items: Sequence[Outcome]) -> None:
        """Logs which jobs crashed, of which tasks, and how their process ended."""
        rows = {(row.id, row.fence): row.task for row in dead.held}
        for item in [item for item in items if item.kind == "crash"][:MOST_NAMED]:
            number = rows.get((item.id, item.fence), UNKNOWN_TASK)
            ours = dead.lines is self._lines and 0 <= number < len(self._tasks)  # the tasks of another worker may have other numbers
            task = self._tasks[number] if ours else ""
            logger.warning(
                "job %s%s crashed in attempt %d: %s",
                item.id,
                f" ({task})" if task else "",
                item.attempt,
                json.loads(item.detail)["d"] if item.detail else "the cause is unknown",
                extra={"job_id": item.id, "task": task, "queue": queue, "attempt": item.attempt, "worker": dead.worker},
            )

    def _done(self, dead: DeadProcess, queue: str, item: Outcome) -> None:
        if item.kind != "snooze" or item.detail:  # otherwise it only waited
            # The tasks of another worker may have other numbers.
            ran = (row.task for row in dead.held if row.id == item.id and row.fence == item.fence and dead.lines is self._lines)
            self.ended[queue, next(ran, UNKNOWN_TASK), item.kind] += 1
        if item.kind == "crash":
            signals.job_crashed.send_robust(sender=None, job_id=ids.full(item.id), queue=queue)

    def _ask(self, dead: DeadProcess, number: int) -> list[Outcome]:
        held = [held for held in dead.held if held.line == number]
        items = [item for its_line, item in dead.ended if its_line == number]
        ended = {(item.id, item.fence) for item in items}
        for row in held:
            if (row.id, row.fence) in ended:
                continue
            waited = row.state == WAITING
            kind: Kind = "snooze" if waited else dead.ran
            how = crash_detail(dead.exit_code) if kind == "crash" else SAID.get(kind, b"")
            detail = b"" if waited else how
            items.append(_item(row.id, row.attempt, row.fence, kind, detail))
        line = dead.lines[number]
        nonce = dead.claims[number] or secrets.token_hex(8)
        failpoint("remains.claim")
        claim = line.store.claim(dead.worker, nonce, want=0, lease_ms=line.lease_ms, max_crashes=line.max_crashes)
        failpoint("remains.claimed")
        known = {(row.id, row.fence) for row in held}
        items += [_item(job.id, job.attempt, job.fence, "snooze") for job in claim.jobs if (job.id, job.fence) not in known]
        return items


def _item(id: str, attempt: int, fence: str, kind: Kind, detail: bytes = b"") -> Outcome:
    return Outcome(id, attempt, fence, kind, detail=detail)


PASS: Final = 1.0  # seconds between passes
TOUCH: Final = 600  # passes after which this worker touches its files
AFRESH: Final = 60  # passes after which every file is opened again


class HostRecovery:
    """Finds the files of dead workers of this machine.

    1. At the start and every second it looks for files of workers that have certainly ended. It identifies them by the start of the
       machine, the namespaces, the process id and its time of birth.
    2. It passes the jobs to the process recovery: running jobs count a crash, waiting jobs count nothing.
    3. It reports to the registry that these workers are dead, so that no other process has to guess.

    It ignores workers that it cannot check, such as a worker of another container: their leases expire.
    """

    def __init__(
        self,
        place: Path | None,
        store: str,
        places: Places,
        prefix: str,
        *,
        recovery: ProcessRecovery,
        children: Callable[[], Iterable[Child]],
    ) -> None:
        self._place = place
        self._store = store
        self._places = places
        self._prefix = prefix
        self._recovery = recovery
        self._children = children
        self._seen: dict[str, Origin | None] = {}
        self._looks = 0
        self._registry = WorkerRegistry(places, prefix=prefix)
        self._dead: set[str] = set()  # workers that are not reported to the registry yet

    def poll(self) -> float:
        """Does one pass.

        Raises:
            StoreUnavailable: Redis is away; the next pass reports to the registry.
        """
        if self._place is not None:
            if self._looks % AFRESH == 0:
                self._seen.clear()
            for file in lease_files.left(self._place, self._store, self._seen):
                self._take_over(file)
            self._looks += 1
            if self._looks % TOUCH == 0:
                lease_files.touch([child.lease_file for child in self._children() if child.lease_file is not None])
        while self._dead:
            worker = next(iter(self._dead))
            self._registry.died(worker)
            self._dead.discard(worker)
        return PASS

    def _take_over(self, file: LeaseFile) -> None:
        head, leases = file.head, file.leases
        self._dead.add(head.worker.rpartition("/")[0])  # without the number of the process
        if leases is None:
            return
        lines = [
            Served(QueueStore(self._places, prefix=self._prefix, queue=queue, partition=partition), lease_ms, max_crashes)
            for queue, partition, lease_ms, max_crashes in head.lines
        ]
        logger.warning("%s stopped without a shutdown, as did its supervisor (pid %d)", head.worker, head.origin.pid)
        self._recovery.add(
            DeadProcess(
                worker=head.worker, lines=lines, held=list(leases.held()), claims=leases.nonces(lines), ran="crash", settled=file.remove
            )
        )
