"""Gives back what killed workers of this machine held: a worker that is started again need not wait for their leases to run out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django_delayq.logger import Logger
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker.supervisor import lease_files
from django_delayq.worker.supervisor.fork import Child
from django_delayq.worker.supervisor.lease_files import LeaseFile, Origin
from django_delayq.worker.supervisor.process_recovery import DeadProcess, ProcessRecovery

logger = Logger("django_delayq.worker")

PASS: Final = 1.0  # seconds between looks
TOUCH: Final = 600  # looks after which our own files are touched
AFRESH: Final = 60  # looks after which every file is opened again


@dataclass(frozen=True, slots=True)
class _Line:
    store: QueueStore
    lease_ms: int
    max_crashes: int


class HostRecovery:
    """1. Looks, at the start and every second, for what workers left behind that are surely gone: known by the start of the machine,
    the namespaces, the process id and its time of birth. 2. Hands it to the process recovery: what ran counts a crash, what waited
    nothing. 3. Tells the registry that these workers are dead, so that nobody has to guess. Whom it
    cannot judge, such as a worker of another container, it leaves alone: those leases run out.
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
        self._dead: set[str] = set()  # workers of which the registry is still to hear

    def poll(self) -> float:
        """One look.

        Raises:
            StoreUnavailable: Redis is away; the next look tells the registry.
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
        self._dead.add(head.worker.rpartition("/")[0])  # without the number of its process
        if leases is None:
            return
        lines = [
            _Line(QueueStore(self._places, prefix=self._prefix, queue=queue, partition=partition), lease_ms, max_crashes)
            for queue, partition, lease_ms, max_crashes in head.lines
        ]
        logger.warning("%s stopped without a shutdown, as did its supervisor (pid %d)", head.worker, head.origin.pid)
        self._recovery.add(
            DeadProcess(
                worker=head.worker,
                lines=lines,
                held=list(leases.held()),
                claims=leases.nonces(lines),
                ran="crash",
                settled=file.remove,
            )
        )
