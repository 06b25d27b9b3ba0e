"""How the rows of a selection are read, page by page: behind the last row seen, in the order of an index, never the whole table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.db.models import Q, QuerySet

from django_delayq import clock, ids
from django_delayq.console.selection import Selection
from django_delayq.models import Job

WINDOW: Final = 10_000  # rows that one request reads through, where no index finds those that are meant
STEP: Final = 500  # rows read at a time, where each has to be looked at
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


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
