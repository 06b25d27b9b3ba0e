"""Changes of whole queues: pause, resume, purge. They take effect at once, not at the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar
from uuid import UUID

from django_delayq import conf, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.producer import acts, outbox
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.changes import ChangeTarget
from django_delayq.producer.lookup import check_words
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import is_refusal
from django_delayq.store.connection.link import FanOut
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.queue import MOST, QueueStore

T = TypeVar("T")


def pause(queue: str, *, actor: str = "", reason: str = "") -> bool:
    """Pauses a queue. Workers claim no more of its jobs, but running jobs continue. Returns False if the queue was already paused. The
    pause is also stored in the database, so that the queue stays paused if Redis loses its data.

    Raises:
        QueueUnknown, StoreUnavailable: If the queue has several partitions, those that can be reached are paused. Repeat the call.
    """
    refuse_loop("delayq.apause(…)")
    check_words("pause()", actor, reason)

    def in_one(store: QueueStore) -> tuple[bool, bool]:
        changed = store.pause(actor=actor, reason=reason)
        if outbox.installed:  # also after a lost reply, when the queue is paused already
            outbox.pauses.note(queue, store.partition, actor, reason, first=changed)
        return changed, False

    return any([*_each(queue, in_one)])


def resume(queue: str, *, actor: str = "", reason: str = "") -> bool:
    """Allows claims of jobs in a paused queue again. Returns False if the queue was not paused.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    refuse_loop("delayq.aresume(…)")
    check_words("resume()", actor, reason)
    named = conf.get().queue(queue).name
    if outbox.installed:
        outbox.pauses.forget(named)
    return any([*_each(named, lambda store: (store.resume(actor=actor, reason=reason), False))])


apause, aresume = twin(pause), twin(resume)


def purge(queue: str, *, actor: str = "", reason: str = "") -> Iterator[int]:
    """Cancels all scheduled jobs of a queue, also committed ones that Redis does not have; running jobs go on. Yields how many,
    after every step of at most 200.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    check_words("purge()", actor, reason)
    config, away = conf.get().queue(queue), None
    named = config.name
    try:
        yield from _purge_rows(named, actor, reason)  # first: rows that the relay publishes in the meantime are then purged in Redis
    except StoreUnavailable as error:
        if not config.divided or is_refusal(error):
            raise
        away = error

    def empty(store: QueueStore) -> tuple[int, bool]:
        cancelled, left = store.purge(actor=actor, reason=reason)
        return cancelled, bool(left and cancelled)

    yield from _each(named, empty)
    if away is not None:
        raise away


def _each(queue: str, act: Callable[[QueueStore], tuple[T, bool]]) -> Iterator[T]:
    """Yields the results of `act` for all partitions; it also returns whether to call it again. If the server of one partition is
    away, the others still run. It is safe to call this again.

    Raises:
        StoreUnavailable: with several partitions, it names those that were not reached.
    """
    config, parts = conf.get().queue(queue), stores.parts(queue)
    first: StoreUnavailable | None = None
    missed: list[str] = []

    def guarded(store: QueueStore) -> tuple[T, bool]:
        with stores.guarded(queue, store.partition):
            return act(store)

    for store, answer in FanOut[QueueStore]().each(parts, lambda store: store.link, guarded):
        if isinstance(answer, StoreUnavailable):
            if not config.divided or is_refusal(answer):
                raise answer
            first = first or answer
            missed.append(config.label(store.partition))
            continue
        result, more = answer
        yield result
        if more:
            parts.append(store)  # after the others
    if first is not None:
        raise StoreUnavailable(code="partitions_away", partitions=", ".join(missed), cause=str(first)) from first


def _purge_rows(queue: str, actor: str, reason: str) -> Iterator[int]:
    if not outbox.installed:
        return
    config, fan_out = conf.get().queue(queue), FanOut[tuple[int, list[UUID]]]()

    def cancel(part: tuple[int, list[UUID]]) -> int:
        partition, there = part
        with stores.guarded(queue, partition):  # most of these rows are only not mirrored yet: Redis has the jobs
            views = stores.inspector().jobs(queue, there)
        lacking = [id for id, view in zip(there, views, strict=True) if view is None]
        answers = acts.cancel_each([ChangeTarget(id, queue) for id in lacking], actor=actor, reason=reason)
        return [loader.value(answer) for answer in answers].count(Change.DONE)

    last = None
    while cancelled := outbox.far_rows.purge(queue, MOST, actor, reason):
        yield cancelled
    while rows := outbox.jobs.unpublished(queue, last, MOST):
        last = rows[-1]
        parts = ids.by_partition(rows).items()
        for _, answer in fan_out.each(parts, lambda part: stores.places.of(queue, part[0]), cancel):
            if not isinstance(answer, StoreUnavailable):
                yield answer
            elif not config.divided or is_refusal(answer):
                raise answer
    fan_out.raise_first()
