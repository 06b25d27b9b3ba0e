"""Where the lines of a worker are on several servers, or in several slots of a Cluster: a settler for each of them, as one."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.process.node_threads import NodeThread, NodeThreads
from django_delayq.worker.process.settler import Settler
from django_delayq.worker.run_context import Run


class SettlerThread(NodeThread[Settler]):
    """Settles what has ended of the lines of one server."""

    def __init__(self, at: Link, of: NodeThreads[Settler]) -> None:
        super().__init__(at, of, "delayq-settler")
        self._filled = threading.Event()

    def took(self, loop: Settler) -> None:
        """See `NodeThread`."""
        loop.trouble.together = self.together
        loop.fill(self._filled)

    def call(self) -> None:
        """See `NodeThread`."""
        self._filled.set()

    def step(self, loop: Settler) -> float:
        """See `NodeThread`."""
        return loop.step()

    def sleep(self, seconds: float) -> bool:
        """See `NodeThread`."""
        self._filled.wait(None if seconds == float("inf") else seconds)
        self._filled.clear()
        return True  # also if that time was over: what was added right before the event was cleared has set it in vain

    def is_over(self, loop: Settler) -> bool:
        """See `NodeThread`."""
        return loop.over


class Settlers:
    """The settlers of several servers or slots: each end goes to that of its line."""

    def __init__(self, of: Mapping[Link, Settler]) -> None:
        self._of = of
        self._threads = NodeThreads({settler: link for link, settler in of.items()}, SettlerThread)

    def start(self) -> None:
        """See `Settler`."""
        self._threads.start()

    def end(self, seconds: float) -> None:
        """See `Settler`; all end side by side."""
        for settler in self._of.values():
            settler.finish()
        self._threads.join(seconds)

    def add(self, run: Run, outcome: Outcome | None) -> None:
        """See `Settler`."""
        self._of[run.line.store.link].add(run, outcome)
