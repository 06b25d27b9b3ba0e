"""Payloads: JSON, checked so that what a task receives equals what was scheduled, down to the type; never pickle.

A fast yes or no stands on the producer's hot path; only after a no does the slow walk of `refusal` find the place and
say what to pass instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from django_delayq import clock
from django_delayq.exceptions import PayloadError, PayloadTooLarge
from django_delayq.refusal import MAX_BITS, MAX_DEPTH, refuse, shown
from django_delayq.text import is_utf8


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
    """What `decode` gives; that looks for spaces around the value, which takes longer than most values do."""
    try:
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        end = -1
    return value if end == len(text) else _DECODER.decode(text)


def encode_payload(args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any] | None, *, limit: int, task: str) -> bytes:
    """The payload of a job: `[args]`, `[args, kwargs]` or `[args, kwargs, options]`, as short as it can be.

    Options, all optional: "backoff" (the text of a ladder), "timeout" (seconds above 0), "meta" (dict of text to JSON).
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
    """What `encode_payload` writes, of parts that it has checked before."""
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
    raise PayloadError("this payload is not [args], [args, kwargs] or [args, kwargs, options]; django-delayq did not write it")


def _writer(encoder: json.JSONEncoder) -> Callable[[object, int], Iterable[str]]:
    """What that encoder makes anew, in C, for every value: made once, a value takes half the time."""
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
        elif name == "timeout":
            if type(value) not in (int, float) or not 0 < value <= clock.MAX_SECONDS:
                raise PayloadError(f"timeout is {shown(value)}; pass seconds above 0, at most 100 years")
        else:
            raise PayloadError(f"the option {shown(name)} is unknown; a payload carries backoff, timeout and meta")
        if not _survives(value, 0):
            refuse(value, name)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is beyond what a float holds")
    return value


# Circles were refused by the check, or end as RecursionError; looking for them again would cost on every container.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_written: Final = _writer(_ENCODER)
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
