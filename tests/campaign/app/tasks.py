"""Tasks that record when they begin and end. The first argument names the operation that scheduled them."""

from __future__ import annotations

import asyncio
import inspect
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import transaction

import django_delayq as delayq
from django_delayq.producer.task import registry
from django_delayq.worker.process import unknown_tasks
from tests.campaign import record

RETRY_MS = 100  # the least delay between two attempts of any task here
HAS_ATOMIC = "atomic" in inspect.signature(delayq.task).parameters


class Trouble(Exception):
    """What a task here raises on purpose."""


def _ledger(what: str) -> None:
    """The ledger is apart from the database, whose word about effects it is to judge.

    - effect: before the commit of an effect. What is in the database was written here first; what is here may have been rolled back.
    - kept: after that commit. What is here is in the database, once; a process may die before it can say so.
    - end: a run came to its end, before the worker hears of it.
    """
    job = delayq.current()
    record.own(settings.CAMPAIGN_FOLDER, "ledger").write(what=what, job=job.id.hex, fence=job.fence)


@contextmanager
def _run(op: str) -> Iterator[None]:
    job = delayq.current()
    runs = record.own(settings.CAMPAIGN_FOLDER, "runs")
    same = {"job": job.id.hex, "fence": job.fence}
    runs.write(
        run="began",
        **same,
        op=op,
        task=job.task.rpartition(".")[2],
        attempt=job.attempt,
        crashes=job.crashes,
        due=int(job.run_at.timestamp() * 1000),
    )
    how = "broken off"
    try:
        yield
        how = "ok"
        _ledger("end")
    except Trouble:
        how = "error"
        raise
    except delayq.Snooze:
        how = "snooze"
        raise
    finally:
        runs.write(run="ended", **same, how=how)


@delayq.task
def quick(op: str) -> None:
    """Most of the load."""
    with _run(op):
        pass


@delayq.task
def long(op: str, seconds: float) -> None:
    """So long that faults meet it."""
    with _run(op):
        time.sleep(seconds)


@delayq.task
def flaky(op: str, fails: int) -> None:
    """Fails some times, then succeeds."""
    with _run(op):
        if delayq.current().attempt <= fails:
            raise Trouble(f"not yet, {fails} times")


@delayq.task(max_attempts=3, backoff="100ms 200ms")
def hopeless(op: str) -> None:
    """Never succeeds."""
    with _run(op):
        raise Trouble("never")


@delayq.task
def snoozer(op: str) -> None:
    """Says "not now" some times; which times, the fence decides, so that a run is the same whenever it is looked at."""
    with _run(op):
        if zlib.crc32(delayq.current().fence.encode()) % 3:
            raise delayq.Snooze("150ms", "not now")


@delayq.task(queue="orders")
def keyed(op: str, seconds: float = 0.01) -> None:
    """Has a business key."""
    with _run(op):
        time.sleep(seconds)


@delayq.task
def patient(op: str, seconds: float) -> None:
    """For the drill: tells how far it is, and leaves early when it is asked to, or when its lease is lost."""
    with _run(op):
        job, end = delayq.current(), time.monotonic() + seconds
        job.progress(1, 2)
        while time.monotonic() < end and not job.cancel_requested:
            try:
                job.check_lease()
            except delayq.LeaseLost:
                record.own(settings.CAMPAIGN_FOLDER, "lost").write(job=job.id.hex)
                raise
            time.sleep(0.02)


@delayq.task
async def asynchronous(op: str) -> None:
    """A coroutine."""
    with _run(op):
        await asyncio.sleep(0.05)


NAMES = ["quick", "long", "flaky", "hopeless", "snoozer", "keyed", "asynchronous"]


def _effect() -> None:
    """A row, in the transaction that is open here, and the ledger's lines about it."""
    from tests.campaign.app.models import Effect

    job = delayq.current()
    _ledger("effect")
    Effect.objects.create(job=job.id, fence=job.fence)
    transaction.on_commit(lambda: _ledger("kept"))


if HAS_ATOMIC:
    # a ladder that outlasts a database that is away
    @delayq.task(atomic=True, max_attempts=30, backoff="200ms 500ms 1s 2s")
    def atomic(op: str) -> None:
        """Its effect is a row, in the transaction that settles the job."""
        with _run(op):
            _effect()
            time.sleep(0.02)

    NAMES.append("atomic")

if hasattr(delayq, "once"):

    @delayq.task(max_attempts=30, backoff="200ms 500ms 1s 2s")
    def stepwise(op: str, fails: int) -> None:
        """Its effect is a row, in a step that happens once, whatever becomes of the run."""
        with _run(op):
            job = delayq.current()
            with delayq.once("effect") as first:
                if first:
                    _effect()
            time.sleep(0.01)
            if job.attempt <= fails:
                raise Trouble("not yet")

    NAMES.append("stepwise")

unknown_tasks.STEPS = (1.0, 2.0)  # type: ignore[misc]  # a campaign has no minute to wait
if settings.CAMPAIGN_WITHOUT:
    del registry._tasks[f"{__name__}.{settings.CAMPAIGN_WITHOUT}"]
