"""The locks that this process holds, and the threads that extend their leases: one for each server.

A server that hangs delays no lease on another server.
"""

from __future__ import annotations

import os
import threading
from typing import Final
from weakref import WeakSet

from django_delayq import clock, under_test
from django_delayq.exceptions import DelayqError, LeaseLost
from django_delayq.logger import Logger
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.lock_store import LockStore
from django_delayq.store.scripts.queue import MOST

logger = Logger("django_delayq.locks")

AGAIN: Final = 0.5  # seconds until a failed call is repeated; at most a tenth of the lease
IDLE: Final = 60.0  # seconds until a thread without leases ends


class Holding:
    """One lock of this process: its token, its lease, and whether it is lost.

    `node`: the queue on whose server it is, "" for the shared server. `fence`: 0 until it is taken. It is lost for good once its lease
    was found expired or Redis reported it. Otherwise code that has stopped could see the lock as held again.
    """

    def __init__(self, store: LockStore, name: str, lease_ms: int, node: str = "") -> None:
        self.store = store
        self.name = name
        self.lease_ms = lease_ms
        self.node = node
        self.token = os.urandom(8).hex()
        self.process = os.getpid()
        self.fence = 0
        self.next = 0.0  # when its lease is to be extended (monotonic)
        self.lost = False
        self.good_until = 0.0

    @property
    def stands_still(self) -> bool:
        """Whether a test moves its time. Then no thread extends it; each check of the lock does."""
        return self.store.link.stands_still

    def begins(self, sent: float) -> None:
        """Another lease has begun, not before `sent` by `present`."""
        self.good_until = sent + self.lease_ms / 1000
        self.next = sent + self.lease_ms / 3000

    def put_off(self) -> None:
        """Tries again soon, because it could not be extended."""
        self.next = self.present() + min(AGAIN, self.lease_ms / 10_000)

    def present(self) -> float:
        """The clock of leases in seconds. In a test that moves the time of jobs, it is that time."""
        return clock.wall_ms() / 1000 if self.stands_still else clock.monotonic()

    def is_good(self) -> bool:
        """Whether this process holds it now, as far as it knows."""
        if not self.lost and self.present() >= self.good_until:
            self.lost = True
        return not self.lost and self.process == os.getpid()

    def error(self) -> LeaseLost:
        """The error for a lock that is not held."""
        code = "lock_lost" if self.process == os.getpid() else "lock_forked"
        return LeaseLost(code=code, lock=self.name, fence=self.fence)


class LockLeases:
    """1. Each `poll` extends the leases of which a third has passed, 200 in one call. 2. The thread of a server begins with the first
    lock there and sleeps until the next one is due. If the process dies, its locks are free when their leases end. A lock without a
    reference is not extended: if its block was interrupted before it began, it is free a lease later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holdings: WeakSet[Holding] = WeakSet()
        self._threads: dict[Link, threading.Thread] = {}
        self._sleep_until: dict[Link, float] = {}

    def add(self, holding: Holding) -> None:
        """Extends this lock from now on."""
        with self._changed:
            self._holdings.add(holding)
            if holding.stands_still:
                return
            link = holding.store.link
            thread = self._threads.get(link)
            if thread is None or not thread.is_alive():
                self._threads[link] = threading.Thread(target=self._run, args=(link,), name="delayq-locks", daemon=True)
                self._threads[link].start()
            elif holding.next < self._sleep_until.get(link, 0.0):  # mostly it polls earlier anyway, and need not be woken
                self._changed.notify_all()

    def drop(self, holding: Holding) -> None:
        """Stops extending this lock."""
        with self._changed:
            self._holdings.discard(holding)

    def end_still(self) -> None:
        """Marks locks whose time a test moves as lost, because another test begins."""
        with self._changed:
            for holding in [one for one in self._holdings if one.stands_still]:
                holding.lost = True
                self._holdings.discard(holding)

    def poll(self, link: Link | None = None, *, still: bool = False) -> None:
        """One pass, for one server if it is given. `still`: only locks whose time a test moves, due or not."""
        with self._changed:
            mine = [one for one in self._held(link) if one.stands_still is still]
        due = mine if still else [one for one in mine if one.next <= one.present()]
        by_queue: dict[LockStore, list[Holding]] = {}
        for holding in due:
            by_queue.setdefault(holding.store, []).append(holding)
        for store, holdings in by_queue.items():
            for start in range(0, len(holdings), MOST):
                _prolong(store, holdings[start : start + MOST])

    def _held(self, link: Link | None) -> list[Holding]:
        return [one for one in self._holdings if not one.lost and (link is None or one.store.link is link)]

    def _nexts(self, link: Link) -> list[float]:
        return [one.next for one in self._held(link) if not one.stands_still]

    def _run(self, link: Link) -> None:
        while True:
            with self._changed:
                first = min(self._nexts(link), default=clock.monotonic() + IDLE)
                self._sleep_until[link] = first
                left = first - clock.monotonic()
                if left > 0:
                    self._changed.wait(left)
                if clock.monotonic() >= first and not self._nexts(link):
                    del self._threads[link], self._sleep_until[link]
                    return
            try:
                self.poll(link)
            except Exception:  # without it every lock of the process would be lost
                logger.exception("locks could not be extended")
                clock.sleep(AGAIN)


def _prolong(store: LockStore, holdings: list[Holding]) -> None:
    sent = [holding.present() for holding in holdings]
    try:
        answers = store.prolong([(holding.name, holding.token, holding.lease_ms) for holding in holdings])
    except DelayqError as error:
        for holding in holdings:
            holding.put_off()
        logger.warning("locks (%d) could not be extended. The next attempt follows: %s", len(holdings), error)
        return
    for holding, answer, began in zip(holdings, answers, sent, strict=True):
        if answer == "held":
            holding.begins(began)
        else:
            holding.lost = True


_by_process: dict[int, LockLeases] = {}


def process_leases() -> LockLeases:
    """The leases of this process. A forked process gets its own: threads are not copied, and a thread lock may be closed."""
    process = os.getpid()
    found = _by_process.get(process)
    if found is None:
        for other in [other for other in list(_by_process) if other != process]:
            _by_process.pop(other, None)
        found = _by_process.setdefault(process, LockLeases())  # if two threads create one, the first counts
    return found


under_test.FORGETS.append(lambda: process_leases().end_still())
