"""Memory that processes of a worker share without a lock: the counts of a task process, and texts. Each has one writer. The
supervisor reads them for its metrics.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django_delayq.store.scripts.queue import Kind, Outcome
from django_delayq.worker.current import Run
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line

MOST_TASKS: Final = 100  # tasks that are counted by name; a series for each further one would be too many for a metrics system
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)  # seconds

# How a run ends, in the words of `AttemptOutcome`. The supervisor reports the last two, for processes that have ended.
ENDS: Final[Mapping[Kind, str]] = {
    "ack": "succeeded",
    "retry": "retried",
    "snooze": "snoozed",
    "ask": "asked",
    "park": "parked",
    "fail": "failed",
    "cancel": "cancelled",
    "crash": "crashed",
    "evict": "evicted",
}

_KINDS: Final[Mapping[str, int]] = {kind: number for number, kind in enumerate(ENDS)}
_BOUNDS_MS: Final = tuple(round(bound * 1000) for bound in BOUNDS)
_BUCKETS: Final = len(BOUNDS) + 1
# For each line: leases lost; the sum of ms and the buckets, of run time and of lateness; then a number for each end of each task.
_LOST: Final = 0
_RAN: Final = 1
_LATE: Final = _RAN + 1 + _BUCKETS
_ENDED: Final = _LATE + 1 + _BUCKETS
_COUNTED: Final = ("done", "already")  # the answers of settle after which this process counts the end


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations: the count of each bucket (at most the seconds in BOUNDS; the last bucket has all longer ones), and the sum of all in
    seconds.
    """

    counts: Sequence[int]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFigures:
    """The counts of a worker for one line. `ended`: runs by number of the task and kind of end; `lost`: leases. A number without a
    task, or from MOST_TASKS on, means all other tasks.
    """

    queue: str
    ran: Histogram
    late: Histogram
    lost: int
    ended: Mapping[tuple[int, Kind], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """All counts of a worker, for one response.

    Args:
        lines: the counts of its task processes. given_back: runs of processes that have ended, by queue, number of the task and kind.
        lost: leases by queue, as the lease extender counts them.
        leases: held now, by queue and state ("waiting", "running", "settling").
        restarts: by process (task-1, records) and cause ("died", "replaced").
        processes: the number of processes, by kind ("task", "loop"). facts: the facts of the beat. reached: whether Redis answered in
            the last seconds.
        records: the last report of the process of its records; None without such a process, or if the report is too old.
    """

    lines: Sequence[LineFigures]
    given_back: Mapping[tuple[str, int, Kind], int]
    lost: Mapping[str, int]
    leases: Mapping[tuple[str, str], int]
    restarts: Mapping[tuple[str, str], int]
    processes: Mapping[str, int]
    facts: Mapping[str, Any]
    tasks: Sequence[str]
    reached: bool
    records: Mapping[str, Any] | None


class Tally:
    """The counts of one task process, made before the fork. Only its settler writes, and the supervisor reads. They share no lock:
    each number is one word, so a read during a batch is late by one run at most.
    """

    def __init__(self, lines: int, tasks: int) -> None:
        self._tasks = min(tasks, MOST_TASKS) + 1
        self._width = _ENDED + self._tasks * len(ENDS)
        self._map = mmap.mmap(-1, max(1, lines) * self._width * 8)
        self._counts = memoryview(self._map).cast("q")
        self._numbers: dict[str, int] = {}
        self._at: dict[Line, int] = {}

    def serves(self, lines: Sequence[Line], tasks: Sequence[str]) -> None:
        """Called in the task process: its lines and tasks, in the order of the spec."""
        self._at = {line: number * self._width for number, line in enumerate(lines)}
        self._numbers = {name: number for number, name in enumerate(tasks[: self._tasks - 1])}

    def settled(self, answered: Iterable[tuple[tuple[Run, Outcome], str]], leases: LeaseTable) -> None:
        """Counts a batch with the answers of Redis. Called by one thread only."""
        counts, numbers, others = self._counts, self._numbers, self._tasks - 1
        for (run, outcome), answer in answered:
            at = self._at[run.line]
            if answer not in _COUNTED:
                if answer in ("lost", "gone") and not leases.is_lost(run.row, run.turn):  # else the extender counted it
                    counts[at + _LOST] += 1
                continue
            header = getattr(run, "header", None)  # also of poison, unless the record cannot be read or trusted
            task = others if header is None else numbers.get(header.task, others)
            if run.current is not None:
                if outcome.ran_ms >= 0:
                    counts[at + _RAN] += outcome.ran_ms
                    counts[at + _RAN + 1 + bisect_left(_BOUNDS_MS, outcome.ran_ms)] += 1
                counts[at + _LATE] += run.late_ms
                counts[at + _LATE + 1 + bisect_left(_BOUNDS_MS, run.late_ms)] += 1
            elif outcome.kind == "snooze":  # given back before it began: not a run
                continue
            counts[at + _ENDED + task * len(ENDS) + _KINDS[outcome.kind]] += 1

    def read(self) -> list[int]:
        """All numbers, for `figures`."""
        return self._counts.tolist()

    def close(self) -> None:
        """Releases the memory."""
        self._counts.release()
        self._map.close()


def figures(queues: Sequence[str], counts: Sequence[int]) -> list[LineFigures]:
    """The figures of the lines of these queues, from the sum of several tallies."""
    width, kinds = len(counts) // max(1, len(queues)), tuple(ENDS)
    found = []
    for number, queue in enumerate(queues):
        line = counts[number * width : (number + 1) * width]
        ended = {divmod(at, len(kinds)): count for at, count in enumerate(line[_ENDED:]) if count}
        found.append(
            LineFigures(
                queue=queue,
                ran=Histogram(line[_RAN + 1 : _LATE], line[_RAN] / 1000),
                late=Histogram(line[_LATE + 1 : _ENDED], line[_LATE] / 1000),
                lost=line[_LOST],
                ended={(task, kinds[kind]): count for (task, kind), count in ended.items()},
            )
        )
    return found


SIZE: Final = 1 << 22  # bytes; unused pages take no memory
LOOKS: Final = 3

_HEAD: Final = struct.Struct("=QQ")  # a number that increases at the start and at the end of each write, and the length


class LatestText:
    """A text with one writer, which may be killed at any byte, and readers that never wait. The number at the start is odd during a
    write. A reader that finds another number after the read than before it reads again. Made before the fork.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._map = mmap.mmap(-1, size)
        self._size = size

    def write(self, text: bytes) -> bool:
        """Replaces the text. Returns False if the new text is too long; then the last one stays."""
        if len(text) > self._size - _HEAD.size:
            return False
        number, length = _HEAD.unpack_from(self._map)
        number |= 1  # even if another writer was killed during a write
        _HEAD.pack_into(self._map, 0, number, length)
        self._map[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._map, 0, number, len(text))
        _HEAD.pack_into(self._map, 0, number + 1, len(text))
        return True

    def read(self) -> bytes:
        """The text; b"" before the first write, or if every read meets a write."""
        for _ in range(LOOKS):
            number, length = _HEAD.unpack_from(self._map)
            text = self._map[_HEAD.size : _HEAD.size + min(length, self._size - _HEAD.size)]
            if number % 2 == 0 and _HEAD.unpack_from(self._map)[0] == number:
                return text
        return b""
