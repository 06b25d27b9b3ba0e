"""The dates of a schedule: a cron of five fields in a time zone, or a period counted from 1970. Without rows, settings or the current
time.

`cronsim` (the extra `cron`) parses the fields and computes plain dates, as if no clock were ever changed. This module handles clock
changes as Debian's cron does:

- A fixed time (neither the minute nor the hour starts with `*`) fires when the zone's clock first shows it or a later time: in a
  gap once, at its end; in an overlap once, the first time.
- Any other cron fires whenever that clock shows it: in a gap not at all, in an overlap twice. So `*/15 * * * *` is every 15 minutes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.util import find_spec
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from django_delayq import clock, durations
from django_delayq.exceptions import ConfigError
from django_delayq.text import did_you_mean

if TYPE_CHECKING:  # imported only when a schedule needs them, so a project without schedules does not load them
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

SHORTEST_MS: Final = 1_000  # the smallest `every`, because each tick is a row
LONGEST_JITTER_MS: Final = 86_400_000
MAX_CRON: Final = 200  # characters, as its column holds
MAX_TIMEZONE: Final = 64
NO_PLACES: Final = frozenset({"localtime", "posixrules", "Factory"})  # files next to the zones of places
# Each field with its valid values, and the size of its range.
FIELDS: Final = (
    ("minute", "0 to 59", 60),
    ("hour", "0 to 23", 24),
    ("day of month", "1 to 31, L (the last), or LW (the last weekday)", 31),
    ("month", "1 to 12, or JAN to DEC", 12),
    ("day of week", "0 to 7 (0 and 7 are Sunday) or SUN to SAT, 5L (the last Friday), or 1#2 (the second Monday)", 7),
)
# Other words that crontabs accept.
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ANY_DAY: Final = datetime(2000, 1, 1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_LONGEST: Final = timedelta(days=50 * 365)  # how long the search for a tick goes on, as in cronsim; see `_fires`


@dataclass(frozen=True, slots=True)
class Dates:
    """When a schedule ticks. `Dates.of` checks the values that people write; this class does not check them.

    Args:
        cron: five fields, or "" for a period.
        every_ms: the period in milliseconds, counted from 1970 in UTC; 0 for a cron.
        timezone: the name of the zone of the cron. A period does not use it.
        jitter_ms: the job of each tick is due less than this many milliseconds after it.
    """

    cron: str = ""
    every_ms: int = 0
    timezone: str = "UTC"
    jitter_ms: int = 0

    @classmethod
    def of(
        cls,
        cron: str = "",
        *,
        every: durations.Delay | None = None,
        timezone: str = "UTC",
        jitter: durations.Delay | None = None,
        where: str = "dates",
    ) -> Dates:
        """The dates that a person has written. `where`: the place for error messages. A cron is checked only if `cronsim` is
        installed. If it is not, a system check reports that.

        Raises:
            ConfigError: it is neither a cron nor a period, or both, or one of the parts cannot work.
        """
        if (every is None) == (not cron):
            given = "both a cron and every=" if cron else "neither a cron nor every="
            raise ConfigError(f"{where}: it has {given}.", hint="Use one of them: '0 3 * * *', or every='10m'.")
        jitter_ms = 0 if jitter is None else _duration(jitter, "jitter", where)
        if jitter_ms > LONGEST_JITTER_MS:
            raise ConfigError(f"{where}: jitter={jitter!r} is longer than one day.", hint="Use a shorter jitter, such as '5m'.")
        if every is None:
            return cls(cron=_cron(cron, where), timezone=_timezone(timezone, where), jitter_ms=jitter_ms)
        # A negative period is also too short. The error of `clock` for it would name 0 as the minimum.
        negative = every < timedelta(0) if isinstance(every, timedelta) else isinstance(every, int | float) and every < 0
        every_ms = -1 if negative else _duration(every, "every", where)
        if every_ms < SHORTEST_MS:
            raise ConfigError(f"{where}: every={every!r} is too short.", hint="The minimum is one second: every='1s'.")
        if jitter_ms >= every_ms:
            raise ConfigError(
                f"{where}: jitter={jitter!r} is not shorter than every={every!r}, so a job could be due after the next tick's job.",
                hint="Choose a shorter jitter, or remove it.",
            )
        return cls(every_ms=every_ms, jitter_ms=jitter_ms)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """All ticks after that moment, in order, as aware datetimes in UTC on whole seconds (for a period, milliseconds). They end
        where datetimes end, and at once for a cron that never fires. The ticks do not depend on the moment at which the search
        begins.

        Raises:
            ConfigError: the cron or the zone cannot be read, or `cronsim` is not installed.
            ValueError: the moment is naive.
        """
        if moment.utcoffset() is None:
            raise ValueError(f"{moment!r} is naive, because it has no time zone.")
        try:
            if self.every_ms:
                for number in count((moment - _EPOCH) // _MILLISECOND // self.every_ms + 1):
                    yield _EPOCH + number * self.every_ms * _MILLISECOND
            elif self.fires:
                zone, since = zone_of(self.timezone), moment.astimezone(UTC).replace(microsecond=0)
                fixed = not any(field.startswith("*") for field in self.cron.split()[:2])
                yield from self._fixed(since, zone) if fixed else self._elapsed(since, zone)
        except OverflowError:  # the end of the year 9999
            return

    def first_after(self, moment: datetime) -> datetime | None:
        """The first tick after that moment; None after the last one.

        Raises:
            ConfigError: as `after`.
        """
        return next(self.after(moment), None)

    def jittered(self, name: str, tick: datetime) -> datetime:
        """When the job of a tick is due. The result is the same for every caller."""
        if not self.jitter_ms:
            return tick
        drawn = hashlib.sha256(f"{name} {clock.to_ms(tick)}".encode()).digest()
        return tick + int.from_bytes(drawn[:8]) % self.jitter_ms * _MILLISECOND

    @property
    def fires(self) -> bool:
        """Whether the calendar has any tick. The 30th of February, for example, has none.

        Raises:
            ConfigError: as `after`.
        """
        return bool(self.every_ms) or _fires(self.cron)

    @property
    def text(self) -> str:
        """The dates as in a crontab: "0 3 * * *, Europe/Berlin", "every 10m", "every 10m, jitter 1m"."""
        said = f"every {durations.text(self.every_ms / 1000)}" if self.every_ms else f"{self.cron}, {self.timezone}"
        return f"{said}, jitter {durations.text(self.jitter_ms / 1000)}" if self.jitter_ms else said

    @property
    def words(self) -> str:
        """The dates in English: "At 03:00 every day, Europe/Berlin". For a period, and a cron that never fires, the same as `text`.

        Raises:
            ConfigError: as `after`.
        """
        if self.every_ms or not self.fires:
            return self.text
        return f"{_walls(self.cron, _ANY_DAY).explain()}, {self.timezone}"

    def _fixed(self, since: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        # Starting at the local time of `since` loses no tick, because the clock has shown all earlier times. Times that repeat in an
        # overlap, and those that a gap moves to one moment, are skipped.
        for wall in _walls(self.cron, _wall(since, zone)):
            tick = _first_shown(wall, zone)
            if tick > since:
                yield tick
                since = tick

    def _elapsed(self, since: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        begin, last = _wall(since, zone), since
        while True:
            offset, change = _offset(since, zone), None
            for wall in _walls(self.cron, begin):
                tick = (wall - offset).replace(tzinfo=UTC)
                change = _change(since, tick, zone)
                if change is not None:
                    break
                yield tick
                since = last = tick
            if change is None or change - last > _LONGEST:
                return  # the latter: all its times are in gaps, such as the last Sunday in March from 2:00 to 2:59 in Berlin
            since, begin = change, _wall(change, zone) - _SECOND  # at the change itself there may be a tick


def installed() -> bool:
    """Whether `cronsim` is installed."""
    return find_spec("cronsim") is not None


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name.

    Raises:
        ConfigError: this host does not know the name.
    """
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; not a valid name; a folder of zones
        known = available_timezones()
        if not known:
            hint = "This host has no time zone data. Run pip install tzdata."
        else:
            hint = "Write a name as in the IANA database, such as 'Europe/Berlin' or 'UTC'; a newer one may need a newer tzdata."
        raise ConfigError(f"{name!r} is not a time zone that this host knows{did_you_mean(name, known)}.", hint=hint) from None


def place_of(name: str) -> ZoneInfo:
    """Like `zone_of`, for a name that a person writes.

    Raises:
        ConfigError: as `zone_of`; or it is not the zone of a place.
    """
    if name in NO_PLACES or name.startswith("right/"):
        raise ConfigError(
            f"{name!r} is not a geographic time zone. Its definition can differ between hosts, or it includes leap seconds.",
            hint="Use a name from the IANA database, such as 'Europe/Berlin' or 'UTC'.",
        )
    return zone_of(name)


def _timezone(name: Any, where: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TIMEZONE:
        raise ConfigError(f"{where}: timezone={name!r} must be the name of a time zone.", hint="For example: timezone='Europe/Berlin'.")
    try:
        place_of(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: timezone: {error.fields['message']}", hint=error.fields["hint"]) from None
    return name


def _cron(cron: Any, where: str) -> str:
    """The cron with single spaces."""
    if not isinstance(cron, str) or len(cron) > MAX_CRON:
        raise ConfigError(
            f"{where}: the cron expression {cron!r} must be text of at most {MAX_CRON} characters.", hint="For example: '0 3 * * *'."
        )
    parts = cron.split()
    if len(parts) != len(FIELDS):
        meant = _NICKNAMES.get(cron.strip().lower())
        hint = f"Use {meant!r}." if meant else "For example, '0 3 * * *' is every night at three. For seconds, use every='10s'."
        fields = ", ".join(name for name, _, _ in FIELDS)
        raise ConfigError(f"{where}: the cron expression {cron!r} has {len(parts)} fields. It must have five: {fields}.", hint=hint)
    if not installed():
        return " ".join(parts)
    for number, (part, (name, takes, size)) in enumerate(zip(parts, FIELDS, strict=True)):
        try:
            _alone(number, part)
        except _unreadable():
            raise ConfigError(
                f"{where}: the cron expression {cron!r} has {part!r} as {name}, which is not valid.",
                hint=f"Use {takes}. Ranges such as 1-5, lists such as 1,3,5, steps such as */10, and * are also allowed.",
            ) from None
        for term in part.split(","):
            base, _, step = term.partition("/")
            # */90 would be read as 0 alone, and 5-5/1 as 5/1, which is everything from 5 on: neither is what the user meant.
            if step and int(step) >= (_span(number, base) if "-" in base else size):
                raise ConfigError(
                    f"{where}: the cron expression {cron!r} has {part!r} as {name}, but a step of {step} is too large for {base}.",
                    hint="To run a task at a fixed interval, use every=, such as every='90m'.",
                )
    return " ".join(parts)


def _span(number: int, part: str) -> int:
    """The number of values of one field."""
    found = _alone(number, part)
    return len((found.minutes, found.hours, found.days, found.months, found.weekdays)[number])


def _alone(number: int, part: str) -> CronSim:
    fields = ["*"] * len(FIELDS)
    fields[number] = part
    return _walls(" ".join(fields), _ANY_DAY)


def _unreadable() -> tuple[type[Exception], ...]:
    """The exceptions of `cronsim` for an invalid cron; the last two for cases that it does not handle."""
    return _cronsim().CronSimError, ValueError, AssertionError


def _duration(value: Any, option: str, where: str) -> int:
    try:
        return durations.milliseconds(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {option}={error}.") from None


@lru_cache(maxsize=1024)
def _fires(cron: str) -> bool:
    """Whether a cron ever fires. `cronsim` searches 50 years, which takes tens of milliseconds. The longest time between two ticks is
    40 years, between two 29ths of February on one day of the week, with 2100 between them.
    """
    unreadable = _unreadable()
    try:
        return next(_walls(cron, _ANY_DAY), None) is not None
    except unreadable:  # `cronsim` also raises this for a day that none of these months has
        _cron(cron, "dates")
        return False


def _walls(cron: str, begin: datetime) -> CronSim:
    """All matching times after `begin`, as naive datetimes on a clock that is never changed."""
    found: CronSim = _cronsim().CronSim(cron, begin)
    return found


def _cronsim() -> ModuleType:
    try:
        import cronsim
    except ImportError:
        raise ConfigError(
            "A schedule with a cron expression requires the package cronsim.", hint='pip install "django-delayq[cron]"'
        ) from None
    return cronsim


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    """The local time in the zone, as a naive datetime."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _first_shown(wall: datetime, zone: ZoneInfo) -> datetime:
    """The moment at which the clock of the zone first shows that time. If the clock skips it, the next moment after the gap."""
    tick = wall.replace(tzinfo=zone).astimezone(UTC)
    if _wall(tick, zone) == wall:
        return tick
    # In a gap: with the offset before the change it is after the gap, with the offset after the change before it (PEP 495).
    return _change(wall.replace(tzinfo=zone, fold=1).astimezone(UTC), tick, zone) or tick


def _change(since: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """The first second after `since`, and at most `until`, at which the clock of the zone has been changed; None if it is not
    changed. It searches day by day, since no zone has set its clock forward and back within one day.
    """
    offset, low = _offset(since, zone), since
    while low < until:
        high = low + min(_DAY, until - low)
        if _offset(high, zone) != offset:
            break
        low = high
    else:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) // 2 // _SECOND * _SECOND
        low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
    return high
