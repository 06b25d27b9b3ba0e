"""`pull`: claims messages for a consumer, and waits for them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from django_delayq import clock, codec, conf, durations, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import ConfigError, DelayqError, PayloadError, StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.messages.message import Holder, MessageBatch, lease_of, next_delay_ms, put_off_outcome
from django_delayq.producer.async_api import in_thread, like, readable, refuse_loop, unbroken
from django_delayq.producer.options import duration
from django_delayq.producer.stores import stores
from django_delayq.states import MESSAGE, PARKED_SIGNATURE
from django_delayq.store.connection.wake import BROKEN, WakeLine
from django_delayq.store.scripts import site
from django_delayq.store.scripts.queue import MOST, TAG, Claim, Outcome, QueueStore
from django_delayq.store.scripts.record import ClaimedJob, Header, read
from django_delayq.worker import outcome

logger = Logger("django_delayq.messages")

LOOK: Final = 1.0  # seconds between claims; the consumer that keeps the timer may have stopped
NOT_HELD: Final = ("lost", "gone", "wait")  # answers to extend
LEASE_LOST: Final = "the lease of its consumer ran out"
PUT_AWAY_MS: Final = 600_000  # how long a job waits that no consumer can take: of a task, or signed with an unknown key
PATIENCE_MS: Final = 86_400_000  # how long a deploy may take until that key is known
UNSIGNED: Final = "its record is not signed, and SIGNING is on; if you trust it: delayq resign --unsigned, then requeue"
NO_KEY: Final = "its record was changed, or signed with a key that is neither SECRET_KEY nor in SECRET_KEY_FALLBACKS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The options of a pull: at most `want` messages, under a lease, that have been due for `older_ms`."""

    want: int
    lease_ms: int
    older_ms: int = 0


class Puller:
    """1. `look` claims with a new nonce, or with the same one after a lost reply, also in the next pull. 2. Messages of others whose
    lease ran out are settled as failed attempts. 3. `listen` and `sleep` wait between two claims. 4. `leave` hands the timer over.
    If the process dies, its messages come again when the leases have ended.

    It serves one call at a time, see `borrowed`.
    """

    def __init__(self, queue: QueueConfig, store: QueueStore, by: str = "") -> None:
        self.worker = f"{by + '@' if by else ''}{socket.gethostname() or 'localhost'}:{os.getpid()}:{os.urandom(3).hex()}"
        self.queue = queue
        self._store = store
        self._holder = Holder(self.worker, queue, store)
        self.wake = WakeLine(store.link, [store.keys])
        self._tag = os.urandom(TAG // 2).hex()
        self._claims = 0
        self._nonce = ""  # of a claim whose reply has not come
        self._asked = Ask(want=0, lease_ms=0)  # by that claim
        self._failing = 0.0  # since when calls fail
        self._idle = False  # this puller may keep the timer

    def look(self, ask: Ask) -> tuple[MessageBatch, float]:
        """Claims messages. Returns them, and the seconds until the next claim if there are none (0: at once).

        Raises:
            StoreUnavailable: Redis did not answer twice. The next call gets what Redis may have claimed for this one.
            SiteRefused: the queue belongs to another site, or another database records it.
        """
        site.admit(self._store.link, self._store.keys)
        again = bool(self._nonce)
        if not again:
            self._nonce, self._asked = self._fresh(), ask
        batch = MessageBatch(self._holder, ask.lease_ms)
        reply, resent = self._claim(self._nonce, self._asked)
        if again or resent:
            self._renew(reply, ask.lease_ms)
        batch.begins(reply.now_ms)
        self._nonce = ""
        self._idle = len(reply.jobs) < ask.want
        self._sort(batch, reply, ask.want if again else len(reply.jobs))
        pause = 0.0 if again or len(batch) < len(reply.jobs) else min(reply.wait_ms / 1000, LOOK)
        return batch, pause

    @property
    def may_wait(self) -> bool:
        """Whether time passes while it waits. In a test that moves the time, it does not."""
        return not self._store.link.stands_still

    def listen(self) -> int:
        """Listens for wake-ups from now on. Returns the descriptor to wait on, see `WakeLine`."""
        self.wake.arm()
        return self.wake.fileno()

    def sleep(self, seconds: float) -> None:
        """Sleeps until a wake-up comes or the time is over."""
        self.listen()
        if self.wake.wait(seconds):
            self.hear()

    def hear(self) -> None:
        """Reads a wake-up. If the connection broke instead, the next claim shows whether Redis is available."""
        try:
            self.wake.drain()
        except StoreUnavailable:
            clock.sleep(BROKEN)

    def leave(self) -> None:
        """Stops listening, and hands the timer over."""
        if self.wake.armed:  # else a wake-up might be lost here
            self.wake.close()
        if self._idle:
            self._idle = False
            with contextlib.suppress(DelayqError):  # the others then claim within a second anyway
                self._claim(self._fresh(), Ask(want=0, lease_ms=self.queue.lease_ms))

    def _fresh(self) -> str:
        self._claims += 1
        return f"{self._tag}{self._claims:x}"

    def _renew(self, reply: Claim, lease_ms: int) -> None:
        """Extends leases that began before the reply arrived, so that the caller gets whole ones."""
        held = [(job.id, job.fence) for job in reply.jobs if not job.lost]
        answers = self._holder.extend(held, lease_ms) if held else {}
        reply.jobs[:] = [job for job in reply.jobs if job.lost or answers[job.id] not in NOT_HELD]

    def _claim(self, nonce: str, ask: Ask) -> tuple[Claim, bool]:
        """Returns the reply, and whether the claim was sent twice."""
        for last in (False, True):
            try:
                reply = self._store.claim(
                    self.worker,
                    nonce,
                    want=ask.want,
                    lease_ms=ask.lease_ms,
                    max_crashes=0,  # a lease that ends is an attempt here
                    max_events=conf.get().most_events,
                    away_ms=int((clock.monotonic() - self._failing) * 1000) if self._failing else 0,
                    pulled_ms=self.queue.lease_ms,
                    older_ms=ask.older_ms,
                )
            except StoreUnavailable:
                self._failing = self._failing or clock.monotonic()
                if last:
                    raise
            else:
                break
        self._failing = 0.0
        return reply, last

    def _sort(self, batch: MessageBatch, reply: Claim, want: int) -> None:
        """Puts the caller's messages into the batch and settles the others."""
        ends: list[Outcome] = []
        for job in reply.jobs:
            found = self._read(job, reply.now_ms)
            if isinstance(found, Outcome):
                ends.append(found)
            elif len(batch) < want:
                batch.add(job, *found)
            else:  # the previous pull, whose reply was lost, asked for more
                ends.append(Outcome(job.id, job.attempt, job.fence, "snooze"))
        try:
            self._holder.settle(ends)
        except DelayqError as error:  # the caller gets its messages anyway; these come again
            logger.warning("queue %s: lost leases could not be settled: %s", self.queue.name, error)

    def _read(self, job: ClaimedJob, now_ms: int) -> tuple[Header, object, dict[str, object]] | Outcome:
        signer = self._store.signer
        standing = "newest" if signer is None else signer.standing(job.record, queue=job.queue, id=job.id)
        if standing == "wrong" and job.unknown_ms <= PATIENCE_MS:
            detail = outcome.park_detail(PARKED_SIGNATURE, NO_KEY)
            return Outcome(job.id, job.attempt, job.fence, "park", PUT_AWAY_MS, detail)
        if standing in ("unsigned", "wrong"):
            return _poison(job, "poison-signature", UNSIGNED if standing == "unsigned" else NO_KEY)
        try:
            ids.check(job.id)
            header, payload = read(job.record)
            args, _, options = codec.decode_payload(payload)
            if header.task == MESSAGE and len(args) != 1:
                raise PayloadError("it has no body")
        except (PayloadError, ValueError) as error:
            return _poison(job, "poison-record", f"the message cannot be read: {error}")
        if header.task != MESSAGE:
            reason = f"the queue {job.queue!r} holds messages, and this is a job of {header.task}: workers do not claim from it"
            return put_off_outcome("park", job.id, job.attempt, job.fence, PUT_AWAY_MS, reason)
        if job.lost:
            if job.attempt >= header.max_attempts:
                return put_off_outcome("fail", job.id, job.attempt, job.fence, 0, LEASE_LOST)
            waited = max(0, now_ms - job.due_ms)  # since the lease ended
            left = max(0, next_delay_ms(options, self.queue, job.attempt) - waited)
            return put_off_outcome("retry", job.id, job.attempt, job.fence, left, LEASE_LOST)
        return header, args[0], options


_pools: dict[tuple[str, str], tuple[int, QueueStore, deque[Puller]]] = {}


@contextmanager
def borrowed(name: str, by: str = "") -> Iterator[Puller]:
    """A puller for one thread, with its own name and connection; pullers are reused. `by`: the client of the gateway, or "".
    Messages whose reply was lost go to the next pull of the same client.

    Raises:
        QueueUnknown: the settings do not list it.
    """
    store, process = stores.queue(name, 0), os.getpid()
    found = _pools.get((name, by))
    if found is None or found[:2] != (process, store):  # of another process, or of other settings
        found = _pools[name, by] = (process, store, deque())
    free = found[2]
    try:
        puller = free.pop()
    except IndexError:
        puller = Puller(conf.get().queue(name), store, by)
    try:
        yield puller
    finally:
        free.append(puller)


def _poison(job: ClaimedJob, code: str, text: str) -> Outcome:
    return Outcome(job.id, job.attempt, job.fence, "fail", 0, codec.dumps({"c": "Poison", "m": text, "p": code}))


def pull(
    queue: str,
    n: int = 1,
    *,
    wait: durations.Delay = 0,
    lease: durations.Delay | None = None,
    older_than: durations.Delay | None = None,
) -> MessageBatch:
    """Claims due messages: `with delayq.pull("mail", 50, wait="10s") as batch:`. Only one consumer at a time holds a message.

    Args:
        n: The maximum number of messages, up to 200. If at least one message is due, the call returns immediately.
        wait: How long to wait for the first message. A push ends the wait. If no message becomes due, the batch is empty.
        lease: How long you hold the messages, from 5 seconds to 12 hours. The default is the queue's `LEASE`. If you don't settle a
            message before the lease expires, this counts as a failed attempt, and the message is delivered again after its backoff.
        older_than: Only claim messages that have been due for at least this long.

    Raises:
        QueueUnknown, ConfigError: The queue is unknown or is served by workers, or an option is invalid.
        StoreUnavailable: Redis doesn't respond. The next call in this process returns any messages that were claimed.
        SynchronousOnlyOperation: The function was called in async code. Use `await apull` instead.
    """
    refuse_loop("delayq.apull(…)")
    ask, seconds = _ask(queue, n, wait, lease, older_than)
    with borrowed(queue) as puller:
        steps = _steps(puller, ask, seconds)
        try:
            while True:
                pause, batch = _step(steps)
                if batch is not None:
                    return batch
                puller.sleep(pause)
        finally:
            puller.leave()


@like(pull)
async def apull(
    queue: str,
    n: int = 1,
    *,
    wait: durations.Delay = 0,
    lease: durations.Delay | None = None,
    older_than: durations.Delay | None = None,
) -> MessageBatch:
    """Async version of `pull`: `async with await delayq.apull("mail", 50, wait="10s") as batch:`."""
    return await taken(queue, *_ask(queue, n, wait, lease, older_than))


async def taken(queue: str, ask: Ask, seconds: float, by: str = "") -> MessageBatch:
    """`apull` with checked options. `by`: the client; it is part of the consumer's name.

    Raises:
        StoreUnavailable: Redis does not answer. The next pull of this client in this process gets what Redis may have handed out.
    """
    with borrowed(queue, by) as puller:
        steps = _steps(puller, ask, seconds)
        try:
            while True:
                pause, batch = await unbroken(_step, steps, back=_give_back)
                if batch is not None:
                    return batch
                if await readable(await in_thread(puller.listen), pause):
                    await in_thread(puller.hear)
        finally:
            await in_thread(puller.leave)


def _steps(puller: Puller, ask: Ask, seconds: float) -> Generator[float, None, MessageBatch]:
    """Claims, and yields how long to sleep until the next claim. Returns the batch."""
    until = clock.monotonic() + seconds
    while True:
        batch, pause = puller.look(ask)
        left = until - clock.monotonic()
        if batch:
            return batch
        if pause > 0:
            if left <= 0 or not puller.may_wait:
                return batch
            yield min(pause, left)


def _step(steps: Generator[float, None, MessageBatch]) -> tuple[float, MessageBatch | None]:
    try:
        return next(steps), None
    except StopIteration as end:
        return 0.0, end.value


def _give_back(step: tuple[float, MessageBatch | None]) -> None:
    if step[1]:
        step[1].give_back()


def _ask(
    queue: str, n: int, wait: durations.Delay, lease: durations.Delay | None, older_than: durations.Delay | None
) -> tuple[Ask, float]:
    where = f"pull({queue})"
    found = conf.get().queue(queue)
    if not found.pulled:
        raise ConfigError(
            f"{where}: this queue contains jobs for workers. To pull messages from it, set "
            f"DELAYQ['QUEUES'][{queue!r}]['CONSUMER'] = 'pull'."
        )
    if type(n) is not int or not 1 <= n <= MOST:
        raise ConfigError(f"{where}: n={n!r} must be a whole number from 1 to {MOST}.")
    lease_ms = found.lease_ms if lease is None else lease_of(lease, where)
    older_ms = 0 if older_than is None else duration(older_than, "older_than", where)
    return Ask(want=n, lease_ms=lease_ms, older_ms=older_ms), duration(wait, "wait", where) / 1000
