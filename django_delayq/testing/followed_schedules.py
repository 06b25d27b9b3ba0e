"""Schedules that a test follows: the real loop makes their ticks while time passes in the test. Other schedules have no ticks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import Any, NoReturn

from django_delayq import clock
from django_delayq.exceptions import ConfigError
from django_delayq.models import Periodic
from django_delayq.periodic.declarations import Declarations, declarations
from django_delayq.periodic.due_ticks import TickLoop
from django_delayq.periodic.schedule_rows import dates_of
from django_delayq.producer.schedule import Bound
from django_delayq.producer.task import registry
from django_delayq.testing.scheduled_jobs import task_name
from django_delayq.text import did_you_mean


class FollowedLoop(TickLoop):
    """The loop of workers, limited to these schedules. An error in a schedule is raised in the test."""

    def __init__(self, *, names: frozenset[str]) -> None:
        self._names = names
        declared = Declarations()
        for one in declarations.all():
            if one.name in names:
                declared.add(one, registry.get(one.task))
        super().__init__(declared=declared)

    def _rows(self) -> Any:
        return super()._rows().filter(name__in=self._names)

    def _block(self, one: Any, error: Exception, now: datetime) -> NoReturn:
        raise error


class FollowedSchedules:
    """The schedules that one test follows; empty at the start."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._loop: FollowedLoop | None = None

    def follow(self, names: frozenset[str]) -> None:
        """Follows these schedules, too, from now on."""
        self._names |= names
        self._loop = None  # made again, because settings may have changed

    def write(self) -> None:
        """Writes the ticks that are due. It costs nothing if no schedule is followed."""
        if not self._names:
            return
        if self._loop is None:
            self._loop = FollowedLoop(names=self._names)
        while self._loop.poll() == 0.0:
            pass

    def write_until(self, until_ms: int, move: Callable[[int], None]) -> None:
        """Writes the ticks until then, each at its time; `move` moves the clock."""
        self.write()
        while (tick := self.next_ms()) is not None and tick <= until_ms:
            move(tick)
            self.write()

    def next_ms(self) -> int | None:
        """The time of the next write in ms; None: never."""
        if not self._names:
            return None
        rows = Periodic.objects.filter(name__in=self._names, write_at__gt=clock.now())
        following = rows.order_by("write_at").values_list("write_at", flat=True).first()
        return None if following is None else clock.to_ms(following)


def named(schedule: Any) -> frozenset[str]:
    """The names of the schedules: the given name, or the names of all schedules that the code declares for a task.

    Raises:
        ConfigError: no such schedule exists.
    """
    if isinstance(schedule, Bound):
        task = task_name(schedule)
        found = frozenset(one.name for one in declarations.all() if one.task == task)
        if not found:
            raise ConfigError(f"No schedule is declared for {task}.", hint="Add @delayq.periodic(…) above the task.")
        return found
    if not isinstance(schedule, str):
        raise ConfigError(f"{schedule!r} is not a schedule.", hint="Pass the name of a schedule, or its task.")
    # A name is printable. A database may refuse other text in a query.
    if not schedule.isprintable() or (declarations.get(schedule) is None and not _rows(schedule).exists()):
        near = did_you_mean(schedule, [one.name for one in declarations.all()])
        raise ConfigError(f"No schedule is named {schedule!r}{near}.", hint="Pass the name of a schedule, or its task.")
    return frozenset((schedule,))


def upcoming(schedule: Any, count: int) -> list[datetime]:
    """The next dates of one schedule. They come from its row, if it has one, since people may have changed them there; otherwise from
    the code.

    Raises:
        ConfigError: no such schedule exists, or the task has several. ValueError: `count` is not a whole number from 0.
    """
    if type(count) is not int or count < 0:
        raise ValueError(f"upcoming(count={count!r}): count must be a whole number of at least 0.")
    names = named(schedule)
    if len(names) > 1:
        raise ConfigError(f"{schedule!r} has several schedules: {', '.join(sorted(names))}.", hint="Pass one of these names.")
    [name] = names
    row, declared = _rows(name).first(), declarations.get(name)
    if row is not None:
        return list(islice(dates_of(row).after(clock.now()), count)) if row.active else []
    assert declared is not None  # otherwise `named` has raised
    return list(islice(declared.dates.after(clock.now()), count))


def _rows(name: str) -> Any:
    return Periodic.objects.filter(name=name)
