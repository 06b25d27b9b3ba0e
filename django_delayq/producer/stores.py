"""The producer's way to Redis: one link per process and server, made when first needed, each behind a breaker of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from django.core.signals import setting_changed
from django.db import Error as DriverError
from django.dispatch import receiver

from django_delayq import clock, conf, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.producer import outbox
from django_delayq.producer.breaker import COOLDOWN, Breaker, Guard
from django_delayq.setting_readers import SETTING
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Nodes, Places
from django_delayq.store.reads.reach import WHOLE, PartialReach, Reach
from django_delayq.store.scripts import site
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.replicas import Replicas

if TYPE_CHECKING:
    from django_delayq.store.reads.figures import Figures
    from django_delayq.store.reads.inspector import Inspector

T = TypeVar("T")

TIMEOUT: Final = 1.0  # seconds a request waits for Redis, at most, before it goes on without
CLOCK_KEPT: Final = 60.0  # seconds for which a reading of Redis' clock serves, with what has passed since


class Missing:
    """What a read lacks. `queues`: of which nothing is known, and why; `parts`: of each queue its partitions that are lacking, and why.

    Args:
        errors: by queue and partition.
        served: of each queue that was read, its partitions.
    """

    def __init__(self, errors: Mapping[tuple[str, int], StoreUnavailable], served: Mapping[str, Collection[int]]) -> None:
        self.parts: dict[str, dict[int, StoreUnavailable]] = {}
        for (queue, partition), error in errors.items():
            self.parts.setdefault(queue, {})[partition] = error
        self.queues = {queue: parts[min(parts)] for queue, parts in self.parts.items() if len(parts) == len(served[queue])}

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def labels(self) -> dict[str, StoreUnavailable]:
        """The same parts, as people call them."""
        config = conf.get()
        return {config.queue(queue).label(number): why for queue, parts in self.parts.items() for number, why in parts.items()}

    @property
    def first(self) -> StoreUnavailable:
        """Why, of the first one, where there is any."""
        return next(error for parts in self.parts.values() for error in parts.values())


class StoreSet:
    """All queues of this project, as seen by producers, the admin and commands. Thread-safe; survives a fork."""

    def __init__(self, *, name: str = "delayq:producer", timeout: float = TIMEOUT) -> None:
        self._name = name
        self._timeout = timeout
        self._lock = threading.Lock()
        self._places: Places | None = None
        self._queues: dict[tuple[str, int], tuple[conf.Config, Places, QueueStore]] = {}  # as of those settings
        self._stands_in: Link | None = None
        self.breaker = Breaker()  # of the shared server
        self._breakers: dict[str, Breaker] = {}  # by queue, of those that are on another
        self._guards: dict[
            tuple[str, int], Breaker | Link
        ] = {}  # of a partition its breaker, or on a Cluster the link whose node has one
        self._of_nodes: WeakKeyDictionary[Link, Breaker] = WeakKeyDictionary()
        self._replicas: dict[str, Replicas] = {}
        self._epochs: dict[tuple[str, int], str] = {}
        self._unasked: dict[Breaker, float] = {}  # until when no epoch is asked of that server, since one was not told
        # By the breaker of its server: when the clock of that was read, and what it showed, in seconds.
        self._clocks: dict[Breaker, tuple[float, float]] = {}

    @property
    def places(self) -> Places:
        """The servers of all queues, without their breakers."""
        if self._places is None:
            with self._lock:
                if self._places is None:
                    config = conf.get()
                    nodes = Nodes(config.redis, config.own_servers, name=self._name, timeout=self._timeout, patience=self._timeout)
                    own = {nodes.number(queue): Breaker() for queue in config.own_servers}
                    self._breakers = {queue: own[nodes.number(queue)] for queue in config.own_servers}
                    self._places = nodes
        return self._places

    @property
    def link(self) -> Link:
        """The shared server itself, without its breaker."""
        return self.places.shared

    def servers(self) -> dict[tuple[str, int], Link]:
        """The servers, each by a partition that it has, by which it is guarded; ("", 0) for the shared one, which comes first."""
        found, places = {("", 0): self.places.shared}, self.places
        there = {found["", 0].server}
        for name, queue in conf.get().queues.items():
            for partition in queue.served:
                link = places.of(name, partition)
                if link.server not in there:
                    there.add(link.server)
                    found[name, partition] = link
        return found

    def guarded(
        self, queue: str = "", partition: int = 0, *, schedules: bool = False, asks: bool = True, answers: bool = True
    ) -> Guard:
        """See `Breaker.guarded`; of the server of that partition of a queue, or of the shared one."""
        if self._places is None:
            _ = self.places  # else nobody knows yet who is elsewhere
        return self._breaker(queue, partition).guarded(schedules=schedules, asks=asks, answers=answers)

    def _breaker(self, queue: str, partition: int) -> Breaker:
        found = self._guards.get((queue, partition))
        if found is None:
            link = self.places.of(queue, partition) if queue else self.places.shared
            found = self._guards[queue, partition] = link if link.moves else self._breakers.get(queue, self.breaker)
        if isinstance(found, Breaker):
            return found
        node = found.met
        return self._of_nodes.setdefault(node, Breaker("" if node.moves else node.where))

    def queue(self, name: str, partition: int) -> QueueStore:
        """The store of one partition of a queue.

        Raises:
            QueueUnknown: the settings do not list it.
        """
        config, found = conf.get(), self._queues.get((name, partition))
        if found is not None and found[0] is config and found[1] is self._places:  # mostly
            return found[2]
        config.queue(name)
        places = self.places
        store = QueueStore(places, prefix=config.prefix, queue=name, partition=partition, signer=config.signer)
        self._queues[name, partition] = (config, places, store)
        return store

    def with_job(self, name: str, job: UUID) -> QueueStore:
        """The store in which that job of a queue is. Raises: as `queue`."""
        return self.queue(name, ids.partition(job))

    def replicas(self, name: str) -> Replicas | None:
        """Those that are to have what is done to jobs of redis durability of that queue; None where none are wanted, and in tests whose
        server has none.
        """
        count = conf.get().queue(name).replicas
        if not count or self.places.of(name, 0).stands_still:
            return None
        found = self._replicas.get(name)
        if found is None or found.count != count:
            found = self._replicas[name] = Replicas(count, self._timeout)
        return found

    def parts(self, name: str) -> list[QueueStore]:
        """The stores of all partitions of a queue that may have jobs. Raises: as `queue`."""
        return [self.queue(name, partition) for partition in conf.get().queue(name).served]

    def inspector(self, reach: Reach = WHOLE) -> Inspector:
        """Reads for people."""
        from django_delayq.store.reads.inspector import Inspector  # a web process reads nothing for people, but for the admin

        config = conf.get()
        return Inspector(self.places, prefix=config.prefix, partitions=config.partitions, reach=reach)

    def figures(self, reach: Reach = WHOLE) -> Figures:
        """Numbers over time, for people."""
        from django_delayq.store.reads.figures import Figures  # likewise

        config = conf.get()
        return Figures(self.places, prefix=config.prefix, partitions=config.partitions, reach=reach)

    def from_each(self, queues: Iterable[str], read: Callable[[Reach], T]) -> tuple[T, Missing]:
        """What `read` says, for people, of these queues, without the partitions whose server cannot be asked; and which these are.
        Where there are several servers, one that did not answer a moment ago is not waited for again.

        Raises:
            StoreUnavailable: none of them can be asked.
        """
        served = {queue: conf.get().queue(queue).served for queue in queues}
        servers = {self.places.of(queue, partition).server for queue, parts in served.items() for partition in parts}
        several = len(servers) > 1
        reach = PartialReach(lambda queue, partition: self.guarded(queue, partition, schedules=several))
        found = read(reach)
        missing = Missing(reach.missing, served)
        if missing and len(missing.queues) == len(served):
            raise missing.first
        return found, missing

    def epoch(self, name: str, partition: int) -> str:
        """Where a partition of a queue stands, as far as this process knows (it comes with every answer); asked once. "" if Redis
        cannot be asked. Then its server is left alone for a while: what is refused for a moment is waited for, and many jobs of one
        call, each of which wants to know, would wait one behind the other.
        """
        known = self._epochs.get((name, partition))
        if known is None:
            breaker = self._breaker(name, partition)
            if clock.monotonic() < self._unasked.get(breaker, 0.0):
                return ""
            try:
                with self.guarded(name, partition, schedules=True):
                    known = self._ask_epoch(name, partition)
            except StoreUnavailable as error:
                if not site.is_refusal(error):  # that is about this queue, and not about its server
                    self._unasked[breaker] = clock.monotonic() + COOLDOWN
                return ""
        return known

    def meet(self, name: str, partition: int) -> None:
        """Asks once whether that queue is one of this database; for jobs without rows. Call it under `guarded`: then a silent server is
        waited for once, and the breaker opens.

        Raises:
            StoreUnavailable, StoreError: Redis cannot be asked; SiteRefused: it is another site's.
        """
        if (name, partition) not in self._epochs:
            self._ask_epoch(name, partition)

    def _ask_epoch(self, name: str, partition: int) -> str:
        store, known = self.queue(name, partition), partial(site.partition_facts, name, partition)
        epoch, trimmed = store.stand()
        site.check_mirror(store.keys, store.link.home, trimmed, known(), partial(known, apart=True))
        site.mark_verified(store.keys.prefix, name, partition, store.link.home)
        self._epochs[name, partition] = epoch
        return epoch

    def learn(self, store: QueueStore, epoch: str) -> None:
        """Notes where a partition of a queue stands."""
        self._epochs[store.queue, store.partition] = epoch

    def now_ms(self, queue: str) -> int:
        """The clock of the first server of that queue that answers, asked once a minute at most; if none does, the database's; if that
        does not either, this host's.
        """
        now, tried = clock.monotonic(), set[Breaker]()
        for partition in conf.get().queue(queue).served:
            breaker = self._breaker(queue, partition)
            if breaker in tried:
                continue
            known = self._clocks.get(breaker)
            if known is None or now - known[0] > CLOCK_KEPT:
                try:
                    with breaker.guarded(schedules=True):
                        seconds, us = self.places.of(queue, partition).execute("TIME")
                except StoreUnavailable:
                    tried.add(breaker)
                    continue
                known = self._clocks[breaker] = now, int(seconds) + int(us) / 1e6
            return int((known[1] + now - known[0]) * 1000)
        if outbox.installed:
            with suppress(DriverError):
                return outbox.jobs.now_ms()
        return clock.wall_ms()

    def reset(self) -> None:
        """Forgets the links and the breakers; the settings have changed."""
        with self._lock:
            places, self._places = self._places, self._stands_in
            self._breakers, self._guards = {}, {}
            self.forget()
        if places is not None and places is not self._places:
            places.close()

    def forget(self) -> None:
        """Forgets what is known of Redis: that it was away, its clock, where queues stand."""
        for breaker in {self.breaker, *self._breakers.values(), *self._of_nodes.values()}:
            breaker.note(None)
        self._epochs, self._unasked, self._replicas = {}, {}, {}
        self.forget_clock()

    def forget_clock(self) -> None:
        """Asks for Redis' clock when it is needed next."""
        self._clocks = {}

    def stand_in(self, link: Link | None) -> None:
        """Goes by that link, of all queues, whatever the settings say; None: by theirs again. For tests, which keep theirs."""
        if self._places is self._stands_in:
            self._places = None
        self._stands_in = link
        self.reset()


stores: Final = StoreSet()


@receiver(setting_changed, dispatch_uid="delayq.stores")
def _forget(*, setting: str, **_: object) -> None:
    if setting in (SETTING, "CACHES"):
        stores.reset()
