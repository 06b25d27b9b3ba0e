"""What is scheduled, as tests ask for it, and how it is shown where it is not what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django_delayq import clock, codec, ids
from django_delayq.priority_bands import BANDS
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.record import read
from django_delayq.worker.line import Line

WAITING: Final = (*BANDS, "blocked")  # where jobs wait: for their date, or for their name
MOST: Final = 20  # rows of a table
WIDEST: Final = 60  # characters of a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """A job that waits for its date. `delay`: from now until `run_at`, below zero of one that is late; `attempts`: how many of its runs
    have been; `published`: False of one that stands in the database only, since Redis was away or another job of its key runs.
    """

    id: UUID
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: str
    queue: str
    run_at: datetime
    delay: timedelta
    attempts: int = 0
    published: bool = True


def waiting(link: Link, lines: Sequence[Line], now_ms: int) -> list[ScheduledJob]:
    """All that wait in Redis, the earliest first."""
    commands = [("ZRANGE", line.store.keys[band], 0, -1, "WITHSCORES") for line in lines for band in WAITING]
    replies = iter(link.execute_many(commands))
    found: list[ScheduledJob] = []
    for line in lines:
        dates: dict[bytes, float] = {}
        for _ in WAITING:
            reply = next(replies)
            dates |= zip(reply[::2], map(float, reply[1::2]), strict=True)
        if not dates:
            continue
        keys = line.store.keys
        records, runs = link.execute_many([("HMGET", keys["jobs"], *dates), ("HMGET", keys["runs"], *dates)])
        for (id, due), record, run in zip(dates.items(), records, runs, strict=True):
            if record is not None:
                found.append(_job(line.queue, id, int(due), record, int((run or b"0").partition(b":")[0]), now_ms))
    return sorted(found, key=lambda job: (job.run_at, job.id))


def _job(queue: str, id: bytes, due_ms: int, record: bytes, attempts: int, now_ms: int) -> ScheduledJob:
    header, payload = read(record)
    args, kwargs, _ = codec.decode_payload(payload)
    return ScheduledJob(
        id=ids.full(id.decode()),
        task=header.task,
        args=args,
        kwargs=kwargs,
        key=header.key,
        queue=queue,
        run_at=clock.from_ms(due_ms),
        delay=timedelta(milliseconds=due_ms - now_ms),
        attempts=attempts,
    )


def table(jobs: Sequence[ScheduledJob]) -> str:
    """The jobs as people read them."""
    if not jobs:
        return "Nothing is scheduled."
    rows = [("task", "arguments", "key", "queue", "when", "")]
    rows += [(job.task, arguments(job.args, job.kwargs), job.key or "-", job.queue, when(job.delay), _past(job)) for job in jobs[:MOST]]
    cut = [tuple(_cut(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in cut) for column in range(len(rows[0]))]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]
    more = [f"  … and {len(jobs) - MOST} more"] if len(jobs) > MOST else []
    return "\n".join(["Scheduled:", *lines, *more])


def arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """As they stand in a call."""
    return "(" + ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]) + ")"


def when(delay: timedelta) -> str:
    """ "in 30m", "15s late", "now"."""
    seconds = delay.total_seconds()
    rest = abs(seconds) if abs(seconds) < 10 else float(round(abs(seconds)))
    if rest < 0.001:
        return "now"
    return f"in {clock.text(rest)}" if seconds > 0 else f"{clock.text(rest)} late"


def _past(job: ScheduledJob) -> str:
    if not job.published:
        return "not in Redis yet"
    return f"after {job.attempts} attempt{'s' * (job.attempts != 1)}" if job.attempts else ""


def _cut(cell: str) -> str:
    return cell if len(cell) <= WIDEST else cell[: WIDEST - 1] + "…"
