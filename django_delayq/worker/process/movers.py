"""Where the lines of a worker are on several servers, or in several slots of a Cluster: a mover for each of them, in a thread per
server, so that one that hangs keeps no job of another one waiting.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from django_delayq import clock
from django_delayq.store.connection.link import Link
from django_delayq.worker.process.mover import Mover
from django_delayq.worker.process.node_threads import NodeThread, NodeThreads
from django_delayq.worker.run_context import Run

LOOK: Final = 0.25  # seconds between looks of the main thread at movers that have nothing to tell


class MoverThread(NodeThread[Mover]):
    """Has the movers of one server do pass after pass. Their wake lines, each of which waits for keys of one slot, stand in one epoll.
    Told to be quiet, it hushes them, and goes on watching for a new epoch. It dies with its process, whose lease table says
    what they had taken.
    """

    def __init__(self, at: Link, of: NodeThreads[Mover], quiet: threading.Event) -> None:
        super().__init__(at, of, "delayq-mover")
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._quiet = quiet
        self._selector = selectors.DefaultSelector()
        self._watched: list[tuple[Mover, object]] | None = None

    def took(self, loop: Mover) -> None:
        """See `NodeThread`."""
        loop.trouble.together = self.together

    def call(self) -> None:
        """See `NodeThread`: there may be room."""
        with contextlib.suppress(BlockingIOError):  # full of calls already
            os.write(self._write, b".")

    def step(self, loop: Mover) -> float:
        """See `NodeThread`."""
        if self._quiet.is_set() and not loop.quiet:
            loop.hush()
        return loop.poll()

    def sleep(self, seconds: float) -> bool:
        """See `NodeThread`: until a wake token, room, or the next date."""
        self._watch()
        called = False
        if ready([self._selector.fileno()], seconds):
            for found, _ in self._selector.select(0):
                if found.data is None:
                    called = bool(os.read(self._read, 4096))
                else:
                    found.data.token()
                    self.soon(found.data)
        return called

    def close(self) -> None:
        """See `NodeThread`."""
        self._selector.close()
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        lines = [(mover, mover.wake.connection) for mover in self.loops]
        standing: list[tuple[Mover, object]] = [(mover, connection) for mover, connection in lines if connection is not None]
        if standing == self._watched:
            return
        # Anew: of a connection that was closed the selector does not know, and its number may be that of another one by now.
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read, selectors.EVENT_READ)
        for mover, _ in standing:
            if mover.descriptor >= 0:
                self._selector.register(mover.descriptor, selectors.EVENT_READ, mover)
        self._watched = standing


class Movers:
    """Several movers as one."""

    def __init__(self, movers: Mapping[Mover, Link], suspects: deque[Run]) -> None:
        self.suspects = suspects
        self.quiet = False
        self._movers = list(movers)
        self._hushed = threading.Event()
        self._threads = NodeThreads(movers, lambda at, of: MoverThread(at, of, self._hushed))
        self._started = False

    @property
    def descriptor(self) -> int:
        """See `Mover`: each waits for its own."""
        return -1

    @property
    def stuck_for(self) -> float:
        """See `Mover`."""
        return max(mover.stuck_for for mover in self._movers)

    @property
    def dry(self) -> bool:
        """See `Mover`."""
        return all(mover.dry for mover in self._movers)

    @property
    def out_of_rows(self) -> bool:
        """See `Mover`."""
        return any(mover.out_of_rows for mover in self._movers)

    def poll(self) -> float:
        """See `Mover`: they poll themselves."""
        if not self._started:
            self._threads.start()
            self._started = True
        return LOOK

    def call(self) -> None:
        """See `Mover`."""
        self._threads.call()

    def token(self) -> None:
        """See `Mover`: nobody calls here."""

    def hush(self) -> None:
        """See `Mover`."""
        self.quiet = True
        self._hushed.set()
        self._threads.call()

    def give_back(self, jobs: Sequence[Run]) -> None:
        """See `Mover`."""
        self._movers[0].give_back(jobs)


def ready(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Sleeps until one of these can be read, those below 0 left out; which, none if it was for so long.

    poll() knows whole milliseconds only, and takes more of them rather than fewer: the rest of one is slept, as much of it as is left
    when poll() has come back, which is late.
    """
    until = clock.monotonic() + seconds
    poll = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    found = poll.poll(seconds * 1000 // 1)
    if not found:
        clock.sleep(min(0.001, until - clock.monotonic()))
    return [descriptor for descriptor, _ in found]
