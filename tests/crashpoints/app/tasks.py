"""A task per kind. Each notes in the file of its case when a run begins and when it comes to its end."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import django_delayq as delayq
from tests.crashpoints.app.models import Effect

RUNS = "CRASHPOINTS_RUNS"  # the environment variable that names the file


def note(what: str) -> None:
    """Appends a line: one write, so that lines of many processes do not mix."""
    job = delayq.current()
    line = {
        "what": what,
        "job": job.id.hex,
        "fence": job.fence,
        "attempt": job.attempt,
        "pid": os.getpid(),
        "due": int(job.run_at.timestamp() * 1000),
        "at": time.time_ns() // 1_000_000,
    }
    _append(os.environ[RUNS], line)


def _append(path: str, line: dict[str, Any]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def _notes(what: str) -> int:
    """How often this job has noted that."""
    with open(os.environ[RUNS], encoding="ascii") as file:
        lines = [json.loads(line) for line in file]
    return sum(line["what"] == what and line["job"] == delayq.current().id.hex for line in lines)


@delayq.task
def plain(seconds: float) -> None:
    note("began")
    time.sleep(seconds)
    note("ended")


@delayq.task(backoff="200ms", max_attempts=5)
def retrying(seconds: float) -> None:
    note("began")
    time.sleep(seconds / 2)
    if delayq.current().attempt < 2:
        raise ConnectionError("not yet")
    note("ended")


@delayq.task
def snoozing(seconds: float) -> None:
    note("began")
    time.sleep(seconds / 2)
    if not _notes("snoozed"):
        note("snoozed")
        raise delayq.Snooze("200ms", "not now")
    note("ended")


@delayq.task(atomic=True)
def atomic(seconds: float) -> None:
    note("began")
    Effect.objects.create(job=delayq.current().id, fence=delayq.current().fence)
    time.sleep(seconds)
    note("ended")


STEPS = ("reserve", "charge")


@delayq.task
def stepwise(seconds: float) -> None:
    note("began")
    for step in STEPS:
        with delayq.once(step) as first:
            if first:
                Effect.objects.create(job=delayq.current().id, fence=delayq.current().fence, step=step)
        time.sleep(seconds / len(STEPS))
    note("ended")


@delayq.task
async def asynchronous(seconds: float) -> None:
    note("began")
    await asyncio.sleep(seconds)
    note("ended")


@delayq.task(timeout="200ms", max_attempts=1)
def deaf() -> None:
    """Does not hear its soft timeout: it waits in C."""
    note("began")
    time.sleep(60)
