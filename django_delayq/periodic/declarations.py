"""Schedules that code declares: the decorator `periodic`, the declarations by name, and their system checks. No rows and no Redis."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_args, overload

from django.core.checks import CheckMessage

from django_delayq import clock, codec, conf, durations
from django_delayq.exceptions import ConfigError, DelayqError, PayloadError
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.dates import installed as cronsim_installed
from django_delayq.producer.options import NONE, templates
from django_delayq.producer.options import OPTIONS as JOB_OPTIONS
from django_delayq.producer.task import Task, registry, task
from django_delayq.states import PERIODIC
from django_delayq.store.scripts.record import MAX_TASK
from django_delayq.text import did_you_mean

if TYPE_CHECKING:
    from django_delayq.models import Periodic

P = ParamSpec("P")
R = TypeVar("R")

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "wait"]
MISSED: Final[tuple[str, ...]] = get_args(Missed)
OVERLAP: Final[tuple[str, ...]] = get_args(Overlap)
MAX_NAME: Final = MAX_TASK  # characters; the name is usually that of the task
TICK_OPTIONS: Final = NONE._replace(durability="outbox")  # of the job of a tick
LONGEST: Final = datetime.max.replace(tzinfo=UTC)  # no tick takes more room in a payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One schedule that code declares.

    Args:
        name: the schedule's, unique in the project.
        task: the name of its task.
        dates: when it ticks.
        missed, overlap: one of `MISSED`, one of `OVERLAP`.
        args, kwargs: the arguments of its jobs.
        fingerprint: 12 hexadecimal digits of a hash of all of the above.
        place: where it is declared, such as "shop.tasks, line 12"; for errors.
    """

    name: str
    task: str
    dates: Dates
    missed: str = "once"
    overlap: str = "allow"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    place: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.fingerprint:
            fields = [self.name, self.task, astuple(self.dates), self.missed, self.overlap, self.args, sorted(self.kwargs.items())]
            object.__setattr__(self, "fingerprint", hashlib.sha256(codec.dumps(fields)).hexdigest()[:12])


class Declarations:
    """The declarations of this process by name."""

    def __init__(self) -> None:
        self._all: dict[str, tuple[Declaration, Task[Any, Any]]] = {}

    def add(self, declaration: Declaration, task: Task[Any, Any]) -> None:
        """Adds a declaration. A module that is imported again replaces its own.

        Raises:
            ConfigError: another one has its name.
        """
        known, its_task = self._all.get(declaration.name, (None, None))
        if known is not None and (known.place != declaration.place or its_task is task):
            raise ConfigError(
                f"Two schedules have the name {declaration.name!r}: the one in {known.place}, and the one in {declaration.place}.",
                hint="Set a different name= for each schedule. The default is the name of the task.",
            )
        self._all[declaration.name] = (declaration, task)

    def get(self, name: str) -> Declaration | None:
        """The declaration of that name, or None."""
        declaration, _ = self._all.get(name, (None, None))
        return declaration

    def all(self) -> list[Declaration]:
        """All of them, by name."""
        return [self._all[name][0] for name in sorted(self._all)]


declarations: Final = Declarations()


class PeriodicOptions(TypedDict, total=False):
    """The options of `periodic` that both crons and periods have."""

    missed: Missed
    overlap: Overlap
    jitter: durations.Delay | None
    name: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None


@overload
def periodic(
    cron: str, *, timezone: str | None = None, **options: Unpack[PeriodicOptions]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


@overload
def periodic(*, every: durations.Delay, **options: Unpack[PeriodicOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def periodic(
    cron: Any = "",
    *given: Any,
    every: durations.Delay | None = None,
    timezone: str | None = None,
    missed: str = "once",
    overlap: str = "allow",
    jitter: durations.Delay | None = None,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> Any:
    """Runs a task on a schedule: `@periodic("0 3 * * *", timezone="Europe/Berlin")`, or `@periodic(every="10m")`. Place it above
    `@task`. A plain function becomes a task.

    Args:
        cron: A cron expression: minute, hour, day of month, month and day of week.
        every: A period of at least one second, counted from 1970. Use either `cron` or `every`.
        timezone: The time zone of the cron expression, such as "Europe/Berlin". The default is Django's `TIME_ZONE`. Not allowed
            with `every`.
        missed: What happens to ticks that were missed because no worker was running: "skip" drops them, "once" runs the newest one,
            and "all" runs all of them.
        overlap: What happens if the previous run is still in progress: "allow" starts another run, "skip" cancels it, and "wait"
            starts it later.
        jitter: The maximum random delay for each job. It is always the same for a given tick.
        name: The schedule's name, which must be unique in the project. The default is the task's name.
        args, kwargs: The arguments of each job.

    Raises:
        ConfigError: An option is unknown or invalid, the arguments don't match the task, or another schedule has the same name.
    """
    frame = sys._getframe(1)
    place = f"{frame.f_globals.get('__name__', '?')}, line {frame.f_lineno}"
    where = f"@periodic in {place}"
    if unknown:
        strange = next(iter(unknown))
        known = _ELSEWHERE.get(strange)
        meant = f" (here it is {known})" if known else did_you_mean(strange, ("cron", *OPTIONS))
        raise ConfigError(f"{where}: {strange!r} is an unknown option{meant}.", hint=f"The options are: {', '.join(OPTIONS)}.")
    if given or not isinstance(cron, str):
        shown = given[0] if given else cron
        raise ConfigError(
            f"{where}: it was given {shown!r}.",
            hint="Write @periodic('0 3 * * *') or @periodic(every='10m'). All other options are keyword arguments.",
        )
    dates = _dates(cron, every, timezone, jitter, where)
    check_policies(where, missed, overlap)
    if name is not None:
        check_name(where, name)
    arguments, named = check_arguments(where, args, kwargs)

    def decorate(function: Any) -> Task[Any, Any]:
        if not callable(function):
            raise ConfigError(f"{where}: it decorates {function!r}, which is not a function.", hint="Place it above a function.")
        ready: Task[Any, Any] = function if isinstance(function, Task) else task(function)
        try:
            ready.check_arguments(arguments, named)
            codec.encode_payload(arguments, named, None, limit=sys.maxsize, task=ready.name)
        except PayloadError as error:
            raise _refused(error, ready, where) from None
        declaration = Declaration(
            name=name or ready.name,
            task=ready.name,
            dates=dates,
            missed=missed,
            overlap=overlap,
            args=arguments,
            kwargs=named,
            place=place,
        )
        declarations.add(declaration, ready)
        return ready

    return decorate


OPTIONS: Final = tuple(name for name, one in inspect.signature(periodic).parameters.items() if one.kind is one.KEYWORD_ONLY)
# The names in other schedulers.
_ELSEWHERE: Final = {
    "crontab": "the first argument, '0 3 * * *'",
    "schedule": "the first argument, '0 3 * * *'",
    "minute": "the first field of the cron, '30 * * * *'",
    "hour": "the second field of the cron, '0 3 * * *'",
    "day_of_week": "the fifth field of the cron, '0 3 * * MON'",
    "tz": "timezone=",
    "interval": "every=, such as every='10m'",
    "run_every": "every=, such as every='10m'",
    "seconds": "every=, such as every='30s'",
    "minutes": "every=, such as every='10m'",
    "hours": "every=, such as every='2h'",
    "days": "every=, such as every='1d', or a cron",
    "misfire_grace_time": "missed=",
    "coalesce": "missed='once'",
    "max_instances": "overlap='skip'",
    "queue": "an option of the task: @delayq.task(queue=…) below it",
}


def _dates(cron: str, every: durations.Delay | None, timezone: str | None, jitter: durations.Delay | None, where: str) -> Dates:
    if every is not None and timezone is not None:
        raise ConfigError(
            f"{where}: timezone={timezone!r} has no effect with every={every!r}.",
            hint="Remove it. To run a task at a time of day, use a cron expression.",
        )
    if timezone is None:
        timezone = conf.project_timezone() if every is None and cron else "UTC"
    return Dates.of(cron, every=every, timezone=timezone, jitter=jitter, where=where)


def check_policies(where: str, missed: str, overlap: str) -> None:
    """Raises ConfigError if one of the policies is unknown."""
    for option, value, known in (("missed", missed, MISSED), ("overlap", overlap, OVERLAP)):
        if value not in known:
            raise ConfigError(f"{where}: {option}={value!r} is not one of {', '.join(known)}{did_you_mean(value, known)}.")


def check_arguments(where: str, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the jobs. Raises ConfigError if they are of the wrong types."""
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise ConfigError(f"{where}: args={args!r} must be a list or tuple of arguments.", hint="For one: args=('eu',).")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigError(f"{where}: kwargs={kwargs!r} must be a dict of arguments.", hint="For example: kwargs={'region': 'eu'}.")
    return tuple(args), dict(kwargs or {})


def _refused(error: PayloadError, ready: Task[Any, Any], where: str) -> ConfigError:
    """The error of arguments as the decorator raises it."""
    strange = error.fields.get("argument")
    if error.code == "argument_unknown" and strange in JOB_OPTIONS:  # the hint of `schedule` does not help here
        hint = "Set options of its jobs in @delayq.task(…) below it; the schedule sets their dates."
        return ConfigError(f"{where}: {ready.name}{error.fields['signature']} has no argument {strange!r}.", hint=hint)
    return ConfigError(f"{where}: {str(error).rstrip('.')}.", hint="Jobs get the arguments in args=(…) and kwargs={…}.")


def check_name(where: str, name: Any) -> None:
    """Raises ConfigError if no schedule can have that name."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{where}: name={name!r} must be 1 to {MAX_NAME} printable characters, with no space at either end.",
            hint="Such as name='weekly-eu'.",
        )


def check_jobs(one: Periodic | Declaration) -> None:
    """Checks whether the ticks of a schedule can have jobs.

    Raises:
        UnknownTask: the task is not registered in this process.
        PayloadError, PayloadTooLarge: the arguments do not fit the task or its queue.
        QueueUnknown: the settings do not list the queue.
    """
    args, kwargs = tuple(one.args), dict(one.kwargs)
    template = templates.get(registry.get(one.task), TICK_OPTIONS, None)
    template.check(args, kwargs)
    template.payload_of(args, kwargs, {PERIODIC: tick_meta(one, LONGEST, by_hand=True)})


def tick_meta(row: Periodic | Declaration, at: datetime, *, by_hand: bool = False) -> dict[str, Any]:
    """The meta of a tick's job."""
    tick: dict[str, Any] = {"name": row.name, "tick": at.isoformat()}
    if row.overlap != "allow":
        tick["overlap"] = row.overlap
    if by_hand:
        tick["by_hand"] = True
    return tick


def check_declarations(**_: Any) -> list[CheckMessage]:
    """System checks of declared schedules: mistakes that only the whole project or this host shows."""
    from django_delayq.findings import check_message  # a web process needs no findings

    found = []
    for one in declarations.all():
        where = f"The schedule {one.name} ({one.place})"
        cron = f"{where} has the cron {one.dates.cron!r}"
        if one.dates.cron and not cronsim_installed():
            text = f"{cron}, and the package cronsim is not installed, so the schedule would never run."
            found.append(check_message("E034", text))
            continue
        try:
            if one.dates.first_after(clock.now()) is None:
                text = f"{cron}, which never fires: no such day exists, or the clock skips that time on it."
                found.append(check_message("E033", text))
        except ConfigError as error:  # no package could read it where it was declared
            found.append(check_message("E033", f"{where}: {error}", error.fields.get("hint", "")))
    for one in [] if conf.problems() else declarations.all():
        task = registry.find(one.task)
        if task is None or task.queue not in conf.get().queues:
            continue  # E005 and E004 report these
        try:
            check_jobs(one)
        except DelayqError as error:
            text = f"The schedule {one.name} ({one.place}): none of its jobs could be scheduled: {error}"
            found.append(check_message("E035", text))
    return found
