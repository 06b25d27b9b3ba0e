"""The records of `tasks.seen`: when each job ran, and in which partition. The jobs are due one after the other, so the latest of them
shows a pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EVERY = 0.005  # seconds from one date to the next
AT_ONCE = 0.02  # seconds from one call to the next where jobs are scheduled for now
FIRST_AT_ONCE = 100_001  # number of the first of those
FIRST_OF_OTHERS = 1_000_001  # number of the first of jobs that run beside others
MOST_PARTITIONS = 512
ROUND = 1000  # seconds after which the clock of a mark begins anew: with all of it there would be no room in a float


@dataclass(frozen=True, slots=True)
class Sighting:
    """A run. `moment` in seconds since 1970."""

    number: int
    partition: int
    moment: float


def mark(number: int, partition: int, moment: float) -> float:
    """All three as one number, to a few microseconds."""
    return float((number * MOST_PARTITIONS + partition) * ROUND) + moment % ROUND


def read(marks: Iterable[float], since: float) -> list[Sighting]:
    """The runs, all of them between `since` and a quarter of an hour later."""
    found = []
    for one in marks:
        which, clock = divmod(one, ROUND)
        number, partition = divmod(int(which), MOST_PARTITIONS)
        found.append(Sighting(number, partition, since + (clock - since) % ROUND))
    return found


class Watch:
    """The runs of jobs of which one was due each `EVERY` seconds from `origin` on, and of some that were scheduled for now."""

    def __init__(self, marks: Iterable[float], origin: float) -> None:
        self.origin = origin
        self.all = read(marks, origin - 10)

    def due(self, one: Sighting) -> float:
        """When it was to run."""
        return self.origin + one.number * EVERY

    def lateness(self, partitions: Iterable[int] = range(MOST_PARTITIONS), since: float = 0.0, until: float = 0.0) -> list[float]:
        """The lateness, in seconds and in order, of the jobs in these partitions that were due in that period."""
        wanted = frozenset(partitions)
        dated = [one for one in self.all if one.number < FIRST_AT_ONCE and one.partition in wanted]
        return sorted(one.moment - self.due(one) for one in dated if since <= self.due(one) and not 0 < until < self.due(one))

    def again(self, partitions: Sequence[int], since: float) -> float:
        """Seconds from then until each of these partitions has run a job that was due later than then."""
        firsts = (
            min((one.moment for one in self.all if one.partition == partition and self.due(one) > since), default=float("inf"))
            for partition in partitions
        )
        return max(firsts) - since

    def twice(self) -> int:
        """Runs beyond the first of a job."""
        return len(self.all) - self.distinct()

    def distinct(self) -> int:
        """Jobs that ran."""
        return len({one.number for one in self.all})
