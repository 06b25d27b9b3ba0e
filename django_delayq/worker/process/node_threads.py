"""One thread per server, for workers whose lines are on several servers or in several slots of a Cluster. A server that hangs does
not delay the jobs of the others. There are as many threads as servers, however many slots there are.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import selectors
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.current import Run
from django_delayq.worker.process.mover import Mover
from django_delayq.worker.process.settler import Settler

logger = Logger("django_delayq.worker")

AFTER_A_BUG: Final = 1.0  # seconds
COOLDOWN: Final = 0.25  # seconds for which a node of a Cluster is not called again: calls of its other slots fail at once


LoopT = TypeVar("LoopT", bound=Mover | Settler)  # a loop that works on one server or slot


class NodeThread(ABC, Generic[LoopT]):
    """A thread that runs the loops of one server.

    1. It hands over loops of slots that are on another server by now.
    2. It runs the loops that are due, in random order, so that all have the same chance of the free room.
    3. It sleeps until the next loop is due, or until it is called.

    It ends when it has no loops.

    Args:
        at: its server; see `Link.met`.
        of: all threads of its kind.
    """

    def __init__(self, at: Link, of: NodeThreads[LoopT], name: str) -> None:
        self.at = at
        self.loops: list[LoopT] = []
        self._of = of
        self._due: dict[LoopT, float] = {}
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def took(self, loop: LoopT) -> None:
        """Called when this thread gets a loop. A mover needs nothing."""

    @abstractmethod
    def call(self) -> None:
        """Called when there may be work for all of its loops."""

    @abstractmethod
    def step(self, loop: LoopT) -> float:
        """Runs the loop once. Returns the seconds until the next run."""

    @abstractmethod
    def sleep(self, seconds: float) -> bool:
        """Sleeps for that time, or until there is work. Returns whether the work is for all loops."""

    def is_over(self, loop: LoopT) -> bool:
        """Whether the loop has ended."""
        return False

    def close(self) -> None:
        """Called when the thread has ended and gets no more calls."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Waits for the thread to end."""
        self._thread.join(seconds)

    def soon(self, loop: LoopT) -> None:
        """Makes that loop due."""
        self._due[loop] = 0.0

    def _work(self) -> None:
        while True:
            try:
                if not self._of.sort(self):
                    break
                if self.sleep(self._round()):
                    self._due.clear()
            except Exception:  # otherwise all work on this server would stop without a report
                logger.exception("a thread failed and continues")
                clock.sleep(AFTER_A_BUG)
        self.close()

    def _round(self) -> float:
        loops = list(self.loops)
        random.shuffle(loops)
        for loop in loops:
            if not self._of.stands(loop, self):
                return 0.0  # it must be handed over first, because its own server may hang
            if self._due.get(loop, 0.0) <= clock.monotonic():
                try:
                    pause = self.step(loop)
                except Exception:
                    logger.exception("a loop failed and continues")
                    pause = AFTER_A_BUG
                self._due[loop] = 0.0 if self.is_over(loop) else clock.monotonic() + pause
                self._of.heed(loop, self)
        return max(0.0, min((self._due.get(loop, 0.0) for loop in loops), default=0.0) - clock.monotonic())


class NodeThreads(Generic[LoopT]):
    """The threads of all servers. A thread starts when its server is first met, and ends when it has no loops. A slot that is moving
    between two servers waits for both, and for its new address: it has a separate thread until the move is over.

    Args:
        links: the loops, each with its link.
        make: makes the thread of a server.
    """

    def __init__(self, links: Mapping[LoopT, Link], make: Callable[[Link, NodeThreads[LoopT]], NodeThread[LoopT]]) -> None:
        self._links = links
        self._make = make
        self._lock = threading.Lock()
        self._threads: dict[Link, NodeThread[LoopT]] = {}
        self._aside: set[LoopT] = set()
        for link in links.values():
            if link.moves:
                link.set_cooldown(COOLDOWN)

    def start(self) -> None:
        """Starts the known threads. On a Cluster that is one thread, until it is known which slot is on which server."""
        with self._lock:
            for loop in self._links:
                self._place(loop)

    def call(self) -> None:
        """Calls all threads, see `NodeThread.call`."""
        with self._lock:
            for thread in self._threads.values():
                thread.call()

    def join(self, seconds: float) -> None:
        """Waits for all threads to end, up to a time limit."""
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            with self._lock:
                thread = next(iter(self._threads.values()), None)
            if thread is None:
                return
            thread.join(left)

    def stands(self, loop: LoopT, thread: NodeThread[LoopT]) -> bool:
        """Whether that loop belongs to that thread, according to the latest information."""
        return self._at(loop) is thread.at

    def heed(self, loop: LoopT, thread: NodeThread[LoopT]) -> None:
        """Checks the last error of a loop of that thread. If its slot is moving, the loop gets a separate thread."""
        error = loop.trouble.error
        if error is None:
            self._aside.discard(loop)
            return
        link = self._links[loop]
        half_way = error.code == "redis_slot" and not (isinstance(error, StoreRefused) and error.unserved)
        elsewhere = half_way or error.fields.get("where", link.where) != link.where
        if link.moves and elsewhere and self.stands(loop, thread):
            self._aside.add(loop)

    def sort(self, thread: NodeThread[LoopT]) -> bool:
        """Removes the loops that are over from a thread, and hands over the loops that are on another server. Returns whether loops
        are left.
        """
        with self._lock:
            for loop in thread.loops:
                over = thread.is_over(loop)
                if over or not self.stands(loop, thread):
                    if not over:
                        self._place(loop)  # first, because it fails if there are no more threads or files
                    thread.loops = [other for other in thread.loops if other is not loop]
            if not thread.loops:
                del self._threads[thread.at]
            return bool(thread.loops)

    def _at(self, loop: LoopT) -> Link:
        link = self._links[loop]
        return link if loop in self._aside else link.met

    def _place(self, loop: LoopT) -> None:
        at = self._at(loop)
        thread = self._threads.get(at)
        if thread is None:
            thread = self._started(at)
        thread.loops = [*thread.loops, loop]
        thread.soon(loop)
        thread.took(loop)
        thread.call()

    def _started(self, at: Link) -> NodeThread[LoopT]:
        """Starts a thread, which waits for the lock before it checks its work."""
        thread = self._make(at, self)
        try:
            thread.start()
        except BaseException:
            thread.close()
            raise
        self._threads[at] = thread
        return thread


LOOK: Final = 0.25  # seconds between checks of the main thread whether movers have something to report


class MoverThread(NodeThread[Mover]):
    """Runs the movers of one server pass after pass. Their wake lines, each of which waits for keys of one slot, share one epoll.
    After a quiet command, it hushes the movers, and continues to watch for a new epoch. It dies with its process, whose lease table
    has the jobs that the movers took.
    """

    def __init__(self, at: Link, of: NodeThreads[Mover], quiet: threading.Event) -> None:
        super().__init__(at, of, "delayq-mover")
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._quiet = quiet
        self._selector = selectors.DefaultSelector()
        self._watched: list[tuple[Mover, object]] | None = None

    def call(self) -> None:
        """See `NodeThread`: there may be room."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of calls
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
        # A new selector: it does not notice that a connection was closed, and the number of the connection may be reused by now.
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read, selectors.EVENT_READ)
        for mover, _ in standing:
            if mover.descriptor >= 0:
                self._selector.register(mover.descriptor, selectors.EVENT_READ, mover)
        self._watched = standing


class Movers:
    """Combines several movers into one."""

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
        """See `Mover`: the movers listen to their own wake lines, so this is never called."""

    def hush(self) -> None:
        """See `Mover`."""
        self.quiet = True
        self._hushed.set()
        self._threads.call()

    def give_back(self, jobs: Sequence[Run]) -> None:
        """See `Mover`."""
        self._movers[0].give_back(jobs)


def ready(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Sleeps until one of these descriptors is readable. Descriptors below 0 are ignored. Returns the readable ones, or none after
    the timeout. poll() takes whole milliseconds and rounds up. So it is called with whole milliseconds, and the rest is slept
    afterwards, less the time by which poll() returned late.
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


class SettlerThread(NodeThread[Settler]):
    """Runs the settlers of one server."""

    def __init__(self, at: Link, of: NodeThreads[Settler]) -> None:
        super().__init__(at, of, "delayq-settler")
        self._filled = threading.Event()

    def took(self, loop: Settler) -> None:
        """See `NodeThread`."""
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
        return True  # also after a timeout: an item that was added right before the event was cleared has set it in vain

    def is_over(self, loop: Settler) -> bool:
        """See `NodeThread`."""
        return loop.over


class Settlers:
    """The settlers of several servers or slots. Each outcome goes to the settler of its line."""

    def __init__(self, of: Mapping[Link, Settler]) -> None:
        self._of = of
        self._threads = NodeThreads({settler: link for link, settler in of.items()}, SettlerThread)

    def start(self) -> None:
        """See `Settler`."""
        self._threads.start()

    def end(self, seconds: float) -> None:
        """See `Settler`; all end at the same time."""
        for settler in self._of.values():
            settler.finish()
        self._threads.join(seconds)

    def add(self, run: Run, outcome: Outcome | None) -> None:
        """See `Settler`."""
        self._of[run.line.store.link].add(run, outcome)
