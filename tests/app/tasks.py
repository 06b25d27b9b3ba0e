"""Tasks that record when they begin and end. The first argument names the call that scheduled them."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq.producer.task import registry
from django_delayq.states import PERIODIC
from django_delayq.worker.process import executor
from tests.app import record
from tests.app.models import Effect
from tests.laws.history import STEPS

LADDER = "200ms 500ms 1s 2s"  # with many attempts it outlasts a database that is away


class Trouble(Exception):
    """The exception that tasks raise on purpose."""


def _ledger(what: str, step: str = "") -> None:
    """A ledger outside the database, so that it can judge the database's effects.

    - effect: before an effect is committed. Every effect in the database has this line. The effect of a line may have been rolled
    back. - kept: after that commit. The effect is in the database once. A process can die before it writes this line. - end: a run
    ended, before the worker learns of it.
    """
    job = delayq.current()
    record.own(settings.APP_FOLDER, "ledger").write(what=what, job=job.id.hex, fence=job.fence, step=step)


@contextmanager
def _run(op: str) -> Iterator[None]:
    job = delayq.current()
    runs = record.own(settings.APP_FOLDER, "runs")
    same = {"job": job.id.hex, "fence": job.fence}
    tick = job.meta.get(PERIODIC)
    if tick is not None:
        same |= {"schedule": tick["name"], "tick": tick["tick"]}
    if job.name:
        same |= {"name": job.name, "turn": job.turn}
    runs.write(
        run="began",
        **same,
        op=op,
        task=job.task.rpartition(".")[2],
        attempt=job.attempt,
        due=int(job.run_at.timestamp() * 1000),
        pid=os.getpid(),
    )
    how = "broken off"
    try:
        yield
        how = "ok"
        _ledger("end")
    except Trouble:
        how = "error"
        raise
    except (delayq.Snooze, delayq.NotYet):
        how = "snooze"
        raise
    finally:
        runs.write(run="ended", **same, how=how)


@delayq.task
def quick(op: str) -> None:
    """Most of the campaign's load."""
    with _run(op):
        pass


@delayq.task(rate=("partner:{partner}", "20/s", 3))
def metered(op: str, partner: int) -> None:
    """One of several partners, which allow few calls."""
    with _run(op):
        pass


@delayq.task
def adding(op: str) -> None:
    """Adds members to its batch. If it runs again, it adds them again."""
    with _run(op):
        delayq.current().batch.schedule_many(quick.bind(op) for _ in range(3))


@delayq.task
def long(op: str, seconds: float) -> None:
    """So long that faults meet it."""
    with _run(op):
        time.sleep(seconds)


@delayq.task
def flaky(op: str, fails: int, seconds: float = 0.0) -> None:
    """Fails some times, then succeeds."""
    with _run(op):
        time.sleep(seconds)
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


@delayq.task
def snoozer_once(op: str, seconds: float) -> None:
    """Returns "not now" until the record says that it did."""
    with _run(op):
        time.sleep(seconds)
        said = record.lines(Path(settings.APP_FOLDER), "runs-*.jsonl")
        if not any(line.get("how") == "snooze" and line["job"] == delayq.current().id.hex for line in said):
            raise delayq.Snooze("200ms", "not now")


@delayq.task(poll=delayq.Ladder.every("200ms", times=20))
def asker(op: str, seconds: float) -> None:
    """Hears "not yet" twice."""
    with _run(op):
        time.sleep(seconds)
        if delayq.current().asked < 2:
            raise delayq.NotYet("not yet")


@delayq.task
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
                record.own(settings.APP_FOLDER, "lost").write(job=job.id.hex)
                raise
            time.sleep(0.02)


@delayq.task(timeout="200ms", max_attempts=1)
def deaf(op: str) -> None:
    """Does not hear its soft timeout: it waits in C."""
    with _run(op):
        time.sleep(60)


@delayq.task
async def asynchronous(op: str, seconds: float = 0.05) -> None:
    """A coroutine."""
    with _run(op):
        await asyncio.sleep(seconds)


def _ask() -> None:
    """Asks the database for a number that no other run asks for, and records the answer."""
    job = delayq.current()
    number = zlib.crc32(f"{job.id.hex} {job.fence} {time.monotonic_ns()}".encode())
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [number])
        rows = [tuple(row) for row in cursor.fetchall()]
    heard = str(number) if rows == [(number,)] else str(rows)
    record.own(settings.APP_FOLDER, "answers").write(job=job.id.hex, asked=str(number), heard=heard)


@delayq.task(max_attempts=30, backoff=LADDER)
def asking(op: str, times: int) -> None:
    """Asks the database many times, outside of a transaction."""
    with _run(op):
        for _ in range(10 * times):
            _ask()


def _effect(step: str) -> None:
    """A row, in the transaction that is open here, and the ledger's lines about it."""
    job = delayq.current()
    _ask()
    _ledger("effect", step)
    Effect.objects.create(job=job.id, fence=job.fence, step=step)
    transaction.on_commit(lambda: _ledger("kept", step))


@delayq.task(atomic=True, max_attempts=30, backoff=LADDER)
def atomic(op: str, seconds: float = 0.02) -> None:
    """Its effect is a row, in the transaction that settles the job."""
    with _run(op):
        _effect("")
        time.sleep(seconds)


@delayq.task(max_attempts=30, backoff=LADDER)
def stepwise(op: str, fails: int = 0, seconds: float = 0.01) -> None:
    """Its effects are rows, in steps that happen once, whatever becomes of the run."""
    with _run(op):
        for step in STEPS["stepwise"]:
            with delayq.once(step) as first:
                if first:
                    _effect(step)
            time.sleep(seconds)
        if delayq.current().attempt <= fails:
            raise Trouble("not yet")


@delayq.task(max_attempts=30, backoff=LADDER)
def offering(op: str, seconds: float = 0.02) -> None:
    """Its effect is an entry of a stream, put there as the task of an offer does it."""
    from django_delayq.targets.offering import push  # where there are no targets, nothing knows of offers

    with _run(op):
        time.sleep(seconds)
        push({"op": op}, to="shipping")


executor.STEPS = (1.0, 2.0)  # a campaign has no minute to wait
if settings.APP_CALENDAR:
    importlib.import_module("tests.app.schedules")
if settings.APP_WITHOUT:
    del registry._tasks[f"{__name__}.{settings.APP_WITHOUT}"]
