"""Scheduled jobs as a test sees them, and the conditions that it expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django_delayq import clock, codec, durations, ids
from django_delayq.console.wording import cut
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.job_meta import bare
from django_delayq.producer.schedule import Bound
from django_delayq.producer.task import registry
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.record import BANDS, read
from django_delayq.worker.line import Line

WAITING: Final = (*BANDS, "blocked")  # where jobs wait for their date, for their concurrency name, or for the end of a pause
MOST: Final = 20  # rows of a table
WIDEST: Final = 60  # characters of a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """A scheduled job. `delay` is the time from now until `run_at`, which is negative if the job is late. `attempts` is the number of
    earlier attempts. `published` is False if only the database has the job, because Redis was down or because another job with its key
    is running.
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
    """All jobs that wait in Redis, the earliest first."""
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
        records, runs, names = link.execute_many([("HMGET", keys[key], *dates) for key in ("jobs", "runs", "names")])
        for (id, due), record, run, name in zip(dates.items(), records, runs, names, strict=True):
            if name is not None and b"\3" in name:  # a fair word: the score may be the time of its turn, see lines.lua
                due = float(name.split(b":")[2])
            if record is not None:
                found.append(_job(line.queue, id, int(abs(due)), record, int((run or b"0").partition(b":")[0]), now_ms))
    return sorted(found, key=lambda job: (job.run_at, job.id))


def _job(queue: str, id: bytes, due_ms: int, record: bytes, attempts: int, now_ms: int) -> ScheduledJob:
    delay = timedelta(milliseconds=due_ms - now_ms)
    return ScheduledJob(
        id=ids.full(id.decode()), queue=queue, run_at=clock.from_ms(due_ms), delay=delay, attempts=attempts, **content(record)
    )


def content(record: bytes) -> dict[str, Any]:
    """The task, the arguments and the key in a record."""
    header, payload = read(record)
    args, kwargs, _ = codec.decode_payload(payload)
    return {"task": header.task, "args": args, "kwargs": kwargs, "key": bare(header.key)}


def table(jobs: Sequence[ScheduledJob]) -> str:
    """The jobs as a table for people."""
    if not jobs:
        return "Nothing is scheduled."
    rows = [("task", "arguments", "key", "queue", "when", "")]
    rows += [(job.task, arguments(job.args, job.kwargs), job.key or "-", job.queue, when(job.delay), _past(job)) for job in jobs[:MOST]]
    shown = [tuple(cut(cell, WIDEST) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    more = [f"  … and {len(jobs) - MOST} more"] if len(jobs) > MOST else []
    return "\n".join(["Scheduled:", *lines, *more])


def arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments as text, as in a call."""
    return "(" + ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]) + ")"


def when(delay: timedelta) -> str:
    """ "in 30m", "15s late", "now"."""
    seconds = delay.total_seconds()
    rest = abs(seconds) if abs(seconds) < 10 else float(round(abs(seconds)))
    if rest < 0.001:
        return "now"
    return f"in {durations.text(rest)}" if seconds > 0 else f"{durations.text(rest)} late"


def _past(job: ScheduledJob) -> str:
    if not job.published:
        return "not in Redis yet"
    return f"after {job.attempts} attempt{'s' * (job.attempts != 1)}" if job.attempts else ""


TOLERANCE: Final = timedelta(seconds=1)


@dataclass(slots=True)
class Wanted:
    """The conditions for a job. Values that are not given are not compared. See `Kit.assert_scheduled`.

    Raises:
        ConfigError: `task` is not a task. UnknownTask: no task has that name. ValueError: both `delay` and `run_at` are given, `args`
            is not a list, or `kwargs` is not a dict. PayloadError: a job cannot have such arguments.
    """

    task: Any = None
    _: KW_ONLY
    args: Any = None
    kwargs: Any = None
    key: str | None = None
    queue: str | None = None
    delay: Any = None
    run_at: Any = None
    within: Any = None
    passed: timedelta = timedelta()  # the time that the test has taken: a delay may be shorter by this

    def __post_init__(self) -> None:
        if self.delay is not None and self.run_at is not None:
            raise ValueError("Give either delay or run_at.")
        if self.run_at is not None:
            clock.to_ms(self.run_at)  # refuses a naive one
        self.task = task_name(self.task)
        if self.args is not None:
            if isinstance(self.args, str | bytes) or not isinstance(self.args, Sequence):
                raise ValueError(f"args={self.args!r} must be a list or tuple of arguments. For one: args=[{self.args!r}].")
            self.args = _as_stored(list(self.args), "args")
        if self.kwargs is not None:
            if not isinstance(self.kwargs, Mapping):
                raise ValueError(f"kwargs={self.kwargs!r} must be a dict of arguments.")
            self.kwargs = _as_stored(dict(self.kwargs), "kwargs")
        self.delay, self.within = (
            None if given is None else timedelta(seconds=durations.seconds(given)) for given in (self.delay, self.within)
        )

    def among(self, jobs: Sequence[ScheduledJob]) -> list[ScheduledJob]:
        """The matching jobs."""
        return [job for job in jobs if self._is_it(job) and self._is_then(job)]

    def nearly(self, jobs: Sequence[ScheduledJob]) -> str:
        """A line about jobs that differ only in their date, or ""."""
        found = [job for job in jobs if self._is_it(job)]
        if not found or self.among(found):
            return ""
        return f"With another date: {', '.join(when(job.delay) for job in found[:5])}.\n"

    def __str__(self) -> str:
        called = arguments(self.args or (), self.kwargs or {}) if self.args is not None or self.kwargs is not None else None
        told: tuple[tuple[Any, str, Callable[[Any], str]], ...] = (
            (called, "{}", str),
            (self.key, "with the key {}", repr),
            (self.queue, "in the queue {}", repr),
            (self.delay, "{}", when),
            (self.run_at, "at {}", datetime.isoformat),
            (self.within, "within {}", lambda within: durations.text(within.total_seconds())),
        )
        return " ".join([self.task or "any task", *(text.format(show(value)) for value, text, show in told if value is not None)])

    def _is_it(self, job: ScheduledJob) -> bool:
        fields = ("args", "kwargs", "key", "queue")
        return self.task in ("", job.task) and all(getattr(self, name) in (None, getattr(job, name)) for name in fields)

    def _is_then(self, job: ScheduledJob) -> bool:
        if self.delay is None and self.run_at is None:
            return self.within is None or bool(job.delay <= self.within)
        most = self.within or TOLERANCE
        if self.delay is None:
            return bool(abs(job.run_at - self.run_at) <= most)
        return bool(-most - (timedelta() if self.within else self.passed) <= job.delay - self.delay <= most)


def task_name(task: Any) -> str:
    """The name of a task that is given as an object or by name; "" for None.

    Raises:
        ConfigError: it is not a task. UnknownTask: no task has that name.
    """
    if task is None:
        return ""
    if isinstance(task, Bound):
        name: str = task.task.name
        return name
    if isinstance(named := getattr(task, "module_path", task), str):  # a task of Django has its path there
        return registry.get(named).name
    raise ConfigError(f"{task!r} is not a task. Pass the function that @delayq.task decorates, or its name.")


def _as_stored(value: Any, where: str) -> Any:
    """The value as a job stores it: tuples become lists."""
    try:
        return codec.loads(codec.dumps(value))
    except PayloadError:
        with suppress(RecursionError):  # a list within itself
            codec.check(_listed(value), where)  # it names the place, and a remedy
        raise


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return {name: _listed(item) for name, item in value.items()} if type(value) is dict else value
