"""What people may not see: arguments named in `SENSITIVE` or by their task. They are masked wherever people look, and stored as they
are.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django_delayq import conf
from django_delayq.exceptions import UnknownTask
from django_delayq.task import registry

MASK: Final = "***"


def names_of(task: str) -> frozenset[str]:
    """The names masked for jobs of that task, at any depth."""
    try:
        return conf.get().sensitive | registry.get(task).sensitive
    except UnknownTask:
        return conf.get().sensitive


def arguments(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, masked. Of a task that is not registered here nobody knows which of them are to be hidden:
    if the project hides anything, all of them are.
    """
    names = names_of(task)
    try:
        signature = registry.get(task).signature
    except UnknownTask:
        if names or any(known.sensitive for known in registry):
            return [MASK for _ in args], dict.fromkeys(kwargs, MASK)
        return list(args), dict(kwargs)
    if not names:
        return list(args), dict(kwargs)
    called = _called(signature, len(args))
    shown = [MASK if name in names else value(item, names) for name, item in zip(called, args, strict=True)]
    rest = _rest(signature)
    if rest in names:  # def task(**secrets)
        known = signature.parameters
        return shown, {name: value(item, names) if name in known else MASK for name, item in kwargs.items()}
    return shown, value(dict(kwargs), names)


def value(given: Any, names: frozenset[str]) -> Any:
    """A value in which what stands under one of these names is masked, at any depth."""
    if not names:
        return given
    if isinstance(given, dict):
        return {name: MASK if name in names else value(inner, names) for name, inner in given.items()}
    if isinstance(given, list):
        return [value(inner, names) for inner in given]
    return given


def _called(signature: inspect.Signature, count: int) -> list[str]:
    """What the function calls each of so many positional arguments; all that goes into `*rest` is called so."""
    found: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return (found + [name] * count)[:count]
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found.append(name)
    return (found + [""] * count)[:count]


def _rest(signature: inspect.Signature) -> str:
    return next((name for name, one in signature.parameters.items() if one.kind is one.VAR_KEYWORD), "")
