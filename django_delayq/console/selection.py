"""Which jobs are meant: a view, a queue, a task and a search; and how their rows are read: by keyset, in the order of an index, never
the whole table. The list of the admin and bulk operations share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import Q, QuerySet

from django_delayq import clock, ids
from django_delayq.console import search
from django_delayq.models import Job, of_state

WINDOW: Final = 10_000  # rows that one request reads through, where no index finds those that are meant
STEP: Final = 500  # rows read at a time, where each has to be looked at
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

# Each is the order of an index, with the equalities before it: (state, run_at, id), (state, attempts, run_at, id), the primary key …
_ORDERS: Final[dict[str, tuple[str, ...]]] = {
    "due": ("run_at", "id"),
    "scheduled": ("run_at", "id"),
    "running": ("-run_at", "-id"),
    "retrying": ("-attempts", "-run_at", "-id"),
    "failed": ("-run_at", "-id"),
    "cancelled": ("-run_at", "-id"),
    "succeeded": ("-run_at", "-id"),
    "unpublished": ("id",),
}
VIEWS: Final = ("", *_ORDERS)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What was chosen. All of it holds at once; "" leaves a part open. `at_ms`: the moment at which it was chosen, for what is said
    relative to one; 0: now. `tasks`: those that its words stand for; None: the registered ones that fit now.
    """

    view: str = ""
    queue: str = ""
    task: str = ""
    text: str = ""
    at_ms: int = 0
    tasks: Sequence[str] | None = None

    @cached_property
    def search(self) -> search.Search:
        """The text, read."""
        return search.parse(self.text, self._at, self.tasks)

    @property
    def shown_view(self) -> str:
        """The view, also one that the text names."""
        return self.view or self.search.value("state")

    @property
    def order(self) -> tuple[str, ...]:
        """Fields to order by; the last is the primary key."""
        return _ORDERS.get(self.shown_view, ("-id",))

    @property
    def indexed(self) -> bool:
        """Whether an index leads to the rows in this order, so that nothing has to be read through."""
        if self.search.single:
            return self.search.keyed or not self.search.by_argument
        if any(not term.indexed for term in self.search.terms if term.word not in ("after", "before")):
            return False
        alone = all(term.word in ("fingerprint", "state") for term in self.search.terms)
        dated = bool(self.search.value("after") or self.search.value("before"))
        if self.search.value("fingerprint"):
            return self.order[0] == "-run_at" and not (self.queue or self.task) and alone
        named = bool(self.queue or self.search.value("queue")) + bool(self.task or self.search.value("task"))
        if self.shown_view in ("retrying", "unpublished"):
            return not named and not dated
        return named <= 1 and (bool(self.shown_view) or not dated)

    def rows(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Those of `jobs` that are meant, as far as the database can tell; see `Search.exact`."""
        if self.search.complaints:
            return jobs.none()
        found = Q()
        if self.view:
            found &= of_state(self.view, self._at)
        if self.queue:
            found &= Q(queue=self.queue)
        if self.task:
            found &= Q(task=self.task)
        return jobs.filter(found & self.search.rows())

    def frame(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """The rows through which one reads where `indexed` does not hold: all that an index can tell of what is meant."""
        state, terms = self.shown_view, {term.word: term for term in self.search.terms}
        found = of_state(state, self._at) if state in VIEWS and state else Q()
        if state not in ("retrying", "unpublished"):
            if self.task or "task" in terms:
                found &= Q(task=self.task) if self.task else terms["task"].rows
            elif self.queue or "queue" in terms:
                found &= Q(queue=self.queue) if self.queue else terms["queue"].rows
        if self.order[0].endswith("run_at"):
            for word in ("after", "before"):
                found &= terms[word].rows if word in terms else Q()
        return jobs.filter(found)

    def parts(self) -> dict[str, Any]:
        """For keeping: what `Selection(**parts)` takes."""
        return {name: value for name, value in asdict(self).items() if value not in ("", 0, None)}

    def fixed(self, at_ms: int) -> Selection:
        """The same from now on: it means that moment, and the tasks that it stands for here. Another process may know others."""
        return replace(self, at_ms=at_ms, tasks=list(self.search.tasks) if self.text else None)

    @property
    def words(self) -> str:
        """All of it as one search."""
        named = (("state", self.view), ("queue", self.queue), ("task", self.task))
        return " ".join([*(f"{word}:{value}" for word, value in named if value), *filter(None, [self.text])])

    @property
    def _at(self) -> datetime | None:
        return clock.from_ms(self.at_ms) if self.at_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A stretch of rows. `before` and `after`: cursors to its neighbours; "" where there are none. `unfinished`: only WINDOW rows were
    read through; `after` (or `before`, when going back) leads on. `cut`: more than WINDOW keys match; so many are put in order.
    """

    jobs: list[Job]
    before: str = ""
    after: str = ""
    unfinished: bool = False
    cut: bool = False


def page(selection: Selection, jobs: QuerySet[Job], size: int, *, after: str = "", before: str = "") -> Page:
    """The rows behind the cursor `after`, or before the cursor `before`, else the first ones.

    Raises:
        ValueError: that is no cursor of this order.
    """
    back, cursor = (True, before) if before else (False, after)
    order = tuple(map(_turned, selection.order)) if back else selection.order
    start = _read(order, cursor) if cursor else None
    if selection.search.by_argument:
        jobs = jobs.defer(None).defer("options", "result")
    rows, cut = selection.rows(jobs), False
    ordered = rows.order_by(*order)
    if start is not None:
        ordered = ordered.filter(beyond(order, start))
    edge = None if selection.indexed else _edge(selection.frame(jobs), order, start)
    if edge is not None:
        ordered = ordered.filter(_upto(order, edge) & ~beyond(order, edge))
    step = STEP if selection.search.by_argument else size + 1
    if selection.search.keyed and not selection.search.complaints:
        wanted, cut = _by_key(rows, order, start)
        candidates = _named(jobs, wanted, step)
    else:
        candidates = through(ordered, order, step)
    found = list(islice((job for job in candidates if selection.search.exact(job)), size + 1))
    more, found = len(found) > size, found[:size]
    onward = written(order, _values(order, found[-1])) if more else ""
    unfinished = not more and edge is not None
    if unfinished and edge is not None:
        onward = written(order, edge)
    origin = written(order, _values(order, found[0])) if found and cursor else cursor
    if back:
        found.reverse()
    first, last = (onward, origin) if back else (origin, onward)
    return Page(jobs=found, before=first, after=last, unfinished=unfinished, cut=cut)


def count(selection: Selection, jobs: QuerySet[Job], most: int, using: str) -> int | None:
    """How many of `jobs` are meant, counted up to `most` + 1; None where too many rows would have to be looked at to tell."""
    if not selection.indexed or selection.search.complaints:
        return None
    rows = selection.rows(jobs).order_by()
    if not selection.search.rough:
        return count_many([rows], most, using)[0]
    looked = rows.defer(None).only("key", "task", *(("args", "kwargs") if selection.search.by_argument else ()))
    found = list(looked[: WINDOW + 1])
    return None if len(found) > WINDOW else sum(map(selection.search.exact, found))


def meant(selection: Selection, rows: QuerySet[Job]) -> int:
    """How many of these rows, which the database has found, are meant: all are read, if each has to be looked at."""
    if not selection.search.rough:
        return rows.count()
    return sum(map(selection.search.exact, through(rows.order_by("pk"), ("id",), STEP)))


def through(ordered: QuerySet[Job], order: Sequence[str], step: int) -> Iterator[Job]:
    """Those rows, so many at a time."""
    ahead = ordered
    while True:
        found = list(ahead[:step])
        yield from found
        if len(found) < step:
            return
        ahead = ordered.filter(beyond(order, _values(order, found[-1])))


def _named(jobs: QuerySet[Job], wanted: Sequence[UUID], step: int) -> Iterator[Job]:
    """The rows with these ids, so many at a time, in that order."""
    for start in range(0, len(wanted), step):
        part = wanted[start : start + step]
        found = {job.pk: job for job in jobs.filter(pk__in=part)}
        yield from (found[pk] for pk in part if pk in found)


def _by_key(rows: QuerySet[Job], order: Sequence[str], start: Sequence[Any] | None) -> tuple[list[UUID], bool]:
    """The ids that a search by key finds, and whether there were too many to put them all in order. That is done here: asked for an
    order, a database may rather walk through the whole table by another index.
    """
    names = [field.removeprefix("-") for field in order]
    places = list(rows.order_by().values_list(*names)[: WINDOW + 1])
    ranked = sorted((_rank(order, place), place[-1]) for place in places[:WINDOW])
    after = None if start is None else _rank(order, start)
    return [pk for rank, pk in ranked if after is None or rank > after], len(places) > WINDOW


def _rank(order: Sequence[str], values: Sequence[Any]) -> tuple[int, ...]:
    numbers = (
        value.int if isinstance(value, UUID) else (value - EPOCH) // MICROSECOND if isinstance(value, datetime) else value
        for value in values
    )
    return tuple(-number if field.startswith("-") else number for field, number in zip(order, numbers, strict=True))


def beyond(order: Sequence[str], values: Sequence[Any]) -> Q:
    """The rows that come later in that order than these values."""
    found = Q()
    for place, field in enumerate(order):
        name = field.removeprefix("-")
        verb = "lt" if field.startswith("-") else "gt"
        same = Q(**{order[n].removeprefix("-"): values[n] for n in range(place)})
        found |= same & Q(**{f"{name}__{verb}": values[place]})
    # Said once more for the first field alone: of a chain of ORs no database makes the range of an index.
    verb = "lte" if order[0].startswith("-") else "gte"
    return found & Q(**{f"{order[0].removeprefix('-')}__{verb}": values[0]})


def count_many(queries: Sequence[QuerySet[Any]], most: int, using: str) -> list[int]:
    """How many rows each has, counted up to `most` + 1, all in one statement."""
    if not queries:
        return []
    parts: list[str] = []
    given: list[Any] = []
    for number, rows in enumerate(queries):
        compiler = rows.order_by().values_list("pk")[: most + 1].query.get_compiler(using=using)
        try:
            sql, arguments = compiler.as_sql()
        except EmptyResultSet:
            parts.append("0")
            continue
        parts.append(f"(SELECT COUNT(*) FROM ({sql}) AS part{number})")
        given += arguments
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(parts)}", given)
        return [int(count) for count in cursor.fetchone()]


def _upto(order: Sequence[str], values: Sequence[Any]) -> Q:
    verb = "gte" if order[0].startswith("-") else "lte"
    return Q(**{f"{order[0].removeprefix('-')}__{verb}": values[0]})


def _edge(frame: QuerySet[Job], order: Sequence[str], start: Sequence[Any] | None) -> tuple[Any, ...] | None:
    names = [field.removeprefix("-") for field in order]
    ahead = frame.order_by(*order).values_list(*names)
    if start is not None:
        ahead = ahead.filter(beyond(order, start))
    found = list(ahead[WINDOW : WINDOW + 1])  # the one offset there is, and it is bounded: keys of an index, no rows
    return found[0] if found else None


def _turned(field: str) -> str:
    return field[1:] if field.startswith("-") else f"-{field}"


def _values(order: Sequence[str], job: Job) -> tuple[Any, ...]:
    return tuple(getattr(job, field.removeprefix("-")) for field in order)


def written(order: Sequence[str], values: Sequence[Any]) -> str:
    """A cursor."""
    return ".".join(_write(value) for value in values)


def _write(value: Any) -> str:
    if isinstance(value, datetime):
        return str((value - EPOCH) // MICROSECOND)
    return ids.short(value) if isinstance(value, UUID) else str(value)


def _read(order: Sequence[str], cursor: str) -> tuple[Any, ...]:
    parts = cursor.split(".")
    if len(parts) != len(order):
        raise ValueError(f"{cursor!r} is no place in this list")
    return tuple(_value(field.removeprefix("-"), part) for field, part in zip(order, parts, strict=True))


def _value(name: str, part: str) -> Any:
    if name == "id":
        return ids.full(part)
    number = int(part)
    if name != "run_at":
        return number
    if not 0 <= number < clock.MAX_MS * 1000:
        raise ValueError(f"{part!r} is no date")
    return EPOCH + number * MICROSECOND
