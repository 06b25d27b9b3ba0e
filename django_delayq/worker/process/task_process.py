"""A task process: the mover in the main thread, consumers and settler in other threads.

The order in which it ends, with the reasons:
1. The mover stops claiming and hands its timers over, so that no new jobs arrive, and other workers wake up for jobs that become due.
2. Jobs that wait in the buffer are given back, so that others can start them now.
3. The consumers finish the running jobs. The supervisor extends their leases in the meantime.
4. Then jobs on their last chance, and jobs that were evicted three times, run one after the other, with no other job in the process.
   A process that dies ends all its jobs. None of them may count as poison, or start again for ever, because of another job. Such a
   process asks to be replaced, so that other jobs do not wait for it. If the whole worker leaves, these jobs are given back instead,
   like the waiting ones.
5. The settler ends last, because consumers add outcomes to it.
6. If a command ends the process at once while tasks run, their jobs are given back too (snoozed: the attempt does not count), and the
   process ends under them. A task may thus run twice: the guarantee is at least once.

If the supervisor is gone, the process ends at once: its leases are no longer extended, so other workers will soon run its jobs.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts import decode, site
from django_delayq.store.scripts.limits import LimitStore
from django_delayq.store.scripts.queue import MOST
from django_delayq.store.scripts.site import NO_FACTS, Facts, SiteRefused, Trimmed
from django_delayq.worker import logs
from django_delayq.worker.current import Run
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line
from django_delayq.worker.logs import JobLog
from django_delayq.worker.loop import untraced
from django_delayq.worker.process import task_call
from django_delayq.worker.process.consumer import Consumer, JobBuffer, Pace
from django_delayq.worker.process.executor import Executor
from django_delayq.worker.process.mover import Mover
from django_delayq.worker.process.node_threads import Movers, Settlers, ready
from django_delayq.worker.process.settler import Adopter, Settler, Settles
from django_delayq.worker.process.task_call import Coroutines
from django_delayq.worker.process.timeouts import SoftTimer
from django_delayq.worker.receivers import SignalReceiver
from django_delayq.worker.spec import WorkerSpec
from django_delayq.worker.tally import LatestText, Tally

LAST_LINES: Final = 0.1  # seconds to write the gathered log lines when the process must end at once
LAST_SETTLE: Final = 1.5  # seconds; the supervisor kills half a second later
BURST_PATIENCE: Final = 30.0  # seconds; the timer of a burst starts it again, but a worker would wait for ever


def rows(threads: int, nodes: int = 1) -> int:
    """How many jobs a process may hold: running jobs, jobs taken ahead, jobs that wait to be settled, and jobs that other servers may
    still return.
    """
    return threads + (2 + nodes) * MOST


class TaskProcess:
    """Starts its threads, claims and waits, obeys commands, and ends in the order that the module describes."""

    def __init__(self, spec: WorkerSpec, worker: str, ends: Ends, leases: LeaseTable, tally: Tally | None = None) -> None:
        self._burst = spec.burst
        self._ends = ends
        self._leases = leases
        leases.worker = worker
        self._room_read, self._room_write = os.pipe()
        os.set_blocking(self._room_read, False)
        os.set_blocking(self._room_write, False)
        lines = spec.served(spec.connect(f"delayq-task-{worker}"))
        if tally is not None:
            tally.serves(lines, spec.tasks)
        self._free = deque(range(leases.rows))
        pace = Pace(spec.threads)
        self._buffer = JobBuffer(self._wake)
        nodes: dict[Link, list[int]] = {}
        for number, line in enumerate(lines):
            nodes.setdefault(line.store.link, []).append(number)
        counting = Lock()
        adopters = {link: Adopter(leases=leases, worker=worker) for link in nodes}
        settlers = {
            link: Settler(
                leases=leases, free=self._free, adopter=adopter, worker=worker, settled=self._settled, tally=tally, counting=counting
            )
            for link, adopter in adopters.items()
        }
        self._settler: Settles = Settlers(settlers) if len(settlers) > 1 else next(iter(settlers.values()))
        self._executor = executor = Executor(
            leases=leases,
            find_task=spec.find_task,
            task_numbers={name: number for number, name in enumerate(spec.tasks)},
            receivers=(*spec.hooks.receivers, SignalReceiver(), JobLog(worker)),
            coroutines=Coroutines(spec.hooks.end_thread),
            timer=SoftTimer(),
            missing=spec.hooks.missing,
            wrap=spec.hooks.wrap,
            check_tick=spec.hooks.check_tick,
        )

        def consumer(number: int, buffer: JobBuffer) -> Consumer:
            return Consumer(
                number, buffer=buffer, executor=executor, settler=self._settler, pace=pace, end_thread=spec.hooks.end_thread
            )

        self._consumers = [consumer(number, self._buffer) for number in range(1, spec.threads + 1)]
        self._alone = JobBuffer(self._wake)
        self._loner = consumer(0, self._alone)
        suspects: deque[Run] = deque()
        movers = [
            Mover(
                lines=[lines[number] for number in numbers],
                numbers=numbers,
                link=link,
                leases=leases,
                free=self._free,
                buffer=self._buffer,
                consumers=self._consumers,
                settler=self._settler,
                adopter=adopters[link],
                pace=pace,
                worker=worker,
                wary=spec.wary,
                burst=spec.burst,
                suspects=suspects,
                others=len(nodes) - 1,
            )
            for link, numbers in nodes.items()
        ]
        self._mover: Mover | Movers = movers[0] if len(movers) == 1 else Movers(dict(zip(movers, nodes, strict=True)), suspects)
        self._watch = SiteWatch(lines)
        self._leaving = False
        self._now = False

    def run(self) -> int:
        """Works until a command ends it or, in a burst, until no job is due. Returns the exit code."""
        self._watch.start()
        self._settler.start()
        for consumer in self._consumers:
            consumer.start()
        self._loner.start()
        suspects = self._mover.suspects
        while not self._now and not (self._leaving and len(self._free) == self._leases.rows):
            pause = self._mover.poll()
            if self._leaving and suspects and self._leases.rows - len(self._free) == len(suspects):
                self._run_alone(suspects.popleft())
            if self._burst and not self._leaving and self._mover.dry:
                self._leave()
                continue
            if self._burst and self._mover.stuck_for > BURST_PATIENCE:
                return GAVE_UP
            self._sleep(pause)
        if self._now:
            for consumer in (*self._consumers, self._loner):
                running = consumer.running
                if running is not None:
                    self._settler.add(running, running.outcome("snooze", b'{"d":"the worker was stopped"}'))
            self._settler.end(LAST_SETTLE)
        else:
            self._alone.close()
            for consumer in (*self._consumers, self._loner):
                consumer.join(5.0)
            self._settler.end(5.0)
        return 0

    def _run_alone(self, run: Run) -> None:
        """Runs a job with no other job in the process. It has waited for the others, so its task may have been paused since."""
        with contextlib.suppress(StoreUnavailable, StoreError):
            if not LimitStore(run.line.store).allows(run.job.record):
                self._settler.add(run, run.outcome("snooze"))
                return
        run.claimed = clock.monotonic()
        self._alone.put([run])

    def _sleep(self, seconds: float) -> None:
        for descriptor in ready((self._ends.commands, self._ends.alive, self._room_read, self._mover.descriptor), seconds):
            if descriptor == self._ends.alive:
                logs.flush_within(LAST_LINES)
                os._exit(1)
            elif descriptor == self._ends.commands:
                self._obey(os.read(descriptor, 64))
            elif descriptor == self._room_read:
                os.read(descriptor, 4096)
                self._mover.call()
            else:
                self._mover.token()

    def _obey(self, commands: bytes) -> None:
        if ABORT in commands:
            running = [consumer.running for consumer in (*self._consumers, self._loner)]
            self._executor.abort(self._leases.aborted(), [run for run in running if run is not None])
        if QUIET in commands and not self._mover.quiet:
            self._mover.hush()
        if any(command in commands for command in (RETIRE, LEAVE, NOW)):
            self._leave()
        if LEAVE in commands or NOW in commands:
            for waiting in (*self._mover.suspects, *self._alone.close()):
                self._settler.add(waiting, waiting.outcome("snooze"))
            self._mover.suspects.clear()
        self._now = self._now or NOW in commands

    def _leave(self) -> None:
        if self._leaving:
            return
        self._leaving = True
        if not self._mover.quiet:
            self._mover.hush()
        self._mover.give_back(self._buffer.close())

    def _wake(self) -> None:
        try:
            os.write(self._room_write, b".")
        except BlockingIOError:  # the pipe is full of calls
            pass

    def _settled(self) -> None:
        if self._leaving or self._burst or self._mover.out_of_rows:
            self._wake()


def main(
    spec: WorkerSpec, worker: str, ends: Ends, leases: LeaseTable, tally: Tally | None = None, circuits: LatestText | None = None
) -> int:
    """The main function of the forked child. `circuits`: where it writes its open circuits."""
    if circuits is not None and spec.hooks.watch_circuits is not None:
        spec.hooks.watch_circuits(circuits.write)
    task_call.watch_forks()
    logs.gather()
    code = TaskProcess(spec, worker, ends, leases, tally).run()
    leases.leave()
    return code


logger = Logger("django_delayq.worker")

EVERY: Final = 4.0  # seconds between checks


class SiteWatch(threading.Thread):
    """Watches whether the lines belong to this database.

    1. It reads from Redis what the mirrors of the lines trimmed last.
    2. If that has changed, it reads the checkpoints.
    3. `site.check_mirror` compares the two. While it refuses a line, `QueueStore.claim` refuses the line as well.

    Without the database, or Redis, claims continue. It ends with its process.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__(name="delayq-site", daemon=True)
        self._by_link: dict[Link, list[Line]] = {}
        for line in lines:
            self._by_link.setdefault(line.store.link, []).append(line)
        self._own: dict[Line, Trimmed] = {}  # lines that this database was found to write

    def run(self) -> None:
        """Checks until the process ends."""
        while True:
            try:
                with untraced():
                    self.look()
            except Exception:  # claims must not continue without this check
                logger.exception("the check for other databases failed and is repeated")
            clock.sleep(EVERY * (0.5 + random.random() / 2))

    def look(self) -> None:
        """Checks all lines once."""
        changed = {line: trimmed for line, trimmed in self._trimmed().items() if self._own.get(line) != trimmed}
        looks, known = (site.LOOKS if changed else 0), dict[Line, Facts]()
        while looks:
            if (checkpoints := site.all_partition_facts()) is None:
                return
            known = {line: checkpoints.get((line.queue, line.partition), NO_FACTS) for line in changed}
            if all(site.has_recorded(known[line], trimmed) for line, trimmed in changed.items()):
                break
            looks -= 1
            clock.sleep(site.LAG)
        for line, trimmed in changed.items():
            self._own.pop(line, None)
            with contextlib.suppress(SiteRefused):  # the next claim reports it
                site.check_mirror(line.store.keys, line.store.link.home, trimmed, known[line])
                self._own[line] = trimmed

    def _trimmed(self) -> dict[Line, Trimmed]:
        found: dict[Line, Trimmed] = {}
        for link, lines in self._by_link.items():
            asked = [("HMGET", line.store.keys["meta"], "site", "mirrored", "mirror_token") for line in lines]
            with contextlib.suppress(StoreUnavailable, StoreError):
                for line, reply in zip(lines, link.execute_many(asked), strict=True):
                    if not isinstance(reply, Exception) and decode.text(reply[0]) == site.of(line.store.keys.prefix):
                        found[line] = Trimmed.read(*reply[1:])
        return found


QUIET: Final = b"Q"  # claim no more; finish what is here
RETIRE: Final = b"R"  # claim no more, give back what waits, finish what runs, then run the jobs on their last chance, end
LEAVE: Final = b"L"  # claim no more, give back what waits, also jobs on their last chance, finish what runs, end
NOW: Final = b"N"  # give back what runs as well, and end
ABORT: Final = b"A"  # end the runs that the lease table marks as aborted

GAVE_UP: Final = 3  # exit code of a task process in a burst that could not reach Redis


@dataclass(frozen=True, slots=True)
class Ends:
    """A child's ends of the pipes: commands to it, and one that closes when the supervisor is gone."""

    commands: int
    alive: int
