"""Records to rows and back, and what a database will not take made fit for it."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Any
from uuid import UUID

from django_delayq import clock, codec, ids
from django_delayq.exceptions import PayloadError
from django_delayq.job import JobRecord, lane_of
from django_delayq.models import Job
from django_delayq.states import State

PRIORITIES = {"high": 1, "normal": 0, "low": -1}
STUB = "?"  # the task of a row whose record is not known
NO_RECORD = "the record of this job did not reach the database"
_VARYING = re.compile(r"\S*\d\S*")
LONGEST_TEXT = 100_000  # characters of an error or a traceback; the rest is cut


def new_row(record: JobRecord, queue: str, run_at: datetime, **fields: Any) -> Job:
    """The row of a record that has not run. A payload that cannot be decoded leaves the arguments empty and says so in `error`."""
    args, kwargs, options, error = arguments(record)
    values: dict[str, Any] = {
        "queue": queue,
        "task": clean(record.task, 200),
        "args": args,
        "kwargs": kwargs,
        "options": options,
        "key": clean(record.key, 200),
        "state": State.SCHEDULED.value,
        "priority": PRIORITIES[record.lane],
        "run_at": run_at,
        "created_at": created(record.id, run_at),
        "expires_at": clock.from_ms(record.expires_ms) if record.expires_ms else None,
        "max_attempts": record.max_attempts,
        "durable": record.durable,
        "error": error,
    }
    return Job(id=record.id, **{**values, **fields})


def arguments(record: JobRecord) -> tuple[list[Any], dict[str, Any], dict[str, Any], str]:
    """Arguments and options of a record; empty, and what is wrong, where the payload cannot be decoded."""
    try:
        return *codec.decode_payload(record.payload), ""
    except PayloadError as problem:
        return [], {}, {}, clean(f"unreadable payload: {problem}")


def stub(id: UUID, queue: str, at: datetime, why: str = NO_RECORD) -> Job:
    """The row of a job of which only events are known."""
    return Job(
        id=id, queue=queue, task=STUB, state=State.SCHEDULED.value, run_at=at, created_at=created(id, at), durable=False,
        error=why, published=at,
    )  # fmt: skip


def record_of(job: Job) -> JobRecord:
    """The record that a row was made of, for the relay, requeue and restore.

    Raises:
        PayloadError: the row cannot be one (a stub).
    """
    if job.task == STUB:
        raise PayloadError(f"the row of job {job.id} is a stub: its record did not reach the database")
    payload = codec.dumps([job.args, job.kwargs, job.options] if job.options else [job.args, job.kwargs])
    return JobRecord(
        id=job.id,
        task=job.task,
        lane=lane_of(job.priority),
        durable=job.durable,
        max_attempts=job.max_attempts,
        expires_ms=clock.to_ms(job.expires_at) if job.expires_at else 0,
        key=job.key,
        payload=payload,
    )


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """Text that every database takes: NUL and lone surrogates escaped, cut in the middle when too long."""
    if "\x00" in text or not _is_utf8(text):
        text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text) <= longest:
        return text
    if longest <= 300:
        return text[: longest - 1] + "…"
    tail = longest // 3
    return f"{text[: longest - tail - 40]}\n… {len(text) - longest} characters cut …\n{text[-tail:]}"[:longest]


def fingerprint(text: str) -> str:
    """For an error that came without one, such as a worker's crash: the same for texts that differ in numbers and ids only."""
    first = _VARYING.sub("#", text.strip().split("\n", 1)[0])[:500]
    return hashlib.sha1(first.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:12] if first else ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def created(id: UUID, otherwise: datetime) -> datetime:
    """When the job was made, as its id says; `otherwise` if it does not."""
    try:
        return clock.from_ms(ids.created_ms(id))
    except (ValueError, OverflowError):
        return otherwise
