"""A selection of jobs: a view, a queue, a task and a search. The job list, the commands and bulk operations share it.

It also has the remarks that accompany the results of a search, and other searches that may find more.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property, reduce
from operator import and_
from typing import Any, Final
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as now

from django_delayq import clock, conf, ids
from django_delayq.console import masking, search_parser
from django_delayq.console.search_fields import Term, has, shows, task_rows
from django_delayq.console.search_parser import Alternative, Search
from django_delayq.exceptions import ConfigError
from django_delayq.models import DERIVED, Job, of_state
from django_delayq.producer import carriers
from django_delayq.producer.task import registry
from django_delayq.states import CUSTOMER, State
from django_delayq.text import nearest, visible

# Each is the order of an index after its equalities: (state, run_at, id), (state, attempts, run_at, id), the primary key …
_ORDERS: Final[dict[str, tuple[str, ...]]] = {
    "due": ("run_at", "id"),
    "scheduled": ("run_at", "id"),
    "running": ("-run_at", "-id"),
    "retrying": ("-attempts", "-run_at", "-id"),
    "failed": ("-run_at", "-id"),
    "cancelled": ("-run_at", "-id"),
    "succeeded": ("-run_at", "-id"),
    "parked": ("run_at", "id"),
    "unpublished": ("id",),
    "far": ("run_at", "id"),
    "unresolved": ("id",),
}
VIEWS: Final = ("", *_ORDERS)
# Other orders of a view that cost no more than one page: the index (state, first field, …) has these fields.
_OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "run_at": ("run_at", "id"),
    "attempts": ("attempts", "run_at", "id"),
    "finished_at": ("finished_at", "id"),
}
_ENDED: Final = ("failed", "cancelled", "succeeded")
_BY_END: Final = frozenset({"ended_after", "ended_before"})
MOST_OFFERED: Final = 8  # other searches
MOST_ARGUMENTS: Final = 3  # of these, searches for an argument
_NUMBER: Final = re.compile(r"-?\d+")
_PLAIN: Final = re.compile(r'[^\s"-][^\s"]*')


@dataclass(frozen=True, slots=True)
class Road:
    """One way to read rows: a condition, and groups of which one must match. `frame`: the rows that are scanned if no index finds the
    matching ones. `by_key`: an index of ids and keys finds all rows, in any order. `first`: only the first rows of the frame are
    read, for every page.
    """

    rows: Q
    groups: tuple[Alternative, ...]
    frame: Q | None = None
    by_key: bool = False
    first: bool = False

    def exact(self, row: Any) -> bool:
        """Whether a row that the database found matches."""
        return search_parser.exactly(self.groups, row)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A selection. All its parts must match; "" means any. `at_ms`: the moment of the selection, for relative dates; 0 means now.
    `tasks`: the known tasks; None means the registered ones. `by`: the field to sort by, with a minus for descending; it applies if
    `sorts` contains the field, and does not change which jobs match. `only`: the short ids of the view *running*, as Redis reports
    them; None: the state of the rows decides, which is updated later.
    """

    view: str = ""
    queue: str = ""
    task: str = ""
    text: str = ""
    at_ms: int = 0
    tasks: Sequence[str] | None = None
    by: str = ""
    only: Sequence[str] | None = None

    @cached_property
    def search(self) -> search_parser.Search:
        """The parsed text."""
        return search_parser.parse(self.text, self._at, self.tasks)

    @cached_property
    def shown_view(self) -> str:
        """The view, which the text can name too."""
        return self.view or self.search.value("state")

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The fields to sort by. The last one is the primary key."""
        name = self.by.removeprefix("-")
        if name not in self.sorts:
            return self._usual_order
        return tuple(f"-{field}" for field in _OTHERS[name]) if self.by.startswith("-") else _OTHERS[name]

    @cached_property
    def sorts(self) -> tuple[str, ...]:
        """The fields that an index can sort by in both directions."""
        view = self.shown_view
        usual = self._usual_order[0].removeprefix("-")
        if usual == "id" or self.search.value("fingerprint"):
            return ()
        if self.text or self.queue or self.task or view in DERIVED or view == State.SCHEDULED:
            return (usual,)  # for scheduled jobs, the index of attempts may contain only retrying ones
        return ("run_at", "attempts", "finished_at") if view in _ENDED else ("run_at", "attempts")

    @cached_property
    def _usual_order(self) -> tuple[str, ...]:
        """The order of the view, or by the end if the search has a time of the end: then an index finds the rows."""
        if self.shown_view in _ENDED and _BY_END & self.search.shared.keys():
            return ("-finished_at", "-id")
        return _ORDERS.get(self.shown_view, ("-id",))

    @property
    def indexed(self) -> bool:
        """Whether an index finds the rows in this order, or few rows at all, so that no rows are scanned."""
        groups = self.search.groups
        if self.search.keyed or self._few:
            return True
        return len(groups) < 2 and not self.search.loose and self._is_indexed(groups[0].terms if groups else ())

    def _is_indexed(self, terms: Sequence[Term]) -> bool:
        """The same for a group without an id or a key."""
        if self._few:
            return True
        words = {term.word for term in terms}
        if self.order[0].endswith("finished_at"):
            return words <= {"state", *_BY_END} and not (self.queue or self.task or any(term.negated for term in terms))
        if any(term.negated for term in terms) or words - {"queue", "task", "state", "fingerprint", "after", "before"}:
            return False
        dated = bool(words & {"after", "before"})
        if "fingerprint" in words:
            return self.order[0] == "-run_at" and not (self.queue or self.task) and words <= {"fingerprint", "state"}
        named = bool(self.queue or "queue" in words) + bool(self.task or "task" in words)
        if self.shown_view in ("retrying", "parked", "unpublished", "far", "unresolved"):
            return not named and not dated
        return named <= 1 and (bool(self.shown_view) or not dated)

    @cached_property
    def roads(self) -> tuple[Road, ...]:
        """The ways to read the rows. Each leads to some of them, in the order of the list; together they lead to all."""
        if self.search.complaints:
            return ()
        keyed, loose, others = list[Alternative](), list[Alternative](), list[Alternative]()
        for group in self.search.groups or (Alternative((), ""),):
            (keyed if group.keyed else loose if group.free else others).append(group)
        found = []
        if keyed or loose:
            by_key = [group.rows() for group in keyed]
            by_key += [group.rows() & text.named for group in loose for text in group.free if text.named]
            found.append(Road(self._narrowed(by_key), (*keyed, *loose), by_key=True))
        whole = len(loose) + len(others) == 1
        if loose:
            if whole and (named := loose[0].by_task()) and self._is_indexed(named.terms):
                found.append(Road(self._narrowed([named.rows()]), (named,)))
            rows = self._narrowed([group.rows() for group in loose])
            found.append(Road(rows, tuple(loose), self._frame(), first=True))
        if others:
            whole = whole and self._is_indexed(others[0].terms)
            rows = self._narrowed([group.rows() for group in others])
            found.append(Road(rows, tuple(others), None if whole else self._frame()))
        return tuple(found)

    def rows(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """The matching `jobs`, as far as the database can decide. See `Search.exact`."""
        if self.search.complaints:
            return jobs.none()
        return jobs.filter(self._narrowed([self.search.rows()]))

    def _narrowed(self, rows: Sequence[Q]) -> Q:
        """An OR of these conditions, within the view, the queue and the task."""
        found = Q()
        if self.view:
            found &= self._of_view(self.view)
        if self.queue:
            found &= Q(queue=self.queue)
        if self.task:
            found &= task_rows(self.task)
        if self.order[0].endswith("finished_at"):
            found &= Q(finished_at__isnull=False)  # rows without a date have no place in this order
        return found & search_parser.any_of(rows)

    def _frame(self) -> Q:
        """The rows to scan: the conditions that an index supports, in this order."""
        state, terms = self.shown_view, self.search.shared
        found = self._of_view(state) if state in VIEWS and state else Q()
        if state not in ("retrying", "unpublished", "unresolved"):
            if self.task or "task" in terms:
                found &= task_rows(self.task) if self.task else terms["task"].rows
            elif "host" in terms or "target" in terms:
                found &= terms["host"].rows if "host" in terms else terms["target"].rows
            elif self.queue or "queue" in terms:
                found &= Q(queue=self.queue) if self.queue else terms["queue"].rows
        dated = {"run_at": ("after", "before"), "finished_at": _BY_END}.get(self.order[0].removeprefix("-"), ())
        return reduce(and_, (terms[word].rows for word in dated if word in terms), found)

    def scope(self, states: Iterable[str]) -> Q:
        """The rows of these states, or of the view, as far as an index supports the conditions that all groups have."""
        keyed = any(group.keyed for group in self.search.groups)
        views = [self.shown_view] if self.shown_view else states
        return search_parser.any_of([self._of_view(view) for view in views]) & (replace(self, text="") if keyed else self)._frame()

    def _of_view(self, view: str) -> Q:
        if self._few and view == self.view:
            return Q(pk__in=[ids.full(id) for id in self.only or ()])
        return of_state(view, self._at)

    @property
    def _few(self) -> bool:
        """Whether the view consists of listed jobs."""
        return self.view == State.RUNNING and self.only is not None

    def running(self, jobs: Sequence[UUID] | None) -> Selection:
        """The selection with these jobs as its view *running*. None: the rows decide."""
        return self if self.view != State.RUNNING or jobs is None else replace(self, only=tuple(map(ids.short, jobs)))

    def parts(self) -> dict[str, Any]:
        """The arguments of `Selection(...)`, for storage."""
        return {name: value for name, value in asdict(self).items() if value not in ("", 0, None) and name not in ("by", "only")}

    def fixed(self, at_ms: int) -> Selection:
        """The selection with the moment and the tasks of now. Another process may have other tasks."""
        return replace(self, at_ms=at_ms, tasks=list(self.search.tasks) if self.text else None)

    @property
    def words(self) -> str:
        """The selection as one search text."""
        named = (("state", self.view), ("queue", self.queue), ("task", self.task))
        before = [f"{word}:{value}" for word, value in named if value]
        if not (before and len(self.search.groups) > 1):
            return " ".join([*before, *filter(None, [self.text])])
        return " OR ".join(" ".join([*before, group.text]) for group in self.search.groups)

    @property
    def _at(self) -> datetime | None:
        return clock.from_ms(self.at_ms) if self.at_ms else None


def has_customers() -> bool:
    """Whether a carrier of the project packs the customer of each job."""
    with suppress(ConfigError):
        return any(name == CUSTOMER for name, _ in carriers.load(conf.get().carriers))
    return False


def customer_of(meta: Mapping[str, Any]) -> tuple[str, str]:
    """The customer in a job's masked `meta`, and the search that finds all jobs of this customer, or "" if none can."""
    found = meta.get(CUSTOMER)
    if type(found) not in (str, int):
        return visible(json.dumps(found, ensure_ascii=False)) if found is not None else "", ""
    text = str(found)
    lost = found == masking.MASK or '"' in text or not text.strip()
    return visible(text), "" if lost else f"{CUSTOMER}:{quoted(text)}"


def search_remarks(search: Search) -> list[str]:
    """Remarks about unknown words, and about arguments that can never match."""
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
    """The visible arguments, and the number of tasks that have each. `annotation`: only those without an annotation, or with one that
    contains it.
    """
    return Counter(
        name
        for task in tasks
        for name, one in registry.get(task).signature.parameters.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        and shows(task, name)
        and (not annotation or one.annotation is one.empty or re.search(rf"\b({annotation}|Any|object)\b", str(one.annotation)))
    )


def searched_in(search: Search, *, partly: bool) -> str:
    """A remark about the search of free texts; "" without any. `partly`: see `keyset.Page`."""
    if not search.loose:
        return ""
    if partly:
        return now(
            "Ids and key prefixes were searched in all jobs. Errors, arguments and other parts of keys were searched "
            "only in the first 10,000 jobs of this list."
        )
    return now("The search included ids, keys, task names, errors, and the arguments that are not masked.")


def operation_refusal(search: Search) -> str:
    """Why an operation cannot use this search; "" if it can."""
    if not search.blind:
        return ""
    said = now("An operation cannot exclude jobs by their arguments, because a worker may not know them. Remove %(text)s.")
    return said % {"text": _typed(search.blind[0])}


def incomplete(search: Search) -> str:
    """Why an operation cannot use this search if `keyset.all_ids` found too many rows; "" if it can."""
    if not search.loose:
        return ""
    said = now(
        "To find %(text)s, more than 10,000 jobs would have to be searched. Name the field (key:, task:, error: or arg:name=value), "
        "or select a queue, a task or a state."
    )
    return said % {"text": search.loose[0].value}


def exact_searches(wanted: Selection, rows: Sequence[Job]) -> list[tuple[Selection, int]]:
    """Searches that name the field of the only free text, with the number of these matching `rows` that each finds. The first has all
    of them.
    """
    groups = wanted.search.groups
    if len(groups) > 1 or len(groups[0].free) > 1:
        return []
    value = groups[0].free[0].value
    rest = [_typed(term) for term in groups[0].terms if not term.free]
    names = _arguments({row.task for row in rows} & {*registry.names()})
    fields = [*(f"{field}:{quoted(value)}" for field in (CUSTOMER, "task", "error")), f"key:{quoted(f'{value}*')}"]
    fields += [f"arg:{quoted(f'{name}={value}')}" for name in names]
    offered = [replace(wanted, text=" ".join([*rest, field]), tasks=None) for field in fields]
    counted = [(each, sum(map(each.search.holds, rows))) for each in offered]
    found = sorted(((each, count) for each, count in counted if count), key=lambda one: -one[1])[:MOST_OFFERED]
    if len(found) > 1:
        every = replace(wanted, text=" OR ".join(each.text for each, _ in found), tasks=None)
        found.insert(0, (every, sum(map(every.search.holds, rows))))
    return found


def other_searches(wanted: Selection) -> list[Selection]:
    """Searches that may find more, the most likely first."""
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
    return list(dict.fromkeys(good))[:MOST_OFFERED]


def _said_otherwise(term: Term, task: str) -> list[str]:
    if term.free:
        kind = "int|float" if _NUMBER.fullmatch(term.value) else "str"
        known = registry.names()
        theirs = [name for name in known if not registry.get(name).own]  # people search for arguments of the project
        names = _arguments([task] if task in known else theirs, kind)
        likely = [name for name, _ in names.most_common(MOST_ARGUMENTS)]
        fields = ("error", CUSTOMER) if has_customers() else ("error",)
        named = [f"arg:{quoted(f'{name}={term.value}')}" for name in likely]
        return [*(f"{field}:{quoted(term.value)}" for field in fields), *named]
    if term.negated:
        return []
    if term.word == "key" and not term.value.endswith("*"):
        return [f"key:{quoted(f'{term.value}*')}", quoted(term.value)]
    if term.word == CUSTOMER:
        return [f"key:{quoted(f'{CUSTOMER}:{term.value}*')}"]
    return [""] if term.word.endswith(("after", "before")) or term.word in ("worker", "host", "target") else []


def _without(wanted: Selection, word: str) -> str:
    groups = [" ".join(_typed(term) for term in group.terms if term.word != word or term.negated) for group in wanted.search.groups]
    return " OR ".join(groups)


def _typed(term: Term) -> str:
    word = f"{term.word}:" if term.word else ""
    return f"{'-' if term.negated else ''}{word}{quoted(term.value)}"


def quoted(text: str) -> str:
    """The text in quotes, if a search would not take it as one text."""
    return text if _PLAIN.fullmatch(text) and text.upper() not in ("OR", "AND", "NOT") else f'"{text}"'
