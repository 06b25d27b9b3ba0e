"""The producer's way to Redis: one link per process, made when first needed, with a breaker.

After a failure the next calls fail at once, so that a web process does not wait for the timeout in every request while Redis is
down; after a short while one call tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
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

    @contextmanager
    def guarded(self, *, asks: bool = True, answers: bool = True) -> Iterator[None]:
        """Runs calls under the breaker. Of a call in two halves the first only `asks` and the second only `answers`: what was sent is
        waited for, whatever has happened to others meanwhile.

        Raises:
            StoreUnavailable: at once while the breaker is open, or because the call failed, which opens it; or because Redis
                refused it, which does not: a refusal is quick, and says nothing about the next call.
        """
        if asks and clock.monotonic() < self._open_until:
            raise StoreUnavailable(f"Redis failed a moment ago and is left alone for {REST:.0f} s: {self._last}")
        try:
            if asks:
                failpoint("producer.ask")
            yield
            if answers:
                failpoint("producer.asked")
        except StoreRefused:
            raise
        except StoreUnavailable as error:
            self._last = str(error)
            self._open_until = clock.monotonic() + REST
            raise
        except StoreError as error:  # callers know one error only
            raise StoreUnavailable(str(error)) from error
        if asks and answers:
            self._open_until = 0.0

    def reset(self) -> None:
        """Forgets the link and the breaker; the settings have changed."""
        with self._lock:
            link, self._link = self._link, None
            self._open_until = 0.0
        if link is not None:
            link.close()


stores: Final = StoreSet()


@receiver(setting_changed, dispatch_uid="delayq.stores")
def _forget(*, setting: str, **_: object) -> None:
    if setting in (conf.SETTING, "CACHES"):
        stores.reset()
