"""Messages under a lease, as `pull` returns them: their batch, and how their outcomes are stored in Redis.

An outcome is sent once more if the reply was lost, and each caller learns whether its outcome counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, Self, overload
from uuid import UUID

from django_delayq import clock, durations, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import LeaseLost, StoreUnavailable
from django_delayq.job_meta import ONLY, bare
from django_delayq.logger import Logger
from django_delayq.producer.async_api import in_thread, refuse_loop, twin
from django_delayq.producer.options import duration, lease_ms
from django_delayq.producer.stores import stores
from django_delayq.states import CARRIED, NO_LIMIT
from django_delayq.store.scripts.queue import MOST, Kind, Outcome, QueueStore, Settled
from django_delayq.store.scripts.record import ClaimedJob, Header
from django_delayq.worker import outcome

logger = Logger("django_delayq.messages")


FINAL: Final = {"ack": "finished", "fail": "failed"}  # in which state the one and the other leave a message


class WorkTime(NamedTuple):
    """When a consumer worked on a message, by Redis' clock. `late_ms`: how long after its date it began."""

    started_ms: int
    finished_ms: int
    late_ms: int

    @property
    def ran_ms(self) -> int:
        return self.finished_ms - self.started_ms


class Holder(NamedTuple):
    """A consumer that has pulled messages: its name and its queue."""

    worker: str
    queue: QueueConfig
    store: QueueStore

    def settle(self, ends: Sequence[Outcome], *, unsure: bool = False) -> list[bool]:
        """Stores at most 200 outcomes in Redis. Returns for each whether it counts. It does not if the lease was lost before, and
        another consumer has or had the message. `unsure`: they were sent before, and the reply was lost.

        Raises:
            StoreUnavailable: whether they count is not known.
        """
        if not ends:
            return []
        try:
            answers = self.store.settle(ends, worker=self.worker, max_crashes=self.queue.max_crashes)
        except StoreUnavailable:
            answers, unsure = self.store.settle(ends, worker=self.worker, max_crashes=self.queue.max_crashes), True
        if answers.count("done") == len(ends):
            return [True] * len(ends)
        return self._counting(ends, answers, unsure=unsure)

    def extend(self, held: Sequence[tuple[str, str]], lease_ms: int) -> dict[str, str]:
        """Extends leases, given as pairs of short id and nonce. Returns short id -> ok, cancel, abort, or a code of a lost lease.

        Raises:
            StoreUnavailable: whether the leases were extended is not known.
        """
        call = partial(self.store.extend, held, worker=self.worker, lease_ms=lease_ms, pulled_ms=self.queue.lease_ms)
        try:
            return dict(call())
        except StoreUnavailable:
            return dict(call())

    def _counting(self, ends: Sequence[Outcome], answers: Sequence[Settled], *, unsure: bool) -> list[bool]:
        """ "already": settled before, by this consumer or another. If it was sent once, another consumer was first. Otherwise the state
        shows whether a final outcome counts: a message that waits or has failed was not acked.
        """
        if not unsure:
            return [answer == "done" for answer in answers]
        final = [end for end, answer in zip(ends, answers, strict=True) if answer == "already" and end.kind in FINAL]
        views = stores.inspector().jobs(self.queue.name, [ids.full(end.id) for end in final])
        others = {end.id for end, view in zip(final, views, strict=True) if view is not None and view.state != FINAL[end.kind]}
        return [answer == "done" or (answer == "already" and end.id not in others) for end, answer in zip(ends, answers, strict=True)]


class Message:
    """A message that this consumer holds until its lease expires. `body` is the pushed value. `attempt` is counted from 1. `key` is ""
    if the message has no key. `cancel_requested` is True if the last call of `extend` reported that the message was cancelled.

    Inside a `with delayq.pull(…)` block, all decisions are sent to Redis in one call at the end of the block. Elsewhere, each method
    sends its decision immediately.

    Raises (all methods):
        LeaseLost: You no longer hold the message. Nothing was changed.
        StoreUnavailable: The result is unknown. You can repeat the call.
    """

    def __init__(self, batch: MessageBatch, job: ClaimedJob, header: Header, body: Any, options: dict[str, Any]) -> None:
        self._batch = batch
        self._job = job
        self._options = options
        self.body = body
        self.attempt = job.attempt
        self.key = bare(header.key)
        self._most = header.max_attempts
        self.cancel_requested = False
        self.end: Outcome | None = None  # decided, but perhaps not sent yet
        self.settled = False
        self.unsure = False  # the outcome was sent, and no reply came

    def __repr__(self) -> str:
        return f"<Message {self.short_id} of {self.queue}, attempt {self.attempt}>"

    @property
    def id(self) -> UUID:
        """The id of the message, which is the same for every attempt. It is the id of the job that `push` returned."""
        return ids.full(self._job.id)

    @property
    def short_id(self) -> str:
        """The id in its 22-character form, as shown in lists, logs and pages."""
        return self._job.id

    @property
    def queue(self) -> str:
        """The queue of the message."""
        return self._job.queue

    @property
    def meta(self) -> dict[str, Any]:
        """A copy of the message's `meta`."""
        return {name: value for name, value in (self._options.get("meta") or {}).items() if name not in (CARRIED, ONLY)}

    @property
    def fence(self) -> str:
        """Text that is unique to this attempt."""
        return f"{self._job.fence}/{self._job.id}"

    @property
    def run_at(self) -> datetime:
        """When the message was due."""
        return clock.from_ms(self._job.due_ms)

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts, or 0 if there is no limit until the message expires."""
        return 0 if self._most == NO_LIMIT else self._most

    @property
    def is_last_attempt(self) -> bool:
        """Whether the message fails permanently if this attempt fails."""
        return self.attempt >= self._most

    @property
    def held(self) -> tuple[str, str]:
        """Short id, and the nonce of the claim."""
        return self._job.id, self._job.fence

    def ack(self) -> None:
        """Acknowledges the message. It isn't delivered again."""
        self._decide("message.aack()", self.ack_outcome())

    def retry(self, delay: durations.Delay | None = None, reason: str = "") -> None:
        """Reports a failed attempt. The message is delivered again after `delay`, or after its backoff. After the last attempt, it
        fails.
        """
        if self.is_last_attempt:
            self._put_off("message.aretry(…)", "fail", 0, reason or "no attempt is left")
        elif delay is None:
            self._put_off("message.aretry(…)", "retry", next_delay_ms(self._options, self._batch.holder.queue, self.attempt), reason)
        else:
            self._put_off("message.aretry(…)", "retry", duration(delay, "delay", "message.retry()"), reason)

    def snooze(self, delay: durations.Delay, reason: str = "") -> None:
        """Postpones the message. It is delivered again after `delay`, and the attempt doesn't count."""
        self._put_off("message.asnooze(…)", "snooze", duration(delay, "delay", "message.snooze()"), reason)

    def fail(self, reason: str = "") -> None:
        """Marks the message as failed. Staff can requeue it."""
        self._put_off("message.afail(…)", "fail", 0, reason or "failed by its consumer")

    def extend(self, lease: durations.Delay | None = None) -> None:
        """Extends the lease, starting from now. The default is the lease of the pull. This takes effect immediately, even inside a
        `with` block.
        """
        refuse_loop("message.aextend(…)")
        self._batch.prolong([self], lease)

    aack, aretry, asnooze, afail, aextend = twin(ack), twin(retry), twin(snooze), twin(fail), twin(extend)

    def _put_off(self, twin: str, kind: Kind, delay_ms: int, reason: str) -> None:
        job = self._job
        self._decide(twin, put_off_outcome(kind, job.id, self.attempt, job.fence, delay_ms, reason, self._batch.worked(job)))

    def ack_outcome(self) -> Outcome:
        """The outcome if it is acknowledged now."""
        job, worked = self._job, self._batch.worked(self._job)
        detail = b'{"s":%d,"f":%d}' % worked[:2]
        return Outcome(job.id, job.attempt, job.fence, "ack", 0, detail, worked.ran_ms, worked.late_ms)

    def _decide(self, twin: str, end: Outcome) -> None:
        if not self._batch.gathers:
            refuse_loop(twin)
        if self.settled:
            raise lost_error([self.short_id])
        if not self.unsure:  # else the outcome that was sent is kept until it is known whether it counts
            self.end = end
        if not self._batch.gathers:
            self._batch.tell([self])


class MessageBatch(Sequence[Message]):
    """Messages that were pulled together. The batch is empty if no message became due in time. At the end of a `with delayq.pull(…) as
    batch:` block, all decisions are sent to Redis in one call. Messages without a decision are delivered again when their leases
    expire.
    """

    def __init__(self, holder: Holder, lease_ms: int) -> None:
        self.holder = holder
        self.lease_ms = lease_ms
        self.lease_end_ms = 0  # by Redis' clock; the leases end no sooner
        self._began = (0, 0.0)  # the same clock, and monotonic
        self.gathers = False  # decisions, until the block ends
        self._messages: list[Message] = []

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, place: int) -> Message: ...

    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...

    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        return self._messages[place]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    async def __aiter__(self) -> AsyncIterator[Message]:
        for message in self._messages:
            yield message

    def __repr__(self) -> str:
        return f"<MessageBatch of {len(self)} of {self.holder.queue.name}>"

    def __enter__(self) -> Self:
        self.gathers = True
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.gathers = False
        self._close(error)

    async def __aenter__(self) -> Self:
        self.gathers = True
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.gathers = False
        await in_thread(self._close, error)

    def begins(self, now_ms: int) -> None:
        """Starts the leases at this time, according to Redis's clock."""
        self.lease_end_ms, self._began = now_ms + self.lease_ms, (now_ms, clock.monotonic())

    def worked(self, job: ClaimedJob) -> WorkTime:
        """Returns the time from the claim until now."""
        started_ms, started = self._began
        return WorkTime(started_ms, started_ms + int((clock.monotonic() - started) * 1000), max(0, started_ms - job.due_ms))

    def add(self, job: ClaimedJob, header: Header, body: Any, options: dict[str, Any]) -> None:
        """Adds a claimed message."""
        self._messages.append(Message(self, job, header, body, options))

    def settle(self) -> None:
        """Sends all decisions made so far to Redis.

        Raises:
            LeaseLost: You no longer held some of the messages. Their ids are in `fields["messages"]`. All other messages are
                settled.
            StoreUnavailable: The result is unknown. You can repeat the call.
        """
        refuse_loop("batch.asettle()")
        self._settle()

    def ack(self) -> None:
        """Acknowledges all messages without a decision, and sends the whole batch to Redis in one call. It raises the same exceptions
        as `settle`.
        """
        refuse_loop("batch.aack()")
        for message in self._messages:
            if message.end is None:
                message.end = message.ack_outcome()
        self._settle()

    def extend(self, lease: durations.Delay | None = None) -> None:
        """Extends the leases of all messages that are not settled, starting from now. It raises the same exceptions as the methods of
        `Message`.
        """
        refuse_loop("batch.aextend(…)")
        self.prolong([message for message in self._messages if not message.settled], lease)

    asettle, aack, aextend = twin(settle), twin(ack), twin(extend)

    def prolong(self, messages: Sequence[Message], lease: durations.Delay | None) -> None:
        """See `extend`."""
        if any(message.settled for message in messages):
            raise lost_error([message.short_id for message in messages if message.settled])
        if not messages:
            return
        lease_ms = self.lease_ms if lease is None else lease_of(lease, "extend()")
        answers = self.holder.extend([message.held for message in messages], lease_ms)
        gone = []
        for message in messages:
            answer = answers[message.short_id]
            if answer in ("cancel", "abort"):
                message.cancel_requested = True
            elif answer != "ok":
                message.settled = True
                gone.append(message.short_id)
        if gone:
            raise lost_error(gone)

    def give_back(self) -> None:
        """Returns all messages. They can be pulled again at once, and the attempt does not count."""
        for message in self._messages:
            message.end = Outcome(*message.held[:1], message.attempt, message.held[1], "snooze")
        with contextlib.suppress(LeaseLost, StoreUnavailable):  # then they come again when their leases end
            self._settle()

    def tell(self, messages: Sequence[Message]) -> None:
        """Stores the outcomes of these messages, at most 200 in one call."""
        for start in range(0, len(messages), MOST):
            self._tell(messages[start : start + MOST])

    def _tell(self, messages: Sequence[Message]) -> None:
        ends = [message.end for message in messages if message.end is not None]
        try:
            counts = self.holder.settle(ends, unsure=any(message.unsure for message in messages))
        except StoreUnavailable:
            for message in messages:
                message.unsure = True
            raise
        for message in messages:
            message.settled, message.unsure = True, False
        if gone := [message.short_id for message, counted in zip(messages, counts, strict=True) if not counted]:
            raise lost_error(gone)

    def _settle(self) -> None:
        self.tell([message for message in self._messages if message.end is not None and not message.settled])

    def _close(self, error: BaseException | None) -> None:
        try:
            self._settle()
        except (LeaseLost, StoreUnavailable) as other:
            if error is None:
                raise
            logger.warning("messages that were settled in a batch before an error could not be stored: %s", other)


def lease_of(lease: durations.Delay, where: str) -> int:
    """Milliseconds of a lease; raises ConfigError."""
    return lease_ms(lease, where, "keeps a message for as long when its consumer dies")


def put_off_outcome(
    kind: Kind, id: str, attempt: int, nonce: str, delay_ms: int, reason: str, worked: WorkTime | None = None
) -> Outcome:
    """The outcome of a message that was not acknowledged. `kind`: retry, snooze or fail. `worked`: None if unknown."""
    why, message = (reason, "") if kind == "snooze" else ("", reason)
    if worked is None:
        return Outcome(id, attempt, nonce, kind, delay_ms, outcome.failure_detail(reason=why, message=message))
    detail = outcome.failure_detail(started_ms=worked.started_ms, finished_ms=worked.finished_ms, reason=why, message=message)
    return Outcome(id, attempt, nonce, kind, delay_ms, detail, worked.ran_ms, worked.late_ms)


def next_delay_ms(options: object, queue: QueueConfig, attempt: int) -> int:
    """Milliseconds until the next attempt, by the backoff of the message, else that of the queue."""
    given = options if isinstance(options, dict) else {}
    found = outcome.delay_ms(outcome.backoff_of(given, None, queue.backoff), attempt, TimeoutError(), queue.backoff)
    return found or 0


def lost_error(messages: Sequence[str]) -> LeaseLost:
    """The error for these messages, by short id."""
    shown = ", ".join(messages[:20]) + (" …" if len(messages) > 20 else "")
    return LeaseLost(
        f"{'The message' if len(messages) == 1 else f'{len(messages)} messages:'} {shown}: the lease ran out before this, or the "
        f"message was settled before. Nothing was written, and another consumer may have it. Treat your work on it as a failed "
        f"attempt. Pull with a longer lease, or extend the lease.",
        messages=tuple(messages),
    )
