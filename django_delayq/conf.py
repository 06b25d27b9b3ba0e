"""The settings: `DELAYQ` read once, checked, frozen, passed down. The only module that looks at `django.conf.settings`."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.crypto import salted_hmac

from django_delayq import clock, under_test
from django_delayq.exceptions import ConfigError, QueueUnknown
from django_delayq.ladder import Ladder
from django_delayq.signing import Signer
from django_delayq.text import did_you_mean, nearest
from django_delayq.under_test import MAIL, SIGN

SETTING: Final = "DELAYQ"
SHORTEST_LEASE = 5.0  # seconds; the tests of this package, which see many leases end, have it shorter


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in the settings: a check id, the place (`DELAYQ["QUEUES"]["orders"]["LEASE"]`), what is wrong, the way out."""

    code: str
    where: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} {self.hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """What holds for one queue. Durations in seconds; `retention` maps finished states, and
    "set_aside", to seconds or None (kept for ever).
    """

    name: str
    lease: float
    max_attempts: int
    backoff: Ladder
    timeout: float | None
    max_crashes: int
    max_payload: int
    durability: str
    audit: str
    retention: Mapping[str, float | None]
    partitions: int = 1

    @property
    def lease_ms(self) -> int:
        """The lease as Redis wants it."""
        return clock.milliseconds(self.lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. `queue(name)` gives one queue's share; `signer` is there if `SIGNING` is on."""

    redis: str | Mapping[str, Any] = field(repr=False)  # it may hold a password
    prefix: str
    database: str
    durability: str
    audit: str
    lease: float
    max_attempts: int
    backoff: Ladder
    timeout: float | None
    max_crashes: int
    max_payload: int
    retention: Mapping[str, float | None]
    sensitive: frozenset[str]
    signer: Signer | None
    mirror_max_events: int
    mirror_full: str
    restore: str
    carriers: tuple[str, ...]
    test_redis: str | Mapping[str, Any] | None = field(repr=False)
    inline: bool
    queues: Mapping[str, QueueConfig] = field(default_factory=dict)

    @property
    def most_events(self) -> int:
        """By how many jobs the mirror of a queue may be behind; 0 for any number."""
        return self.mirror_max_events if self.mirror_full == "block" else 0

    def queue(self, name: str) -> QueueConfig:
        """The queue of that name.

        Raises:
            QueueUnknown: `DELAYQ["QUEUES"]` does not list it.
        """
        try:
            return self.queues[name]
        except KeyError:
            listed = ", ".join(sorted(self.queues))
            if near := nearest(name, self.queues):
                raise QueueUnknown(code="queue_misspelt", name=name, near=near, listed=listed) from None
            raise QueueUnknown(code="queue_unknown", name=name, listed=listed) from None


class _Wrong(Exception):
    """A value that its reader refuses: what is wrong with it, and what is accepted."""

    def __init__(self, message: str, hint: str = "See docs/settings.md.") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def _duration(value: Any) -> float:
    try:
        return clock.seconds(value)
    except (ValueError, TypeError) as error:
        raise _Wrong(f"is no duration: {error}.") from None


def _positive_duration(value: Any) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise _Wrong("must be above 0.", "Write seconds, or text such as '30s'.")
    return seconds


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"must be True or False, not {value!r}.")
    return value


def _lease(value: Any) -> float:
    seconds = _duration(value)
    if seconds < SHORTEST_LEASE:
        raise _Wrong(
            f"must be at least {SHORTEST_LEASE:g} seconds: a short pause of the host would lose it, and its jobs would run twice.",
            "Write 30: it is extended every third of it, so tasks may run much longer.",
        )
    return seconds


def _whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _Wrong(f"must be a whole number of at least {least}, not {value!r}.")
        return value

    return read


def _choice(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise _Wrong(f"must be one of {', '.join(map(repr, words))}, not {value!r}.")
        return str(value)

    return read


def _ladder(value: Any) -> Ladder:
    try:
        return Ladder.of(value)
    except (ValueError, TypeError) as error:
        raise _Wrong(f"is no ladder: {error}.", "Write text such as '15s 3m 10m', or a delayq.Ladder.") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or any(char in value for char in "{} \t\n"):
        raise _Wrong(f"must be text without spaces and braces, not {value!r}.")
    return value


def _redis(value: Any) -> str | Mapping[str, Any]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Mapping) and ("URL" in value or "EMBEDDED" in value):
        return MappingProxyType(dict(value))
    # Never the value itself: it may hold a password.
    said = f"a dict of {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
    raise _Wrong(
        f'must be an alias in CACHES, a URL, {{"URL": …, "OPTIONS": …}}, the dotted path of a factory, or "embedded", not {said}.'
    )


def _retention(value: Any) -> Mapping[str, float | None]:
    if not isinstance(value, Mapping):
        raise _Wrong('must be a dict such as {"succeeded": "7d", "cancelled": "30d", "failed": None}.')
    for state in value:
        if state not in KEPT:
            raise _Wrong(f"names {state!r}{did_you_mean(state, KEPT)}; it may name {', '.join(KEPT)}.")
    return {state: _optional(_positive_duration)(kept) for state, kept in value.items()}


def _signing(value: Any) -> bool | str:
    if not isinstance(value, bool) and value != "strict":
        raise _Wrong(f"must be True, False or 'strict', not {value!r}.")
    return value if isinstance(value, bool) else "strict"


def _names(value: Any) -> frozenset[str]:
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise _Wrong("must be a list of argument names, such as ['password', 'iban'].")
    return frozenset(value)


def _paths(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(path, str) and "." in path for path in value):
        raise _Wrong("must be a list of dotted paths, such as ['shop.tenants.TenantCarrier'].")
    return tuple(value)


TABLE: Final[dict[str, tuple[Any, Callable[[Any], Any]]]] = {  # key -> its default, and its reader
    "REDIS": ("default", _redis),
    "PREFIX": ("delayq", _text),
    "DATABASE": ("default", _text),
    "DURABILITY": ("outbox", _choice("outbox", "redis")),
    "AUDIT": ("full", _choice("full", "outcomes", "failures")),
    "LEASE": (30, _lease),
    "MAX_ATTEMPTS": (10, _whole(1)),
    "BACKOFF": ("15s 3m 10m 30m 30m 1h 2h 6h 15h", _ladder),
    "TIMEOUT": (None, _optional(_positive_duration)),
    "MAX_CRASHES": (3, _whole(0)),
    "MAX_PAYLOAD": (65536, _whole(64)),
    "RETENTION": ({"succeeded": "7d", "cancelled": "30d", "failed": None, "set_aside": None}, _retention),
    "SIGNING": (False, _signing),
    "SENSITIVE": ([], _names),
    "MIRROR_MAX_EVENTS": (1_000_000, _whole(1000)),
    "MIRROR_FULL": ("block", _choice("block", "grow")),
    "RESTORE": ("auto", _choice("auto", "manual")),
    "CARRIERS": ([], _paths),
    "TEST_REDIS": (None, _optional(_redis)),
    "INLINE": (False, _flag),
}
DEFAULTS: Final = {**{key: default for key, (default, _) in TABLE.items()}, "QUEUES": {"default": {}}}
READERS: Final = {key: read for key, (_, read) in TABLE.items()}
KEPT: Final = tuple(DEFAULTS["RETENTION"])
PER_QUEUE: Final = ("LEASE", "MAX_ATTEMPTS", "BACKOFF", "TIMEOUT", "MAX_CRASHES", "MAX_PAYLOAD", "DURABILITY", "AUDIT", "RETENTION")


def get() -> Config:
    """The settings of this project; in tests with a server and a prefix of their own, see `under_test`.

    Raises:
        ConfigError: the first mistake found; `manage.py check` lists all.
    """
    global _config, _place
    if _config is None or ((_place or SIGN in MAIL) and under_test.place(_config.database) != _place):
        given = getattr(settings, SETTING, {})
        _place = under_test.place(given.get("DATABASE", DEFAULTS["DATABASE"])) if isinstance(given, Mapping) else ""
        problems, config = _read({**given, **under_test.own(given, _place)} if _place else given)
        if config is None:
            first = problems[0]
            raise ConfigError(f"{first.where}: {first.message}", hint=first.hint)
        _config = config
    return _config


def runs_inline_in_production() -> bool:
    """Whether `INLINE` is on, and `DEBUG` is not."""
    return get().inline and not settings.DEBUG


def problems() -> list[Problem]:
    """Every mistake in the settings, for the system checks."""
    return _read(getattr(settings, SETTING, {}))[0]


_config: Config | None = None
_place = ""  # where tests have it


@receiver(setting_changed, dispatch_uid="delayq.conf")
def _forget(*, setting: str, **_: Any) -> None:
    global _config
    if setting in (SETTING, "CACHES", "DATABASES", "SECRET_KEY", "SECRET_KEY_FALLBACKS"):
        _config = None


def _read(given: Any) -> tuple[list[Problem], Config | None]:
    if not isinstance(given, Mapping):
        wrong = Problem("E002", SETTING, f"must be a dict, not {type(given).__name__}.", "Write DELAYQ = {…}.")
        return [wrong], None
    found = list(_unknown(given, (*READERS, "QUEUES"), SETTING))
    values, wrong_values = _values(given, READERS, SETTING)
    found += wrong_values
    if "RETENTION" in values:
        values["RETENTION"] = MappingProxyType({**_retention(DEFAULTS["RETENTION"]), **values["RETENTION"]})
    queues_given = given.get("QUEUES", DEFAULTS["QUEUES"])
    queues: dict[str, QueueConfig] = {}
    if not isinstance(queues_given, Mapping) or not queues_given:
        where = f'{SETTING}["QUEUES"]'
        found.append(Problem("E002", where, "must be a dict of queue names to options.", 'Write {"default": {}}.'))
    else:
        found += _twins(queues_given)
        for name, options in queues_given.items():
            wrong_queue, queue = _queue(name, options, values)
            found += wrong_queue
            if queue:
                queues[name] = queue
    signer = None
    if signing := values.pop("SIGNING", False):
        try:
            signer = _signer(values.get("PREFIX", ""), strict=signing == "strict")
        except ImproperlyConfigured as error:
            hint = "Set SECRET_KEY, or turn SIGNING off."
            found.append(Problem("E007", f'{SETTING}["SIGNING"]', f"needs Django's SECRET_KEY: {error}", hint))
    if found:
        return found, None
    fields = {name.lower(): value for name, value in values.items()}
    return [], Config(**fields, signer=signer, queues=MappingProxyType(queues))


def _signer(prefix: str, *, strict: bool) -> Signer:
    # Keys of our own, derived: what signs records signs nothing else of the project, and the other way round.
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return Signer(
        tuple(_derived(secret, f"record of {prefix}") for secret in secrets),
        () if strict else tuple(_derived(secret, "record") for secret in secrets),
    )


def _derived(secret: str | bytes, value: str) -> bytes:
    return salted_hmac("django_delayq.signing", value, secret=secret, algorithm="sha256").digest()


def _twins(names: Iterable[Any]) -> Iterator[Problem]:
    # MySQL and MariaDB compare text without case and accents: the relay of one queue would publish the rows of the other
    seen: dict[str, str] = {}
    for name in names:
        plain = "".join(c for c in unicodedata.normalize("NFKD", str(name)) if not unicodedata.combining(c)).casefold()
        if plain in seen:
            where = f'{SETTING}["QUEUES"][{name!r}]'.replace("'", '"')
            yield Problem(
                "E002",
                where,
                f"differs from {seen[plain]!r} only by case or accents.",
                "Some databases take the two for one; rename it.",
            )
        seen[plain] = str(name)


def _queue(name: Any, options: Any, values: Mapping[str, Any]) -> tuple[list[Problem], QueueConfig | None]:
    where = f'{SETTING}["QUEUES"][{name!r}]'.replace("'", '"')
    try:
        if "/" in _text(name) or "," in name or len(name) > 100:
            raise _Wrong("is a name of up to 100 characters without slash and comma.")
    except _Wrong as error:
        return [Problem("E002", where, f"the name of a queue {error.message}", "Rename it.")], None
    if not isinstance(options, Mapping):
        return [Problem("E002", where, f"must be a dict, not {options!r}.", "Write {} for the defaults.")], None
    found = list(_unknown(options, (*PER_QUEUE, "PARTITIONS"), where))
    own, wrong = _values(options, {key: READERS[key] for key in PER_QUEUE}, where, only_given=True)
    found += wrong
    if options.get("PARTITIONS", 1) != 1:
        hint = "Leave it out; one partition serves tens of thousands of jobs per second."
        found.append(Problem("E002", f'{where}["PARTITIONS"]', "must be 1 in this version.", hint))
    if found:
        return found, None
    if any(key not in values for key in PER_QUEUE):
        return [], None  # the mistake stands above, with the default
    merged: dict[str, Any] = {key: own.get(key, values[key]) for key in PER_QUEUE}
    merged["RETENTION"] = MappingProxyType({**values["RETENTION"], **own.get("RETENTION", {})})
    fields: dict[str, Any] = {key.lower(): value for key, value in merged.items()}
    return [], QueueConfig(name=name, **fields)


def _unknown(given: Mapping[Any, Any], known: tuple[str, ...], where: str) -> Iterator[Problem]:
    for key in given:
        if key not in known:
            hint = f"The keys known here are: {', '.join(sorted(known))}."
            yield Problem("E001", f"{where}[{key!r}]".replace("'", '"'), f"is no setting{did_you_mean(key, known)}.", hint)


def _values(
    given: Mapping[str, Any], readers: Mapping[str, Callable[[Any], Any]], where: str, *, only_given: bool = False
) -> tuple[dict[str, Any], list[Problem]]:
    values: dict[str, Any] = {}
    found: list[Problem] = []
    for key, read in readers.items():
        if only_given and key not in given:
            continue
        try:
            values[key] = read(given.get(key, DEFAULTS[key]))
        except _Wrong as error:
            found.append(Problem("E002", f'{where}["{key}"]', error.message, error.hint))
    return values, found
