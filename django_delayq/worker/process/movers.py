"""Where the lines of a worker are on several servers: a mover, an adopter and a settler for each, in threads of their own, so that a
server that hangs keeps no job of another one waiting.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.store.connection import Link
from django_delayq.store.queue import Outcome
from django_delayq.worker.process.mover import Mover
from django_delayq.worker.process.settler import Settler
from django_delayq.worker.run import Run

logger = Logger("django_delayq.worker")

LOOK: Final = 0.25  # seconds between looks of the main thread at movers that have nothing to tell


class Settlers:
    """The settlers of several servers as one: each end goes to that of its line."""

    def __init__(self, of: Mapping[Link, Settler]) -> None:
        self._of = of

    def start(self) -> None:
        """See `Settler`."""
        for settler in self._of.values():
            settler.start()

    def end(self, seconds: float) -> None:
        """See `Settler`; all end side by side."""
        until = clock.monotonic() + seconds
        for settler in self._of.values():
            settler.finish()
        for settler in self._of.values():
            settler.end(max(0.0, until - clock.monotonic()))

    def add(self, run: Run, outcome: Outcome | None) -> None:
        """See `Settler`."""
        self._of[run.line.store.link].add(run, outcome)


class MoverThread:
    """1. Has its mover do pass after pass. 2. In between it sleeps until a wake token, room, or its next date. 3. Told to be quiet, it
    hushes its mover, and goes on listening for ground that has changed. It dies with its process, whose holdings say what it had taken.
    """

    def __init__(self, mover: Mover, number: int) -> None:
        self.mover = mover
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._quiet = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"delayq-mover-{number}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def call(self) -> None:
        """There may be room."""
        try:
            os.write(self._write, b".")
        except BlockingIOError:  # full of calls already
            pass

    def hush(self) -> None:
        """Claims no more, as soon as its server has answered."""
        self._quiet.set()
        self.call()

    def _work(self) -> None:
        while True:
            try:
                if self._quiet.is_set() and not self.mover.quiet:
                    self.mover.hush()
                self._sleep(self.mover.poll())
            except Exception:  # else the lines of this server would stand still, and nobody would know
                logger.exception("a mover failed, and goes on")
                clock.sleep(1.0)

    def _sleep(self, seconds: float) -> None:
        for descriptor in ready([self._read, self.mover.descriptor], seconds):
            if descriptor == self._read:
                os.read(descriptor, 4096)
            else:
                self.mover.token()


class Movers:
    """Several movers as one."""

    def __init__(self, movers: Sequence[Mover], suspects: deque[Run]) -> None:
        self.suspects = suspects
        self.quiet = False
        self._movers = movers
        self._threads = [MoverThread(mover, number) for number, mover in enumerate(movers, 1)]
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
        """See `Mover`. Whoever calls this has been called, or has waited: so are they."""
        for thread in self._threads:
            if self._started:
                thread.call()
            else:
                thread.start()
        self._started = True
        return LOOK

    def token(self) -> None:
        """See `Mover`: nobody calls here."""

    def hush(self) -> None:
        """See `Mover`."""
        self.quiet = True
        for thread in self._threads:
            thread.hush()

    def give_back(self, jobs: Sequence[Run]) -> None:
        """See `Mover`."""
        self._movers[0].give_back(jobs)


def ready(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Sleeps until one of these can be read, those below 0 left out; which, none if it was for so long.

    poll() knows whole milliseconds only, and takes more of them rather than fewer: the rest of one is slept.
    """
    poll = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    whole, rest = divmod(seconds * 1000, 1)
    found = poll.poll(whole)
    if not found:
        clock.sleep(rest / 1000)
    return [descriptor for descriptor, _ in found]
