"""`pull`: the public face of claim and settle."""

from __future__ import annotations

from collections.abc import Generator

from django_delayq import clock, conf
from django_delayq.exceptions import ConfigError
from django_delayq.messages.message import MessageBatch, lease_of
from django_delayq.messages.puller import Ask, Puller, borrowed
from django_delayq.producer.async_api import in_thread, like, readable, refuse_loop, unbroken
from django_delayq.producer.options import duration
from django_delayq.store.queue import MOST


def pull(
    queue: str, n: int = 1, *, wait: clock.Delay = 0, lease: clock.Delay | None = None, older_than: clock.Delay | None = None
) -> MessageBatch:
    """Takes due messages under a lease: `with delayq.pull("mail", 50, wait="10s") as batch:`. Each message has one holder at a time.

    Args:
        n: maximum number of messages, up to 200. Fewer are returned as soon as there are some.
        wait: how long to wait while there are none. A push ends the wait. After it, the batch is empty.
        lease: how long the messages are held, 5 seconds to 12 hours; by default the LEASE of the queue. A message that is not settled
            then comes again by its backoff, and the attempt counts.
        older_than: only messages that have been due for so long.

    Raises:
        QueueUnknown, ConfigError: the queue is one of workers, or an option is not valid.
        StoreUnavailable: Redis does not answer. The next pull of this process gets what Redis may have handed out.
        SynchronousOnlyOperation: in async code; await `apull`.
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
    queue: str, n: int = 1, *, wait: clock.Delay = 0, lease: clock.Delay | None = None, older_than: clock.Delay | None = None
) -> MessageBatch:
    """Async version of `pull`: the wait holds up nothing else. `async with await delayq.apull("mail", 50, wait="10s") as batch:`."""
    return await taken(queue, *_ask(queue, n, wait, lease, older_than))


async def taken(queue: str, ask: Ask, seconds: float, by: str = "") -> MessageBatch:
    """The same of what has been checked. `by`: for whom; it is part of the name under which the messages are held.

    Raises:
        StoreUnavailable: Redis does not answer. What it may have handed out, the next one gets who asks in this process for the same.
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
    """Looks, and yields for how long to sleep before the next one. Returns the batch."""
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


def _ask(queue: str, n: int, wait: clock.Delay, lease: clock.Delay | None, older_than: clock.Delay | None) -> tuple[Ask, float]:
    where = f"pull({queue})"
    found = conf.get().queue(queue)
    if not found.pulled:
        raise ConfigError(
            f"{where}: workers serve this queue, and pull only takes from one that holds messages: set "
            f"DELAYQ['QUEUES'][{queue!r}]['CONSUMER'] = 'pull'."
        )
    if type(n) is not int or not 1 <= n <= MOST:
        raise ConfigError(f"{where}: n={n!r} must be a whole number from 1 to {MOST}.")
    lease_ms = found.lease_ms if lease is None else lease_of(lease, where)
    older_ms = 0 if older_than is None else duration(older_than, "older_than", where)
    return Ask(want=n, lease_ms=lease_ms, older_ms=older_ms), duration(wait, "wait", where) / 1000
