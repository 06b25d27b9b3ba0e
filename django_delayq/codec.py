"""Payloads: JSON, never pickle. A check ensures that a task receives exactly what was scheduled, down to the type.

The producer's hot path only has a fast check that returns yes or no. If it fails, a slow walk finds the place and the value to pass
instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final, NoReturn
from uuid import UUID

from django_delayq import durations
from django_delayq.exceptions import PayloadError, PayloadTooLarge
from django_delayq.text import is_utf8

MAX_DEPTH: Final = 100
MAX_BITS: Final = 14_000  # Python neither prints nor reads longer ints by default: its limit is 4,300 digits

# First match wins: datetime is a date, an IntEnum is an int, a bool never comes here.
_REMEDIES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (Enum, "pass its .value, if that is plain JSON"),
    ((date, time), "pass its .isoformat() text"),
    (timedelta, "pass its .total_seconds()"),
    ((Decimal, UUID, Fraction, PurePath), "pass its text, str(value)"),
    ((set, frozenset), "pass a list, sorted(value)"),
    (tuple, "a tuple would come back as a list; pass a list, list(value)"),
    ((bytes, bytearray, memoryview), "pass text: value.decode(), or base64"),
    (complex, "pass a list of its two parts"),
    (str, "a subclass would come back as plain str; pass str.__str__(value)"),
    (int, "a subclass would come back as plain int; pass int(value)"),
    (float, "a subclass would come back as plain float; pass float(value)"),
    (dict, "a subclass would come back as plain dict; pass dict(value)"),
    (list, "a subclass would come back as plain list; pass list(value)"),
    (BaseException, "pass its text, str(value)"),
)


def check(value: object, path: str) -> None:
    """PayloadError, naming the place below `path` and the remedy, unless `value` survives JSON unchanged."""
    if not _survives(value, 0):
        refuse(value, path)


def dumps(obj: object) -> bytes:
    """Compact JSON in UTF-8. It does not check: tuples become lists. PayloadError for what JSON cannot hold at all."""
    try:
        return "".join(_written(obj, 0)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"this value cannot be written as JSON: {error}; pass plain text, numbers, lists and dicts") from error


def loads(raw: bytes) -> Any:
    """The value of strict JSON in UTF-8: no NaN, infinity or half surrogate pairs. PayloadError for anything else."""
    try:
        text = str(raw, "utf-8")
        value = _value(text)
        if "\\u" in text:  # only an escape can bring in half of a surrogate pair, which then does not encode
            _ENCODER.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        at = {"line": error.lineno, "column": error.colno} if isinstance(error, json.JSONDecodeError) else {}
        raise PayloadError(code="json_place" if at else "json", cause=str(error), **at) from None
    return value


def _value(text: str) -> Any:
    """The same as `decode`, without its search for spaces around the value, which takes longer than most values."""
    try:
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        end = -1
    return value if end == len(text) else _DECODER.decode(text)


def encode_payload(args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any] | None, *, limit: int, task: str) -> bytes:
    """The payload of a job: `[args]`, `[args, kwargs]` or `[args, kwargs, options]`, as short as it can be.

    Options, all optional: "backoff" (the text of a ladder), "timeout" and "at_most" (seconds above 0), "meta" (dict of text to JSON).
    Raises PayloadError naming the argument, PayloadTooLarge above `limit` bytes.
    """
    try:
        for value in args:
            if not _survives(value, 0):
                for place, item in enumerate(args):
                    check(item, f"args[{place}]")
        if kwargs and not _survives(kwargs, -1):
            refuse(kwargs, "kwargs", -1)
        if options:
            _check_options(options)
    except PayloadError as error:
        raise PayloadError(f"{task}: {error}", code=error.code, task=task, **error.fields) from None
    raw = pack(args, kwargs, options)
    if len(raw) > limit:
        raise PayloadTooLarge(code="payload_size", task=task, size=len(raw), limit=limit)
    return raw


def pack(args: Sequence[Any], kwargs: dict[str, Any], options: dict[str, Any] | None) -> bytes:
    """The same as `encode_payload`, for parts that it has checked before."""
    return dumps([args, kwargs, options] if options else [args, kwargs] if kwargs else [args])


def decode_payload(raw: bytes) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """`(args, kwargs, options)` of a payload; PayloadError for anything that `encode_payload` does not write."""
    value = loads(raw)
    # Each level takes two brackets, so what is short or has fewer cannot nest deeper. The depth starts at -2: the outer list, and args
    # or kwargs in it, are ours.
    if len(raw) > 2 * MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and not _survives(value, -2):
        refuse(value, "payload", -2)
    if type(value) is list and len(value) == 1 and type(value[0]) is list:  # mostly; a match takes longer
        return value[0], {}, {}
    if type(value) is list and 2 <= len(value) <= 3 and type(value[0]) is list and type(value[1]) is dict:
        if len(value) == 2:
            return value[0], value[1], {}
        if type(value[2]) is dict:
            _check_options(value[2])
            return value[0], value[1], value[2]
    raise PayloadError("this payload is not [args], [args, kwargs] or [args, kwargs, options], so it was not written by django-delayq")


def refuse(value: object, path: str, depth: int = 0) -> NoReturn:
    """Raise the PayloadError for the first place at or below `path` that JSON does not give back as it was."""
    _look(value, path, depth, [])
    raise _refusal(path, "cannot be stored as JSON", "pass plain text, numbers, lists and dicts")


def _look(value: Any, path: str, depth: int, above: list[int]) -> None:
    kind = type(value)
    if kind is dict or kind is list:
        if id(value) in above:
            raise _refusal(path, "contains itself", "pass ids instead of objects that refer to each other")
        if depth >= MAX_DEPTH:
            raise PayloadError(code="value_depth", path=_cut(path, 400), most=MAX_DEPTH)
        above.append(id(value))
        for key, item in list(value.items()) if kind is dict else enumerate(value):
            if kind is dict and type(key) is not str:
                what = f"has the key {shown(key)} of type {_named(type(key))}, and JSON keys are text"
                raise _refusal(path, what, "pass str keys")
            if kind is dict and not is_utf8(str(key)):
                raise PayloadError(code="name_surrogate", path=_cut(path, 400), name=shown(key))
            _look(item, f"{path}[{shown(key)}]", depth + 1, above)
        above.pop()
    elif kind is str:
        if not is_utf8(str(value)):
            raise PayloadError(code="value_surrogate", path=_cut(path, 400))
    elif kind is float:
        if not math.isfinite(float(value)):
            raise _refusal(path, f"is {value}, which JSON does not have", "pass None, or text")
    elif kind is int:
        if int(value).bit_length() > MAX_BITS:
            raise PayloadError(code="value_digits", path=_cut(path, 400))
    elif kind is not bool and value is not None:
        raise _refusal(path, f"is of type {_named(kind)}, which JSON does not give back", _remedy(value))


def _refusal(path: str, what: str, remedy: str) -> PayloadError:
    return PayloadError(f"{_cut(path, 400)} {what}; {remedy}")


def _remedy(value: object) -> str:
    if isinstance(value, type):
        return "pass its dotted name"
    # Ducks, not types: there is no Django on this floor, and a lazy object, such as request.user, is no Model by type.
    if _has(value, "_meta") and _has(value, "pk"):
        return "pass its pk, and load it in the task"
    if _has(value, "values_list"):
        return 'pass a list of pks, list(value.values_list("pk", flat=True))'
    if type(value).__name__ == "__proxy__":  # what gettext_lazy makes
        return "pass its text, str(value)"
    for kinds, remedy in _REMEDIES:
        if isinstance(value, kinds):
            return remedy
    if is_dataclass(value):
        return "pass dataclasses.asdict(value)"
    if callable(value):
        return "pass its dotted name"
    if _has(value, "__next__") or _has(value, "__iter__"):
        return "pass a list, list(value)"
    return "pass an id, text, a number, a list or a dict"


def _has(value: object, name: str) -> bool:
    try:
        return hasattr(value, name)
    except Exception:  # a property of the user's, which may raise anything
        return False


def _named(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shown(key: object) -> str:
    """A key or an option for a message: a plain value as it is, cut when long; of anything else only its type."""
    if type(key) in (str, int, float, bool) or key is None:
        try:
            return _cut(ascii(key))
        except ValueError:  # an int too long to print
            pass
    return f"<{type(key).__name__}>"


def _cut(text: str, length: int = 80) -> str:
    half = length // 2
    return text if len(text) <= length else f"{text[:half]}...{text[-half:]}"


def _writer(encoder: json.JSONEncoder) -> Callable[[object, int], Iterable[str]]:
    """The C encoder, created once instead of for each value: this halves the time per value."""
    inner: Any = vars(json.encoder)  # no public part of it, so that another Python may not have it
    try:
        made: Callable[[object, int], Iterable[str]] = inner["c_make_encoder"](
            None, encoder.default, inner["encode_basestring"], None, ":", ",", False, False, False
        )
    except (KeyError, TypeError):
        return lambda obj, _level: encoder.iterencode(obj)
    return made


def _survives(value: Any, depth: int) -> bool:  # Any: mypy does not follow `kind is`
    kind = type(value)
    if kind is str:
        return value.isascii() or is_utf8(value)
    if kind is int:
        fits: bool = value.bit_length() <= MAX_BITS
        return fits
    if kind is bool or value is None:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        if depth >= MAX_DEPTH:
            return False
        depth += 1
        for key, item in value.items():
            if type(key) is not str or not (key.isascii() or is_utf8(key)) or not _survives(item, depth):
                return False
        return True
    if kind is list:
        if depth >= MAX_DEPTH:
            return False
        depth += 1
        # A plain loop: all(...) would cost a generator for each list.
        for item in value:  # noqa: SIM110
            if not _survives(item, depth):
                return False
        return True
    return False


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name == "meta":
            if type(value) is not dict:
                raise PayloadError(f"meta is a {type(value).__name__}; pass a dict of text to JSON values")
        elif name == "backoff":
            if type(value) is not str:
                raise PayloadError(f"backoff is a {type(value).__name__}; pass the text of a ladder")
        elif name in ("timeout", "at_most"):
            if type(value) not in (int, float) or not 0 < value <= durations.MAX_SECONDS:
                raise PayloadError(f"{name} is {shown(value)}; pass seconds above 0, at most 100 years")
        else:
            raise PayloadError(f"the option {shown(name)} is unknown; a payload contains backoff, timeout, at_most and meta")
        if not _survives(value, 0):
            refuse(value, name)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large for a float")
    return value


# Circles were refused by the check, or end as RecursionError; looking for them again would cost on every container.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_written: Final = _writer(_ENCODER)
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
