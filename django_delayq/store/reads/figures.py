"""Numbers over time, for people: the work of the last hour, delays and durations, and the jobs that will become due. All functions
only read. Their cost does not depend on the number of jobs, and each needs one write per server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

from django_delayq import clock, spread
from django_delayq.exceptions import StoreUnavailable
from django_delayq.spread import Spread
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.reads.reach import ONE, WHOLE, Partitions, Reach
from django_delayq.store.scripts import decode, loader
from django_delayq.store.scripts.record import BANDS

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
# The kinds that scripts count per minute.
KINDS: Final = ("scheduled", "succeeded", "retried", "snoozed", "failed", "cancelled", "crashed", "requeued", "restored")
MOST_US: Final = 1_000  # in Redis, for the ZCOUNTs of a forecast: the whole dashboard must stay below 2 ms
COUNT_US: Final = ((1_000, 0.4), (10_000, 1.0))  # the cost of one in a band of up to so many jobs
COUNT_US_BEYOND: Final = 2.0  # in one of 50,000
ENDED: Final = ("succeeded", "failed", "retried")  # the kinds that a chart shows
MINUTES_AT_ONCE: Final = 240  # that a call of counts.lua sums: these take about a fifth of a millisecond in Redis
MINUTE_STEPS: Final = (1, 2, 5, 10, 15, 30, 60)
HOUR_STEPS: Final = (1, 2, 3, 4, 6, 12, 24)

Look: TypeAlias = tuple[Keys, tuple[Any, ...]]  # a partition, and the command for its server


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The number of jobs that become due. `minutes` covers the next hour in steps of `minute_step`, `hours` the next day in steps of
    `hour_step`. The steps are 1 each, or larger if many queues have jobs to come, to limit the cost.
    """

    start_ms: int
    minute_step: int
    minutes: tuple[int, ...]
    hour_step: int
    hours: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Other counts of a queue. `tombstones`: those of jobs that have ended lately. `failed_hour`, `failed_day`: jobs that have failed
    within that time and have not been requeued. `minute`: the events of the last whole minute, by kind.
    """

    queue: str
    tombstones: int
    failed_hour: int
    failed_day: int
    minute: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCounts:
    """The ended jobs of a queue in steps of `step_ms` from `start_ms`; the last step is not complete. Counts jobs that succeeded and
    failed, and attempts that were retried.
    """

    queue: str
    start_ms: int
    step_ms: int
    succeeded: tuple[int, ...]
    failed: tuple[int, ...]
    retried: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCounts:
    """The last hour of a queue in steps of five minutes since `start_ms`: lateness and run times of each, as counts per bucket."""

    queue: str
    start_ms: int
    late: tuple[tuple[int, ...], ...]
    ran: tuple[tuple[int, ...], ...]


class Figures:
    """Reads the queues of one prefix. The numbers of a queue are summed over its partitions.

    Args:
        partitions, reach: see `Inspector`; partitions that are left out count as 0.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, places: Places, *, prefix: str, partitions: Mapping[str, int] = ONE, reach: Reach = WHOLE) -> None:
        self._places = places
        self._reach = reach
        self._parts = Partitions(prefix, partitions)

    def hours(self, queues: Sequence[str]) -> list[Spread]:
        """The last hour of each queue."""
        now_ms = self._now_ms(queues)
        return [spread.decode(raw, now_ms) for raw in self._spreads(queues)]

    def slots(self, queues: Sequence[str]) -> list[SlotCounts]:
        """The last hour of each queue, slot by slot."""
        now_ms = self._now_ms(queues)
        raws = self._spreads(queues)
        start_ms = (now_ms // spread.SLOT_MS - spread.MINUTES // spread.SLOT + 1) * spread.SLOT_MS
        return [
            SlotCounts(
                queue=queue,
                start_ms=start_ms,
                late=tuple(tuple(late) for late, _ in slots),
                ran=tuple(tuple(ran) for _, ran in slots),
            )
            for queue, slots in ((queue, spread.decode_slots(raw, now_ms)) for queue, raw in zip(queues, raws, strict=True))
        ]

    def ended(self, queue: str, *, step: int, steps: int, ago: int = 0) -> EndedCounts:
        """The jobs of a queue in the last `steps` times `step` minutes, or so `ago` minutes earlier; counts are kept for eight days."""
        last = self._now_ms([queue]) // MINUTE_MS - ago
        first = last - last % step - (steps - 1) * step
        at_once = max(1, MINUTES_AT_ONCE // step)
        starts = range(0, steps, at_once)
        calls = [
            (*loader.head(None, "", ""), first + n * step, min(last, first + (n + at_once) * step - 1), step, *ENDED) for n in starts
        ]
        sums = {kind: [0] * steps for kind in ENDED}

        def look(_link: Link, there: list[Keys]) -> None:
            for keys in there:
                link = self._places.of(keys.queue, keys.partition)
                for start, counts in zip(starts, loader.run_each(link, loader.load("counts", keys), keys, calls), strict=True):
                    if isinstance(counts, StoreUnavailable):
                        raise counts
                    if not isinstance(counts, Exception):  # a foreign value at our key counts as nothing
                        for number, count in enumerate(counts):
                            sums[ENDED[number % len(ENDED)]][start + number // len(ENDED)] += decode.number(count)

        self._reach.each(self._places, self._parts.of(queue), look)
        told = {kind: tuple(numbers) for kind, numbers in sums.items()}
        return EndedCounts(queue=queue, start_ms=first * MINUTE_MS, step_ms=step * MINUTE_MS, **told)

    def bands(self, queue: str) -> dict[str, int]:
        """The number of waiting jobs in each band, including those that are due."""
        sizes = self._ask([(keys, ("ZCARD", keys[band])) for keys in self._parts.of(queue) for band in BANDS], 0)
        return {band: sum(sizes[number :: len(BANDS)]) for number, band in enumerate(BANDS)}

    def counts(self, queues: Sequence[str]) -> list[QueueCounts]:
        """The other counts of these queues."""
        now_ms = self._now_ms(queues)
        fields = [f"{now_ms // MINUTE_MS - 1}:{kind}" for kind in KINDS]
        parts = self._parts.of_each(queues)
        commands: list[Look] = []
        for keys in parts:
            commands += [
                (keys, ("HMGET", keys["stats"], *fields)),
                (keys, ("ZCARD", keys["finished"])),
                (keys, ("ZCOUNT", keys["failed"], now_ms - HOUR_MS, "+inf")),
                (keys, ("ZCOUNT", keys["failed"], now_ms - 24 * HOUR_MS, "+inf")),
            ]
        replies = zip(*[iter(self._ask(commands, 0))] * 4, strict=True)
        found = {queue: Counter[str]() for queue in queues}
        for keys, (minute, tombstones, hour, day) in zip(parts, replies, strict=True):
            sums = found[keys.queue]
            sums.update({"tombstones": tombstones, "failed_hour": hour, "failed_day": day})
            if minute:
                sums.update({kind: decode.number(count or b"0") for kind, count in zip(KINDS, minute, strict=True)})
        return [
            QueueCounts(
                queue=queue,
                tombstones=sums["tombstones"],
                failed_hour=sums["failed_hour"],
                failed_day=sums["failed_day"],
                minute={kind: sums[kind] for kind in KINDS},
            )
            for queue, sums in found.items()
        ]

    def forecast(self, queues: Sequence[str]) -> Forecast:
        """The jobs of these queues that will become due, by the whole minute and the whole hour; without jobs that are due already."""
        now_ms = self._now_ms(queues)
        minute_start, hour_start = now_ms - now_ms % MINUTE_MS, now_ms - now_ms % HOUR_MS
        bands = [(keys, keys[band]) for keys in self._parts.of_each(queues) for band in BANDS]
        looked = self._ask(
            [
                *((keys, ("ZCOUNT", band, f"({now_ms}", hour_start + 24 * HOUR_MS)) for keys, band in bands),
                *((keys, ("ZCARD", band)) for keys, band in bands),
            ],
            0,
        )
        sizes = {band: looked[len(bands) + n] for n, band in enumerate(bands) if looked[n]}
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
            [
                (keys, ("ZCOUNT", band, f"({now_ms}" if start <= now_ms else start, f"({end}"))
                for start, end in ranges
                for keys, band in busy
            ],
            0,
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

    def _spreads(self, queues: Sequence[str]) -> list[bytes]:
        """The counts of each queue, one partition after the other."""
        parts = self._parts.of_each(queues)
        raws: dict[str, list[bytes]] = {queue: [] for queue in queues}
        looks = [(keys, ("GETRANGE", keys["spread"], 0, spread.LENGTH - 1)) for keys in parts]
        for keys, raw in zip(parts, self._ask(looks, b""), strict=True):
            raws[keys.queue].append(raw)
        return [spread.joined(raws[queue]) for queue in queues]

    def _now_ms(self, queues: Sequence[str]) -> int:
        """The time of the first server that answers, for all servers."""
        found: list[int] = []

        def look(link: Link, _there: list[Keys]) -> None:
            if not found:
                found.append(decode.time_ms(link.execute("TIME")))

        if queues:
            self._reach.each(self._places, self._parts.of_each(queues), look)
        else:
            look(self._places.shared, [])
        return found[0] if found else clock.wall_ms()

    def _ask(self, looks: Sequence[Look], nothing: Any) -> list[Any]:
        numbers: dict[Keys, list[int]] = {}
        for number, (keys, _) in enumerate(looks):
            numbers.setdefault(keys, []).append(number)
        found = [nothing] * len(looks)

        def look(link: Link, there: list[Keys]) -> None:
            those = [number for keys in there for number in numbers[keys]]
            for number, reply in zip(those, link.execute_many([looks[number][1] for number in those]), strict=True):
                if isinstance(reply, StoreUnavailable):
                    raise reply
                if not isinstance(reply, Exception):  # a foreign value at our key counts as nothing
                    found[number] = reply

        self._reach.each(self._places, numbers, look)
        return found


def _count_us(size: int) -> float:
    return next((cost for most, cost in COUNT_US if size <= most), COUNT_US_BEYOND)
