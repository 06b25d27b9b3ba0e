"""`push`: schedules messages. They are jobs without a task that consumers pull and no worker runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Unpack

from django_delayq import codec, ids
from django_delayq.exceptions import ConfigError
from django_delayq.job_meta import MAX_NAME, is_text
from django_delayq.producer.async_api import like, refuse_loop, scheduled
from django_delayq.producer.job import Job
from django_delayq.producer.options import MessageOptions, Options
from django_delayq.producer.schedule import put_in
from django_delayq.states import MESSAGE
from django_delayq.text import did_you_mean


class MessageKind:
    """Takes the place of the task. `rate_name`: the name of the rate of a message, or "". All kinds share one template."""

    name: str = MESSAGE
    queue: str = ""  # each push names its queue
    priority: int = 0
    max_attempts: int | None = None
    late: bool = False
    version: int = 1
    named: None = None  # messages have no concurrency name
    rated: None = None
    rate_name: str = ""
    signature: None = None
    sensitive: tuple[str, ...] = ()

    def __init__(self, rate_name: str = "") -> None:
        self.rate_name = rate_name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageKind)

    def __hash__(self) -> int:
        return hash(MessageKind)

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """PayloadError unless the body is JSON."""
        codec.check(args[0], "body")

    check_typed = check_arguments


class PushOptions(MessageOptions, total=False):
    """The options of `push`, for type checkers."""

    rate: str


KIND: Final = MessageKind()
_NAMES: Final = (*MessageOptions.__annotations__, "rate")


def push(queue: str, body: Any, **options: Unpack[PushOptions]) -> Job:
    """Adds a message to a queue whose `CONSUMER` is "pull": `push("mail", {"to": "…"}, delay="10m")`.

    Args:
        body: Any JSON value. `pull` returns it unchanged.
        rate: The name of a rate, such as "bank:7". Consumers get messages with this name at most as often as the queue's `RATE` says.
        options: The options of `schedule`, except queue, timeout, serial and concurrency. By default, consumers can pull the
            message immediately.

    Raises:
        PayloadError, PayloadTooLarge: The body can't be represented in JSON, or is larger than the queue's `MAX_PAYLOAD`.
        QueueUnknown, ConfigError: The queue is unknown or is served by workers, or an option is invalid.
        KeyTaken, StoreUnavailable, SynchronousOnlyOperation: See `delayq.schedule`.
    """
    refuse_loop("delayq.apush(…)")
    kind, given = _kind(options), _options(queue, options)
    return put_in(kind, given, (body,), {})


@like(push)
async def apush(queue: str, body: Any, **options: Unpack[PushOptions]) -> Job:
    """Async version of `push`. It uses its own transaction.

    Raises:
        CancelledError: It is unknown whether the message was added. The exception's `jobs` attribute is a tuple with its id.
        As `push`.
    """
    id, kind, given = ids.new(), _kind(options), _options(queue, options)
    return await scheduled([id], put_in, kind, given, (body,), {}, id)


def _kind(options: PushOptions) -> MessageKind:
    """Takes the option `rate`, which is no option of other jobs."""
    rate = options.pop("rate", "")
    if rate != "" and not is_text(rate):
        raise ConfigError(f"push(): rate={rate!r} must be a name as text, with 1 to {MAX_NAME} printable characters.")
    return MessageKind(rate) if rate else KIND


def _options(queue: str, given: PushOptions) -> Options:
    if not isinstance(queue, str) or not queue:
        raise ConfigError(
            f"push() was given {queue!r} as the queue. Pass the name of a queue in DELAYQ['QUEUES'], as in push('mail', body)."
        )
    for name in given:
        if name not in _NAMES:
            raise ConfigError(
                f"push(): {name!r} is an unknown option{did_you_mean(name, _NAMES)}. The options are: {', '.join(_NAMES)}."
            )
    return Options(queue=queue, **given)
