"""What the annotations of a task say of its arguments, as far as they name plain JSON types. All others let everything in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from django_delayq.exceptions import PayloadError

# What an annotation takes, by the exact type of a value: where Python takes an int for a float, and a bool for an int, so do we.
_TAKES: Final[Mapping[Any, frozenset[type]]] = {
    str: frozenset({str}),
    bool: frozenset({bool}),
    int: frozenset({int, bool}),
    float: frozenset({float, int, bool}),
    list: frozenset({list}),
    dict: frozenset({dict}),
    None: frozenset({NoneType}),
    NoneType: frozenset({NoneType}),
}
# Of any other value the codec says better what to pass instead.
PLAIN: Final = frozenset[type]().union(*_TAKES.values())


class Parameter(NamedTuple):
    """One parameter whose annotation is understood."""

    name: str
    takes: frozenset[type]
    says: str


class Annotations:
    """The annotations of one function. They are read when this is made: late enough for names that its module defines below it."""

    def __init__(self, fn: Callable[..., Any], signature: inspect.Signature) -> None:
        self._placed: list[Parameter | None] = []
        self._named: dict[str, Parameter] = {}
        self._understood: dict[str, Parameter] = {}
        self._rest: Parameter | None = None  # of *args
        self._others: Parameter | None = None  # of **kwargs
        known = getattr(inspect.unwrap(fn), "__globals__", {})
        for one in signature.parameters.values():
            found = _understood(one, known)
            if found is not None:
                self._understood[one.name] = found
            if one.kind is one.VAR_POSITIONAL:
                self._rest = found
            elif one.kind is one.VAR_KEYWORD:
                self._others = found
            else:
                if one.kind is not one.KEYWORD_ONLY:
                    self._placed.append(found)
                if found is not None and one.kind is not one.POSITIONAL_ONLY:
                    self._named[one.name] = found
        self._names = {name for name, one in signature.parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}

    def takes(self, name: str) -> frozenset[type] | None:
        """The types that the annotation of that parameter lets in; None where it lets in everything. Of `*rest`: of each in it."""
        found = self._understood.get(name)
        return found.takes if found else None

    def check(self, task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compares arguments that fit the signature with what it says of them. `task`: its name, for the error, which quotes no value.

        Raises:
            PayloadError: one of them is of another type.
        """
        for number, value in enumerate(args):
            self._look(task, self._placed[number] if number < len(self._placed) else self._rest, "", value)
        for name, value in kwargs.items():
            self._look(task, self._named.get(name) if name in self._names else self._others, name, value)

    def _look(self, task: str, parameter: Parameter | None, name: str, value: object) -> None:
        kind = type(value)
        if parameter is not None and kind not in parameter.takes and kind in PLAIN:
            given = "None" if value is None else kind.__name__
            raise PayloadError(code="argument_type", task=task, argument=name or parameter.name, annotation=parameter.says, given=given)


def _understood(one: inspect.Parameter, known: dict[str, Any]) -> Parameter | None:
    if one.annotation is one.empty:
        return None
    try:
        # Each by itself: one name that is imported for type checkers only must not hide the others.
        hint = get_type_hints(SimpleNamespace(__annotations__={one.name: one.annotation}), known)[one.name]
    except Exception:  # whatever stands there; the project's own type checker tells of it
        return None
    takes = _takes(hint)
    if takes is None:
        return None
    if one.default is not one.empty:
        takes |= {type(one.default)}  # `note: str = None`
    return Parameter(one.name, takes, one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation))


def _takes(hint: Any) -> frozenset[type] | None:
    origin = get_origin(hint)
    if origin is Union or origin is UnionType:
        parts = [_takes(part) for part in get_args(hint)]
        return None if None in parts else frozenset[type]().union(*(part for part in parts if part))
    try:
        return _TAKES.get(origin or hint)
    except TypeError:  # an annotation that is no key
        return None
