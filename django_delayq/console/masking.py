"""Hides values from people: arguments named in `SENSITIVE` or by their task. They are masked in every display, but stored unchanged.

Only this module decides what a person sees. `sensitive`: the person may see all values.

If a task is not registered in this process, or has another version or other arguments here, the process does not know which arguments
to mask. Then it masks all of them, if the project masks anything.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django_delayq import conf
from django_delayq.exceptions import PayloadError
from django_delayq.producer.task import Task, registry
from django_delayq.states import DELIVERY, MESSAGE

MASK: Final = "***"
UPGRADED: Final = -1  # in the place of a version: the arguments of a run, or of a schedule, are those of this version


def names_of(task: str) -> frozenset[str]:
    """The names that are masked for jobs of this task, at any depth."""
    known = registry.find(task)
    return conf.get().sensitive | known.sensitive if known else conf.get().sensitive


def hides() -> bool:
    """Whether the project masks anything."""
    return bool(conf.get().sensitive) or any(known.sensitive for known in registry)


def arguments(
    task: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, sensitive: bool = False, version: int = 0
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, masked. For a delivery, also the query of the URL, which can contain a signature, and masked
    names in a JSON body. `version`: that of the job, 0 if the caller does not know it.
    """
    if sensitive:
        return list(args), dict(kwargs)
    if task == MESSAGE:
        hidden = names_of(task)
        return value(list(args), hidden), value(dict(kwargs), hidden)
    shown, named = _arguments(task, args, kwargs, version)
    return shown, _delivery(named) if task == DELIVERY else named


def by_name(task: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, version: int = 0) -> list[tuple[str, Any]]:
    """The arguments in order, each with its parameter name, or "" if the name is unknown here. Nothing is masked: use `arguments`
    first.
    """
    known = registry.find(task)
    called = _called(known.signature, len(args)) if known and is_current(known, args, version) else [""] * len(args)
    return [*zip(called, args, strict=True), *kwargs.items()]


def _delivery(kwargs: dict[str, Any]) -> dict[str, Any]:
    found, names = dict(kwargs), names_of(DELIVERY)
    url, body = found.get("url"), found.get("body")
    if isinstance(url, str) and "?" in url:
        found["url"] = f"{url.partition('?')[0]}?{MASK}"
    if names and isinstance(body, str):
        try:
            read = json.loads(body)
            hidden = value(read, names)
        except (ValueError, RecursionError):  # no JSON
            return found
        if hidden != read:
            found["body"] = json.dumps(hidden, ensure_ascii=False)
    return found


def _arguments(task: str, args: Sequence[Any], kwargs: Mapping[str, Any], version: int) -> tuple[list[Any], dict[str, Any]]:
    known = registry.find(task)
    if known is not None and not is_current(known, args, version):
        known = None
    try:
        if known is not None:
            known.check_arguments(args, kwargs)
    except PayloadError:  # the parameters of the function have other names
        known = None
    if known is None:
        return ([MASK for _ in args], dict.fromkeys(kwargs, MASK)) if hides() else (list(args), dict(kwargs))
    names = names_of(task)
    if not names:
        return list(args), dict(kwargs)
    signature = known.signature
    called = _called(signature, len(args))
    shown = [MASK if name in names else value(item, names) for name, item in zip(called, args, strict=True)]
    if any(one.kind is one.VAR_KEYWORD and name in names for name, one in signature.parameters.items()):  # def task(**secrets)
        own = signature.parameters
        return shown, {name: value(item, names) if name in own else MASK for name, item in kwargs.items()}
    return shown, value(dict(kwargs), names)


def attached(task: str, meta: Mapping[str, Any], *, sensitive: bool = False) -> dict[str, Any]:
    """The meta of a job, masked."""
    if sensitive:
        return dict(meta)
    return arguments(task, [], meta)[1] if _is_gone(task) else value(dict(meta), names_of(task))


def result(task: str, given: Any, *, sensitive: bool = False) -> Any:
    """The result of a job, masked; None stays None."""
    if given is None or sensitive:
        return given
    return MASK if _is_gone(task) and hides() else value(given, names_of(task))


def detail(task: str, given: Any, *, sensitive: bool = False) -> Any:
    """The detail of an event, or the problem of a run, masked. An edit keeps the former `args` and `kwargs` there."""
    if sensitive:
        return given
    if not isinstance(given, dict):
        return result(task, given)
    args, kwargs = given.get("args"), given.get("kwargs")
    positional, named = arguments(task, args if isinstance(args, list) else [], kwargs if isinstance(kwargs, dict) else {})
    shown = {**value(given, names_of(task)), "args": positional, "kwargs": named}
    return {name: shown[name] for name in given}


def value(given: Any, names: frozenset[str]) -> Any:
    """A value in which everything under one of these names is masked, at any depth."""
    if not names:
        return given
    if isinstance(given, dict):
        return {name: MASK if name in names else value(inner, names) for name, inner in given.items()}
    if isinstance(given, list):
        return [value(inner, names) for inner in given]
    return given


def without_mask(given: Any) -> Any:
    """The value before masking, except for text that is equal to the mask. Used to find out what is masked."""
    if isinstance(given, dict):
        return {name: without_mask(inner) for name, inner in given.items()}
    if isinstance(given, list):
        return [without_mask(inner) for inner in given]
    return None if given == MASK else given


def is_current(task: Task[..., Any], args: Sequence[Any], version: int) -> bool:
    """Whether the arguments of a job of this version have the names of the function. Without a version, positional arguments may have
    others.
    """
    return version in (task.version, UPGRADED) or (version == 0 and (task.version == 1 or not args))


def _is_gone(task: str) -> bool:
    return task != MESSAGE and registry.find(task) is None


def _called(signature: inspect.Signature, count: int) -> list[str]:
    """The parameter name of each positional argument. All arguments of `*rest` have the same name."""
    found: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return (found + [name] * count)[:count]
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found.append(name)
    return (found + [""] * count)[:count]
