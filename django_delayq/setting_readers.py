"""What each setting may be: a reader per kind of value, which gives what the package works with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from django_delayq import clock
from django_delayq.text import did_you_mean

SHORTEST_LEASE = 5.0  # seconds; the tests of this package, which see many leases end, have it shorter
KEPT: Final = ("succeeded", "cancelled", "failed", "set_aside")  # what RETENTION may name


class Wrong(Exception):
    """A value that its reader refuses: what is wrong with it, and what to write; "": what the setting accepts."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def duration(value: Any) -> float:
    try:
        return clock.seconds(value)
    except (ValueError, TypeError) as error:
        raise Wrong(f"is wrong: {error}.") from None


def positive_duration(value: Any) -> float:
    seconds = duration(value)
    if seconds <= 0:
        raise Wrong("must be above 0.", "Write seconds, or text such as '30s'.")
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
            f"must be at least {SHORTEST_LEASE:g} seconds: a short pause of the host would lose it, and its jobs would run twice.",
            "Write 30: it is extended every third of it, so tasks may run much longer.",
        )
    return seconds


def whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Wrong(f"must be a whole number of at least {least}, not {value!r}.")
        return value

    return read


def choice(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise Wrong(f"must be one of {', '.join(map(repr, words))}, not {value!r}.")
        return str(value)

    return read


def text(value: Any) -> str:
    if not isinstance(value, str) or not value or any(char in value for char in "{} \t\n"):
        raise Wrong(f"must be text without spaces and braces, not {value!r}.")
    return value


def key(value: Any) -> str:
    # Braces may stand in it: they say in which slot of a cluster it lies.
    if not isinstance(value, str) or not value or len(value) > 512 or not value.isprintable() or " " in value:
        raise Wrong(f"must be a key of Redis, text of 512 characters at most without spaces, not {value!r}.")
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
        f'must be an alias in CACHES, a URL, {{"URL": …, "OPTIONS": …}}, the dotted path of a factory, or "embedded", not {said}.'
    )


def retention(value: Any) -> Mapping[str, float | None]:
    if not isinstance(value, Mapping):
        raise Wrong('must be a dict such as {"succeeded": "7d", "cancelled": "30d", "failed": None}.')
    for state in value:
        if state not in KEPT:
            raise Wrong(f"names {state!r}{did_you_mean(state, KEPT)}; it may name {', '.join(KEPT)}.")
    return {state: optional(positive_duration)(kept) for state, kept in value.items()}


def signing(value: Any) -> bool | str:
    if not isinstance(value, bool) and value != "strict":
        raise Wrong(f"must be True, False or 'strict', not {value!r}.")
    return value if isinstance(value, bool) else "strict"


def secret(value: Any) -> str:
    # Never the value itself.
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]{16,}", value):
        raise Wrong("must be text of 16 characters at least: letters, digits and signs, no spaces.", "Make one: openssl rand -hex 32")
    return value


def names(value: Any) -> frozenset[str]:
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise Wrong("must be a list of argument names, such as ['password', 'iban'].")
    return frozenset(value)


def paths(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(path, str) and "." in path for path in value):
        raise Wrong("must be a list of dotted paths, such as ['shop.tenants.TenantCarrier'].")
    return tuple(value)
