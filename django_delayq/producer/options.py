"""The options of `schedule`, and the dates that they say."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypedDict, get_args

from django_delayq import clock
from django_delayq.exceptions import ConfigError
from django_delayq.ladder import Ladder
from django_delayq.producer import equivalents

# The words of schedule(); a task's own parameter of such a name could not be told from them.
OPTIONS: Final = (
    "delay",
    "run_at",
    "key",
    "on_conflict",
    "queue",
    "priority",
    "max_attempts",
    "backoff",
    "timeout",
    "expires",
    "meta",
    "using",
    "durability",
)
Conflict = Literal["keep", "replace", "earliest", "latest", "after", "error"]
Durability = Literal["outbox", "redis"]
POLICIES: Final[tuple[str, ...]] = get_args(Conflict)


class JobOptions(TypedDict, total=False):
    """The options of `schedule` as a type checker sees them. None: what the task or the queue says."""

    delay: clock.Delay | None
    run_at: datetime | None
    key: str
    on_conflict: Conflict
    queue: str | None
    priority: int | None
    max_attempts: int | None
    backoff: Ladder | str | None
    timeout: clock.Delay | None
    expires: clock.Delay | datetime | None
    meta: Mapping[str, Any] | None
    using: str | None
    durability: Durability | None


class Options(NamedTuple):
    """How one job is to be scheduled. None: what the task or the queue says. The first `OWN` differ from job to job; the others are
    what its mould is made of.
    """

    delay: clock.Delay | None = None
    run_at: datetime | None = None
    key: str = ""
    expires: clock.Delay | datetime | None = None
    meta: Mapping[str, Any] | None = None
    on_conflict: str = "keep"
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    backoff: Ladder | str | None = None
    timeout: clock.Delay | None = None
    using: str | None = None
    durability: str | None = None

    def but(self, given: Mapping[str, Any], task: str) -> Options:
        """These options, with those given in place of their own. `task`: its name, for errors.

        Raises:
            ConfigError: an option is unknown; the text names the nearest known one.
        """
        try:
            return Options(**given) if self is NONE else self._replace(**given)
        except (TypeError, ValueError):
            name = next(name for name in given if name not in NAMES)
            meant = equivalents.of_option(name, OPTIONS)
            raise ConfigError(f"{task}.using(): {name!r} is no option{meant}. The options are: {', '.join(OPTIONS)}.") from None


NONE: Final = Options()
NAMES: Final = frozenset(OPTIONS)
OWN: Final = Options._fields.index("on_conflict")


def date(delay: clock.Delay | None, run_at: datetime | None, where: str) -> tuple[int | None, int]:
    """(delay ms, due ms) of run_at or delay; delay ms is None for a date.

    Raises:
        ConfigError: both, no duration, naive, or a date outside the years that rows and clocks hold.
    """
    if run_at is not None:
        if delay is not None:
            raise ConfigError(f"{where}: give delay or run_at, not both.")
        return None, moment(run_at, "run_at", where)
    delay_ms = duration(delay, "delay", where) if delay is not None else 0
    return delay_ms, clock.wall_ms() + delay_ms


def moment(value: Any, option: str, where: str) -> int:
    """Milliseconds since 1970 of an aware datetime, else ConfigError."""
    if not isinstance(value, datetime):
        raise ConfigError(f"{where}: {option} must be an aware datetime, not {value!r}. For a duration use delay.")
    try:
        ms = clock.to_ms(value)
    except ValueError:
        raise ConfigError(
            f"{where}: {option}={value!r} is naive: it does not say in which time zone. "
            "Use django.utils.timezone.now() or timezone.make_aware(value)."
        ) from None
    if not 0 <= ms <= clock.LAST_MS:
        raise ConfigError(
            f"{where}: {option}={value!r} lies before 1970 or at the end of the year 9999 or later, where no clock and no "
            "database follows. For a job that shall not run yet, schedule it when it shall."
        )
    return ms


def duration(value: Any, option: str, where: str) -> int:
    """Milliseconds of a duration, else ConfigError."""
    try:
        return clock.milliseconds(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {option} is no duration: {error}") from None
