"""What a process holds, and the threads that extend its leases: one for each server, so that none waits for another."""

from __future__ import annotations

import os
import threading
from typing import Final
from weakref import WeakSet

from django_delayq import clock, under_test
from django_delayq.exceptions import DelayqError, LeaseLost
from django_delayq.logger import Logger
from django_delayq.store.connection import Link
from django_delayq.store.lock_store import LockStore
from django_delayq.store.queue import MOST

logger = Logger("django_delayq.locks")

AGAIN: Final = 0.5  # seconds after which a call that failed is made again; at most a tenth of the lease
IDLE: Final = 60.0  # seconds after which a thread ends that has nothing to extend


class Holding:
    """One lock that this process has taken: under which token, until when, and whether that is known to be over.

    `node`: the queue by whose server it stands; "" for the shared one. `fence`: 0 until it is taken. It is lost for good when a look
    has found its lease over, or Redis has said so: code that was told to stop must not hear a moment later that all is well.
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
        """Whether its time passes only when a test says so: no thread extends it then, but whoever looks."""
        return self.store.link.stands_still

    def begins(self, sent: float) -> None:
        """Another lease has begun, no earlier than `sent`, which this process has measured (`present`)."""
        self.good_until = sent + self.lease_ms / 1000
        self.next = sent + self.lease_ms / 3000

    def put_off(self) -> None:
        """It could not be extended."""
        self.next = self.present() + min(AGAIN, self.lease_ms / 10_000)

    def present(self) -> float:
        """Seconds that measure a lease. In a test that moves the time of jobs it is that time."""
        return clock.wall_ms() / 1000 if self.stands_still else clock.monotonic()

    def is_good(self) -> bool:
        """Whether it is held now, as far as this process knows."""
        if not self.lost and self.present() >= self.good_until:
            self.lost = True
        return not self.lost and self.process == os.getpid()

    def error(self) -> LeaseLost:
        """What says that it is not."""
        code = "lock_lost" if self.process == os.getpid() else "lock_forked"
        return LeaseLost(code=code, lock=self.name, fence=self.fence)


class LeaseKeeper:
    """1. Each `poll` extends the leases of which a third has passed, 200 in one call. 2. A server's thread begins with the first lock
    that is held there, and sleeps until the next one is due: a server that hangs holds up no lease on another. It dies with its
    process, whose locks are then free when their leases have ended. What nobody has a reference to any more is not extended: a lock
    whose block was broken off before it began is free a lease later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holdings: WeakSet[Holding] = WeakSet()
        self._threads: dict[Link, threading.Thread] = {}
        self._sleep_until: dict[Link, float] = {}

    def add(self, holding: Holding) -> None:
        """Extends this one from now on."""
        with self._changed:
            self._holdings.add(holding)
            if holding.stands_still:
                return
            link = holding.store.link
            thread = self._threads.get(link)
            if thread is None or not thread.is_alive():
                self._threads[link] = threading.Thread(target=self._run, args=(link,), name="delayq-locks", daemon=True)
                self._threads[link].start()
            elif holding.next < self._sleep_until.get(link, 0.0):  # mostly it looks earlier anyway, and nobody is woken
                self._changed.notify_all()

    def drop(self, holding: Holding) -> None:
        """Does not extend it any more."""
        with self._changed:
            self._holdings.discard(holding)

    def end_still(self) -> None:
        """Those whose time a test moves are lost: another test begins."""
        with self._changed:
            for holding in [one for one in self._holdings if one.stands_still]:
                holding.lost = True
                self._holdings.discard(holding)

    def poll(self, link: Link | None = None, *, still: bool = False) -> None:
        """One pass, of one server if it is given. `still`: over those whose time a test moves, whether or not they are due."""
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
        logger.warning("%d locks could not be extended. The next attempt follows: %s", len(holdings), error)
        return
    for holding, answer, began in zip(holdings, answers, sent, strict=True):
        if answer == "held":
            holding.begins(began)
        else:
            holding.lost = True


_keepers: dict[int, LeaseKeeper] = {}


def keeper() -> LeaseKeeper:
    """That of this process. A copy of the process gets one of its own: threads are not copied, and a lock of theirs may be closed."""
    process = os.getpid()
    found = _keepers.get(process)
    if found is None:
        for other in [other for other in list(_keepers) if other != process]:
            _keepers.pop(other, None)
        found = _keepers.setdefault(process, LeaseKeeper())  # of two threads that make one, the first counts
    return found


under_test.FORGETS.append(lambda: keeper().end_still())
