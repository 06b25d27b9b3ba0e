"""Ends of pulled messages, told to Redis: many in one call, once more where the reply was lost, and exact about who was too late."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from django_delayq import ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import LeaseLost, StoreUnavailable
from django_delayq.producer.stores import stores
from django_delayq.store.queue import Kind, Outcome, QueueStore, Settled
from django_delayq.worker import outcome

FINAL: Final = {"ack": "finished", "fail": "failed"}  # in which state the one and the other leave a message


class WorkTime(NamedTuple):
    """From when to when somebody has worked on a message, by Redis' clock."""

    started_ms: int
    finished_ms: int

    @property
    def ms(self) -> int:
        """How long."""
        return self.finished_ms - self.started_ms


class Holder(NamedTuple):
    """Who has pulled messages: under which name, from which queue."""

    worker: str
    queue: QueueConfig
    store: QueueStore

    def settle(self, ends: Sequence[Outcome], *, unsure: bool = False) -> list[bool]:
        """Tells Redis of at most 200 ends. Whether each counts: it does unless the lease was lost before, and somebody else has or had
        the message. `unsure`: they were told before, and the reply did not come.

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
        """Later lease ends, for pairs of short id and nonce. Short id -> ok, cancel, abort, or what says that it was lost.

        Raises:
            StoreUnavailable: whether they hold for longer is not known.
        """
        call = partial(self.store.extend, held, worker=self.worker, lease_ms=lease_ms, pulled_ms=self.queue.lease_ms)
        try:
            return dict(call())
        except StoreUnavailable:
            return dict(call())

    def _counting(self, ends: Sequence[Outcome], answers: Sequence[Settled], *, unsure: bool) -> list[bool]:
        """ "already" is what a second telling hears of the first, and likewise who comes behind somebody else. Told once, it is the
        latter; else an end that is final is looked at: a message that is to be pulled again, or has failed, was not acked.
        """
        if not unsure:
            return [answer == "done" for answer in answers]
        final = [end for end, answer in zip(ends, answers, strict=True) if answer == "already" and end.kind in FINAL]
        views = stores.inspector().jobs(self.queue.name, [ids.full(end.id) for end in final])
        others = {end.id for end, view in zip(final, views, strict=True) if view is not None and view.state != FINAL[end.kind]}
        return [answer == "done" or (answer == "already" and end.id not in others) for end, answer in zip(ends, answers, strict=True)]


def ack(id: str, attempt: int, nonce: str, worked: WorkTime) -> Outcome:
    """It has been dealt with."""
    return Outcome(id, attempt, nonce, "ack", 0, b'{"s":%d,"f":%d}' % worked, worked.ms)


def put_off(kind: Kind, id: str, attempt: int, nonce: str, delay_ms: int, reason: str, worked: WorkTime | None = None) -> Outcome:
    """It has not: `kind` is retry, snooze or fail. `worked`: None if it is unknown."""
    why, message = (reason, "") if kind == "snooze" else ("", reason)
    started_ms, finished_ms = worked or (0, 0)
    detail = outcome.failure_detail(started_ms=started_ms, finished_ms=finished_ms, reason=why, message=message)
    return Outcome(id, attempt, nonce, kind, delay_ms, detail, -1 if worked is None else worked.ms)


def next_ms(options: object, queue: QueueConfig, attempt: int) -> int:
    """Milliseconds from a failed attempt to the next, by the message's own ladder, else the queue's."""
    given = options if isinstance(options, dict) else {}
    found = outcome.delay_ms(outcome.backoff_of(given, None, queue.backoff), attempt, TimeoutError(), queue.backoff)
    return found or 0


def lost(messages: Sequence[str]) -> LeaseLost:
    """The error about these messages, by short id."""
    shown = ", ".join(messages[:20]) + (" …" if len(messages) > 20 else "")
    return LeaseLost(
        f"{'The message' if len(messages) == 1 else f'{len(messages)} messages:'} {shown}: the lease ran out before this, or the "
        f"message was settled before. Nothing was written, and another consumer may have it. Treat your work on it as a failed "
        f"attempt. Pull with a longer lease, or extend the lease.",
        messages=tuple(messages),
    )
