"""The kinds of values that settings accept. Each has a text for people, and a function that validates and converts a value. Also the
values of `HTTP` and `TARGETS`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from django_delayq import durations
from django_delayq.job_meta import Quota
from django_delayq.text import did_you_mean

R = TypeVar("R")

SHORTEST_LEASE = 5.0  # seconds; the tests of this package, which see many leases end, have it shorter
SHORTEST_HORIZON = 300.0  # seconds
KEPT: Final = ("succeeded", "cancelled", "failed", "set_aside")  # what RETENTION may name
SETTING: Final = "DELAYQ"
MOST_PARTITIONS: Final = 512  # of a queue
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
IN_LOG_URL: Final = ("id", "queue", "task", "from", "to")  # what LOG_URL may name in braces
Network = IPv4Network | IPv6Network
SIGNING: Final = "whsec_"  # begins a secret that signs, as the Standard Webhooks write it
SHORTEST_SECRET, LONGEST_SECRET = 16, 64  # bytes of such a secret
NEW_SECRET: Final = "To create a signing secret, combine whsec_ with the output of `openssl rand -base64 32`."


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """`DELAYQ["HTTP"]`. Durations in seconds; `secrets` maps a name to its values, the newest first."""

    allow: tuple[Network, ...]
    secrets: Mapping[str, tuple[str, ...]] = field(repr=False)
    proxy: str | None = field(repr=False)  # it may hold a password
    ca: str | None
    connect: float
    read: float
    timeout: float
    max_answer: int
    gone: frozenset[int]
    per_host: int | None
    breaker: int | None
    pause: float
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferTarget:
    """A list or a stream on the server of the queues. `name`: how offers call it; `key`: how Redis does; `maxlen`: how many entries it
    may hold, of which the oldest go; None: any number.
    """

    name: str
    key: str
    kind: Literal["stream", "list"]
    maxlen: int | None


class Problem(NamedTuple):
    """One mistake in the settings: a check id, the place (`DELAYQ["QUEUES"]["orders"]["LEASE"]`), what is wrong, the way out."""

    code: str
    where: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} {self.hint}"


class Wrong(Exception):
    """A value is not valid: what is wrong with it, and what to write; "": what the setting accepts."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Kind(NamedTuple):
    """A kind of value. `read` returns the value in the form of `Config`, and raises Wrong if it is not valid."""

    accepts: str
    read: Callable[[Any], Any]


def kind(
    accepts: str,
    valid: Callable[[Any], object],
    convert: Callable[[Any], Any] = lambda value: value,
    *,
    hint: str = "",
    shown: bool = True,
) -> Kind:
    """A kind of value that a condition decides. `shown`: errors contain the value, because it cannot contain a password."""

    def read(value: Any) -> Any:
        if not valid(value):
            raise Wrong(f"must be {accepts}, not {value!r}." if shown else f"must be {accepts}.", hint)
        return convert(value)

    return Kind(accepts, read)


def optional(of: Kind) -> Kind:
    """That kind of value, or None."""
    return Kind(f"{of.accepts}, or None", lambda value: None if value is None else of.read(value))


def whole(least: int) -> Kind:
    """A whole number."""
    return kind(f"a whole number of at least {least}", lambda value: _is_whole(value) and value >= least)


def choice(*words: str) -> Kind:
    """One of these words."""
    *others, last = (f'"{word}"' for word in words)
    return kind(f"{', '.join(others)} or {last}", lambda value: value in words, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def is_mapping(value: Any) -> bool:
    """Whether a value is a dict."""
    return isinstance(value, Mapping)


def listed(items: str, valid: Callable[[Any], object], convert: Callable[[Any], Any] = tuple) -> Kind:
    """A list. It can also be a set if its order has no meaning."""
    types = (list, tuple, set, frozenset) if convert is frozenset else (list, tuple)
    return kind(f"a list of {items}", lambda value: isinstance(value, types) and all(map(valid, value)), convert)


def is_embedded(value: Any) -> bool:
    """Whether that value of `REDIS` is a server that this project starts."""
    return value == "embedded" or (is_mapping(value) and "EMBEDDED" in value)


def converted(by: Callable[[Any], R]) -> Callable[[Any], R]:
    """A reader by a function that raises ValueError or TypeError."""

    def read(value: Any) -> R:
        try:
            return by(value)
        except (ValueError, TypeError) as error:
            raise Wrong(f"is wrong: {error}.") from None

    return read


_duration: Final = converted(durations.seconds)


def _redis(value: Any) -> str | Mapping[str, Any]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Mapping) and ("URL" in value or "EMBEDDED" in value):
        return MappingProxyType(dict(value))
    # Never the value itself: it may hold a password.
    kind = "empty text" if value == "" else f"of type {type(value).__name__}"
    said = f"a dict of {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, Mapping) else kind
    raise Wrong(
        f'must be an alias in CACHES, a URL, {{"URL": …, "OPTIONS": …}}, the dotted path to a factory, or "embedded", not {said}.'
    )


def _retention(value: Any) -> Mapping[str, float | None]:
    if not isinstance(value, Mapping):
        raise Wrong('must be a dict such as {"succeeded": "7d", "cancelled": "30d", "failed": None}.')
    for state in value:
        if state not in KEPT:
            raise Wrong(f"contains the unknown state {state!r}{did_you_mean(state, KEPT)}. Available states: {', '.join(KEPT)}.")
    return {state: optional(DURATION).read(kept) for state, kept in value.items()}


def _queues(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) or not value:
        names = value if isinstance(value, (list, tuple, set)) and value else ["default"]
        meant = ", ".join(f'"{name}": {{}}' for name in names)
        raise Wrong("must be a dict of queue names, each with a dict of settings.", f"Write {{{meant}}}.")
    return value


def _log_url(value: Any) -> str:
    named = ", ".join(f"{{{name}}}" for name in IN_LOG_URL)
    if not isinstance(value, str) or not re.match("https?://[^/]|/[^/]", value) or not value.isprintable() or " " in value:
        raise Wrong(f"must be a URL as text, such as 'https://logs.example/search?q={{id}}', not {value!r}.")
    try:
        pieces = list(Formatter().parse(value))
    except ValueError as error:
        raise Wrong(f"is not a valid template: {error}.", f"Available names: {named}. To write a literal brace, double it.") from None
    for _, name, spec, conversion in pieces:
        if name is not None and (name not in IN_LOG_URL or spec or conversion):
            shown = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
            near = did_you_mean(name, IN_LOG_URL)
            raise Wrong(f"contains the unknown name {shown}{near}. Available names: {named}.", "To write a literal brace, double it.")
    return value


def signing_key(secret: str) -> bytes:
    """The bytes of a secret such as `whsec_…`.

    Raises:
        ValueError: it is invalid. The message does not contain it.
    """
    if not secret.startswith(SIGNING):
        raise ValueError(f"a signing secret begins with {SIGNING}")
    try:
        written = secret.removeprefix(SIGNING)
        key = base64.b64decode(written + "=" * (-len(written) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"the text after {SIGNING} is not base64") from None
    if not SHORTEST_SECRET <= len(key) <= LONGEST_SECRET:
        raise ValueError(
            f"a signing secret needs {SHORTEST_SECRET} to {LONGEST_SECRET} bytes in base64 after {SIGNING}; this one has {len(key)}"
        )
    return key


def _networks(value: Any) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(one) for one in value)
    except ValueError as error:
        raise Wrong(f"contains an invalid network: {error}.", "Use networks such as '10.1.0.0/16', or addresses.") from None


def _secrets(value: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({name: _secret_values(name, given) for name, given in value.items()})


def _secret_values(name: str, given: Any) -> tuple[str, ...]:
    # Never the values themselves.
    values = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (list, tuple)) else ()
    if not values or not all(isinstance(one, str) and re.fullmatch(r"[!-~]+( [!-~]+)*", one) for one in values):
        raise Wrong(
            f"contains an invalid secret for {name!r}. A secret is text of visible ASCII characters, or a list of such "
            "texts with the newest first.",
            NEW_SECRET,
        )
    for one in values:
        if one.startswith(SIGNING):
            try:
                signing_key(one)
            except ValueError as error:
                raise Wrong(f"contains a secret for {name!r} that cannot sign: {error}.", NEW_SECRET) from None
    return values


def _is_proxy(value: Any) -> bool:
    try:
        parts = urlsplit(value) if isinstance(value, str) else urlsplit("")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


FLAG: Final = kind("True or False", lambda value: isinstance(value, bool))
TEXT: Final = kind("text without spaces or braces", lambda value: _is_text(value) and not any(char in value for char in "{} \t\n"))
DURATION: Final = kind(
    "a duration greater than 0", lambda value: _duration(value) > 0, _duration, hint="Use a number of seconds, or text such as '30s'."
)
LEASE: Final = kind(
    "a duration of at least 5 seconds",
    lambda value: _duration(value) >= SHORTEST_LEASE,
    _duration,
    hint="Use 30. With a shorter lease, jobs run twice whenever a host pauses briefly. Workers extend the lease while a task runs, so "
    "tasks can run for much longer.",
)
HORIZON: Final = kind(
    "a duration of at least 5 minutes",
    lambda value: _duration(value) >= SHORTEST_HORIZON,
    _duration,
    hint="Write '1h'. With a longer horizon, jobs run on time even if the relay is down briefly.",
)
REDIS: Final = Kind(
    'an alias in CACHES; a URL such as "rediss://user:password@host:6379/1"; for Sentinel, '
    '"redis+sentinel://user:password@s1:26379,s2:26379/mymaster/0?sentinel_password=…"; for a Cluster, '
    '"redis+cluster://user:password@n1:6379,n2:6379"; {"URL": …, "OPTIONS": …}; the dotted path to a function that returns '
    'a redis.Redis or a RedisCluster; "embedded", or {"EMBEDDED": directory}',
    _redis,
)
RETENTION: Final = Kind("a dict with a duration for each state, or None to keep rows forever", _retention)


def _rate(value: Any) -> Quota:
    found = Quota.read(*value) if isinstance(value, tuple | list) and len(value) == 2 else Quota.read(value)
    if found is None:
        raise Wrong("is not a number and a unit, such as '100/m' (s, m, h or d).")
    return found


RATE: Final = optional(Kind("a rate such as '100/m', or a rate and a burst such as ('100/m', 10)", _rate))
PARTITIONS: Final = kind(
    f"a whole number from 1 to {MOST_PARTITIONS}",
    lambda value: _is_whole(value) and 1 <= value <= MOST_PARTITIONS,
    hint="16 is right for most: a Cluster moves partitions, so there need not be one for each core.",
)
FORMER_PARTITIONS: Final = listed(
    "previous values of PARTITIONS, such as [4]", PARTITIONS.read, lambda value: tuple(dict.fromkeys(value))
)
SECRET: Final = kind(
    "text of at least 16 letters, digits and symbols, without spaces",
    lambda value: isinstance(value, str) and re.fullmatch(r"[!-~]{16,}", value) is not None,
    hint="To create one, run openssl rand -hex 32",
    shown=False,
)
NAMES: Final = listed("argument names, such as ['password', 'iban']", lambda name: isinstance(name, str), frozenset)
PATHS: Final = listed("dotted paths to classes, such as ['shop.tenants.TenantCarrier']", lambda path: _is_text(path) and "." in path)
MODULES: Final = listed("dotted module names, such as ['shop.mail']", lambda path: isinstance(path, str) and _MODULE.fullmatch(path))
FUNCTION: Final = kind(
    "the dotted path to a function, such as 'shop.links.object_url'", lambda value: isinstance(value, str) and "." in value.strip(".")
)
ARCHIVE: Final = kind(
    "the dotted path to a function, such as 'shop.archive.keep', or the absolute path of a directory, such as '/var/lib/shop/archive'",
    lambda path: isinstance(path, (str, Path)) and (Path(path).is_absolute() or ("." in str(path) and _MODULE.fullmatch(str(path)))),
    str,
)
QUEUES: Final = Kind("a dict of queue names, each with a dict of settings", _queues)
LOG_URL: Final = Kind(f"a URL with the placeholders {', '.join(f'{{{name}}}' for name in IN_LOG_URL)}", _log_url)
NETWORKS: Final = listed("networks, such as ['10.1.0.0/16']", lambda one: isinstance(one, str), _networks)
STATUSES: Final = listed(
    "status codes from 300 to 599, such as [404, 410]", lambda one: type(one) is int and 300 <= one <= 599, frozenset
)
SECRETS: Final = kind(
    'a dict of names to secrets, such as {"partner": "whsec_…"}',
    lambda value: is_mapping(value) and all(map(_is_text, value)),
    _secrets,
    shown=False,
)
PROXY: Final = kind("the URL of a proxy with its port, such as 'http://proxy.internal:3128'", _is_proxy, shown=False)
CERTIFICATES: Final = kind(
    "an existing file or directory of certificates", lambda value: isinstance(value, (str, Path)) and Path(value).exists(), str
)
HTTP: Final[Mapping[str, tuple[Any, Kind]]] = {  # key of DELAYQ["HTTP"] -> its default, and what it may be
    "ALLOW": ([], NETWORKS),
    "SECRETS": ({}, SECRETS),
    "PROXY": (None, optional(PROXY)),
    "CA": (None, optional(CERTIFICATES)),
    "CONNECT": ("5s", DURATION),
    "READ": ("15s", DURATION),
    "TIMEOUT": ("30s", DURATION),
    "MAX_ANSWER": (1_048_576, whole(2048)),
    "GONE": ([410], STATUSES),
    "PER_HOST": (None, optional(whole(1))),
    "BREAKER": (5, optional(whole(1))),
    "PAUSE": ("30s", DURATION),
    "QUEUE": ("default", TEXT),
}
TARGET: Final[Mapping[str, Kind]] = {  # key of one of DELAYQ["TARGETS"] -> what it may be; there are no defaults
    "KEY": kind(  # braces are allowed: they select the slot of a cluster
        "a Redis key of at most 512 characters without spaces",
        lambda value: _is_text(value) and len(value) <= 512 and value.isprintable() and " " not in value,
    ),
    "KIND": choice("stream", "list"),
    "MAXLEN": optional(whole(1)),
}


def read(
    given: Mapping[Any, Any],
    kinds: Mapping[str, Kind],
    where: str,
    found: list[Problem],
    *,
    usual: Mapping[str, Any] | None = None,
    of: str = "",
    general: Container[str] = (),
    of_queue: Container[str] = (),
) -> dict[str, Any]:
    """Reads the values of a dict, and adds its mistakes to `found`. `usual`: the values of missing keys, if they have any. `of`: the
    setting that contains these keys. `general`: settings that apply to all queues. `of_queue`: settings of a queue.
    """
    for key in given:
        if key not in kinds:
            wrong = "applies to all queues." if key in general else f"is an unknown setting{did_you_mean(str(key).upper(), kinds)}."
            hint = f"The keys known here are: {', '.join(sorted(kinds))}."
            if key in of_queue:
                wrong, hint = "is a setting of a queue.", f'Write it in the dict of the queue: {where}["QUEUES"]["default"]["{key}"].'
            found.append(Problem("E001", f"{where}[{key!r}]".replace("'", '"'), wrong, hint))
    values, merged = {}, {**(usual or {}), **given}
    for key, kind in kinds.items():
        if key in merged:
            try:
                values[key] = kind.read(merged[key])
            except Wrong as error:
                hint = error.hint or f"For the allowed values, run manage.py delayq settings {of or key}"
                found.append(Problem("E002", f'{where}["{key}"]', error.message, hint))
    return values


def http(given: Mapping[Any, Any], found: list[Problem]) -> HttpConfig | None:
    """`HTTP`; None if there are mistakes."""
    usual = {key: default for key, (default, _) in HTTP.items()}
    values = read(given, {key: kind for key, (_, kind) in HTTP.items()}, f'{SETTING}["HTTP"]', found, usual=usual, of="HTTP")
    return None if found else HttpConfig(**{key.lower(): value for key, value in values.items()})


def targets(given: Mapping[Any, Any], prefix: str, found: list[Problem]) -> dict[str, OfferTarget]:
    """`TARGETS`, none of which may be among the keys of the queues."""
    listed: dict[str, OfferTarget] = {}
    for name, options in given.items():
        where = f'{SETTING}["TARGETS"][{name!r}]'.replace("'", '"')
        if not _is_text(name) or not is_mapping(options):
            found.append(Problem("E002", where, "must be text that names a dict.", f"Its keys are: {', '.join(TARGET)}."))
            continue
        wrong: list[Problem] = []
        values = read(options, TARGET, where, wrong, of="TARGETS")
        for lacking in TARGET.keys() - options.keys():
            hint = "Write how many entries it may hold, of which the oldest go; or None, for any number." if lacking == "MAXLEN" else ""
            wrong.append(Problem("E002", f'{where}["{lacking}"]', "is missing.", hint or "Name the key of Redis, and what it holds."))
        if not wrong:
            wrong += _shared(values["KEY"], where, prefix, listed)
        found += wrong
        if not wrong:
            listed[name] = OfferTarget(name=name, key=values["KEY"], kind=values["KIND"], maxlen=values["MAXLEN"])
    return listed


def _shared(key: str, where: str, prefix: str, others: Mapping[str, OfferTarget]) -> Iterator[Problem]:
    place = f'{where}["KEY"]'
    if prefix and (key == prefix or key.startswith(f"{prefix}:")):
        yield Problem("E050", place, f"begins with the prefix of the queues ({prefix}:), which only delayq may use.", "Rename it.")
    for other in others.values():
        if other.key == key:
            yield Problem(
                "E050", place, f"is that of the target {other.name!r}, too.", "Give each target a different key, or remove one."
            )


def conflict(where: str, queue: Mapping[str, Any], *, tests: bool) -> Problem | None:
    """The first of the settings of a queue that cannot be beside another one. `tests`: they start another server."""
    divided = queue["PARTITIONS"] > 1 or queue["FORMER_PARTITIONS"]
    if queue["HORIZON"] is not None and queue["DURABILITY"] == "redis":
        hint = "Its jobs have no rows in which they could wait: set HORIZON to None there, or DURABILITY to 'outbox'."
        return Problem("E002", f'{where}["HORIZON"]', "cannot be with DURABILITY 'redis'.", hint)
    if queue["REPLICAS"] and queue["DURABILITY"] != "redis":
        hint = "The rows of its jobs outlast any failover: set REPLICAS to 0 there, or in queues of redis durability alone."
        return Problem("E002", f'{where}["REPLICAS"]', "is for DURABILITY 'redis' only.", hint)
    if queue["RATE"] is not None and queue["CONSUMER"] != "pull":
        hint = "Jobs have the rates of their tasks: remove RATE there, and use @task(rate=…)."
        return Problem("E002", f'{where}["RATE"]', "is for CONSUMER 'pull' only.", hint)
    if queue["CONSUMER"] == "pull" and divided:
        hint = "Your consumers pull from one partition: remove PARTITIONS there, or make several queues."
        return Problem("E002", f'{where}["PARTITIONS"]', "cannot be with CONSUMER 'pull'.", hint)
    if is_embedded(queue["REDIS"]) and divided and not tests:
        hint = "Leave PARTITIONS and FORMER_PARTITIONS out, or name a server, or a Cluster, in REDIS."
        return Problem("E002", f'{where}["PARTITIONS"]', "cannot be with the embedded server, which is for one machine.", hint)
    return None
