"""`lock`: a name that one holder has at a time, as a block of code. One thread per server extends the leases that this process holds. A
server that hangs delays no lease on another server.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from functools import partial
from random import uniform
from typing import Final, Self
from weakref import WeakSet

from django_delayq import clock, conf, durations, under_test
from django_delayq.exceptions import ConfigError, DelayqError, LeaseLost, LockTaken, PayloadError, StoreUnavailable
from django_delayq.job_meta import scoped, shown
from django_delayq.logger import Logger
from django_delayq.producer import scopes
from django_delayq.producer.async_api import in_thread, readable, refuse_loop, unbroken
from django_delayq.producer.breaker import CircuitOpen
from django_delayq.producer.options import duration, lease_ms
from django_delayq.producer.stores import stores
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.wake import BROKEN
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.lock_store import LockStore, Taken, UnlockLine
from django_delayq.store.scripts.queue import MOST
from django_delayq.store.scripts.record import MAX_KEY, validate_key
from django_delayq.text import cut
from django_delayq.worker.current import CURRENT

logger = Logger("django_delayq.locks")

LONGEST_SLEEP: Final = 1.0  # seconds; the message that a lock is free may be lost
AGAIN: Final = 0.5  # seconds until a failed call is repeated; at most a tenth of the lease
IDLE: Final = 60.0  # seconds until a thread without leases ends


class Lock:
    """One holder of a name at a time: `with delayq.lock("order:42", wait="2s") as lock:`, or `async with`. The object can be used for
    one block after another, but not within its own block, nor by two threads at once. Create one for each.

    `fence` is a number that rises with each holder of the name. A resource that the lock protects must reject writes with a fence lower
    than the last one it accepted. It is 0 before the first block, and stays after the last one.
    """

    def __init__(
        self,
        name: str,
        *,
        wait: durations.Delay = 0,
        lease: durations.Delay = "30s",
        queue: str | None = None,
        scope: str | None = None,
    ) -> None:
        self.name = _checked(name)
        self._text = scoped(scopes.of_call(scope), name)
        where = f"lock({name})"
        self.queue = conf.get().usual_queue if queue is None else conf.get().queue(queue).name
        self._node = "" if queue is None else self.queue  # the queue on whose server it is; "": the shared server
        self._wait = duration(wait, "wait", where) / 1000
        self._lease_ms = lease_ms(lease, where, "keeps the lock for as long when its holder dies")
        self._holding: Holding | None = None
        self._line: UnlockLine | None = None
        self.fence = 0

    def __repr__(self) -> str:
        return f"<Lock {self.name}{f', held, fence {self.fence}' if self._holding else ''}>"

    @property
    def held(self) -> bool:
        """Whether this block holds the lock. A lost lock stays lost."""
        holding = self._holding
        if holding is None:
            return False
        if holding.stands_still:
            process_leases().poll(still=True)
        return holding.is_good()

    def check(self) -> None:
        """Does nothing while this block holds the lock. It costs no call to Redis.

        Raises:
            LeaseLost: the block does not hold the lock. The lease ran out because the process stood still or Redis was unavailable for
                as long, or Redis lost it. Stop, and write nothing.
        """
        if not self.held:
            raise LeaseLost(code="lock_outside", lock=self.name) if self._holding is None else self._holding.error()

    def __enter__(self) -> Self:
        refuse_loop("delayq.lock(…)", block=True)
        self._refuse_itself()
        steps = self._steps()
        try:
            while (pause := next(steps, None)) is not None:
                until = clock.monotonic() + pause
                while self._listen().wait(max(0.0, until - clock.monotonic())) and not self._hear():
                    pass
        except BaseException:
            self._release()
            raise
        finally:
            self._close_line()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._leave(error)

    async def __aenter__(self) -> Self:
        self._refuse_itself()
        steps = self._steps()
        try:
            while (pause := await unbroken(partial(next, steps, None), back=self._give_back)) is not None:
                until = clock.monotonic() + pause
                while await readable((await in_thread(self._listen)).fileno(), max(0.0, until - clock.monotonic())):
                    if await in_thread(self._hear):
                        break
        except BaseException:
            if self._holding is not None:
                await in_thread(self._release)
            raise
        finally:
            self._close_line()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await in_thread(self._leave, error)

    # taking

    def _refuse_itself(self) -> None:
        if self._holding is not None:
            raise ConfigError(
                f"lock({self.name}): this lock is already in use, so the call would wait for itself. Create another lock object."
            )

    def _steps(self) -> Generator[float, None, None]:
        """Tries to take the lock, and yields how long to sleep until the next attempt. It ends when the lock is held."""
        store = stores.queue(self.queue, 0)
        link = stores.places.of(self._node, 0) if self._node else stores.places.on_shared(self.queue, 0)
        guard = self.queue if link.moves else self._node  # on a Cluster it is on the node of that queue
        keys = store.keys if link is store.link else Keys.of(store.keys.prefix, self.queue, 0, jobs=False)
        holding = Holding(LockStore(link, keys), self._text, self._lease_ms, guard)
        until = clock.monotonic() + self._wait
        while True:
            left = until - clock.monotonic()
            waits = left > 0 and not holding.stands_still
            if holding.stands_still:
                process_leases().poll(still=True)  # a test holds its own locks for as long as their blocks are open
            found = _take(holding, waits=waits)
            if not isinstance(found, Taken):
                self._holding, self.fence = holding, found
                process_leases().add(holding)
                return
            if not waits:
                since, held = clock.from_ms(found.since_ms), (found.now_ms - found.since_ms) / 1000
                raise LockTaken(lock=self.name, holder=found.holder, since=since, held=held, left=found.left_ms / 1000)
            if self._line is None:
                self._line = holding.store.line(found.now_ms)
            # Waiting processes do not all try at one moment.
            yield max(0.0, min(left, found.left_ms / 1000 + 0.001, LONGEST_SLEEP * uniform(0.5, 1)))

    def _listen(self) -> UnlockLine:
        """Starts to listen for released locks."""
        assert self._line is not None
        self._line.arm()
        return self._line

    def _hear(self) -> bool:
        """Whether this lock was released. The line reports other locks of the queue too. If the connection broke instead, the next
        attempt shows whether Redis is available.
        """
        assert self._line is not None
        try:
            return self._text in self._line.names()
        except StoreUnavailable:
            clock.sleep(BROKEN)
            return True

    def _close_line(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    # giving back

    def _leave(self, error: BaseException | None) -> None:
        lost = self._release()
        if lost is None:
            return
        if error is None:
            raise lost
        logger.warning("a block raised an exception after its lock was lost: %s", lost)

    def _release(self) -> LeaseLost | None:
        """Releases the lock. Returns the error to raise if it was not held to the end."""
        holding, self._holding = self._holding, None
        if holding is None:
            return None
        if holding.stands_still:
            process_leases().poll(still=True)
        good = holding.process == os.getpid() and not holding.lost and holding.present() < holding.good_until
        process_leases().drop(holding)
        if holding.process != os.getpid():
            return holding.error()
        answer = _unlock(holding)
        # If the reply of the first release was lost, the second finds nothing to release, although the lock was held.
        held = not holding.lost and (answer == "done" or (answer == "unknown" and good))
        return None if held else holding.error()

    def _give_back(self, step: float | None) -> None:
        """Releases a lock that was taken after the caller was cancelled."""
        if step is None:
            self._release()


def lock(
    name: str, *, wait: durations.Delay = 0, lease: durations.Delay = "30s", queue: str | None = None, scope: str | None = None
) -> Lock:
    """A lock on a name, for a block of code: `with delayq.lock("order:42", wait="2s") as lock:`, or `async with`.

    The holder has a lease, which is extended while the block runs. If the process is suspended, or if Redis loses its data, two holders
    can believe that they hold the lock, for up to one lease. `lock.check()` raises an exception in a holder that has lost the lock.
    `lock.fence` allows another system to reject that holder's writes.

    Args:
        name: Text of 1 to 200 characters. It is independent of keys and tasks.
        wait: How long to wait if another holder has the lock. With 0, the lock is tried once.
        lease: How long the lock remains taken if its holder dies, from 5 seconds to 12 hours.
        queue: The queue whose server stores the lock. The default is the server in `DELAYQ["REDIS"]`.
        scope: The scope of the name. The default is the one that the setting `SCOPE` returns, and "" is none.

    Raises, when the block begins:
        LockTaken: Another holder has the lock. If a task doesn't catch this exception, the job is snoozed.
        StoreUnavailable: Redis doesn't respond. If this call acquired the lock, it is free after one lease.
        SynchronousOnlyOperation: `with` was used in async code. Use `async with` instead.
        ConfigError: The block of this lock has already begun.
    Raises, when the block ends without an exception:
        LeaseLost: The lock was lost before the end of the block.
    Raises, when it is called:
        PayloadError, QueueUnknown, ConfigError: The name, the queue or a duration is invalid.
    """
    return Lock(name, wait=wait, lease=lease, queue=queue, scope=scope)


def _checked(name: str) -> str:
    try:
        if validate_key(name):
            return name
    except PayloadError:
        pass
    raise PayloadError(
        f"lock({cut(ascii(name))}): the name of a lock must have 1 to {MAX_KEY} printable characters, such as 'order:42'."
    )


def _take(holding: Holding, *, waits: bool) -> int | Taken:
    """Tries once more if the reply was lost. The same token takes a lock only once."""
    try:
        with stores.guarded(holding.node, schedules=True):
            return _take_once(holding, waits=waits)
    except (StoreRefused, CircuitOpen):
        raise
    except StoreUnavailable:
        with stores.guarded(holding.node):
            return _take_once(holding, waits=waits)


def _take_once(holding: Holding, *, waits: bool) -> int | Taken:
    sent = holding.present()
    found = holding.store.lock(holding.name, holding.token, lease_ms=holding.lease_ms, holder=_holder(), waits=waits)
    if not isinstance(found, Taken):
        holding.fence = found
        holding.begins(sent)
    return found


def _unlock(holding: Holding) -> str:
    """Returns done, lost, gone or forgotten; or unknown if the first of two calls may have done it, or Redis does not answer."""
    for last in (False, True):
        try:
            with stores.guarded(holding.node):
                answer = holding.store.unlock(holding.name, holding.token, repeats=holding.fence if last else 0)
        except StoreUnavailable as error:
            if last:
                logger.warning("the lock %s could not be released. It is free when its lease expires: %s", shown(holding.name), error)
        else:
            return "unknown" if last and answer in ("lost", "gone") else answer
    return "unknown"


def _holder() -> str:
    """The name of the holder that others see."""
    job = CURRENT.get(None)
    return f"{socket.gethostname() or 'localhost'}:{os.getpid()}" if job is None else f"job {job.short_id} ({job.task})"


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
        return LeaseLost(code=code, lock=shown(self.name), fence=self.fence)


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
        logger.warning("locks (%d) could not be extended. This is tried again: %s", len(holdings), error)
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
