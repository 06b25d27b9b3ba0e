"""A project's code, in which a strict checker finds nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import assert_type
from uuid import UUID

import django_delayq as delayq


@delayq.task
def release(order_id: int, note: str = "") -> str:
    return f"{order_id} {note}"


@delayq.task(queue="orders", backoff="15s 3m", timeout="30s", sensitive=["iban"])
def pay_out(order_id: int, *, iban: str) -> None:
    job = delayq.current()
    if job.attempt > 1 and job.cancel_requested:
        raise delayq.Snooze("30s")
    with delayq.once("book") as first:
        assert_type(first, bool)


@delayq.task(backoff=lambda attempt, error: None if isinstance(error, PermissionError) else 60 * attempt)
async def mail(to: str) -> int:
    return len(to)


async def view(order_id: int) -> UUID:
    assert_type(release(order_id, note="a"), str)
    assert_type(await mail("a@b"), int)
    job = await delayq.aschedule(release, order_id, delay="5m", key=f"release:{order_id}", on_conflict="latest")
    assert_type(job, delayq.Job)
    assert_type(await job.acancel(reason="paid"), delayq.Change)
    assert_type(await job.astate(), delayq.State | None)
    assert_type(await delayq.aget(job.id), delayq.Job | None)
    await release.using(delay=timedelta(minutes=5)).aschedule(order_id, note="b")
    await delayq.aschedule_many(pay_out.using(delay=5).bind(number, iban="DE") for number in range(3))
    return job.id


def form(order_id: int) -> delayq.Change:
    job = release.using(run_at=datetime(2030, 1, 1, tzinfo=UTC), priority=10, meta={"by": "form"}).schedule(order_id)
    delayq.schedule(pay_out, order_id, iban="DE", expires="1d", durability="outbox")
    delayq.schedule_many([release.bind(order_id), mail.bind("a@b")])
    return delayq.reschedule(job, delay="10m")
