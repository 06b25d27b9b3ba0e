"""The record keeper: runs the mirror's loops one after the other in one process. It knows neither threads nor signals. The caller
passes it a function to wait and a function to stop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from django.db import Error as DriverError
from django.db import close_old_connections, connections

from django_delayq import clock
from django_delayq.conf import Config, QueueConfig
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.mirror import mirror_loop, relay, restore
from django_delayq.mirror.bring_in import BringInLoop
from django_delayq.mirror.ends import CallWithin, call_directly
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.prune import PruneLoop, TidyLoop
from django_delayq.mirror.relay import RelayLoop, SharedLook
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.producer.outbox.agreed_clock import ClocksDiffer
from django_delayq.producer.outbox.follow_ups import DueRow, by_home
from django_delayq.store.connection.commands import CommandRefused
from django_delayq.store.connection.error_replies import StoreError, is_refusal
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.connection.wake import EventLine, EventLines, event_line
from django_delayq.store.scripts.site import is_news
from django_delayq.worker.loop import Loop, untraced
from django_delayq.worker.outage_log import outages

logger = Logger("django_delayq.mirror")

MOST_BACKOFF: Final = 10.0
MOST_EXTRA_WAIT: Final = 1.0
EPOCH_INTERVAL: Final = 1.5  # seconds between looks at the epoch while the event line works
TOGETHER: Final = 0.25  # seconds by which the look at an epoch may come early, to be sent together with the look at another one
STREAM: Final = 15.0  # seconds between looks at a stream without news from the event line
HELD: Final = 60.0  # seconds for which a connection to the database is used, at least
ROWS: Final = 4.0  # seconds between looks for unpublished rows while Redis is available; web processes that crash leave such rows
FEW: Final = 2  # loops on one server; so few send their own commands
AGAIN: Final = 0.25  # seconds until a broken event line is tried again
REFUSED: Final = 60.0  # seconds until an event line that Redis does not allow is tried again
ROLES: Final = ("mirror", "relay")
ALL: Final[Mapping[str, Collection[int]]] = MappingProxyType({})  # partitions, of each queue


class LoopRunner:
    """A loop with its next date and its failures.

    Args:
        idle: the return value of the loop when it has found nothing. asleep: the pause after that, while an event would call the
            loop.
        races: one of several workers does the work, and the others find that they were called in vain.
        link: the link that every pass of the loop needs.
    """

    def __init__(
        self,
        name: str,
        loop: Loop,
        *,
        longest: float = MOST_BACKOFF,
        idle: float = 0.0,
        asleep: float = 0.0,
        races: bool = False,
        link: Link | None = None,
    ) -> None:
        self.name = name
        self.loop = loop
        self.batched = loop if isinstance(loop, (MirrorLoop, RestoreLoop)) else None  # if its first commands can be sent with others
        self.next = 0.0
        self.failures = 0
        self._logged = False
        self.link = link
        self.away = False  # whether its last pass found that Redis does not answer
        self._longest = longest
        self._idle = idle
        self._asleep = asleep
        self._races = races
        self._ended = 0.0
        self._extra_wait = 0.0  # seconds by which it comes later than the workers that were faster before
        self._called = self._raced = False

    @property
    def waits(self) -> bool:
        """Whether it has been called, and its time has not come."""
        return self._called and self.next > clock.monotonic()

    def call(self, *, event: bool = False) -> None:
        """There may be something to do. Calls within a quarter of a second are handled in one pass."""
        if self._called or self.failures:  # a loop that fails has its own time for the next pass
            return
        now = clock.monotonic()
        extra = self._extra_wait * (0.5 + random.random() / 2)
        self.next = min(self.next, max(now + extra, self._ended + self._idle))
        self._called, self._raced = True, event and self._races

    def wake(self) -> None:
        """Makes the loop run at once, because something has happened to Redis."""
        self.next = 0.0

    def put_off(self) -> None:
        """Skips this pass."""
        self.next = clock.monotonic() + AGAIN

    def run_once(self, *, listening: bool = False, replies: Sequence[Any] = ()) -> None:
        """Runs one pass. Trouble is logged once when it begins and once when it is over; see `OutageLog` for a Redis that is away.
        `listening`: an event will call the loop. `replies`: to its first commands, if they are known.
        """
        raced, self._called, self._raced = self._raced, False, False
        try:
            sleep = self.batched.poll(replies) if self.batched is not None else self.loop.poll()
        except (StoreUnavailable, StoreError, DriverError, ClocksDiffer) as error:  # InterfaceError is not a DatabaseError
            self.failures += 1
            self.away = isinstance(error, StoreUnavailable)
            if isinstance(error, StoreUnavailable) and not is_refusal(error):
                outages.failed(self, error)
            elif not self._logged:
                self._logged = True
                if is_news(error):
                    logger.warning("%s waits. Nothing is lost: %s", self.name, error)
            self.next = clock.monotonic() + min(self._longest, 0.25 * 2 ** min(self.failures, 10))
            for connection in connections.all(initialized_only=True):
                if not connection.in_atomic_block:
                    connection.close()
            return
        if self.failures:
            outages.worked(self)
            if self._logged:
                logger.warning("%s continues; failed passes: %d", self.name, self.failures)
        self.failures, self.away, self._logged = 0, False, False
        found = sleep != self._idle
        if found or raced:
            self._extra_wait = 0.0 if found else min(MOST_EXTRA_WAIT, max(self._idle, 2 * self._extra_wait))
        if listening and not found and self._asleep:
            sleep = self._asleep
        self._ended = clock.monotonic()
        self.next = self._ended + sleep


class Service:
    """Restore, mirror, relay, prune and tidy of the queues, one after the other. The queues are on one server, or on one Cluster.
    While nothing happens, the service sleeps on the event line. Without one (Redis unavailable, or XREAD not allowed) each loop looks
    four times a second.

    Args:
        roles: "mirror" (with prune and tidy) and "relay".
        call_within: how the receivers of `job_ended` are called, see `JobEndedSender`.
        shares: for some queues, the only partitions to serve.
    """

    def __init__(
        self,
        places: Places,
        config: Config,
        queues: Iterable[QueueConfig],
        roles: Sequence[str] = ROLES,
        *,
        call_within: CallWithin = call_directly,
        shares: Mapping[str, Collection[int]] = ALL,
    ) -> None:
        queues = list(queues)
        parts = [(queue, partition) for queue in queues for partition in shares.get(queue.name, queue.served)]
        links = self._links = {(queue.name, partition): places.of(queue.name, partition) for queue, partition in parts}
        several = set(links.values())
        if len(several) > 1 and not all(link.moves for link in several):  # loops of one server would wait for the other
            raise ValueError(
                f"The queues {', '.join(queue.name for queue in queues)} are on {len(several)} servers. Create a service for each."
            )
        common: Any = {"prefix": config.prefix}
        signed: Any = {**common, "signer": config.signer}

        def runner(kind: str, loop: Loop, queue: QueueConfig, partition: int | None = None, **timing: Any) -> LoopRunner:
            if partition is None:  # a loop of all partitions of the queue
                return LoopRunner(f"{kind} {queue.name}", loop, link=None if queue.divided else places.of(queue.name, 0), **timing)
            return LoopRunner(f"{kind} {queue.label(partition)}", loop, link=links[queue.name, partition], **timing)

        self.mirrors = [
            MirrorLoop(places, queue, partition=partition, call_within=call_within, hand_over=self.hand_over, **signed)
            for queue, partition in parts
            if "mirror" in roles
        ]
        # Restores come first, since workers wait for them after a restart of Redis.
        timing: Any = {"longest": 0.5, "idle": restore.IDLE, "asleep": EPOCH_INTERVAL}
        auto = config.restore == "auto"
        self._restores = [
            runner("restore of", RestoreLoop(places, queue, partition=partition, auto=auto, **signed), queue, partition, **timing)
            for queue, partition in parts
            if roles
        ]
        timing = {"idle": mirror_loop.IDLE, "asleep": STREAM, "races": True}
        self._folders = [runner("the mirror of", one, one.queue, one.partition, **timing) for one in self.mirrors]
        self._runners = [*self._restores, *self._folders]
        self._relays: dict[tuple[str, int], tuple[RelayLoop, LoopRunner]] = {}
        if "relay" in roles:
            looks = {queue.name: SharedLook(queue.name) for queue in queues if queue.divided}
            for queue, partition in parts:
                one = RelayLoop(places, queue, partition=partition, look=looks.get(queue.name), **signed)
                run = runner("the relay of", one, queue, partition, idle=relay.IDLE, asleep=ROWS)
                self._runners.append(run)
                self._relays[queue.name, partition] = one, run
            self._runners += [runner("bringing in far jobs of", BringInLoop(places, queue, **signed), queue) for queue in queues]
        self._after_outage = list(self._runners)  # these have something to do after Redis was unavailable
        if "mirror" in roles:
            self._runners += [runner("prune of", PruneLoop(places, queue), queue) for queue in queues]
            for queue, partition in parts:
                self._runners.append(runner("tidy of", TidyLoop(places, queue, partition=partition, **common), queue, partition))
        heard = [(links[one.queue.name, one.partition], one.log.keys) for one in self.mirrors]
        self._line = event_line(heard) if heard else None
        self._listen_at = 0.0
        self._broke = False
        self._opened: dict[str, Any] = {}

    def hand_over(self, due: Collection[DueRow]) -> None:
        """Lets the relays of this process publish these committed rows at once. Other relays publish the others after `relay.YOUNG`."""
        for home, jobs in by_home(due).items():
            if home in self._relays:
                one, runner = self._relays[home]
                one.hand_over(jobs)
                if not runner.failures:
                    runner.wake()

    def add(self, runner: LoopRunner) -> None:
        """Adds a loop of another package. It runs after the existing loops."""
        self._runners.append(runner)

    def poll(self) -> float:
        """Gives every loop its turn. Returns seconds until the next is due.

        Never raises for trouble with Redis or the database: the loops wait and continue. Once a loop finds that a server does not
        answer, the other loops that need it are put off. Otherwise the loop of each queue would wait for a server that hangs, and
        schedules would wait meanwhile.
        """
        self._tend_connections()
        if self._line is not None:
            self._hear(self._line)
            if self._line.armed and any(runner.failures for runner in self._restores):
                self._line.close()  # a server that stops silently leaves it deaf; when Redis is back, all loops look
                self._broke = True
            self._listen(self._line)
        now = clock.monotonic()
        away: set[Link] = set()
        replies = self._batched_replies(now)
        for runner in self._runners:
            if runner.next > now:
                continue
            server = runner.link.server if runner.link is not None else None
            if server in away:
                runner.put_off()
                continue
            runner.run_once(listening=self.descriptor >= 0, replies=replies.get(runner, ()))
            if runner.away and server is not None:
                away.add(server)
        return max(0.0, min((runner.next for runner in self._runners), default=1.0) - clock.monotonic())

    def _batched_replies(self, now: float) -> dict[LoopRunner, list[Any]]:
        """Sends the first commands of the restores and mirrors whose time has come: one write per server, not one per partition.
        Restores are sent together, since each looks only once in a while.

        Returns the replies for each runner, in the order of its commands. A runner that is missing in the result sends its own
        commands. That happens if few loops use its server, if the server is unavailable or refuses, or if its slot has moved to
        another server: the replies are then not about its server.
        """
        if len(self._restores) > 1 and any(runner.next <= now for runner in self._restores):
            for runner in self._restores:
                if runner.next <= now + TOGETHER and not runner.failures:
                    runner.next = min(runner.next, now)
        by_server: dict[Link, list[tuple[LoopRunner, Link, Sequence[tuple[Any, ...]]]]] = {}
        for runner in (*self._restores, *self._folders):
            if runner.next <= now and not runner.failures and runner.batched is not None and runner.link is not None:
                by_server.setdefault(runner.link.server, []).append((runner, runner.link, runner.batched.first_commands))
        found: dict[LoopRunner, list[Any]] = {}
        for server, those in by_server.items():
            if len(those) > FEW:
                commands = list(dict.fromkeys(command for *_, own in those for command in own))  # INFO once
                try:
                    replies = dict(zip(commands, those[0][1].execute_many(commands), strict=True))
                except StoreUnavailable:
                    continue
                for runner, link, own in those:
                    answers = [replies[command] for command in own]
                    if link.server is server and not any(isinstance(answer, Exception) for answer in answers):
                        found[runner] = answers
        return found

    def drain(self) -> None:
        """Folds all events that are in the streams, for burst and for tests.

        Raises:
            StoreUnavailable, StoreError, DatabaseError, InterfaceError.
        """
        for mirror in self.mirrors:
            mirror.drain()

    def _tend_connections(self) -> None:
        # CONN_MAX_AGE is made for requests. Here its default of 0 would mean a new connection for each of several looks a second.
        for connection in connections.all(initialized_only=True):
            raw = connection.connection
            if raw is not None and self._opened.get(connection.alias) is not raw:
                self._opened[connection.alias] = raw
                if connection.close_at is not None:
                    connection.close_at = max(connection.close_at, clock.monotonic() + HELD)
        close_old_connections()

    @property
    def descriptor(self) -> int:
        """The descriptor that becomes readable when there is something to do before that time; -1 for none."""
        return -1 if self._line is None else self._line.fileno()

    def _hear(self, line: EventLine | EventLines) -> None:
        if not line.answered():
            return
        try:
            news = line.drain()
        except StoreUnavailable:  # a restart, a failover: workers wait for the restore loop now
            self._broke = True
            self._listen_at = clock.monotonic() + AGAIN
            for runner in self._after_outage:
                runner.wake()
        except StoreError as error:
            if not isinstance(error, CommandRefused):
                logger.warning("Redis rejects blocking reads, so the mirror polls for events four times a second: %s", error)
            self._listen_at = clock.monotonic() + REFUSED
        else:
            for runner in (*self._restores, *self._folders) if news else ():
                runner.call(event=True)

    def _listen(self, line: EventLine | EventLines) -> None:
        # It does not listen while a mirror gathers events, since each event would then be a call. It also waits until a loop has
        # reached Redis again: another attempt here would double the time for which an unresponsive server blocks all loops.
        if line.armed or clock.monotonic() < self._listen_at or any(runner.waits for runner in self._folders):
            return
        if any(runner.failures for runner in self._restores):
            return
        try:
            line.arm()
        except StoreUnavailable:
            self._broke = True
            self._listen_at = clock.monotonic() + AGAIN
            return
        if self._broke:
            self._broke = False
            for runner in self._after_outage:
                runner.wake()
        for runner in self._folders:  # no reply reports entries from before this
            runner.call()

    def run(self, *, stop: Callable[[], bool], wait: Callable[[float, int], object]) -> None:
        """Gives the loops their turns until `stop()`. Then folds the remaining events, if the servers are available. `wait` sleeps
        for so many seconds, or until that descriptor (-1: none) can be read.
        """
        with untraced():
            while not stop():
                seconds = self.poll()
                if seconds > 0:
                    wait(seconds, self.descriptor)
            if self._line is not None:
                self._line.close()
            self._fold_the_rest()

    def _fold_the_rest(self) -> None:
        """Folds the remaining events of each available server. It does not wait for a server that was unavailable a moment ago."""
        away = {runner.link.server for runner in self._restores if runner.away and runner.link is not None}
        for mirror in self.mirrors:
            queue, server = mirror.queue.label(mirror.partition), self._links[mirror.queue.name, mirror.partition].server
            if server in away:
                logger.warning("the mirror of %s stops while Redis is unavailable. It continues when it is started again", queue)
                continue
            try:
                mirror.drain()
            except (StoreUnavailable, StoreError, DriverError) as error:
                logger.warning(
                    "the mirror of %s stopped before it had read all events. It continues when it is started again: %s", queue, error
                )
                if isinstance(error, StoreUnavailable):
                    away.add(server)
