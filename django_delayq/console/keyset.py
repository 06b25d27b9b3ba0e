"""Reads and counts the rows of a selection, page by page after the last row, in the order of an index, and never the whole table."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db.models import Q, QuerySet

from django_delayq import clock, ids
from django_delayq.console import overview
from django_delayq.console.search_fields import JSON, read_raw
from django_delayq.console.selection import Road, Selection
from django_delayq.models import Job

WINDOW: Final = 10_000  # rows that one request scans, if no index finds the matching ones
STEP: Final = 1000  # rows read at a time, if each must be checked
GROWTH: Final = 10  # factor by which the next batch is larger, if few rows match
MOST_AT_ONCE: Final = (
    WINDOW - STEP + 2
)  # after the first step, the window has one row less, so a smaller result of the second query is the last
Row = TypeVar("Row")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of rows. `before` and `after`: cursors to the neighbours, "" if there are none. `unfinished`: the page ends after WINDOW
    rows were read; continue at `after`, or at `before` when going back. `cut`: more than WINDOW keys match, and only as many are
    sorted. `partly`: free texts were searched in errors and arguments of the first WINDOW rows only.
    """

    jobs: list[Job]
    before: str = ""
    after: str = ""
    unfinished: bool = False
    cut: bool = False
    partly: bool = False


Place = tuple[tuple[int, ...], UUID]  # the place of a row in the order, and its id


@dataclass(slots=True)
class _Stretch:
    """The places that one road leads to, in order. `edge`: the last row that was read, if there are more."""

    places: Iterable[Place]
    edge: tuple[Any, ...] | None = None
    cut: bool = False
    partly: bool = False


def page(selection: Selection, jobs: QuerySet[Job], size: int, *, after: str = "", before: str = "") -> Page:
    """The rows after the cursor `after`, or before the cursor `before`, or else the first rows.

    Raises:
        ValueError: the cursor does not belong to this order.
    """
    back, cursor = (True, before) if before else (False, after)
    order = tuple(field[1:] if field.startswith("-") else f"-{field}" for field in selection.order) if back else selection.order
    start = _read(order, cursor) if cursor else None
    edge_of = cache(lambda frame, turned, behind: _edge(jobs.filter(frame), turned, behind))
    reading = sum(road.frame is not None for road in selection.roads)
    step = STEP * max(1, reading) if selection.search.columns else size + 1
    stretches = [_stretch(road, selection, jobs.filter(road.rows), order, start, step, edge_of) for road in selection.roads]
    edges = [stretch.edge for stretch in stretches if stretch.edge is not None]
    edge = min(edges, key=lambda values: _rank(order, values), default=None)
    places = list(islice(_merged(stretches, None if edge is None else _rank(order, edge)), size + 1))
    more = len(places) > size
    there = jobs.in_bulk([pk for _, pk in places[:size]])
    found = [there[pk] for _, pk in places[:size] if pk in there]
    onward = written(order, _values(order, found[-1])) if more and found else ""
    unfinished = not more and edge is not None
    if unfinished and edge is not None:
        onward = written(order, edge)
    origin = written(order, _values(order, found[0])) if found and cursor else cursor
    if back:
        found.reverse()
    first, last = (onward, origin) if back else (origin, onward)
    cut, partly = any(each.cut for each in stretches), any(each.partly for each in stretches)
    return Page(jobs=found, before=first, after=last, unfinished=unfinished, cut=cut, partly=partly)


def _stretch(
    road: Road,
    selection: Selection,
    rows: QuerySet[Job],
    order: tuple[str, ...],
    start: tuple[Any, ...] | None,
    step: int,
    edge_of: Callable[..., tuple[Any, ...] | None],
) -> _Stretch:
    columns = selection.search.columns
    if road.by_key:
        return _by_key(road, rows, order, start, columns)
    ordered, edge, partly = rows.order_by(*order), None, False
    if start is not None:
        ordered = ordered.filter(beyond(order, start))
    if road.frame is not None and road.first:
        last = edge_of(road.frame, selection.order, None)
        if last is not None:
            ordered = ordered.filter(_upto(selection.order, last) & ~beyond(selection.order, last))
            partly = True
    elif road.frame is not None:
        edge = edge_of(road.frame, order, start)
        if edge is not None:
            ordered = ordered.filter(_upto(order, edge) & ~beyond(order, edge))
    return _Stretch(_places(road, ordered, order, columns, step), edge, partly=partly)


def _places(road: Road, ordered: QuerySet[Job], order: Sequence[str], columns: Iterable[str], step: int) -> Iterator[Place]:
    """The places of matching rows. Only the fields of the order and the columns that decide are read, and JSON is not decoded."""
    light = ordered.annotate(**read_raw(columns)).values_list(*_columns(order, columns)[0], named=True)
    for row in through(light, order, step, growing=True):
        if road.exact(row):
            yield _rank(order, row), row.id


def _columns(order: Sequence[str], columns: Iterable[str]) -> tuple[tuple[str, ...], type[Any]]:
    """The names of these fields, those of the order first, and a named tuple for a row."""
    raw = read_raw(columns)
    names = tuple(dict.fromkeys([*(field.removeprefix("-") for field in order), *sorted({*columns} - JSON), *raw]))
    return names, _row_of(names)


@cache
def _row_of(names: tuple[str, ...]) -> type[Any]:
    return namedtuple("Row", names)


def _merged(stretches: Sequence[_Stretch], last: tuple[int, ...] | None) -> Iterator[Place]:
    """The places of all stretches without duplicates, up to the last place that all stretches have read."""
    seen = None
    for place in merge(*(stretch.places for stretch in stretches)):
        if last is not None and place[0] > last:
            return
        if place != seen:
            yield place
        seen = place


def _by_key(road: Road, rows: QuerySet[Job], order: Sequence[str], start: Sequence[Any] | None, columns: Iterable[str]) -> _Stretch:
    """The results of a search by key, and whether there were too many to sort. Python sorts them, because a database that sorts may
    scan the whole table by another index.
    """
    names, named = _columns(order, columns)
    found = list(rows.order_by().annotate(**read_raw(columns)).values_list(*names)[: WINDOW + 1])
    ranked = sorted(((_rank(order, row), row) for row in found[:WINDOW]), key=itemgetter(0))
    after = None if start is None else _rank(order, start)
    seen = ((rank, named(*row)) for rank, row in ranked if after is None or rank > after)  # a page uses few of thousands
    return _Stretch(((rank, row.id) for rank, row in seen if road.exact(row)), cut=len(found) > WINDOW)


def through(ordered: QuerySet[Job, Row], order: Sequence[str], step: int, *, growing: bool = False) -> Iterator[Row]:
    """These rows, in batches. `growing`: the batches grow, if few rows match."""
    ahead = ordered
    while True:
        found = list(ahead[:step])
        yield from found
        if len(found) < step:
            return
        ahead = ordered.filter(beyond(order, _values(order, found[-1])))
        step = max(step, min(GROWTH * step, MOST_AT_ONCE)) if growing else step


def _rank(order: Sequence[str], values: Sequence[Any]) -> tuple[int, ...]:
    """A sort key for values that start with those of the order."""
    if len(order) == 1 and order[0] == "-id":  # mostly, and for thousands of rows
        return (-values[0].int,)
    numbers = (
        value.int if isinstance(value, UUID) else (value - EPOCH) // MICROSECOND if isinstance(value, datetime) else value
        for value in values[: len(order)]
    )
    return tuple(-number if field.startswith("-") else number for field, number in zip(order, numbers, strict=True))


def beyond(order: Sequence[str], values: Sequence[Any]) -> Q:
    """The condition for rows that come after these values in the order."""
    found = Q()
    for place, field in enumerate(order):
        name = field.removeprefix("-")
        verb = "lt" if field.startswith("-") else "gt"
        same = Q(**{order[n].removeprefix("-"): values[n] for n in range(place)})
        found |= same & Q(**{f"{name}__{verb}": values[place]})
    # Repeats the first field, because no database uses an index range for a chain of ORs.
    verb = "lte" if order[0].startswith("-") else "gte"
    return found & Q(**{f"{order[0].removeprefix('-')}__{verb}": values[0]})


def _upto(order: Sequence[str], values: Sequence[Any]) -> Q:
    verb = "gte" if order[0].startswith("-") else "lte"
    return Q(**{f"{order[0].removeprefix('-')}__{verb}": values[0]})


def _edge(frame: QuerySet[Job], order: Sequence[str], start: Sequence[Any] | None) -> tuple[Any, ...] | None:
    names = [field.removeprefix("-") for field in order]
    ahead = frame.order_by(*order).values_list(*names)
    if start is not None:
        ahead = ahead.filter(beyond(order, start))
    found = list(ahead[WINDOW : WINDOW + 1])  # the only offset, which is bounded: it skips index keys and not rows
    return found[0] if found else None


def _values(order: Sequence[str], job: Any) -> tuple[Any, ...]:
    return tuple(getattr(job, field.removeprefix("-")) for field in order)


def written(order: Sequence[str], values: Sequence[Any]) -> str:
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
    if name not in ("run_at", "finished_at"):
        return number
    if not 0 <= number < clock.MAX_MS * 1000:
        raise ValueError(f"{part!r} is no date")
    return EPOCH + number * MICROSECOND


def count_up_to(selection: Selection, jobs: QuerySet[Job], most: int) -> int | None:
    """The number of matching `jobs`, counted up to `most` + 1. None if too many rows would have to be read."""
    if not selection.indexed or selection.search.complaints:
        return None
    rows = selection.rows(jobs).order_by()
    if not selection.search.rough:
        return overview.count_many([rows], most)[0]
    looked = rows.values_list(*dict.fromkeys(["id", *sorted(selection.search.columns)]), named=True)
    found = list(looked[: WINDOW + 1])
    return None if len(found) > WINDOW else sum(map(selection.search.exact, found))


def all_ids(selection: Selection, jobs: QuerySet[Job], states: Iterable[str]) -> list[UUID] | None:
    """The ids of all matching `jobs` in these states, or in the view of the selection. None if more than WINDOW rows would have to be
    read.
    """
    there = jobs.filter(selection.scope(states)).order_by()
    if len(there.values_list("pk")[: WINDOW + 1]) > WINDOW:
        return None
    columns = selection.search.columns
    rows = selection.rows(there).annotate(**read_raw(columns)).values_list(*_columns(("id",), columns)[0], named=True)
    return sorted(row.id for row in rows if selection.search.exact(row))


def count_exact(selection: Selection, rows: QuerySet[Job]) -> int:
    """The number of matching rows among `rows`. Reads all of them if the database cannot decide."""
    if not selection.search.rough:
        return rows.count()
    return sum(map(selection.search.exact, through(rows.order_by("pk"), ("id",), STEP)))
