"""Small loops of the supervisor: the beat that shows the worker, and the tidying of expired entries in Redis. And its metrics."""

from __future__ import annotations

import json
import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from django_delayq import clock
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts import formats
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker import tally
from django_delayq.worker.lease_table import RUNNING, SETTLING, WAITING, LeaseSlot
from django_delayq.worker.spec import WorkerSpec
from django_delayq.worker.supervisor.fork import Child, Slot
from django_delayq.worker.supervisor.lease_extender import LeaseExtender
from django_delayq.worker.supervisor.process_recovery import ProcessRecovery
from django_delayq.worker.supervisor.recycling import resident_memory
from django_delayq.worker.tally import Tally, WorkerFigures

EVERY = 5.0
TIDY_EVERY = 60.0
MOST_SHOWN = 20
MOST_TARGETS = 100
CIRCUITS = 16_384  # bytes for the report of a process about its open circuits
LATE = 15.0  # seconds without a beat after which a worker is not ready
STALE: Final = 60.0  # seconds; older reports of the process of records are ignored
LEASE_STATES: Final = {WAITING: "waiting", RUNNING: "running", SETTLING: "settling"}


class Beat:
    """Writes the worker's facts every five seconds, and checks for commands. `last`: when a server that the worker needs last
    answered (monotonic).

    Args:
        obey: is called with the command ("quiet", "stop") and the actor. It may get the same command twice, and must accept that.
        answers: whether a server that the worker needs answers. Its argument: whether the shared server has just answered.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        worker: str,
        facts: Callable[[], dict[str, Any]],
        obey: Callable[[str, str], None],
        answers: Callable[[bool], bool] = bool,
    ) -> None:
        self._obey = obey
        self._answers = answers
        self._registry = registry
        self._worker = worker
        self._facts = facts
        self.last = 0.0

    def poll(self) -> float:
        """One beat.

        Raises:
            StoreUnavailable: Redis is away.
        """
        failpoint("beat.tell")
        try:
            asked = self._registry.beat(self._worker, self._facts())
        except StoreUnavailable:
            self._note(self._answers(False))
            raise
        failpoint("beat.told")
        self._note(self._answers(True))
        if asked is not None:
            self._obey(*asked)
            self._registry.heard(self._worker)  # afterwards: a command that is obeyed twice does no harm, but a lost one does
        return EVERY

    def _note(self, answers: bool) -> None:
        if answers:
            self.last = clock.monotonic()

    def reached(self) -> bool:
        """Whether a server that the worker needs has answered in the last seconds."""
        return bool(self.last) and clock.monotonic() - self.last < LATE

    def leave(self) -> None:
        """Removes the worker from the registry.

        Raises:
            StoreUnavailable: Redis is away; the entry stays without further beats.
        """
        failpoint("beat.leave")
        self._registry.leave(self._worker)
        failpoint("beat.left")


class Tidy:
    """Tidies each line about once a minute. Every worker does that, because there is no leader. If a server is away, or refuses a
    line, the other lines are still tidied in that minute.
    """

    def __init__(self, stores: Sequence[QueueStore], *, rand: Callable[[], float] = random.random) -> None:
        self._cursors = dict.fromkeys(stores, "0")
        self._tidied: set[QueueStore] = set()
        self._anew = 0.0  # when every line is called again, even if some calls failed before
        self._rand = rand
        self._begun = False

    def poll(self) -> float:
        """One call per line.

        Raises:
            StoreUnavailable, StoreError: a server is away, or refuses a line; the others have been tidied.
        """
        if not self._begun:  # not at the start, when there is other work; and not in all workers of a deploy at the same time
            self._begun = True
            return TIDY_EVERY * self._rand()
        pause, now = TIDY_EVERY * (0.5 + self._rand()), clock.monotonic()
        if now >= self._anew:
            self._tidied, self._anew = set(), now + pause
        away: set[Link] = set()
        trouble: DelayqError | None = None
        for store, cursor in list(self._cursors.items()):
            node = store.link.server
            if node in away or store in self._tidied:
                continue
            failpoint("beat.tidy")
            try:
                after = store.tidy(cursor=cursor).cursor
            except StoreError as error:  # only this line failed
                trouble = trouble or error
            except StoreUnavailable as error:
                if error.code != "redis_cooldown":  # otherwise its server is slow, and this line comes first in the next pass
                    trouble = trouble or error
                    if not isinstance(error, StoreRefused):  # a refusal may be about this slot only
                        away.add(node)
            else:
                del self._cursors[store]
                self._cursors[store] = after  # moves it to the end
                self._tidied.add(store)
            failpoint("beat.tidied")
        if trouble is not None:
            raise trouble
        self._anew = 0.0
        return pause


def facts(spec: WorkerSpec, held: Sequence[LeaseSlot], processes: Iterable[int]) -> dict[str, Any]:
    """The facts of the beat about a worker and the jobs that it holds. `processes`: the pids of all its processes."""
    states = [each.state for each in held]
    return {
        "host": host(),
        "pid": os.getpid(),
        "boot": boot_id(),
        "queues": sorted({line.queue for line in spec.lines}) if spec.processes else [],
        "processes": spec.processes,
        "threads": spec.threads,
        "sides": [one.name for one in spec.loop_processes],
        "records": list(spec.records),
        "brings_in": list(spec.brings_in),
        "busy": states.count(RUNNING),
        "waiting": states.count(WAITING),
        "jobs": running(held, [line.queue for line in spec.lines], spec.tasks),
        "memory": sum(map(resident_memory, processes)),
        "version": spec.version,
        "health": spec.health_address,
        "targets": sorted(spec.targets)[:MOST_TARGETS],
        "format": formats.FORMAT,
    }


def circuits(reports: Iterable[bytes]) -> dict[str, Any]:
    """The facts of the beat about open circuits in the processes of this worker, from the report of each: those that stay open
    longest, at most MOST_SHOWN, each once. Empty if no circuit is open.
    """
    found: dict[str, dict[str, Any]] = {}
    for one in (one for text in reports if text for one in json.loads(text)):
        if one["until"] > found.get(one["target"], {"until": -1})["until"]:
            found[one["target"]] = one
    return {"circuits": sorted(found.values(), key=lambda one: -one["until"])[:MOST_SHOWN]} if found else {}


def running(held: Iterable[LeaseSlot], queues: Sequence[str], tasks: Sequence[str]) -> list[dict[str, Any]]:
    """The running jobs, for display: those that started first, at most MOST_SHOWN.

    Args:
        queues: of each line.
        tasks: by their number in the lease table.
    """
    began = sorted((job for job in held if job.state == RUNNING), key=lambda job: job.started)[:MOST_SHOWN]
    now, now_ms = clock.monotonic(), clock.wall_ms()
    return [
        {
            "id": job.id,
            "queue": queues[job.line],
            "task": tasks[job.task] if job.task < len(tasks) else "",
            "attempt": job.attempt,
            "started": now_ms - int((now - job.started) * 1000),
        }
        for job in began
    ]


def host() -> str:
    """The name of this machine."""
    return socket.gethostname() or "localhost"


def boot_id() -> str:
    """An id of the current start of this machine; "" if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def new_worker_id() -> str:
    """host:pid:random."""
    return f"{host()}:{os.getpid()}:{os.urandom(3).hex()}"


class WorkerMetrics:
    """Keeps the counts of processes that have ended, and adds up all counts for each request. It reads shared memory only, so it never
    waits.
    """

    def __init__(self, spec: WorkerSpec, *, extender: LeaseExtender, recovery: ProcessRecovery) -> None:
        self._spec = spec
        self._extender = extender
        self._recovery = recovery
        self._past = Tally(len(spec.lines), len(spec.tasks)).read()

    def ended(self, child: Child) -> None:
        """Adds the counts of an ended child, and frees its memory."""
        if child.tally is not None:
            self._past = [a + b for a, b in zip(self._past, child.tally.read(), strict=True)]
            child.tally.close()
            child.tally = None

    def figures(self, facts: Mapping[str, Any], children: Iterable[Child], slots: Iterable[Slot], *, reached: bool) -> WorkerFigures:
        """The figures of the worker. `facts`: the facts of the beat."""
        lines, counts, leases = self._spec.lines, self._past, Counter[tuple[str, str]]()
        processes = {"task": 0, "loop": 0}
        for child in children:
            processes["loop" if child.leases is None else "task"] += 1
            if child.tally is not None:
                counts = [a + b for a, b in zip(counts, child.tally.read(), strict=True)]
            for held in child.leases.held() if child.leases is not None else ():
                leases[lines[held.line].queue, LEASE_STATES[held.state]] += 1
        slots = list(slots)
        died = {(slot.name, "died"): slot.died for slot in slots}
        return WorkerFigures(
            lines=tally.figures([line.queue for line in lines], counts),
            given_back=dict(self._recovery.ended),
            lost=dict(self._extender.lost),
            leases=leases,
            restarts=died | {(slot.name, "replaced"): slot.replaced for slot in slots},
            processes=processes,
            facts=facts,
            tasks=self._spec.tasks,
            reached=reached,
            records=self._records(),
        )

    def _records(self) -> Mapping[str, Any] | None:
        """The recent reports of all processes of records; None: there is no recent report."""
        texts = [text for report in self._spec.reports if (text := report.read())]
        said = [one for one in map(json.loads, texts) if clock.monotonic() - one["at"] < STALE]
        return {key: [each for one in said for each in one[key]] for key in ("mirrors", "samples")} if said else None
