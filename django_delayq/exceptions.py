"""What the package raises: errors under `DelayqError`, and what tasks raise to end a run under `ControlFlow`.

Messages say what happened, where, and the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final
from uuid import UUID

from django_delayq import clock

SHORTEST_SNOOZE: Final = 1.0  # seconds; each run of a job costs more than it costs to wait


class DelayqError(Exception):
    """Root of every error of this package: `except DelayqError` catches them all, and nothing else."""


class ConfigError(DelayqError):
    """A setting, or an option of `@task`, that cannot work. Raised before anything is scheduled or run."""


class QueueUnknown(DelayqError):
    """A queue that `DELAYQ["QUEUES"]` does not list. A job there would wait for ever: no worker looks."""


class UnknownTask(DelayqError):
    """A name that no registered task bears. Names are looked up, never imported."""


class PayloadError(DelayqError):
    """Arguments, options or a key that cannot be stored, or a stored record that cannot be read."""


class PayloadTooLarge(PayloadError):
    """Arguments above `MAX_PAYLOAD`. Store the content where content belongs, and pass its id."""


class KeyTaken(DelayqError):
    """`on_conflict="error"`, and an unfinished job holds the key; `holder` is its id."""

    def __init__(self, message: str = "", *, holder: UUID) -> None:
        super().__init__(
            message
            or f"the key is held by the unfinished job {holder}; cancel or reschedule it, or choose another on_conflict"
        )
        self.holder = holder

    def __reduce__(self) -> tuple[Callable[..., KeyTaken], tuple[Any, ...]]:
        return partial(KeyTaken, holder=self.holder), self.args


class StoreUnavailable(DelayqError):
    """Redis could not be reached, or did not answer in time: what was asked may have happened. To ask once more for a change (cancel,
    reschedule, run now, requeue) is safe. `schedule()` once more would be another job: of redis durability, `jobs` are the ids of
    those that were not taken, or of which that is not known, for `delayq.get`.
    """

    def __init__(self, *args: object, jobs: tuple[UUID, ...] = ()) -> None:
        super().__init__(*args)
        self.jobs = jobs


class LeaseLost(DelayqError):
    """This run does not own its job any more: the lease ran out and another worker may have it. Write nothing."""


class ControlFlow(Exception):
    """Root of what a task raises to say how its run ends. No errors; but `except Exception` in a task catches them."""


class Retry(ControlFlow):
    """Run again; the attempt counts. `delay` (timedelta, seconds or text; kept as seconds) None: the ladder decides."""

    def __init__(self, delay: clock.Delay | None = None, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay = None if delay is None else clock.seconds(delay)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "retry"


class Snooze(ControlFlow):
    """Not now: run again after `delay` (timedelta, seconds or text; kept as seconds, one at least). The attempt does not count."""

    def __init__(self, delay: clock.Delay, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay = max(SHORTEST_SNOOZE, clock.seconds(delay))
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "snooze"


class Fail(ControlFlow):
    """Do not try again: the job fails now, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "failed by the task"


class SoftTimeout(Exception):
    """Raised inside a task when its timeout has passed.

    An ordinary `Exception`, so that a task may catch it to clean up or to end well; uncaught, it is a failed attempt
    like any other. A task that ignores it is stopped with its process a little later.
    """
