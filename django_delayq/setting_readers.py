"""Validates the values of settings and converts them. There is a reader for each kind of value. Also the values of `HTTP` and
`TARGETS`.
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
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from django_delayq import durations
from django_delayq.text import did_you_mean

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
TARGET_KINDS: Final = ("stream", "list")


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
    """A value that its reader refuses: what is wrong with it, and what to write; "": what the setting accepts."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def duration(value: Any) -> float:
    try:
        return durations.seconds(value)
    except (ValueError, TypeError) as error:
        raise Wrong(f"is wrong: {error}.") from None


def positive_duration(value: Any) -> float:
    seconds = duration(value)
    if seconds <= 0:
        raise Wrong("must be greater than 0.", "Use a number of seconds, or text such as '30s'.")
    return seconds


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be True or False, not {value!r}.")
    return value


def lease(value: Any) -> float:
    seconds = duration(value)
    if seconds < SHORTEST_LEASE:
        raise Wrong(
            f"must be at least {SHORTEST_LEASE:g} seconds. With a shorter lease, jobs run twice whenever a host pauses briefly.",
            "Use 30. Workers extend the lease while a task runs, so tasks can run for much longer.",
        )
    return seconds


def horizon(value: Any) -> float:
    seconds = duration(value)
    if seconds < SHORTEST_HORIZON:
        raise Wrong(
            f"must be at least {SHORTEST_HORIZON / 60:g} minutes, or None, so that jobs run on time even if the relay is down briefly.",
            "Write '1h'.",
        )
    return seconds


def whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Wrong(f"must be a whole number of at least {least}, not {value!r}.")
        return value

    return read


def partitions(value: Any) -> int:
    """`PARTITIONS`."""
    count = whole(1)(value)
    if count > MOST_PARTITIONS:
        hint = "16 is right for most: a Cluster moves partitions, so there need not be one for each core."
        raise Wrong(f"must be at most {MOST_PARTITIONS}, not {value!r}.", hint)
    return count


def is_embedded(value: Any) -> bool:
    """Whether that value of `REDIS` is a server that this project starts."""
    return value == "embedded" or (isinstance(value, Mapping) and "EMBEDDED" in value)


def conflict(where: str, queue: Mapping[str, Any]) -> Problem | None:
    """The first of the settings of a queue that cannot be beside another one."""
    if queue["HORIZON"] is not None and queue["DURABILITY"] == "redis":
        hint = "Its jobs have no rows in which they could wait: set HORIZON to None there, or DURABILITY to 'outbox'."
        return Problem("E002", f'{where}["HORIZON"]', "cannot be with DURABILITY 'redis'.", hint)
    if queue["REPLICAS"] and queue["DURABILITY"] != "redis":
        hint = "The rows of its jobs outlast any failover: set REPLICAS to 0 there, or in queues of redis durability alone."
        return Problem("E002", f'{where}["REPLICAS"]', "is for DURABILITY 'redis' only.", hint)
    if queue["CONSUMER"] == "pull" and (queue["PARTITIONS"] > 1 or queue["FORMER_PARTITIONS"]):
        hint = "Your consumers pull from one partition: remove PARTITIONS there, or make several queues."
        return Problem("E002", f'{where}["PARTITIONS"]', "cannot be with CONSUMER 'pull'.", hint)
    return None


def embedded_and_divided(name: str) -> Problem:
    """A queue has partitions on one small server that cannot be more."""
    hint = "Leave PARTITIONS and FORMER_PARTITIONS out, or name a server, or a Cluster, in REDIS."
    place = f'{SETTING}["QUEUES"][{name!r}]["PARTITIONS"]'.replace("'", '"')
    return Problem("E002", place, "cannot be with the embedded server, which is for one machine.", hint)


def former_partitions(value: Any) -> tuple[int, ...]:
    """`FORMER_PARTITIONS`: each once, as they were given."""
    if not isinstance(value, (list, tuple)):
        raise Wrong(f"must be a list of previous values of PARTITIONS, such as [4], not {value!r}.")
    return tuple(dict.fromkeys(partitions(one) for one in value))


def choice(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise Wrong(f"must be one of {', '.join(map(repr, words))}, not {value!r}.")
        return str(value)

    return read


def text(value: Any) -> str:
    if not isinstance(value, str) or not value or any(char in value for char in "{} \t\n"):
        raise Wrong(f"must be text without spaces or braces, not {value!r}.")
    return value


def key(value: Any) -> str:
    # Braces are allowed: they select the slot of a cluster.
    if not isinstance(value, str) or not value or len(value) > 512 or not value.isprintable() or " " in value:
        raise Wrong(f"must be a Redis key of at most 512 characters without spaces, not {value!r}.")
    return value


def redis(value: Any) -> str | Mapping[str, Any]:
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


def retention(value: Any) -> Mapping[str, float | None]:
    if not isinstance(value, Mapping):
        raise Wrong('must be a dict such as {"succeeded": "7d", "cancelled": "30d", "failed": None}.')
    for state in value:
        if state not in KEPT:
            raise Wrong(f"contains the unknown state {state!r}{did_you_mean(state, KEPT)}. Available states: {', '.join(KEPT)}.")
    return {state: optional(positive_duration)(kept) for state, kept in value.items()}


def secret(value: Any) -> str:
    # Never the value itself.
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]{16,}", value):
        raise Wrong(
            "must be text of at least 16 letters, digits and symbols, without spaces.", "To create one, run openssl rand -hex 32"
        )
    return value


def names(value: Any) -> frozenset[str]:
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise Wrong("must be a list of argument names, such as ['password', 'iban'].")
    return frozenset(value)


def paths(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(path, str) and "." in path for path in value):
        raise Wrong("must be a list of dotted paths, such as ['shop.tenants.TenantCarrier'].")
    return tuple(value)


def modules(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(path, str) and _MODULE.fullmatch(path) for path in value):
        raise Wrong(f"must be a list of dotted module names, such as ['shop.mail'], not {value!r}.")
    return tuple(value)


def dotted(value: Any) -> str:
    if not isinstance(value, str) or "." not in value.strip("."):
        raise Wrong(f"must be the dotted path to a function, such as 'shop.links.object_url', not {value!r}.")
    return value


def log_url(value: Any) -> str:
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


def networks(value: Any) -> tuple[Network, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise Wrong("must be a list of networks, such as ['10.1.0.0/16'].")
    try:
        return tuple(ip_network(one) for one in value)
    except ValueError as error:
        raise Wrong(f"contains an invalid network: {error}.", "Use networks such as '10.1.0.0/16', or addresses.") from None


def secrets(value: Any) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise Wrong('must be a dict of names to secrets, such as {"partner": "whsec_…"}.')
    return MappingProxyType({name: _secret_values(name, given) for name, given in value.items()})


def _secret_values(name: str, given: Any) -> tuple[str, ...]:
    # Never the values themselves.
    values = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (list, tuple)) else ()
    if not values or not all(isinstance(one, str) and re.fullmatch(r"[!-~]+( [!-~]+)*", one) for one in values):
        raise Wrong(
            f"contains an invalid secret for {name!r}. A secret is text of visible ASCII characters, or a list of such "
            "texts with the newest first.",
            "To create a signing secret, combine whsec_ with the output of `openssl rand -base64 32`.",
        )
    for one in values:
        if one.startswith(SIGNING):
            try:
                signing_key(one)
            except ValueError as error:
                raise Wrong(
                    f"contains a secret for {name!r} that cannot sign: {error}.",
                    "To create one, combine whsec_ with the output of `openssl rand -base64 32`.",
                ) from None
    return values


def proxy(value: Any) -> str:
    # Never the value itself.
    try:
        parts = urlsplit(value) if isinstance(value, str) else urlsplit("")
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        good = False
    if not good:
        raise Wrong("must be the URL of a proxy with its port, such as 'http://proxy.internal:3128'.")
    return str(value)


def certificates(value: Any) -> str:
    if not isinstance(value, (str, Path)) or not Path(value).exists():
        raise Wrong(f"must be an existing file or directory of certificates, not {value!r}.")
    return str(value)


def statuses(value: Any) -> frozenset[int]:
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(type(one) is int and 300 <= one <= 599 for one in value):
        raise Wrong("must be a list of status codes from 300 to 599, such as [404, 410].")
    return frozenset(value)


HTTP: Final[dict[str, tuple[Any, Callable[[Any], Any]]]] = {  # key of DELAYQ["HTTP"] -> its default, and what it may be
    "ALLOW": ([], networks),
    "SECRETS": ({}, secrets),
    "PROXY": (None, optional(proxy)),
    "CA": (None, optional(certificates)),
    "CONNECT": ("5s", positive_duration),
    "READ": ("15s", positive_duration),
    "TIMEOUT": ("30s", positive_duration),
    "MAX_ANSWER": (1_048_576, whole(2048)),
    "GONE": ([410], statuses),
    "PER_HOST": (None, optional(whole(1))),
    "BREAKER": (5, optional(whole(1))),
    "PAUSE": ("30s", positive_duration),
    "QUEUE": ("default", text),
}
TARGET: Final[dict[str, Callable[[Any], Any]]] = {  # key of one of DELAYQ["TARGETS"] -> what it may be; there are no defaults
    "KEY": key,
    "KIND": choice(*TARGET_KINDS),
    "MAXLEN": optional(whole(1)),
}


def unknown(
    given: Mapping[Any, Any], known: tuple[str, ...], where: str, *, general: Container[str] = (), of_queue: Container[str] = ()
) -> Iterator[Problem]:
    """Returns unknown keys. `general`: settings that apply to all queues. `of_queue`: settings of a queue."""
    for key in given:
        if key not in known:
            wrong = "applies to all queues." if key in general else f"is an unknown setting{did_you_mean(str(key).upper(), known)}."
            hint = f"The keys known here are: {', '.join(sorted(known))}."
            if key in of_queue:
                wrong, hint = "is a setting of a queue.", f'Write it in the dict of the queue: {where}["QUEUES"]["default"]["{key}"].'
            yield Problem("E001", f"{where}[{key!r}]".replace("'", '"'), wrong, hint)


def values(
    given: Mapping[str, Any],
    wanted: Mapping[str, Callable[[Any], Any]],
    where: str,
    *,
    usual: Mapping[str, Any] | None = None,
    of: str = "",
) -> tuple[dict[str, Any], list[Problem]]:
    """Reads the given values. `usual`: the defaults, if there are any. `of`: the setting that contains these keys."""
    read_values: dict[str, Any] = {}
    found: list[Problem] = []
    for key, read in wanted.items():
        if usual is None and key not in given:
            continue
        try:
            read_values[key] = read(given[key] if key in given or usual is None else usual[key])
        except Wrong as error:
            hint = error.hint or f"For the allowed values, run manage.py delayq settings {of or key}"
            found.append(Problem("E002", f'{where}["{key}"]', error.message, hint))
    return read_values, found


def http(given: Any) -> tuple[list[Problem], HttpConfig | None]:
    """`HTTP`."""
    where = f'{SETTING}["HTTP"]'
    if given is None:
        return [], None
    if not isinstance(given, Mapping):
        return [Problem("E002", where, f"must be a dict, not {type(given).__name__}.", "Write {} for the defaults.")], None
    found = list(unknown(given, tuple(HTTP), where))
    usual = {key: default for key, (default, _) in HTTP.items()}
    found_values, wrong = values(given, {key: read for key, (_, read) in HTTP.items()}, where, usual=usual, of="HTTP")
    found += wrong
    return found, None if found else HttpConfig(**{key.lower(): value for key, value in found_values.items()})


def targets(given: Any, prefix: str) -> tuple[list[Problem], dict[str, OfferTarget]]:
    """`TARGETS`, none of which may be among the keys of the queues."""
    place = f'{SETTING}["TARGETS"]'
    if not isinstance(given, Mapping):
        hint = 'Write {"shipping": {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": 100000}}.'
        return [Problem("E002", place, f"must be a dict of names to targets, not {type(given).__name__}.", hint)], {}
    found: list[Problem] = []
    listed: dict[str, OfferTarget] = {}
    for name, options in given.items():
        where = f"{place}[{name!r}]".replace("'", '"')
        if not isinstance(name, str) or not name or not isinstance(options, Mapping):
            found.append(Problem("E002", where, "must be text that names a dict.", f"Its keys are: {', '.join(TARGET)}."))
            continue
        wrong = list(unknown(options, tuple(TARGET), where))
        for lacking in TARGET.keys() - options.keys():
            hint = "Write how many entries it may hold, of which the oldest go; or None, for any number." if lacking == "MAXLEN" else ""
            wrong.append(Problem("E002", f'{where}["{lacking}"]', "is missing.", hint or "Name the key of Redis, and what it holds."))
        told, refused = values(options, TARGET, where, of="TARGETS")
        wrong += refused or ([] if wrong else list(_shared(told["KEY"], where, prefix, listed)))
        found += wrong
        if not wrong:
            listed[name] = OfferTarget(name=name, key=told["KEY"], kind=told["KIND"], maxlen=told["MAXLEN"])
    return found, listed


def _shared(key: str, where: str, prefix: str, others: Mapping[str, OfferTarget]) -> Iterator[Problem]:
    place = f'{where}["KEY"]'
    if prefix and (key == prefix or key.startswith(f"{prefix}:")):
        yield Problem("E050", place, f"begins with the prefix of the queues ({prefix}:), which only delayq may use.", "Rename it.")
    for other in others.values():
        if other.key == key:
            yield Problem(
                "E050", place, f"is that of the target {other.name!r}, too.", "Give each target a different key, or remove one."
            )
