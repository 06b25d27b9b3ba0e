"""Why a task cannot be called with the arguments that it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature

from django_delayq.exceptions import PayloadError


def argument_error(
    task: str, signature: Signature, args: Sequence[object], kwargs: Mapping[str, object], *, cause: str
) -> PayloadError:
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
