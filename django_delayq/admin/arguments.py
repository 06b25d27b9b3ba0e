"""Arguments and results of a job line by line, as people read them: what the task calls each, of which type it is, and its value."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext as now

from django_delayq.admin import timeline
from django_delayq.console.masking import MASK
from django_delayq.console.wording import cut
from django_delayq.producer.task import registry
from django_delayq.states import MESSAGE
from django_delayq.text import visible

MOST_LINES: Final = 100
LONGEST_TYPE: Final = 100  # characters


@dataclass(frozen=True, slots=True)
class NamedValue:
    """One value. `name`: what the task calls it, or its number; "" for a value that stands alone. `kind`: what the annotation of the
    task says, else the type that it has; "" where it is masked and nothing says it.
    """

    name: str
    kind: str
    text: str

    @property
    def long(self) -> bool:
        """Whether it may need a bar to scroll, and so the keyboard."""
        return len(self.text) > 300


def of(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[NamedValue]:
    """The arguments of a job of that task, masked already."""
    known = registry.find(task)
    parameters = known.signature.parameters if known else {}
    return _lines([*_by_place(task, args, parameters), *_by_name(kwargs, parameters)], now("… and %(count)d more arguments"))


def of_result(value: Any) -> list[NamedValue]:
    """What a job has returned, masked already: an object by its names, all else as one value; none for None."""
    if value is None:
        return []
    if isinstance(value, dict) and value:
        return _lines([(str(name), _type(inner), inner) for name, inner in value.items()], now("… and %(count)d more values"))
    return _lines([("", _type(value), value)], "")


def _by_place(task: str, args: Sequence[Any], parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, str, Any]]:
    if task == MESSAGE and len(args) == 1:
        yield now("body"), _type(args[0]), args[0]
        return
    places = [one for one in parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    rest = next((one for one in parameters.values() if one.kind is one.VAR_POSITIONAL), None)
    for number, value in enumerate(args):
        if number < len(places):
            yield places[number].name, _kind(places[number], value), value
        elif rest is not None:
            yield f"{rest.name}[{number - len(places)}]", _kind(rest, value), value
        else:
            yield str(number + 1), _type(value), value


def _by_name(kwargs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, str, Any]]:
    rest = next((one for one in parameters.values() if one.kind is one.VAR_KEYWORD), None)
    for name, value in kwargs.items():
        one = parameters.get(name, rest)
        yield name, _type(value) if one is None else _kind(one, value), value


def _kind(parameter: inspect.Parameter, value: Any) -> str:
    return annotation(parameter) or _type(value)


def annotation(parameter: inspect.Parameter) -> str:
    """As the function has it, cut when long; "" for none."""
    said = "" if parameter.annotation is parameter.empty else parameter.annotation
    return cut(visible(said if isinstance(said, str) else inspect.formatannotation(said)), LONGEST_TYPE)


def _type(value: Any) -> str:
    return "" if value == MASK else type(value).__name__


def _lines(found: Sequence[tuple[str, str, Any]], more: str) -> list[NamedValue]:
    """At most so many lines, and of all of them together not more than a page bears."""
    room, shown = timeline.MOST_SHOWN, []
    for name, kind, value in found[:MOST_LINES]:
        text = MASK if value == MASK else timeline.pretty(value, room)
        room = max(timeline.ONE_LINE, room - len(text))
        shown.append(NamedValue(visible(name), kind, text))
    if len(found) > MOST_LINES:
        shown.append(NamedValue("", "", more % {"count": len(found) - MOST_LINES}))
    return shown
