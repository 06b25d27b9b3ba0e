"""The producer's way to Redis: one link per process, made when first needed, behind a breaker."""

from __future__ import annotations

import threading
from typing import Final

from django.core.signals import setting_changed
from django.dispatch import receiver

from django_delayq import clock, conf
from django_delayq.exceptions import StoreUnavailable
from django_delayq.producer.breaker import Breaker
from django_delayq.setting_readers import SETTING
from django_delayq.store.connection import Link, connect
from django_delayq.store.inspector import Inspector
from django_delayq.store.queue import QueueStore

TIMEOUT: Final = 1.0  # seconds a request waits for Redis, at most, before it goes on without
CLOCK_KEPT: Final = 60.0  # seconds for which a reading of Redis' clock serves, with what has passed since


class StoreSet:
    """All queues of this project, as seen by producers, the admin and commands. Thread-safe; survives a fork."""

    def __init__(self, *, name: str = "delayq:producer", timeout: float = TIMEOUT) -> None:
        self._name = name
        self._timeout = timeout
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._queues: dict[str, tuple[conf.Config, QueueStore]] = {}  # as of those settings
        self._stands_in: Link | None = None
        self.breaker = Breaker()
        self.guarded = self.breaker.guarded
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

    def queue(self, name: str) -> QueueStore:
        """The store of one queue.

        Raises:
            QueueUnknown: the settings do not list it.
        """
        config, found = conf.get(), self._queues.get(name)
        if found is not None and found[0] is config and found[1].link is self._link:  # mostly
            return found[1]
        config.queue(name)
        store = QueueStore(self.link, prefix=config.prefix, queue=name, signer=config.signer)
        self._queues[name] = (config, store)
        return store

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

    def reset(self) -> None:
        """Forgets the link and the breaker; the settings have changed."""
        with self._lock:
            link, self._link = self._link, self._stands_in
            self.forget()
        if link is not None and link is not self._link:
            link.close()

    def forget(self) -> None:
        """Forgets what is known of Redis: that it was away, its clock, where queues stand."""
        self.breaker.note(None)
        self._grounds = {}
        self.forget_clock()

    def forget_clock(self) -> None:
        """Asks for Redis' clock when it is needed next."""
        self._clock = None

    def stand_in(self, link: Link | None) -> None:
        """Goes by that link, whatever the settings say; None: by theirs again. For tests, which keep theirs."""
        if self._link is self._stands_in:
            self._link = None
        self._stands_in = link
        self.reset()


stores: Final = StoreSet()


@receiver(setting_changed, dispatch_uid="delayq.stores")
def _forget(*, setting: str, **_: object) -> None:
    if setting in (SETTING, "CACHES"):
        stores.reset()
