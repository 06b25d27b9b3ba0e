"""The parameters of a task's function. Arguments are compared with them and with their annotations, and an error explains why a call is
not possible.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from django_delayq.exceptions import PayloadError

NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def takes_all(signature: inspect.Signature) -> bool:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def positional(signature: inspect.Signature) -> tuple[int, int]:
    """Returns the least and most positional arguments of a valid call. (1, 0): keyword arguments are needed."""
    least = most = 0
    for parameter in signature.parameters.values():
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            least, most = least + required, most + 1
        elif parameter.kind is parameter.VAR_POSITIONAL:
            most = sys.maxsize
        elif parameter.kind is parameter.KEYWORD_ONLY and required:
            return 1, 0
    return least, most


def named_beside(signature: inspect.Signature) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Returns the required and the allowed keywords, by the number of positional arguments. `bind` decides all other calls."""
    found: list[tuple[frozenset[str], frozenset[str]]] = []
    parameters = signature.parameters.values()
    placed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    for number in range(len(placed) + 1):
        rest = [*placed[number:], *(one for one in parameters if one.kind is one.KEYWORD_ONLY)]
        required = frozenset(one.name for one in rest if one.default is one.empty)
        found.append((required, frozenset(one.name for one in rest if one.kind in NAMED)))
    return found


# The exact types that an annotation allows. As in Python, an int is allowed for a float, and a bool for an int.
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
# For values of other types, the codec has better error messages.
PLAIN: Final = frozenset[type]().union(*_TAKES.values())


class TypedParameter(NamedTuple):
    """A parameter with an annotation of plain types."""

    name: str
    takes: frozenset[type]
    says: str


class Annotations:
    """The annotations of one function. They are read lazily, because a module can define their names below the function."""

    def __init__(self, fn: Callable[..., Any], signature: inspect.Signature) -> None:
        self._placed: list[TypedParameter | None] = []
        self._named: dict[str, TypedParameter] = {}
        self._understood: dict[str, TypedParameter] = {}
        self._rest: TypedParameter | None = None  # of *args
        self._others: TypedParameter | None = None  # of **kwargs
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
        """Returns the types that the annotation of a parameter allows; None: all types. For `*rest`, the types of each item."""
        found = self._understood.get(name)
        return found.takes if found else None

    def check(self, task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compares arguments with the annotations. `task`: its name, for the error. The error contains no values.

        Raises:
            PayloadError: an argument has another type.
        """
        for number, value in enumerate(args):
            self._look(task, self._placed[number] if number < len(self._placed) else self._rest, "", value)
        for name, value in kwargs.items():
            self._look(task, self._named.get(name) if name in self._names else self._others, name, value)

    def _look(self, task: str, parameter: TypedParameter | None, name: str, value: object) -> None:
        kind = type(value)
        if parameter is not None and kind not in parameter.takes and kind in PLAIN:
            given = "None" if value is None else kind.__name__
            raise PayloadError(code="argument_type", task=task, argument=name or parameter.name, annotation=parameter.says, given=given)


def _understood(one: inspect.Parameter, known: dict[str, Any]) -> TypedParameter | None:
    if one.annotation is one.empty:
        return None
    try:
        # One by one, because a name that is imported only for type checkers must not hide the others.
        hint = get_type_hints(SimpleNamespace(__annotations__={one.name: one.annotation}), known)[one.name]
    except Exception:  # any expression; a type checker reports mistakes
        return None
    takes = _takes(hint)
    if takes is None:
        return None
    if one.default is not one.empty:
        takes |= {type(one.default)}  # `note: str = None`
    return TypedParameter(
        one.name, takes, one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)
    )


def _takes(hint: Any) -> frozenset[type] | None:
    origin = get_origin(hint)
    if origin is Union or origin is UnionType:
        parts = [_takes(part) for part in get_args(hint)]
        return None if None in parts else frozenset[type]().union(*(part for part in parts if part))
    try:
        return _TAKES.get(origin or hint)
    except TypeError:  # an annotation that cannot be hashed
        return None


def argument_error(
    task: str, signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object], *, cause: str
) -> PayloadError:
    """Returns the error for arguments that do not match the signature. `cause`: the message of Python."""
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


def _mismatch(signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[str, str]:
    """Returns the error code and the argument of the first mistake, in the order of Python."""
    every = signature.parameters.values()
    kinds = {one.kind for one in every}
    placed = [one for one in every if one.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for one in placed[: len(args)]:
        if one.name in kwargs and one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            return "argument_twice", one.name
    if len(args) > len(placed) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return "argument_surplus", ""
    named = [one for one in every if one.kind is inspect.Parameter.KEYWORD_ONLY]
    for one in (*placed[len(args) :], *named):
        given = one.name in kwargs
        if given and one.kind is inspect.Parameter.POSITIONAL_ONLY:
            return "arguments", one.name
        if not given and one.default is inspect.Parameter.empty:
            return "argument_missing", one.name
    taken = {one.name for one in (*placed, *named) if one.kind is not inspect.Parameter.POSITIONAL_ONLY}
    strange = [name for name in kwargs if name not in taken]
    if strange and inspect.Parameter.VAR_KEYWORD not in kinds:
        return "argument_unknown", strange[0]
    return "arguments", ""
