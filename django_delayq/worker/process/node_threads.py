"""Loops that are each about one server, or one slot of a Cluster, in a thread per server: one that hangs keeps no other one waiting,
and the threads are as many as the servers, however many slots there are.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.worker.error_pause import ErrorPause, Together

logger = Logger("django_delayq.worker")

AFTER_A_BUG: Final = 1.0  # seconds
COOLDOWN: Final = 0.25  # seconds for which a node of a Cluster is not called again: calls of its other slots fail at once


class NodeLoop(Protocol):
    """What is about one server or slot."""

    trouble: ErrorPause


LoopT = TypeVar("LoopT", bound=NodeLoop)


class NodeThread(ABC, Generic[LoopT]):
    """1. Hands over the loops of slots that are on another server by now. 2. Goes round those that are due, in an order that chance
    says: what there is room for goes to all alike. 3. Sleeps until the next is due, or somebody calls. It ends when it has none.

    Args:
        at: its server; see `Link.met`.
        of: all of its kind.
    """

    def __init__(self, at: Link, of: NodeThreads[LoopT], name: str) -> None:
        self.at = at
        self.loops: list[LoopT] = []
        self.together = Together()
        self._of = of
        self._due: dict[LoopT, float] = {}
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @abstractmethod
    def took(self, loop: LoopT) -> None:
        """That loop is one of this thread's from now on."""

    @abstractmethod
    def call(self) -> None:
        """There may be something to do for all of them."""

    @abstractmethod
    def step(self, loop: LoopT) -> float:
        """What the loop does. Returns the seconds until it is to do it again."""

    @abstractmethod
    def sleep(self, seconds: float) -> bool:
        """Sleeps for so long, or until something is to be done. Returns whether that is for all loops."""

    def is_over(self, loop: LoopT) -> bool:
        """Whether the loop has come to its end."""
        return False

    def close(self) -> None:
        """It has ended; nobody calls any more."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Waits for it to end."""
        self._thread.join(seconds)

    def soon(self, loop: LoopT) -> None:
        """That one is due."""
        self._due[loop] = 0.0

    def _work(self) -> None:
        while True:
            try:
                if not self._of.sort(self):
                    break
                if self.sleep(self._round()):
                    self._due.clear()
            except Exception:  # else what is on this server would stand still, and nobody would know
                logger.exception("a thread of loops failed and continues")
                clock.sleep(AFTER_A_BUG)
        self.close()

    def _round(self) -> float:
        loops = list(self.loops)
        random.shuffle(loops)
        for loop in loops:
            if not self._of.stands(loop, self):
                return 0.0  # it is handed over first: its own server may hang
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
    """The threads of all servers: made when a server is first met, ended when it has nothing left. A slot that is half-way from its
    server to another waits for both, and for news of where it is: it has a thread of its own until that is over.

    Args:
        links: the loops, each with the link that it goes by.
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
        """Starts those there are; on a Cluster one, until it is known which slot is where."""
        with self._lock:
            for loop in self._links:
                self._place(loop)

    def call(self) -> None:
        """See `NodeThread`; all."""
        with self._lock:
            for thread in self._threads.values():
                thread.call()

    def join(self, seconds: float) -> None:
        """Waits for all to end, so long at most."""
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            with self._lock:
                thread = next(iter(self._threads.values()), None)
            if thread is None:
                return
            thread.join(left)

    def stands(self, loop: LoopT, thread: NodeThread[LoopT]) -> bool:
        """Whether that loop belongs to that thread, as far as is known."""
        return self._at(loop) is thread.at

    def heed(self, loop: LoopT, thread: NodeThread[LoopT]) -> None:
        """Sees how the loop of that thread has fared."""
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
        """Takes out of a thread what is over, and hands over what is on another server. Returns whether something is left."""
        with self._lock:
            for loop in thread.loops:
                over = thread.is_over(loop)
                if over or not self.stands(loop, thread):
                    if not over:
                        self._place(loop)  # first, since it fails where no more threads or files are to be had
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
        """It waits for our lock before it looks what it has to do."""
        thread = self._make(at, self)
        try:
            thread.start()
        except BaseException:
            thread.close()
            raise
        self._threads[at] = thread
        return thread
