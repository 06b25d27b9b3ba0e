"""Parses a search such as `state:failed -task:mail error:503 OR key:order-5`.

All conditions of a group must match. `OR` separates groups; `-` or `not` negates the next condition. Unknown terms are errors and are
not ignored, because an operation must not match more jobs than intended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import chain
from typing import Any, Final

from django.db.models import Q
from django.utils.translation import gettext as now

from django_delayq import clock
from django_delayq.console.search_fields import FIELDS, JSON, WORDS, Refused, Sense, Term, free_text, of_tasks
from django_delayq.producer.task import registry
from django_delayq.text import is_utf8, nearest

LONGEST: Final = 1000  # characters of a search
MOST_TERMS: Final = 30  # conditions of a search
OPEN_ENDED: Final = ("arg", "meta")  # a group can have several of these

_OPERATORS: Final = frozenset({"NOT", "OR", "AND"})
_TOKEN: Final = re.compile(r'(-?)(?:([A-Za-z_]+):)?(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True, slots=True)
class Alternative:
    """A group: conditions that must all match. `text`: the text of the group."""

    terms: tuple[Term, ...]
    text: str

    @property
    def keyed(self) -> bool:
        """Whether it searches for an id, a key or listed jobs, so that an index finds the few rows."""
        return any((term.few or term.word in ("id", "key")) and not term.negated for term in self.terms)

    @property
    def free(self) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.free)

    def by_task(self) -> Alternative | None:
        """The group with its free texts as parts of task names; None if no task matches all of them."""
        tasks = tuple(sorted(set.intersection(*(set(text.tasks) for text in self.free))))
        rest = tuple(term for term in self.terms if not term.free)
        return Alternative((*rest, of_tasks(self.free[0].value, tasks)), self.text) if tasks else None

    def rows(self) -> Q:
        """The condition for the database, which may match too many rows."""
        return reduce(lambda found, term: found & term.rows, self.terms, Q())

    def holds(self, row: Any) -> bool:
        """Whether all conditions match a row that has their columns."""
        return all(term.holds(row) for term in self.terms)

    def exact(self, row: Any) -> bool:
        """The same for a row that `rows` has matched."""
        return all(term.holds(row) for term in self.terms if term.rough)


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search. A row must match one of the groups; without groups, all rows match. With `complaints`, no row matches.
    `remarks`: terms that may have been meant differently.
    """

    groups: tuple[Alternative, ...] = ()
    complaints: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        """The conditions of all groups."""
        return tuple(chain.from_iterable(group.terms for group in self.groups))

    @property
    def shared(self) -> dict[str, Term]:
        """The conditions by word that are in all groups, except in groups with an id or a key."""
        read = [group for group in self.groups if not group.keyed] or self.groups
        named = [{(term.word, term.value): term for term in group.terms if term.word and not term.negated} for group in read]
        return {each[0]: term for each, term in (named[0] if named else {}).items() if all(each in one for one in named)}

    def value(self, word: str) -> str:
        """The value that a word has in all groups, or ""."""
        found = self.shared.get(word)
        return found.value if found else ""

    @property
    def keyed(self) -> bool:
        """Whether all groups search for an id or a key, so that few rows remain."""
        return bool(self.groups) and all(group.keyed for group in self.groups)

    @property
    def loose(self) -> tuple[Term, ...]:
        """The free texts in groups without an id or a key. In errors and arguments, they are searched only in the first rows."""
        return tuple(term for group in self.groups if not group.keyed for term in group.free)

    @property
    def blind(self) -> tuple[Term, ...]:
        """The negated conditions on arguments. In a process where a task is not registered, they exclude none of its jobs."""
        return tuple(term for term in self.terms if term.negated and JSON & {*term.columns})

    @property
    def rough(self) -> bool:
        """Whether the database may match too many rows, so that its counts would be wrong."""
        return any(term.rough for term in self.terms)

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are required to decide whether a row matches."""
        terms = self.terms if len(self.groups) > 1 else [term for term in self.terms if term.rough]
        return frozenset(chain.from_iterable(term.columns for term in terms)) if self.rough else frozenset()

    @property
    def by_argument(self) -> bool:
        """Whether the arguments of each row are required."""
        return bool(self.columns & JSON)

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks that its terms match."""
        return tuple(sorted({task for term in self.terms for task in term.tasks}))

    def rows(self) -> Q:
        """The condition for the database. It never includes arguments, because the time of such a query would reveal masked values."""
        return any_of([group.rows() for group in self.groups])

    def holds(self, row: Any) -> bool:
        """Whether a row that has all columns matches."""
        return any(group.holds(row) for group in self.groups)

    def exact(self, row: Any) -> bool:
        """Whether a row that the database found matches, by its `columns`."""
        return exactly(self.groups, row)


def exactly(groups: Sequence[Alternative], row: Any) -> bool:
    """Whether a row that the database found for these groups matches one of them."""
    if not any(term.rough for group in groups for term in group.terms):
        return True
    return groups[0].exact(row) if len(groups) == 1 else any(group.holds(row) for group in groups)


def any_of(conditions: Sequence[Q]) -> Q:
    """An OR of these conditions. If one of them is empty, everything matches; Django would ignore it."""
    if not all(conditions):
        return Q()
    return reduce(lambda found, each: found | each, conditions, Q())


def parse(text: str, at: datetime | None = None, tasks: Sequence[str] | None = None) -> Search:
    """Parses a search. `at`: the moment from which `-2h` counts and at which a job is due; now by default. `tasks`: the known tasks;
    the registered tasks by default.
    """
    text = text.strip()
    if not text:
        return Search()
    if len(text) > LONGEST:
        return Search(complaints=(now("The search is longer than %(most)d characters.") % {"most": LONGEST},))
    if "\x00" in text or not is_utf8(text):  # PostgreSQL rejects NUL, and no database accepts an unpaired surrogate
        return Search(
            complaints=(now("The search contains a character that no job can contain: NUL, or a character that is not valid text."),)
        )
    return _Reader(text, Sense(at or clock.now(), registry.names() if tasks is None else tasks)).read()


class _Reader:
    """Reads the tokens from left to right."""

    def __init__(self, text: str, sense: Sense) -> None:
        self.tokens = list(_TOKEN.finditer(text))
        self.sense = sense
        self.known = [word for token in self.tokens if (word := (token[2] or "").lower()) in FIELDS]
        self.groups: list[Alternative] = []
        self.complaints: list[str] = []
        self.remarks: list[str] = []
        self.terms: list[Term] = []
        self.typed: list[str] = []
        self.turned = False  # by a preceding `not`

    def read(self) -> Search:
        """Checks the number of conditions first, because some conditions query Redis."""
        if sum(token[0].upper() not in _OPERATORS for token in self.tokens) > MOST_TERMS:
            return Search(complaints=(now("A search can have at most %(most)d conditions.") % {"most": MOST_TERMS},))
        for token in self.tokens:
            operator = token[0].upper()
            if operator == "NOT":
                self.turned = not self.turned
                self.typed.append(token[0])
            elif operator == "OR":
                self._close()
            elif operator != "AND":
                self._condition(token)
        self._close()
        complaints = tuple(dict.fromkeys(self.complaints))
        return Search(() if complaints else tuple(self.groups), complaints, tuple(dict.fromkeys(self.remarks)))

    def _close(self) -> None:
        if self.turned:
            self.complaints.append(now("%(word)s must be followed by a condition.") % {"word": "not"})
        elif not self.terms and not self.complaints:
            self.complaints.append(now("%(word)s must be between conditions.") % {"word": "OR"})
        for word in WORDS:
            if sum(term.word == word and not term.negated for term in self.terms) > 1 and word not in OPEN_ENDED:
                self.complaints.append(now("%(word)s: can be used only once.") % {"word": word})
        self.groups.append(Alternative(tuple(self.terms), " ".join(self.typed)))
        self.terms, self.typed, self.turned = [], [], False

    def _condition(self, token: re.Match[str]) -> None:
        minus, word, quoted, plain = token.groups()
        if plain and not word and plain.endswith(":") and plain[:-1].lower() in FIELDS:
            word, plain = plain[:-1], ""
        term = self._term((word or "").lower(), plain if quoted is None else quoted, token)
        if term is not None:
            self.terms.append(term.turned() if self.turned != bool(minus) else term)
        self.typed.append(token[0])
        self.turned = False

    def _term(self, word: str, value: str, token: re.Match[str]) -> Term | None:
        if token[0] == "-":
            self.complaints.append(now("%(word)s must be followed by a condition.") % {"word": "-"})
            return None
        unquoted = value.partition("=")[2] if word in OPEN_ENDED else value  # JSON text ends its own quotation
        if token[3] is None and unquoted.startswith('"') and unquoted.count('"') % 2 == 1:
            said = now("%(text)s: the quotation mark is not closed. Put the whole value in quotes: %(example)s.")
            self.complaints.append(said % {"text": token[0], "example": 'error:"not found", arg:"name=two words"'})
            return None
        if not value.strip():  # such as an unset shell variable: it would match every job
            self.complaints.append(now("%(word)s needs a value.") % {"word": f"{word}:" if word else '""'})
            return None
        if not word:
            return free_text(value, self.sense)
        if word not in FIELDS:
            return self._strange(word, token)
        try:
            return FIELDS[word].read(value, self.sense)
        except Refused as error:
            self.complaints.append(f"{word}:{value} – {error}")
            return None

    def _strange(self, word: str, token: re.Match[str]) -> Term | None:
        """An unknown word. On its own, it may be the start of a key and becomes a free text. With known words, it is an error."""
        text = token[0].removeprefix("-")
        slip = bool(nearest(word, WORDS, cutoff=0.8))  # `order:5` is the key of an order, and not a misspelt `worker:`
        if self.known or slip or token[3] is not None:
            self.complaints.append(_unknown(word))
            if not slip:
                self.complaints.append(
                    now("To search for the text, put it in quotes: %(text)s") % {"text": '"{}"'.format(text.replace('"', ""))}
                )
            return None
        self.remarks.append(_unknown(word))
        return free_text(text, self.sense)


def _unknown(word: str) -> str:
    known = ", ".join(f"{name}:" for name in WORDS)
    said = now("Unknown search term %(word)s:. Available terms: %(known)s.") % {"word": word, "known": known}
    if near := nearest(word, WORDS):
        return now("%(said)s Did you mean %(near)s:?") % {"said": said, "near": near}
    return said
