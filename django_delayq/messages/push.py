"""`push`: schedules messages. They are jobs without a task that consumers pull and no worker runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django_delayq import clock, codec, ids
from django_delayq.exceptions import ConfigError
from django_delayq.ladder import Ladder
from django_delayq.producer.async_api import like, refuse_loop, scheduled
from django_delayq.producer.job import Job
from django_delayq.producer.options import Conflict, Durability, Options
from django_delayq.producer.schedule import put_in
from django_delayq.states import MESSAGE


class MessageKind:
    """Takes the place of the task."""

    name: str = MESSAGE
    queue: str = ""  # each push names its queue
    priority: int = 0
    max_attempts: int | None = None
    late: bool = False
    named: None = None  # messages have no concurrency name
    signature: None = None
    sensitive: tuple[str, ...] = ()

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """PayloadError unless the body is JSON."""
        codec.check(args[0], "body")

    check_typed = check_arguments


KIND: Final = MessageKind()


def push(
    queue: str,
    body: Any,
    *,
    delay: clock.Delay | None = None,
    run_at: datetime | None = None,
    key: str = "",
    on_conflict: Conflict = "keep",
    priority: int | None = None,
    max_attempts: int | None = None,
    backoff: Ladder | str | None = None,
    expires: clock.Delay | datetime | None = None,
    meta: Mapping[str, Any] | None = None,
    using: str | None = None,
    durability: Durability | None = None,
) -> Job:
    """Puts a message into a queue whose `CONSUMER` is "pull": `push("mail", {"to": "…"}, delay="10m")`.

    Args:
        body: any JSON value; `pull` returns it unchanged.
        delay, run_at: when it can be pulled; none: now.
        options: others of `delayq.schedule`.

    Raises:
        PayloadError, PayloadTooLarge: JSON cannot hold the body, or it is larger than MAX_PAYLOAD of the queue.
        QueueUnknown, ConfigError: the queue is unknown or one of workers, or an option is not valid.
        KeyTaken, StoreUnavailable, SynchronousOnlyOperation: as `delayq.schedule`.
    """
    refuse_loop("delayq.apush(…)")
    given = Options(delay, run_at, key, expires, meta, on_conflict, queue, priority, max_attempts, backoff, None, using, durability)
    return put_in(KIND, _checked(given), (body,), {})


@like(push)
async def apush(queue: str, body: Any, **given: Any) -> Job:
    """Async version of `push`. It commits by itself.

    Raises:
        CancelledError: whether the message was put in is not known; the error has its id in a tuple, `jobs`.
        As `push`.
    """
    id = ids.new()
    return await scheduled([id], put_in, KIND, _checked(Options(queue=queue, **given)), (body,), {}, id)


def _checked(options: Options) -> Options:
    if not isinstance(options.queue, str) or not options.queue:
        raise ConfigError(
            f"push() was given {options.queue!r} as the queue: write push('mail', body), with a name in DELAYQ['QUEUES']."
        )
    return options
