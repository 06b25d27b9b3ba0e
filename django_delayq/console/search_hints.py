"""What is said beside the rows of a search: what it could not find, where it has looked, and which searches may find more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from django.utils.translation import gettext as now

from django_delayq import conf
from django_delayq.console import masking
from django_delayq.console.search import Search
from django_delayq.console.search_terms import Term, has, shows
from django_delayq.console.selection import Selection
from django_delayq.producer.task import registry
from django_delayq.text import nearest

MOST: Final = 8  # searches offered
MOST_ARGUMENTS: Final = 3  # of those that name an argument
_NUMBER: Final = re.compile(r"-?\d+")
_PLAIN: Final = re.compile(r'[^\s"-][^\s"]*')


def remarks(search: Search) -> list[str]:
    """Words that are none, and arguments that find nothing whatever their value."""
    names = [term.value.partition("=")[0] for term in search.terms if term.word == "arg" and not term.negated]
    return [*search.remarks, *filter(None, map(_fault, names))]


def _fault(name: str) -> str:
    tasks = registry.names()
    known = _arguments(tasks)
    if name in known:
        return ""
    if name in conf.get().sensitive or any(name in masking.names_of(task) and has(task, name) for task in tasks):
        return now("The argument %(name)s is masked, so you cannot search for it.") % {"name": name}
    said = now("No task has an argument named %(name)s.") % {"name": name}
    near = nearest(name, known)
    return now("%(said)s Did you mean %(near)s?") % {"said": said, "near": near} if near else said


def _arguments(tasks: Iterable[str], annotation: str = "") -> Counter[str]:
    """The arguments that people see, and how many tasks have each. `annotation`: those without any, or with one in which it stands."""
    return Counter(
        name
        for task in tasks
        for name, one in registry.get(task).signature.parameters.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        and shows(task, name)
        and (not annotation or one.annotation is one.empty or re.search(rf"\b({annotation}|Any|object)\b", str(one.annotation)))
    )


def searched(search: Search, *, partly: bool) -> str:
    """Where texts that stand alone were looked for; "" without any. `partly`: see `keyset.Page`."""
    if not search.loose:
        return ""
    if partly:
        return now(
            "Ids and key prefixes were searched in all jobs. Errors, arguments and other parts of keys were searched "
            "only in the first 10,000 jobs of this list."
        )
    return now("The search included ids, keys, task names, errors, and the arguments that are not masked.")


def refusal(search: Search) -> str:
    """Why nothing can be done to all jobs of that search; "" where it can."""
    if search.blind:
        said = now("An operation cannot exclude jobs by their arguments, because a worker may not know them. Remove %(text)s.")
        return said % {"text": _typed(search.blind[0])}
    if not search.loose:
        return ""
    said = now("The text %(text)s alone searches only 10,000 jobs, but an operation applies to all matching jobs.")
    return f"{said % {'text': search.loose[0].value}} {now('Name the field: key:, task:, error: or arg:name=value.')}"


def others(wanted: Selection) -> list[Selection]:
    """Searches that may find what this one does not, the likeliest first."""
    found = list[Selection]()
    if len(wanted.search.groups) == 1:
        terms = wanted.search.groups[0].terms
        for term in terms:
            rest = [_typed(each) for each in terms if each is not term]
            found += [replace(wanted, text=" ".join([*rest, text])) for text in _said_otherwise(term, wanted.task)]
    if wanted.shown_view:
        found.append(replace(wanted, view="", text=_without(wanted, "state")))
    if wanted.queue or wanted.search.value("queue"):
        found.append(replace(wanted, queue="", text=_without(wanted, "queue")))
    if wanted.task:
        found.append(replace(wanted, task=""))
    good = [each for each in found if each != wanted and not each.search.complaints and (each.text or not wanted.text)]
    return list(dict.fromkeys(good))[:MOST]


def _said_otherwise(term: Term, task: str) -> list[str]:
    if term.free:
        kind = "int|float" if _NUMBER.fullmatch(term.value) else "str"
        known = registry.names()
        theirs = [name for name in known if not registry.get(name).own]  # a person means an argument of the project
        names = _arguments([task] if task in known else theirs, kind)
        likely = [name for name, _ in names.most_common(MOST_ARGUMENTS)]
        return [f"error:{_quoted(term.value)}", *(f"arg:{_quoted(f'{name}={term.value}')}" for name in likely)]
    if term.negated:
        return []
    if term.word == "key" and not term.value.endswith("*"):
        return [f"key:{_quoted(f'{term.value}*')}", _quoted(term.value)]
    return [""] if term.word in ("after", "before", "worker", "host", "target") else []


def _without(wanted: Selection, word: str) -> str:
    groups = [" ".join(_typed(term) for term in group.terms if term.word != word or term.negated) for group in wanted.search.groups]
    return " OR ".join(groups)


def _typed(term: Term) -> str:
    word = f"{term.word}:" if term.word else ""
    return f"{'-' if term.negated else ''}{word}{_quoted(term.value)}"


def _quoted(text: str) -> str:
    """As a search takes it for one text."""
    return text if _PLAIN.fullmatch(text) and text.upper() not in ("OR", "AND", "NOT") else f'"{text}"'
