"""Numbers over time, for people: what was done in the last hour, how late and how long, and what will become due. Reads only, bounded
however many jobs there are, and each in one write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from django_delayq import spread
from django_delayq.exceptions import StoreUnavailable
from django_delayq.lanes import LANES
from django_delayq.spread import Spread
from django_delayq.store import decode
from django_delayq.store.connection import Link
from django_delayq.store.keys import Keys

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
KINDS: Final = (  # of what scripts count per minute
    "scheduled",
    "succeeded",
    "retried",
    "snoozed",
    "failed",
    "cancelled",
    "crashed",
    "requeued",
    "restored",
)
MOST_US: Final = 1_000  # in Redis, for the ZCOUNTs of a forecast: the dashboard as a whole is to stay below 2 ms
COUNT_US: Final = ((1_000, 0.4), (10_000, 1.0))  # what one costs in a lane of up to so many jobs
COUNT_US_BEYOND: Final = 2.0  # in one of 50,000
MINUTE_STEPS: Final = (1, 2, 5, 10, 15, 30, 60)
HOUR_STEPS: Final = (1, 2, 3, 4, 6, 12, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """How many jobs become due. `minutes` covers the next hour in steps of `minute_step`, `hours` the next day in steps of
    `hour_step`: 1 each, and coarser where many queues have something to come, so that its cost stays bounded.
    """

    start_ms: int
    minute_step: int
    minutes: tuple[int, ...]
    hour_step: int
    hours: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """What else a queue counts. `tombstones`: of jobs that have ended lately; `failed_hour`, `failed_day`: jobs that have failed within
    that time and have not been requeued; `minute`: what was done in the last whole minute, by kind.
    """

    queue: str
    tombstones: int
    failed_hour: int
    failed_day: int
    minute: Mapping[str, int]


class Figures:
    """Looks into the queues of one prefix.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, link: Link, *, prefix: str) -> None:
        self._link = link
        self._prefix = prefix

    def hours(self, queues: Sequence[str]) -> list[Spread]:
        """The last hour of each queue."""
        now_ms = self._now_ms()
        raws = self._ask([("GETRANGE", Keys(self._prefix, queue)["spread"], 0, spread.LENGTH - 1) for queue in queues], b"")
        return [spread.decode(raw, now_ms) for raw in raws]

    def counts(self, queues: Sequence[str]) -> list[QueueCounts]:
        """What each of these queues counts."""
        now_ms = self._now_ms()
        fields = [f"{now_ms // MINUTE_MS - 1}:{kind}" for kind in KINDS]
        commands: list[tuple[Any, ...]] = []
        for keys in (Keys(self._prefix, queue) for queue in queues):
            commands += [
                ("HMGET", keys["stats"], *fields),
                ("ZCARD", keys["finished"]),
                ("ZCOUNT", keys["failed"], now_ms - HOUR_MS, "+inf"),
                ("ZCOUNT", keys["failed"], now_ms - 24 * HOUR_MS, "+inf"),
            ]
        replies = zip(*[iter(self._ask(commands, 0))] * 4, strict=True)
        return [
            QueueCounts(
                queue=queue,
                tombstones=tombstones,
                failed_hour=failed_hour,
                failed_day=failed_day,
                minute={kind: decode.number(count or b"0") for kind, count in zip(KINDS, minute or [b"0"] * len(KINDS), strict=True)},
            )
            for queue, (minute, tombstones, failed_hour, failed_day) in zip(queues, replies, strict=True)
        ]

    def forecast(self, queues: Sequence[str]) -> Forecast:
        """What becomes due in these queues, by the whole minute and the whole hour; what is due already is not in it."""
        now_ms = self._now_ms()
        minute_start, hour_start = now_ms - now_ms % MINUTE_MS, now_ms - now_ms % HOUR_MS
        lanes = [Keys(self._prefix, queue)[lane] for queue in queues for lane in LANES]
        looked = self._ask(
            [
                *(("ZCOUNT", lane, f"({now_ms}", hour_start + 24 * HOUR_MS) for lane in lanes),
                *(("ZCARD", lane) for lane in lanes),
            ],
            0,
        )
        sizes = {lane: looked[len(lanes) + n] for n, lane in enumerate(lanes) if looked[n]}
        busy = list(sizes)
        room = MOST_US / max(COUNT_US[0][1], sum(map(_count_us, sizes.values())))
        minute_step, hour_step = next(
            (steps for steps in zip(MINUTE_STEPS, HOUR_STEPS, strict=True) if 60 // steps[0] + 24 // steps[1] <= room),
            (MINUTE_STEPS[-1], HOUR_STEPS[-1]),
        )
        minutes = [minute_start + n * MINUTE_MS for n in range(0, 61, minute_step)]
        hours = [hour_start + n * HOUR_MS for n in range(0, 25, hour_step)]
        ranges = [*pairwise(minutes), *pairwise(hours)]
        counts = self._ask(
            [("ZCOUNT", lane, f"({now_ms}" if start <= now_ms else start, f"({end}") for start, end in ranges for lane in busy], 0
        )
        sums = [sum(counts[n * len(busy) : (n + 1) * len(busy)]) for n in range(len(ranges))]
        split = len(minutes) - 1
        return Forecast(
            start_ms=now_ms,
            minute_step=minute_step,
            minutes=tuple(sums[:split]),
            hour_step=hour_step,
            hours=tuple(sums[split:]),
        )

    def _now_ms(self) -> int:
        seconds, micros = self._link.execute("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def _ask(self, commands: Sequence[tuple[Any, ...]], nothing: Any) -> list[Any]:
        replies = self._link.execute_many(commands) if commands else []
        for reply in replies:
            if isinstance(reply, StoreUnavailable):
                raise reply
        # What stands there instead of ours counts as nothing.
        return [nothing if isinstance(reply, Exception) else reply for reply in replies]


def _count_us(size: int) -> float:
    return next((cost for most, cost in COUNT_US if size <= most), COUNT_US_BEYOND)
