"""When a failed attempt is followed by another: the job's own ladder, else the task's backoff, else the queue's ladder. And when a job
asks again that has heard "not yet".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import random
from typing import Any

from django_delayq import clock
from django_delayq.ladder import POLL, Ladder
from django_delayq.logger import Logger
from django_delayq.worker import lease_table

logger = Logger("django_delayq.worker")

Backoff = Ladder | Callable[[int, BaseException], clock.Delay | None]


def choose(options: Mapping[str, Any], backoff: Backoff | None, default: Ladder) -> Backoff:
    """The backoff that holds for a job with these options."""
    text = options.get("backoff")
    if text is not None:
        try:
            return Ladder(text)
        except ValueError as error:
            logger.error("the backoff of the job cannot be read, so the backoff of the queue is used: %s", error)
            return default
    return default if backoff is None else backoff


def delay_ms(
    backoff: Backoff, attempt: int, error: BaseException, default: Ladder, *, rand: Callable[[], float] = random
) -> int | None:
    """Milliseconds from now to the next attempt; None: there shall be none. A backoff that errs gives way to `default`."""
    try:
        found = backoff.delay(attempt, rand=rand) if isinstance(backoff, Ladder) else backoff(attempt, error)
        return None if found is None else clock.milliseconds(found)
    except Exception:
        # Not the ladder itself: to be written down, it would ask the formula that has just erred.
        logger.exception("the backoff %s failed at attempt %d, so the backoff of the queue is used", repr(backoff), attempt)
        return clock.milliseconds(default.delay(attempt, rand=rand))


def poll_ms(poll: Ladder | None, asks: int, *, rand: Callable[[], float] = random) -> int | None:
    """Milliseconds from now until a job asks again that has asked `asks` times before this one; None: its ladder has ended, and it
    gives up. A formula that errs gives way to the usual poll ladder.
    """
    ladder = POLL if poll is None else poll
    if asks >= len(ladder):
        return None
    try:
        return clock.milliseconds(ladder.delay(asks + 1, rand=rand))
    except Exception:
        logger.exception("the poll ladder %s failed at step %d, so the default is used", repr(ladder), asks + 1)
        return clock.milliseconds(POLL.delay(asks + 1, rand=rand))


def foreseen_ms(backoff: Backoff, attempt: int, max_attempts: int, default: Ladder) -> int:
    """For the lease table: what shall follow if the supervisor must end this attempt."""
    if attempt >= max_attempts:
        return lease_table.NEVER
    if not isinstance(backoff, Ladder):
        return lease_table.ASK
    found = delay_ms(backoff, attempt, TimeoutError(), default)
    return lease_table.NEVER if found is None else found
