"""Jobs as JSON documents, and files of many jobs: CSV for tables, one JSON document per line for programs."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from django_delayq import clock, ids
from django_delayq.console import keyset, masking, why_not_yet
from django_delayq.console.selection import Selection
from django_delayq.models import Job
from django_delayq.states import NO_LIMIT
from django_delayq.store.reads.inspector import JobView

MOST: Final = 100_000  # jobs in one file
STRETCHES: Final = 100  # of `keyset.WINDOW` rows, which are scanned if no index finds the jobs
STEP: Final = 500  # jobs read at a time
LINES: Final = 200  # lines sent at a time
# Characters that start a formula in a spreadsheet, including the fullwidth forms of Chinese and Japanese.
FORMULA: Final = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
BREAKS: Final = frozenset("\t\r\n")


@dataclass(slots=True, kw_only=True)
class Walk:
    """The jobs of a selection, each read in full when it is reached. `jobs`: all jobs; `seen`: whether the user may see a job. At the
    end, `cut` is true if there may be more jobs, and `partly` if free texts were searched in a part of the rows, see `keyset.Page`.
    """

    selection: Selection
    jobs: QuerySet[Job]
    seen: Callable[[Job], bool] | None = None
    most: int = MOST
    cut: bool = False
    partly: bool = False

    def __iter__(self) -> Iterator[Job]:
        left, stretches, after = self.most, STRETCHES, ""
        names = self.jobs.defer("args", "kwargs", "options", "result")
        while True:
            page = keyset.page(self.selection, names, STEP, after=after)
            self.cut |= page.cut
            self.partly |= page.partly
            whole = {job.pk: job for job in self.jobs.filter(pk__in=[job.pk for job in page.jobs])}
            for job in filter(None, map(whole.get, [job.pk for job in page.jobs])):  # a job can be deleted in the meantime
                if self.seen is not None and not self.seen(job):
                    continue
                if not left:
                    self.cut = True
                    return
                left -= 1
                yield job
            stretches -= page.unfinished
            after = page.after
            if not after:
                return
            if not stretches:
                self.cut = True
                return


def json_lines(walk: Walk, *, sensitive: bool, ending: Callable[[Walk], str]) -> Iterator[bytes]:
    """A document per line, as in `delayq list --json`. If `ending` returns a text for the finished walk, the last line is `{"cut": …}`
    with this text: there may be more jobs.
    """
    for job in walk:
        yield _encoded(_line(job_document(job, sensitive=sensitive)))
    if told := ending(walk):
        yield _encoded(_line({"cut": told}))


def csv_lines(walk: Walk, *, sensitive: bool, ending: Callable[[Walk], str]) -> Iterator[bytes]:
    """A header, and a line per job. If `ending` returns a text, it is in the first column of the last line. The file starts with a byte
    order mark, by which spreadsheets recognize UTF-8.
    """
    yield b"\xef\xbb\xbf"
    yield from map(_encoded, table(walk, sensitive=sensitive))
    if told := ending(walk):
        yield _encoded(_row([told]))


def table(jobs: Iterable[Job], *, sensitive: bool = False) -> Iterator[str]:
    """The same lines as text."""
    yield _row(job_document(Job()))
    for job in jobs:
        yield _row([cell(value) for value in job_document(job, sensitive=sensitive).values()])


def cell(value: Any) -> str:
    """The value of a cell: lists and dicts as JSON. Text that a spreadsheet would evaluate as a formula is escaped."""
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in BREAKS or value.lstrip()[:1] in FORMULA else value
    if isinstance(value, (datetime, UUID)):
        return str(plain(value))
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Ends the process with exit code 1, and without a traceback, if the reader of standard output has left, such as `| head`."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python fails once more when it ends
        sys.exit(1)


def together(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Joins lines into larger parts, because each part that is sent has a cost."""
    while part := b"".join(islice(lines, LINES)):
        yield part


def _row(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)  # so that both are quoted within a cell
    return line.getvalue().removesuffix("\r\n") + "\n"


def _line(document: dict[str, Any]) -> str:
    return json.dumps(document, default=plain, ensure_ascii=False) + "\n"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # an unpaired surrogate is escaped as in JSON


def job_document(job: Job, view: JobView | None = None, *, sensitive: bool = False) -> dict[str, Any]:
    """The row of a job as a JSON document. Sensitive values are masked, unless `sensitive`. The number of polls is that of Redis, if
    `view` is given. `asked_of` is None if the task is unknown here or the job has never polled.
    """
    asked = why_not_yet.polls(job, view)
    args, kwargs = masking.arguments(job.task, job.args, job.kwargs, sensitive=sensitive, version=job.version)
    return {
        "id": job.id,
        "uuid": str(job.id),
        "queue": job.queue,
        "task": job.task,
        "state": job.state,
        "derived": job.derived,
        "key": job.key,
        "at_most": job.at_most,
        "args": args,
        "kwargs": kwargs,
        "priority": job.priority,
        "run_at": job.run_at,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "attempts": job.attempts,
        "max_attempts": 0 if job.max_attempts == NO_LIMIT else job.max_attempts,
        "crashes": job.crashes,
        "asked": asked.times if asked else 0,
        "asked_of": asked.most if asked else None,
        "worker": job.worker,
        "error": job.error,
        "result": masking.result(job.task, job.result, sensitive=sensitive),
        "meta": masking.attached(job.task, job.meta, sensitive=sensitive),
        "published": job.published,
    }


def redis_document(view: JobView) -> dict[str, Any]:
    """The state of a job in Redis as a JSON document."""
    return {
        "queue": view.queue,
        "state": view.state,
        "date": clock.from_ms(view.date_ms),
        "attempt": view.attempt,
        "crashes": view.crashes,
        "asked": view.asks,
        "name": view.name,
        "turn": view.turn,
        "waits_for_name": view.blocked,
        "name_held_by": view.name_holder,
        "cancel_by": view.cancel_by,
        "aborts": view.aborts,
        "progress": view.progress,
    }


def plain(value: Any) -> Any:
    """A value for JSON: an id as 22 characters, a date in ISO 8601."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return ids.short(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
