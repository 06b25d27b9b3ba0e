"""One who asks for messages: claims under a name of its own, and between two claims sleeps until a date or a call."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from django_delayq import clock, codec, conf, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import DelayqError, PayloadError, StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.messages import settling
from django_delayq.messages.message import MessageBatch
from django_delayq.messages.settling import Holder
from django_delayq.producer.stores import stores
from django_delayq.states import MESSAGE, PARKED_SIGNATURE
from django_delayq.store.message_consumers import TAG
from django_delayq.store.queue import Claim, Outcome, QueueStore
from django_delayq.store.record import ClaimedJob, Header, read
from django_delayq.store.wake import BROKEN, WakeLine
from django_delayq.worker import outcome

logger = Logger("django_delayq.messages")

LOOK: Final = 1.0  # seconds between looks; consumers come and go, and which of them keeps the timer may be gone
NOT_HELD: Final = ("lost", "gone", "wait")  # answers to extend
LEASE_LOST: Final = "the lease of its consumer ran out"
PUT_AWAY_MS: Final = 600_000  # how long a job is left alone that no consumer can take: of a task, or signed with an unknown key
PATIENCE_MS: Final = 86_400_000  # how long a deploy may take to bring that key
UNSIGNED: Final = "its record is not signed, and SIGNING is on; if you trust it: delayq resign --unsigned, then requeue"
NO_KEY: Final = "its record was changed, or signed with a key that is neither SECRET_KEY nor in SECRET_KEY_FALLBACKS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a pull asks for: at most `want` messages, under a lease, that have been due for `older_ms`."""

    want: int
    lease_ms: int
    older_ms: int = 0


class Puller:
    """1. `look` claims under a fresh nonce; after a lost reply under the same one, also in the next pull. 2. What it finds of others
    whose lease ran out, it settles as their attempts. 3. `listen` and `sleep` are the wait between two looks. 4. `leave` hands the
    timer over. It dies with its process: what it held comes again when the leases have ended.

    One call at a time has it, see `borrowed`.
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
        self._idle = False  # it may be who keeps the timer

    def look(self, ask: Ask) -> tuple[MessageBatch, float]:
        """What can be had now, and in how many seconds to look again if that is nothing (0: at once).

        Raises:
            StoreUnavailable: Redis did not answer, twice. What it has claimed for this call, the next one gets.
            SiteRefused: the queue belongs to another site, or another database records it.
        """
        stores.meet(self.queue.name, 0)
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
        """Whether time passes where it waits: not in a test that moves it."""
        return not self._store.link.stands_still

    def listen(self) -> int:
        """Hears calls from now on. Returns the descriptor to wait on, see `WakeLine`."""
        self.wake.arm()
        return self.wake.fileno()

    def sleep(self, seconds: float) -> None:
        """Until a call comes, or the time is over."""
        self.listen()
        if self.wake.wait(seconds):
            self.hear()

    def hear(self) -> None:
        """Takes a call. If the connection broke instead, the next look says whether Redis is away; an idle one may have been cut."""
        try:
            self.wake.drain()
        except StoreUnavailable:
            clock.sleep(BROKEN)

    def leave(self) -> None:
        """Nobody looks from here for a while."""
        if self.wake.listens:  # else a call might be lost here
            self.wake.close()
        if self._idle:
            self._idle = False
            with contextlib.suppress(DelayqError):  # the others then find out by their own look, within a second
                self._claim(self._fresh(), Ask(want=0, lease_ms=self.queue.lease_ms))

    def _fresh(self) -> str:
        self._claims += 1
        return f"{self._tag}{self._claims:x}"

    def _renew(self, reply: Claim, lease_ms: int) -> None:
        """What was claimed before the reply to it came has had a part of its lease, or all of it: the caller gets a whole one."""
        held = [(job.id, job.fence) for job in reply.jobs if not job.lost]
        answers = self._holder.extend(held, lease_ms) if held else {}
        reply.jobs[:] = [job for job in reply.jobs if job.lost or answers[job.id] not in NOT_HELD]

    def _claim(self, nonce: str, ask: Ask) -> tuple[Claim, bool]:
        """The reply, and whether it was sent for twice."""
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
        """What is for the caller goes into the batch, all else is settled here."""
        ends: list[Outcome] = []
        for job in reply.jobs:
            found = self._read(job, reply.now_ms)
            if isinstance(found, Outcome):
                ends.append(found)
            elif len(batch) < want:
                batch.add(job, *found)
            else:  # the pull before this one, whose reply was lost, wanted more
                ends.append(Outcome(job.id, job.attempt, job.fence, "snooze"))
        try:
            self._holder.settle(ends)
        except DelayqError as error:  # what was claimed is the caller's all the same; these come again
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
            return settling.put_off("park", job.id, job.attempt, job.fence, PUT_AWAY_MS, reason)
        if job.lost:
            if job.attempt >= header.max_attempts:
                return settling.put_off("fail", job.id, job.attempt, job.fence, 0, LEASE_LOST)
            waited = max(0, now_ms - job.due_ms)  # since the lease ended
            left = max(0, settling.next_ms(options, self.queue, job.attempt) - waited)
            return settling.put_off("retry", job.id, job.attempt, job.fence, left, LEASE_LOST)
        return header, args[0], options


@contextmanager
def borrowed(name: str, by: str = "") -> Iterator[Puller]:
    """A puller that nobody else has: each thread that pulls at a time has one, with a name and a connection of its own, and they are
    used again. `by`: for whom it pulls, if not for the project itself; what an answer that was lost has handed out is for the same one.

    Raises:
        QueueUnknown: the settings do not list it.
    """
    free = _free(name, by)
    try:
        puller = free.pop()
    except IndexError:
        puller = Puller(conf.get().queue(name), stores.queue(name, 0), by)
    try:
        yield puller
    finally:
        free.append(puller)


_pools: dict[tuple[str, str], tuple[int, QueueStore, deque[Puller]]] = {}


def _free(name: str, by: str) -> deque[Puller]:
    """Those of this process, under the settings as they are."""
    store, process = stores.queue(name, 0), os.getpid()
    found = _pools.get((name, by))
    if found is None or found[:2] != (process, store):
        found = _pools[name, by] = (process, store, deque())
    return found[2]


def _poison(job: ClaimedJob, code: str, text: str) -> Outcome:
    return Outcome(job.id, job.attempt, job.fence, "fail", 0, codec.dumps({"c": "Poison", "m": text, "p": code}))
