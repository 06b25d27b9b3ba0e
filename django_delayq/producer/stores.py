"""The producer's way to Redis: one link per process, made when first needed, with a breaker for schedules.

After a failure the next schedules fail at once, so that a web process does not wait for the timeout in every request while Redis is
down; after a short while one tries again. What people ask for by name, a cancel above all, is tried always.
"""

from __future__ import annotations

import threading
from typing import Final

from django.core.signals import setting_changed
from django.dispatch import receiver

from django_delayq import clock, conf
from django_delayq.exceptions import StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.store.connection import Link, StoreError, StoreRefused, connect
from django_delayq.store.inspector import Inspector
from django_delayq.store.queue import QueueStore

TIMEOUT: Final = 1.0  # seconds a request waits for Redis, at most, before it goes on without
REST: Final = 2.0  # seconds for which the breaker stays open
CLOCK_KEPT: Final = 60.0  # seconds for which a reading of Redis' clock serves, with what has passed since


class StoreResting(StoreUnavailable):
    """The breaker is open: nothing was sent."""


class StoreSet:
    """All queues of this project, as seen by producers, the admin and commands. Thread-safe; survives a fork."""

    def __init__(self, *, name: str = "delayq:producer", timeout: float = TIMEOUT) -> None:
        self._name = name
        self._timeout = timeout
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._queues: dict[tuple[str, int], tuple[conf.Config, QueueStore]] = {}  # as of those settings
        self._open_until = 0.0
        self._last = ""
        self._grounds: dict[str, str] = {}
        self._clock: tuple[float, float] | None = None  # when Redis' was read, and what it showed, in seconds

    @property
    def link(self) -> Link:
        """The link itself, without the breaker."""
        if self._link is None:
            with self._lock:
                if self._link is None:
                    self._link = connect(conf.get().redis, name=self._name, timeout=self._timeout)
        return self._link

    def queue(self, name: str, partition: int = 0) -> QueueStore:
        """The store of one queue.

        Raises:
            QueueUnknown: the settings do not list it.
        """
        config = conf.get()
        config.queue(name)
        link = self.link
        found = self._queues.get((name, partition))
        if found is None or found[0] is not config or found[1].link is not link:
            found = (
                config,
                QueueStore(link, prefix=config.prefix, queue=name, partition=partition, signer=config.signer),
            )
            self._queues[name, partition] = found
        return found[1]

    def inspector(self) -> Inspector:
        """Reads for people."""
        return Inspector(self.link, prefix=conf.get().prefix)

    def ground(self, name: str) -> str:
        """Where a queue stands, as far as this process knows (it comes with every answer); asked once. "" if Redis cannot be asked."""
        known = self._grounds.get(name)
        if known is None:
            try:
                with self.guarded(schedules=True):
                    known = self._grounds[name] = self.queue(name).ground()
            except StoreUnavailable:
                return ""
        return known

    def learn(self, name: str, ground: str) -> None:
        """Notes where a queue stands."""
        self._grounds[name] = ground

    def now_ms(self) -> int:
        """Redis' clock, asked once a minute at most; this host's if Redis cannot be asked."""
        now = clock.monotonic()
        if self._clock is None or now - self._clock[0] > CLOCK_KEPT:
            try:
                with self.guarded(schedules=True):
                    seconds, us = self.link.execute("TIME")
            except StoreUnavailable:
                return clock.wall_ms()
            self._clock = now, int(seconds) + int(us) / 1e6
        return int((self._clock[1] + now - self._clock[0]) * 1000)

    def guarded(self, *, schedules: bool = False, asks: bool = True, answers: bool = True) -> _Guard:
        """Runs calls, and notes how they went. Of a call in two halves the first only `asks` and the second only `answers`: what was
        sent is waited for, whatever has happened to others meanwhile.

        Args:
            schedules: it obeys the breaker: a row waits, and the relay publishes it.

        Raises:
            StoreUnavailable: at once while the breaker is open, or because the call failed, which opens it; or because Redis
                refused it, which does not: a refusal is quick, and says nothing about the next call.
        """
        if schedules and asks and clock.monotonic() < self._open_until:
            raise StoreResting(f"Redis failed a moment ago and is left alone for {REST:.0f} s: {self._last}")
        return _Guard(self, asks, answers)

    def note(self, error: StoreUnavailable | None) -> None:
        """How a call went: an error opens the breaker."""
        if error is None:
            self._open_until = 0.0
        else:
            self._last, self._open_until = str(error), clock.monotonic() + REST

    def reset(self) -> None:
        """Forgets the link and the breaker; the settings have changed."""
        with self._lock:
            link, self._link = self._link, None
            self._open_until = 0.0
            self._grounds, self._clock = {}, None
        if link is not None:
            link.close()


class _Guard:
    """See `StoreSet.guarded`. A class, since a generator would take a good part of a call's time."""

    __slots__ = ("_answers", "_asks", "_stores")

    def __init__(self, stores: StoreSet, asks: bool, answers: bool) -> None:
        self._stores, self._asks, self._answers = stores, asks, answers

    def __enter__(self) -> None:
        if self._asks:
            failpoint("producer.ask")

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            if self._answers:
                failpoint("producer.asked")
            if self._asks and self._answers:
                self._stores.note(None)
        elif isinstance(error, StoreUnavailable):
            if not isinstance(error, StoreRefused):
                self._stores.note(error)
        elif isinstance(error, StoreError):  # callers know one error only
            raise StoreUnavailable(*error.args, code=error.code, **error.fields) from error


stores: Final = StoreSet()


@receiver(setting_changed, dispatch_uid="delayq.stores")
def _forget(*, setting: str, **_: object) -> None:
    if setting in (conf.SETTING, "CACHES"):
        stores.reset()
