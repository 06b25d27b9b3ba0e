"""Whole queues: pause, resume, purge. They act at once, not at commit."""

from __future__ import annotations

from collections.abc import Iterator

from django_delayq import conf
from django_delayq.producer import acts, database
from django_delayq.producer.stores import stores
from django_delayq.producer.twins import refuse_loop, twin
from django_delayq.producer.where import check_words
from django_delayq.states import Change
from django_delayq.store.queue import MOST


def pause(queue: str, *, actor: str = "", reason: str = "") -> bool:
    """Stops claims of a queue; running jobs go on. False when it was paused already. A row notes it, so that the queue stays paused
    when Redis loses its contents; if the database is away, Redis alone knows it.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    refuse_loop("delayq.apause(…)")
    check_words("pause()", actor, reason)
    found, using, paused = database.installed(), conf.get().database, False
    for store in stores.parts(queue):
        with stores.guarded(queue, store.partition):
            changed = store.pause(actor=actor, reason=reason)
        if found is not None:  # after a lost reply, too, when it is paused already
            found.note_pause(queue, store.partition, actor, reason, using, first=changed)
        paused = paused or changed
    return paused


def resume(queue: str, *, actor: str = "", reason: str = "") -> bool:
    """Lets a paused queue go on. False when it was not paused. The row first: who brings pauses back after a loss waits for it.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    refuse_loop("delayq.aresume(…)")
    check_words("resume()", actor, reason)
    named, found, using = conf.get().queue(queue).name, database.installed(), conf.get().database
    if found is not None:
        found.forget_pause(named, using)
    resumed = False
    for store in stores.parts(named):
        with stores.guarded(named, store.partition):
            resumed = store.resume(actor=actor, reason=reason) or resumed
    return resumed


apause, aresume = twin(pause), twin(resume)


def purge(queue: str, *, actor: str = "", reason: str = "") -> Iterator[int]:
    """Cancels all scheduled jobs of a queue, also committed ones that Redis does not have; running jobs go on. Yields how many,
    after every step of at most 200.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    check_words("purge()", actor, reason)
    named = conf.get().queue(queue).name
    yield from _purge_rows(named, actor, reason)  # first: what the relay publishes meanwhile is in Redis afterwards
    for store in stores.parts(named):
        left = cancelled = 1
        while left and cancelled:
            with stores.guarded(named, store.partition):
                cancelled, left = store.purge(actor=actor, reason=reason)
            yield cancelled


def _purge_rows(queue: str, actor: str, reason: str) -> Iterator[int]:
    found, using, last = database.installed(), conf.get().database, None
    while found is not None and (cancelled := found.purge_far(queue, MOST, actor, reason, using)):
        yield cancelled
    while found is not None and (rows := found.unpublished(queue, last, MOST, using)):
        last = rows[-1]
        with stores.guarded(queue):  # most rows are merely not mirrored yet: Redis has them
            views = stores.inspector().jobs(queue, rows)
        lacking = [id for id, view in zip(rows, views, strict=True) if view is None]
        yield [acts.cancel(id, queue=queue, actor=actor, reason=reason) for id in lacking].count(Change.DONE)
