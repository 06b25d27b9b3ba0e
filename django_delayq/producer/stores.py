"""The producer's connections to Redis: one link per process and server, made when first needed. Each link has its own breaker."""

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
from django_delayq.store.connection.error_replies import is_refusal
from django_delayq.store.connection.link import FanOut, Link
from django_delayq.store.connection.places import Nodes, Places
from django_delayq.store.reads.reach import WHOLE, PartialReach, Reach
from django_delayq.store.scripts import site
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.replicas import Replicas

if TYPE_CHECKING:
    from django_delayq.store.reads.figures import Figures
    from django_delayq.store.reads.inspector import Inspector, JobView
    from django_delayq.store.scripts.recovery import EpochStore

T = TypeVar("T")

TIMEOUT: Final = 1.0  # seconds a request waits for Redis, at most
CLOCK_KEPT: Final = 60.0  # seconds for which a reading of a clock is used, plus the time since


class Missing:
    """The partitions that a read could not reach. `queues`: the queues of which no partition was reached, with the error; `parts`:
    the missing partitions of each queue, with the error.

    Args:
        errors: by queue and partition.
        served: for each queue that was read, its partitions.
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
        """The missing partitions by their display names, with the errors."""
        config = conf.get()
        return {config.queue(queue).label(number): why for queue, parts in self.parts.items() for number, why in parts.items()}

    @property
    def first(self) -> StoreUnavailable:
        """The error of the first missing partition."""
        return next(error for parts in self.parts.values() for error in parts.values())


class StoreSet:
    """The stores of all queues of this project, for producers, the admin and commands. Thread-safe; survives a fork."""

    def __init__(self, *, name: str = "delayq:producer", timeout: float = TIMEOUT) -> None:
        self._name = name
        self._timeout = timeout
        self._lock = threading.Lock()
        self._places: Places | None = None
        self._queues: dict[tuple[str, int], tuple[conf.Config, Places, QueueStore]] = {}  # with the settings they were made for
        self._stands_in: Link | None = None
        self.breaker = Breaker()  # of the shared server
        self._breakers: dict[str, Breaker] = {}  # of queues on other servers, by queue
        self._guards: dict[
            tuple[str, int], Breaker | Link
        ] = {}  # the breaker of a partition; on a Cluster, the link whose node has one
        self._of_nodes: WeakKeyDictionary[Link, Breaker] = WeakKeyDictionary()
        self._replicas: dict[str, Replicas] = {}
        self._epochs: dict[tuple[str, int], str] = {}
        self._unasked: dict[Breaker, float] = {}  # until when a server is not asked for an epoch, after it did not answer
        # By the breaker of the server, None for the database: when the clock was read, and its time then, in ms.
        self._clocks: dict[Breaker | None, tuple[float, float]] = {}

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
        """The servers by one of their partitions, whose breaker guards them. The shared server has the key ("", 0) and comes first."""
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
        """See `Breaker.guarded`. Uses the breaker of the server of that partition, or of the shared server."""
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
        if found is not None and found[0] is config and found[1] is self._places:  # the usual case
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
        """The replicas that must confirm changes of jobs of redis durability of that queue. None if the queue waits for no replicas,
        and in tests, whose server has none.
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

    def recovery(self, store: QueueStore) -> EpochStore:
        """The calls about jobs that the store may have lost."""
        from django_delayq.store.scripts.recovery import EpochStore  # a web process rarely needs it

        return EpochStore(store)

    def inspector(self, reach: Reach = WHOLE) -> Inspector:
        """Reads queues and jobs for the admin and the commands."""
        from django_delayq.store.reads.inspector import Inspector  # a web process needs it for the admin only

        config = conf.get()
        return Inspector(self.places, prefix=config.prefix, partitions=config.partitions, reach=reach)

    def view_of(self, job: UUID, queue: str) -> JobView | None:
        """The job as Redis has it; None if Redis does not know it.

        Raises:
            StoreUnavailable: Redis cannot be reached.
        """
        with self.guarded(queue, ids.partition(job)):
            return self.inspector().job(queue, job)

    def find_view(self, queues: Iterable[str], job: UUID) -> tuple[JobView | None, StoreUnavailable | None]:
        """The job in the first of these queues that has it; or None, and the error of the first server that cannot be reached."""
        fan_out, partition = FanOut[str](), ids.partition(job)
        for _, view in fan_out.each(queues, lambda name: self.places.of(name, partition), partial(self.view_of, job)):
            if view is not None and not isinstance(view, StoreUnavailable):
                return view, None
        return None, next(iter(fan_out.errors.values()), None)

    def figures(self, reach: Reach = WHOLE) -> Figures:
        """Reads numbers over time, for the admin and the commands."""
        from django_delayq.store.reads.figures import Figures  # needed for the admin only

        config = conf.get()
        return Figures(self.places, prefix=config.prefix, partitions=config.partitions, reach=reach)

    def from_each(self, queues: Iterable[str], read: Callable[[Reach], T]) -> tuple[T, Missing]:
        """Returns what `read` returns for these queues, without the partitions whose server cannot be reached, and the list of those
        partitions. If there are several servers, a server that did not answer a moment ago is not called again.

        Raises:
            StoreUnavailable: no queue can be read.
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
        """The epoch of a partition of a queue, as far as this process knows it (every answer carries it). Redis is asked once.
        Returns "" if Redis cannot be reached, and does not ask its server again for a short cooldown. Otherwise each of the many jobs
        of one call would wait in turn for the same refusal.
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
                if not is_refusal(error):  # a refusal is about this queue, not about its server
                    self._unasked[breaker] = clock.monotonic() + COOLDOWN
                return ""
        return known

    def _ask_epoch(self, name: str, partition: int) -> str:
        store, known = self.queue(name, partition), partial(site.partition_facts, name, partition)
        epoch, trimmed = store.stand()
        site.check_mirror(store.keys, store.link.home, trimmed, known(), partial(known, apart=True))
        site.verified.add((store.keys.prefix, name, partition, store.link.home))
        self._epochs[name, partition] = epoch
        return epoch

    def learn(self, store: QueueStore, epoch: str) -> None:
        """Stores the epoch of a partition of a queue."""
        self._epochs[store.queue, store.partition] = epoch

    def now_ms(self, queue: str) -> int:
        """The time by the clock of the first server of the queue that answers. If no server answers, by the database's clock; if the
        database does not answer either, by the clock of this host. Each clock is read once a minute at most.
        """
        tried = set[Breaker]()
        for partition in conf.get().queue(queue).served:
            breaker = self._breaker(queue, partition)
            if breaker not in tried:
                tried.add(breaker)
                with suppress(StoreUnavailable):
                    return self._passed_ms(breaker, partial(self._read_clock, breaker, queue, partition))
        if outbox.installed:
            with suppress(DriverError):
                return self._passed_ms(None, outbox.jobs.now_ms)
        return clock.wall_ms()

    def _passed_ms(self, place: Breaker | None, read: Callable[[], float]) -> int:
        """The last reading of that clock, plus the time since. Reads the clock again after a minute."""
        now, known = clock.monotonic(), self._clocks.get(place)
        if known is None or now - known[0] > CLOCK_KEPT:
            known = self._clocks[place] = now, read()
        return int(known[1] + (now - known[0]) * 1000)

    def _read_clock(self, breaker: Breaker, queue: str, partition: int) -> float:
        with breaker.guarded(schedules=True):
            seconds, us = self.places.of(queue, partition).execute("TIME")
        return int(seconds) * 1000 + int(us) / 1000

    def reset(self) -> None:
        """Forgets the links and the breakers, because the settings have changed."""
        with self._lock:
            places, self._places = self._places, self._stands_in
            self._breakers, self._guards = {}, {}
            self.forget()
        if places is not None and places is not self._places:
            places.close()

    def forget(self) -> None:
        """Forgets what this process knows of Redis: that it was away, its clock, the epochs of queues."""
        for breaker in {self.breaker, *self._breakers.values(), *self._of_nodes.values()}:
            breaker.note(None)
        self._epochs, self._unasked, self._replicas = {}, {}, {}
        self.forget_clock()

    def forget_clock(self) -> None:
        """Forgets the readings of the clocks, so that they are read again when needed."""
        self._clocks = {}

    def stand_in(self, link: Link | None) -> None:
        """Uses that link for all queues, whatever the settings are; None: uses the settings again. For tests, which keep their
        settings.
        """
        if self._places is self._stands_in:
            self._places = None
        self._stands_in = link
        self.reset()


stores: Final = StoreSet()


@receiver(setting_changed, dispatch_uid="delayq.stores")
def _forget(*, setting: str, **_: object) -> None:
    if setting in (SETTING, "CACHES"):
        stores.reset()
