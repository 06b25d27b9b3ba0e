"""The metrics of a worker: the supervisor adds up the counts of its processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django_delayq import clock
from django_delayq.worker import tally
from django_delayq.worker.lease_table import RUNNING, SETTLING, WAITING
from django_delayq.worker.spec import WorkerSpec
from django_delayq.worker.supervisor.fork import Child, Slot
from django_delayq.worker.supervisor.lease_extender import LeaseExtender
from django_delayq.worker.supervisor.process_recovery import ProcessRecovery
from django_delayq.worker.tally import Tally, WorkerFigures

STALE: Final = 60.0  # seconds; older reports of the process of records are ignored
HELD: Final = {WAITING: "waiting", RUNNING: "running", SETTLING: "settling"}


class WorkerMetrics:
    """1. Gives each task process a tally. 2. Keeps the counts of processes that have ended. 3. Adds up all counts for each request. It
    reads shared memory only, so it never waits.
    """

    def __init__(self, spec: WorkerSpec, *, extender: LeaseExtender, recovery: ProcessRecovery) -> None:
        self._spec = spec
        self._extender = extender
        self._recovery = recovery
        self._past = Tally(len(spec.lines), len(spec.tasks)).read()

    def tally(self) -> Tally:
        """A tally for a process that is about to be forked."""
        return Tally(len(self._spec.lines), len(self._spec.tasks))

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
                leases[lines[held.line].queue, HELD[held.state]] += 1
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
