"""The rates that people have set, and those for which jobs wait, for the admin and the commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django_delayq import clock
from django_delayq.console.overview import DOWN
from django_delayq.job_meta import Quota
from django_delayq.models import Pause
from django_delayq.producer import outbox
from django_delayq.producer.outbox.pauses import RATE
from django_delayq.producer.stores import stores
from django_delayq.store.reads import queue_depth
from django_delayq.store.reads.queue_depth import RateFigures, RatesSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRow:
    """One rate. `pace`: the one that a person has set, or None. `at`, `by` and `why`: when, by whom and why it was set. `missing`: the
    partitions that have not confirmed it. `waiting`: the number of due jobs that wait for a token; `oldest`: the earliest of their
    dates.
    """

    name: str
    pace: Quota | None = None
    at: datetime | None = None
    by: str = ""
    why: str = ""
    missing: Sequence[str] = ()
    waiting: int = 0
    oldest: datetime | None = None


def rate_rows(queues: Sequence[str], words: Iterable[Pause] | None = None) -> tuple[list[RateRow], bool]:
    """The rates, those with the oldest waiting jobs first, and whether there may be more. `queues`: those whose waiting jobs count. It
    leaves out the partitions that cannot be reached. `words`: see `outbox.pauses.of_pauses`.
    """
    there = {row.word.removeprefix(RATE): row for row in outbox.pauses.of_rates(words)}
    seen = _seen(queues, [*there])
    found = [_row(one.name, there.pop(one.name, None), one) for one in seen.figures]
    return [*found, *(_row(name, row) for name, row in there.items())], seen.cut


def _seen(queues: Sequence[str], wanted: Sequence[str]) -> RatesSeen:
    keys = [store.keys for queue in queues for store in stores.parts(queue)]
    try:
        return stores.from_each(queues, lambda reach: queue_depth.rates(stores.places, keys, wanted, reach))[0]
    except DOWN:
        return RatesSeen(figures=[], cut=False)


def _row(name: str, row: Pause | None, figures: RateFigures | None = None) -> RateRow:
    return RateRow(
        name=name,
        pace=Quota(*map(int, row.rate.split(":"))) if row and row.rate else None,
        at=row.paused_at if row else None,
        by=row.paused_by if row else "",
        why=row.paused_why if row else "",
        missing=row.missing.split() if row else (),
        waiting=figures.waiting if figures else 0,
        oldest=clock.from_ms(figures.oldest_ms) if figures and figures.oldest_ms else None,
    )
