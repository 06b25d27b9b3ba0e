"""Project code in which a strict checker finds no error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import django_delayq as delayq
from django_delayq.models import Job as JobRow


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
    if order_id > (job.cursor or 0):
        job.checkpoint(order_id)


@delayq.task(aliases=["shop.close"], version=2, upgrade={1: lambda order_id: {"order_id": order_id, "note": ""}})
def close(order_id: int, note: str) -> None: ...


@delayq.task(poll=delayq.Ladder.formula(lambda n: 60 * (2 * n + 1), times=10, start=0))
def wait_for_booking(order_id: int) -> None:
    if delayq.current().asked < 3:
        raise delayq.NotYet("the bank has not booked it")


@delayq.task(backoff=lambda attempt, error: None if isinstance(error, PermissionError) else 60 * attempt)
async def mail(to: str) -> int:
    return len(to)


@delayq.periodic("0 8 * * 1", name="weekly-us", kwargs={"region": "us"}, timezone="America/New_York", missed="all")
@delayq.periodic("0 8 * * 1", name="weekly-eu", args=("eu",), overlap="skip", jitter=timedelta(minutes=5))
@delayq.task(queue="reports")
def weekly(region: str, *, top: int = 3) -> str:
    return f"{region} {top}"


@delayq.periodic(every="10m", missed="skip", overlap="wait", jitter=5)
def poll_bank(account: str = "main") -> int:
    return len(account)


@delayq.periodic("0 3 * * *")
async def nightly() -> None: ...


def by_hand() -> delayq.Job:
    assert_type(weekly("eu", top=5), str)
    assert_type(poll_bank(), int)
    nightly.schedule()
    return weekly.using(delay="5m").schedule("eu", top=5)


async def view(order_id: int) -> UUID:
    assert_type(release(order_id, note="a"), str)
    assert_type(await mail("a@b"), int)
    job = await delayq.aschedule(release, order_id, delay="5m", key=f"release:{order_id}", on_conflict="latest")
    assert_type(job, delayq.Job)
    assert_type(await job.acancel(reason="paid", abort=True), delayq.Change)
    assert_type(await job.astate(), delayq.State | None)
    assert_type(await delayq.aget(job.id), delayq.Job | None)
    later = await release.using(delay=timedelta(minutes=5)).aschedule(order_id, note="b")
    assert_type(await later.aresult(), str)
    await delayq.aschedule_many(pay_out.using(delay=5).bind(number, iban="DE") for number in range(3))
    return job.id


def form(order_id: int) -> delayq.Change:
    job = release.using(run_at=datetime(2030, 1, 1, tzinfo=UTC), priority=10, meta={"by": "form"}).schedule(order_id)
    assert_type(job.result(timeout=5), str)
    assert_type(mail.schedule("a@b").result(), int)
    assert_type(delayq.schedule(mail, "a@b").result(), int)
    assert_type(delayq.schedule(pay_out, order_id, iban="DE", expires="1d", durability="outbox"), delayq.Job[None])
    delayq.schedule_many([release.bind(order_id), mail.bind("a@b")])
    return delayq.reschedule(job, delay="10m")


def late(job: delayq.Job) -> bool:
    assert_type(job, delayq.Job[Any])
    row = JobRow.objects.get(pk=job.id)
    assert_type(row.finished_at, datetime | None)
    assert_type(row.attempts, int)
    return row.finished_at is not None and row.finished_at > row.run_at
