"""Claims jobs when they are due, and no more than can run soon. Between claims it waits on its own clock. Runs in the main thread of a
task process, next to consumers and settler; with several servers, in a thread for each (`node_threads.py`).
"""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.wake import WakeLine
from django_delayq.store.scripts.queue import MOST, Claim
from django_delayq.store.scripts.record import ClaimedJob
from django_delayq.store.scripts.site import SiteRefused
from django_delayq.worker.current import Run
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line
from django_delayq.worker.loop import ErrorPause, LineBreaks
from django_delayq.worker.process.consumer import Consumer, JobBuffer, Pace
from django_delayq.worker.process.settler import Adopter, Settles

logger = Logger("django_delayq.worker")

ALONE_AFTER = 3  # evictions in a row; then a job runs with nothing beside it
LONGEST_WAIT = 1.0  # seconds a claimed job may wait here while others could run it
SOON = 0.1  # seconds until the next attempt for jobs that cannot be adopted yet
FULL_FOR = 0.01  # seconds without room after which the timers are handed over
LOOK = 0.05  # seconds after which a busy process, which ignores calls, checks its other lines again


class WeightedRoundRobin:
    """The order in which a mover polls its lines. Queues take turns, each as often as its weight, whatever its number of partitions.
    Within a queue, partitions take turns. Each pass starts after the line that had the last turn, so every line with due jobs gets a
    share.

    Args:
        queues: the queue of each line.
        weights: the weight of that queue, for each line.
    """

    def __init__(self, queues: Sequence[str], weights: Sequence[int]) -> None:
        lines: dict[str, list[int]] = {}
        for line, queue in enumerate(queues):
            lines.setdefault(queue, []).append(line)
        self._lines = list(lines.values())  # by queue, in the order of their next turns
        self._queue_of = {line: queue for queue, own in enumerate(self._lines) for line in own}
        self._weights = weights
        self._first = 0  # the queue whose turn it is
        self._turns = [0] * len(lines)  # by queue: how many turns in a row it has had

    def order(self) -> Iterable[int]:
        """The numbers of all lines, starting with those whose turn is next."""
        queues = [*self._lines[self._first :], *self._lines[: self._first]]
        if len(self._queue_of) == len(queues):
            return [line for own in queues for line in own]
        most = max(map(len, queues))
        return [own[turn] for turn in range(most) for own in queues if turn < len(own)]

    def polled(self, line: int, *, more: bool) -> None:
        """Records a turn of that line. `more`: it may have more due jobs. Unused turns of a queue are not saved."""
        queue = self._queue_of[line]
        own = self._lines[queue]
        place = own.index(line)
        own[:] = [*own[place + 1 :], *own[: place + 1]]
        self._turns[queue] += 1
        if self._turns[queue] < self._weights[line] and more:
            self._first = queue
        else:
            self._first, self._turns[queue] = (queue + 1) % len(self._lines), 0


class _Watch:
    """The mover's state of one line. `number`: its index here; `held_as`: its index in the lease table."""

    def __init__(self, number: int, held_as: int, line: Line, now: float) -> None:
        self.number = number
        self.held_as = held_as
        self.line = line
        self.trouble = ErrorPause(f"queue {line.queue}", longest=5.0)
        self.at = 0.0  # when to claim next
        self.nonce = ""  # of a claim whose reply has not come
        self.want = self.idle_threads = 0
        self.sent = 0.0
        self.holds_timer = False  # possibly
        self.dry_at = -1  # the buffer's round in which no job was due and this process held none
        self.idle = False  # no job was due at the last poll, and no call has come since
        self.for_thread = False  # at the last poll, a job with a rate waited for an idle thread
        self.epoch = ""  # the epoch at the last reply of Redis; all jobs that are held here were adopted in it
        self.seen = ""  # a newer epoch, in which they are not adopted yet
        self.heard = now  # the time of that reply; at first, the time when this process began to poll
        self.strange = False  # the queue belongs to another site, whose wake tokens are not taken


class Mover:
    """Serves the lines of one server, or of one slot of a Cluster; see `Movers` for several.

    1. It polls the lines for as many jobs as there is room for, with a new nonce; after a lost reply, with the same nonce. Each line
       has its turn, however many jobs the others have: a line with due jobs gets its share, by weight, of the threads that become
       free.
    2. It writes the jobs into the lease table, then puts them into the buffer.
    3. It sleeps until the next date, a wake token, or room.
    4. It gives back jobs that have waited here for a second.
    5. If it is full, it hands its timers over, so that an idle worker keeps them.
    6. Once per second it contacts each line of which this process holds a job. It contacts the other lines as often as the claim
       tells it, if it can be called. If Redis has another epoch, all jobs that are held here are adopted first.
    7. If a job waits for an idle thread, because it has a rate, it claims no jobs ahead until that job is claimed.
    8. If it is killed between claim and lease table, the supervisor asks Redis for the jobs of that claim.
    """

    def __init__(
        self,
        *,
        lines: Sequence[Line],
        link: Link,
        leases: LeaseTable,
        free: deque[int],
        buffer: JobBuffer,
        consumers: Sequence[Consumer],
        settler: Settles,
        adopter: Adopter,
        pace: Pace,
        worker: str,
        wary: bool = False,
        burst: bool = False,
        monotonic: Callable[[], float] = clock.monotonic,
        numbers: Sequence[int] = (),
        suspects: deque[Run] | None = None,
        others: int = 0,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._leases = leases
        self._free = free
        self._buffer = buffer
        self._consumers = consumers
        self._settler = settler
        self._adopter = adopter
        self._pace = pace
        self._worker = worker
        self._wary = wary
        self._burst = burst
        self._monotonic = monotonic
        held_as = numbers or range(len(lines))
        self._watches = [_Watch(number, held_as[number], line, monotonic()) for number, line in enumerate(lines)]
        self._called = {watch.line.store.keys["wake"]: watch for watch in self._watches}
        self.wake = WakeLine(link, [line.store.keys for line in lines])
        self.trouble = ErrorPause("mover", longest=1.0)
        self._breaks = LineBreaks("wake line", rand=rand)
        self._resume_at = self._full_since = 0.0
        self._rand = rand
        self._hears = False  # whether the wake line has been connected since the last error
        self._tag, self._claims = secrets.token_hex(5), 0
        self._round_robin = WeightedRoundRobin([line.queue for line in lines], [line.weight for line in lines])
        self._deaf = False  # the last pass ended without room, so this mover ignores calls
        self._spare = others * MOST  # rows that stay free for the claims of the other movers
        self._round = 0  # the buffer's round at the start of the pass
        # These jobs run alone: one more crash makes them poison, or they were evicted often.
        self.suspects: deque[Run] = deque() if suspects is None else suspects
        self.quiet = False
        self.out_of_rows = False  # a call from the settler is welcome

    def poll(self) -> float:
        """Does one pass over the lines. Returns the seconds to sleep, unless something wakes the mover."""
        now = self._monotonic()
        self._give_back_stale(now)
        if now < self._resume_at:
            return self._resume_at - now
        try:
            pause = self._only_listen(now) if self.quiet else self._pass(now)
            self.trouble.worked()
            return pause
        except Exception as error:  # usually Redis is away; the nonce of the claim is kept
            self._miss(now)
            pause = self.trouble.failed(error)
            self._resume_at = self._monotonic() + pause
            return pause

    def call(self) -> None:
        """Called when there may be room: the next pass checks."""

    def token(self) -> None:
        """Reads the wake line, which is readable: a call for a line has come."""
        watch = None
        try:
            watch = self._called.get(self.wake.drain())
        except StoreUnavailable as error:  # only this connection failed: if the server is away, the next claim fails
            self._breaks.broke(error)
        if self.wake.connection is None:  # broken, or refused
            self._miss(self._monotonic())
        if watch is not None:
            watch.at, watch.idle = 0.0, False
            watch.holds_timer = True  # if this process is full, the timer is passed on

    def _miss(self, now: float) -> None:
        """A call may have been lost. Each line is polled within a second, as while no calls can arrive."""
        self._hears = False
        for watch in self._watches:
            watch.at = min(watch.at, now + LONGEST_WAIT)

    def hush(self) -> None:
        """Stops claiming, and hands the timers over."""
        self.quiet = True
        self.wake.close()
        self._buffer.call_at = -1
        try:
            self._hand_over()
        except Exception as error:  # the other workers then notice it by their safety poll
            logger.info("the timers could not be moved to Redis: %s", error)

    @property
    def stuck_for(self) -> float:
        """Seconds for which no claim has succeeded, on some line or on all."""
        return max(self.trouble.lasts, *(watch.trouble.lasts for watch in self._watches))

    @property
    def dry(self) -> bool:
        """Whether no job is held, and no job has become due since."""
        return len(self._free) == self._leases.rows and all(map(self._is_dry, self._watches))

    @property
    def descriptor(self) -> int:
        """The descriptor that becomes readable when a call comes; -1 for none."""
        return self.wake.fileno()

    def _is_dry(self, watch: _Watch) -> bool:
        return watch.dry_at == self._buffer.round

    def _pass(self, now: float) -> float:
        ahead = 0 if any(watch.for_thread for watch in self._watches) else self._pace.ahead()
        least = max(1, min(ahead // 2, len(self._free), MOST))
        self.out_of_rows = not self._free
        # Before the check for room, so that a consumer that finishes in between calls the mover.
        self._buffer.call_at = ahead // 2
        self._round = self._buffer.round
        holding = len(self._free) < self._leases.rows
        for watch in self._watches:
            if watch.nonce and watch.at <= now:  # first, because its rows are reserved
                self._try(watch, watch.want, True)
        for watch in self._in_turn(now, holding):
            room = self._room(ahead)
            if room < least:
                self._deaf = True
                return self._full(now)
            self._try(watch, room, holding)
            self._round_robin.polled(watch.number, more=not watch.idle and not watch.trouble.failures)
        self._deaf = False
        self._full_since = 0.0
        failpoint("mover.arm")
        if self._breaks.over:
            self.wake.arm_for([watch.line.store.keys for watch in self._watches if not watch.strange])
        self._hears = self.wake.armed
        failpoint("mover.armed")
        return max(0.0, min(LONGEST_WAIT, min(watch.at for watch in self._watches) - self._monotonic()))

    def _in_turn(self, now: float, holding: bool) -> Sequence[_Watch]:
        """The lines to poll, in turn. Lines that were empty a moment ago come last: work of one queue costs no calls for another."""
        due: list[_Watch] = []
        empty: list[_Watch] = []
        for number in self._round_robin.order():
            watch = self._watches[number]
            looked = now - watch.heard < LOOK
            heard_of = looked or not self._deaf or watch.trouble.failures
            if watch.at > now and heard_of and (not self._burst or holding or self._is_dry(watch)):
                continue
            (empty if watch.idle and looked else due).append(watch)
        return due + empty

    def _only_listen(self, now: float) -> float:
        self._listen(now)
        return LONGEST_WAIT

    def _room(self, ahead: int) -> int:
        return min(self._idle_threads() + ahead, len(self._free) - self._spare, MOST)

    def _idle_threads(self) -> int:
        """The number of idle threads; less than 0 if more jobs are held than there are threads."""
        finished = sum(consumer.finished for consumer in self._consumers)
        in_hand = self._buffer.taken - finished
        if self._spare:
            in_hand += self._buffer.asked_by_others(self, self._monotonic())
        return len(self._consumers) - in_hand

    def _try(self, watch: _Watch, room: int, holding: bool) -> None:
        try:
            self._claim(watch, room, holding)
            watch.trouble.worked()
            watch.strange = False
        except StoreError as error:  # only this line failed, and it waits; the nonce is kept, and the others go on
            watch.strange = isinstance(error, SiteRefused)
            watch.for_thread = False
            watch.at = self._monotonic() + watch.trouble.failed(error)

    def _claim(self, watch: _Watch, room: int, holding: bool) -> None:
        line = watch.line
        if not watch.nonce:
            self._claims += 1
            watch.nonce = f"{self._tag}{self._claims:x}"
            watch.want, watch.idle_threads, watch.sent = room, max(0, self._idle_threads()), self._monotonic()
            self._leases.claiming(watch.held_as, watch.nonce)
        if self._spare:
            self._buffer.asking(self, watch.want, watch.sent)
        failpoint("mover.claim")
        asked = self._monotonic()
        reply = line.store.claim(
            self._worker,
            watch.nonce,
            want=watch.want,
            lease_ms=line.lease_ms,
            max_crashes=line.max_crashes,
            epoch=watch.epoch,
            max_events=line.max_events,
            wary=self._wary,
            away_ms=self._away_ms(watch),
            free=watch.idle_threads,
        )
        failpoint("mover.claimed")
        if not self._same_epoch(watch, reply):
            watch.at = 0.0 if watch.epoch == reply.epoch else self._monotonic() + SOON  # the same claim again
            return
        replied_at = (asked + watch.heard) / 2  # the estimated time of the reply
        # The latest possible time of the reply, so no run seems to begin before its claim, or to end after Redis records its end.
        self._keep(watch, reply.jobs, reply.now_ms - watch.heard * 1000)
        self._leases.claimed()
        self._leases.claiming(watch.held_as, "")
        if self._spare:
            self._buffer.asking(self, 0, 0.0)
        full = len(reply.jobs) >= watch.want
        watch.nonce = ""
        watch.holds_timer = not full
        watch.idle = not full and not reply.more
        watch.for_thread = reply.for_thread
        again = full or reply.for_thread or (reply.more and reply.jobs)
        watch.at = replied_at if again else replied_at + self._sleep(watch, reply.wait_ms / 1000)
        failpoint("mover.kept")
        self._full_since = 0.0
        watch.dry_at = -1 if reply.jobs or reply.more or holding else self._round

    def _sleep(self, watch: _Watch, seconds: float) -> float:
        """Seconds until the line is polled again. `seconds`: the seconds that the claim returned."""
        if seconds <= LONGEST_WAIT:
            return seconds
        if not self._hears or watch.line in self._adopter.lines:
            return LONGEST_WAIT
        return seconds * (0.875 + self._rand() / 4)  # otherwise all workers would always poll at the same time

    def _away_ms(self, watch: _Watch) -> int:
        """For how long Redis could not be reached from here; 0 if it was reached. Redis then protects the leases of living workers
        for that time. It counts from the last reply, or from shortly before the last call if that is later: a time in which this
        process did not call is not an outage.
        """
        since = max(watch.heard, watch.sent - LONGEST_WAIT)
        return int((self._monotonic() - since) * 1000) if self.trouble.failures else 0

    def _same_epoch(self, watch: _Watch, reply: Claim) -> bool:
        """Whether Redis still has the same epoch. If not, all jobs that are held here are adopted first, as soon as possible."""
        watch.heard = self._monotonic()
        if watch.epoch in ("", reply.epoch):
            watch.epoch = reply.epoch
            return True
        if watch.seen != reply.epoch and watch.epoch.partition(":")[0] != reply.generation:
            logger.warning("queue %s: Redis lost its contents or was rolled back", watch.line.queue)
        watch.seen = reply.epoch
        if self._adopter.adopt_line(watch.line):
            watch.epoch = reply.epoch
        return False

    def _listen(self, now: float) -> None:
        """Asks for the epoch of lines from which nothing is claimed just now, because jobs that Redis loses must be adopted soon. A
        line without held jobs is asked often enough for Redis to see that workers are there, see alive.lua.
        """
        held = self._adopter.lines
        for watch in self._watches:
            if not watch.nonce and now - watch.heard >= (LONGEST_WAIT if watch.line in held else watch.line.lease / 4):
                self._ask(watch)

    def _ask(self, watch: _Watch) -> None:
        self._claims += 1
        line = watch.line
        failpoint("mover.listen")
        reply = line.store.claim(
            self._worker,
            f"{self._tag}{self._claims:x}",
            want=0,
            lease_ms=line.lease_ms,
            max_crashes=line.max_crashes,
            epoch=watch.epoch,
            max_events=line.max_events,
            away_ms=self._away_ms(watch),
        )
        failpoint("mover.listened")
        watch.idle = not reply.more
        self._same_epoch(watch, reply)

    def _keep(self, watch: _Watch, jobs: Sequence[ClaimedJob], zero_ms: float) -> None:
        # The lease starts when Redis receives the claim, which is not before the claim was first sent.
        number, line, until = watch.held_as, watch.line, watch.sent + watch.line.lease
        most = line.max_crashes
        batch: list[Run] = []
        for job in jobs:
            row = self._free.popleft()
            turn = self._leases.put(
                row, line=number, id=job.id, fence=job.fence, attempt=job.attempt, taken=watch.sent, good_until=until
            )
            alone = 0 < most <= job.crashes or job.evictions >= ALONE_AFTER
            to = self.suspects if alone else batch
            run = Run(job, line, self._leases, row, turn, watch.sent, zero_ms)
            self._adopter.took(run)
            to.append(run)
        if self.suspects:
            self._leases.retire()
        if jobs:
            self._buffer.round += 1
        if batch and not self._buffer.put(batch):
            self._send_back(batch)

    def _full(self, now: float) -> float:
        if not self._full_since:
            self._full_since = now
        if now - self._full_since < FULL_FOR or (self._spare and self._buffer.asked_by_others(self, self._monotonic())):
            return FULL_FOR  # jobs that others have asked for may not come, and then no call comes
        self._hand_over()
        self._listen(now)
        return LONGEST_WAIT

    def _hand_over(self) -> None:
        for watch in self._watches:
            if watch.holds_timer and not watch.nonce:
                failpoint("mover.pass_on")
                self._ask(watch)
                failpoint("mover.passed_on")
                watch.holds_timer = False
                watch.at = 0.0

    def _give_back_stale(self, now: float) -> None:
        if not len(self._buffer):
            return
        stale = self._buffer.waiting_since_before(now - LONGEST_WAIT)
        if stale:
            self._pace.slow()
            self.give_back(stale)

    def give_back(self, jobs: Sequence[Run]) -> None:
        """Puts jobs back into the schedule, due at once, for any worker with room. The attempt does not count."""
        self._buffer.went_back(len(jobs))
        self._send_back(jobs)

    def _send_back(self, jobs: Sequence[Run]) -> None:
        for run in jobs:
            self._settler.add(run, run.outcome("snooze"))
