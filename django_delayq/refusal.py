"""Why a value cannot be an argument: the slow half of the codec; it finds the place and says what to pass instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from inspect import Parameter, Signature
from pathlib import PurePath
from typing import Any, Final, NoReturn
from uuid import UUID

from django_delayq.exceptions import PayloadError
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


def refuse(value: object, path: str, depth: int = 0) -> NoReturn:
    """Raise the PayloadError for the first place at or below `path` that JSON does not give back as it was."""
    _look(value, path, depth, [])
    raise _refusal(path, "cannot be stored as JSON", "pass plain text, numbers, lists and dicts")


def misfit(task: str, signature: Signature, args: Sequence[object], kwargs: Mapping[str, object], *, cause: str) -> PayloadError:
    """Why a task cannot be called with these arguments, where its signature refuses them. `cause`: what Python says about it."""
    code, argument = _mismatch(signature, args, kwargs)
    written = [one.replace(annotation=_bare(one.annotation)) for one in signature.parameters.values()]
    shown = str(signature.replace(parameters=written, return_annotation=_bare(signature.return_annotation)))
    return PayloadError(code=code, task=task, signature=shown, cause=cause, argument=argument)


class _Bare(str):
    """An annotation that is kept as text, to be shown as it was written and not as text in quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _bare(annotation: object) -> object:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _mismatch(signature: Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[str, str]:
    """The code of what is wrong first, in the order in which Python looks, and the argument that it is about."""
    every = signature.parameters.values()
    kinds = {one.kind for one in every}
    placed = [one for one in every if one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    for one in placed[: len(args)]:
        if one.name in kwargs and one.kind is Parameter.POSITIONAL_OR_KEYWORD:
            return "argument_twice", one.name
    if len(args) > len(placed) and Parameter.VAR_POSITIONAL not in kinds:
        return "argument_surplus", ""
    named = [one for one in every if one.kind is Parameter.KEYWORD_ONLY]
    for one in (*placed[len(args) :], *named):
        given = one.name in kwargs
        if given and one.kind is Parameter.POSITIONAL_ONLY:
            return "arguments", one.name
        if not given and one.default is Parameter.empty:
            return "argument_missing", one.name
    taken = {one.name for one in (*placed, *named) if one.kind is not Parameter.POSITIONAL_ONLY}
    strange = [name for name in kwargs if name not in taken]
    if strange and Parameter.VAR_KEYWORD not in kinds:
        return "argument_unknown", strange[0]
    return "arguments", ""


def _look(value: Any, path: str, depth: int, above: list[int]) -> None:
    kind = type(value)
    if kind is dict or kind is list:
        if id(value) in above:
            raise _refusal(path, "contains itself", "pass ids instead of objects that refer to each other")
        if depth >= MAX_DEPTH:
            raise PayloadError(code="value_depth", path=_cut(path, 400), most=MAX_DEPTH)
        above.append(id(value))
        for key, item in _items(value):
            if kind is dict:
                _look_at_key(key, path)
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


def _look_at_key(key: object, path: str) -> None:
    if type(key) is not str:
        kind = _named(type(key))
        raise _refusal(path, f"has the key {shown(key)} of type {kind}, and JSON keys are text", "pass str keys")
    if not is_utf8(key):
        raise PayloadError(code="name_surrogate", path=_cut(path, 400), name=shown(key))


def _refusal(path: str, what: str, remedy: str) -> PayloadError:
    return PayloadError(f"{_cut(path, 400)} {what}; {remedy}")


def _items(value: Any) -> list[tuple[object, object]]:
    return list(value.items()) if type(value) is dict else list(enumerate(value))


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
