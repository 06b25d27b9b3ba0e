"""The outcome of a job: its result, its error, and waiting for them."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock
from django_delayq.models import Job
from django_delayq.producer import job as job_module
from django_delayq.producer.stores import stores
from tests.tasks_for_tests import close_order, ping

pytestmark = pytest.mark.django_db(transaction=True)


def end(job: delayq.Job, state: delayq.State, **values: object) -> None:
    stores.queue(job.queue, 0).cancel(job.id)  # so that Redis knows of an end
    Job.objects.filter(pk=job.id).update(state=state.value, finished_at=clock.now(), published=clock.now(), **values)


def test_a_job_that_has_succeeded_gives_its_result(delayq_redis):
    job = delayq.schedule(close_order, 7, delay="1h")
    end(job, delayq.State.SUCCEEDED, result={"paid": [7]}, attempts=2)
    assert job.result() == {"paid": [7]}
    assert (job.attempts, job.error) == (2, "")
    assert job.wait("1s") is delayq.State.SUCCEEDED
    assert async_to_sync(job.aresult)() == {"paid": [7]}


@pytest.mark.parametrize(("state", "said"), [(delayq.State.FAILED, "has failed"), (delayq.State.CANCELLED, "was cancelled")])
def test_a_job_that_has_not_succeeded_has_no_result(delayq_redis, state, said):
    job = delayq.schedule(close_order, 7, delay="1h")
    end(job, state, error="ValueError: no")
    with pytest.raises(delayq.JobFailed, match=f"^Job {job.short_id} {said}: ValueError: no$") as caught:
        job.result()
    assert caught.value.fields == {"job": job.short_id, "state": state.value, "error": "ValueError: no"}
    assert job.error == "ValueError: no"


def test_where_no_attempt_has_left_an_error_the_sentence_ends_before_it(delayq_redis):
    job = delayq.schedule(close_order, 7, delay="1h")
    end(job, delayq.State.CANCELLED)
    with pytest.raises(delayq.JobFailed, match=f"^Job {job.short_id} was cancelled\\.$"):
        job.result()


@pytest.mark.parametrize("wrong", [None, -1, "soon", True])
def test_a_timeout_that_is_none_is_refused_though_nobody_has_to_wait(delayq_redis, wrong):
    job = delayq.schedule(close_order, 7, delay="1h")
    end(job, delayq.State.SUCCEEDED, result=7)
    for asked in (job.result, job.wait, async_to_sync(job.aresult)):
        with pytest.raises(delayq.ConfigError, match=f"job {job.short_id}: timeout="):
            asked(wrong)


def test_a_job_that_has_not_ended_is_looked_at_once_by_default(delayq_redis, monkeypatch):
    job = delayq.schedule(close_order, 7, delay="1h")
    looks = []
    monkeypatch.setattr(job_module, "end_row", lambda asked, look=job_module.end_row: looks.append(1) or look(asked))
    with pytest.raises(delayq.NotFinished, match=job.short_id):
        job.result()
    assert len(looks) == 1
    with pytest.raises(TimeoutError):
        job.result("100ms")
    assert len(looks) > 3
    assert job.wait("10ms") is None
    with pytest.raises(delayq.NotFinished):
        async_to_sync(job.aresult)("100ms")


def test_who_waits_gets_the_result_when_it_comes(delayq_redis, monkeypatch):
    job = delayq.schedule(close_order, 7, delay="1h")
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 7:
            end(job, delayq.State.SUCCEEDED, result=7)

    monkeypatch.setattr(clock, "sleep", sleep)
    assert job.result("1m") == 7
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_job_that_was_put_back_has_not_ended_though_its_row_says_so_still(delayq_redis):
    job = delayq.schedule(close_order, 7, delay="1h")
    assert job.cancel() == "done"
    end(job, delayq.State.CANCELLED)
    assert job.wait(0) is delayq.State.CANCELLED
    assert job.requeue() == "done"
    end_of_before = Job.objects.filter(pk=job.id)
    end_of_before.update(state="cancelled", finished_at=clock.now())
    assert job.wait(0) is None
    with pytest.raises(delayq.NotFinished):
        job.result()
    with pytest.raises(delayq.NotFinished):
        async_to_sync(job.aresult)()


def test_a_job_that_was_merged_gives_the_result_of_the_other(delayq_redis):
    with transaction.atomic():
        one = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with transaction.atomic():
        other = delayq.schedule(close_order, 8, delay="1h", key="o:7")
        merged = other.id
    end(one, delayq.State.SUCCEEDED, result="first")
    assert job_module.end_row(type(one)(id=merged, queue="orders")).result == "first"


def test_nobody_waits_in_the_transaction_that_publishes_the_job(delayq_redis):
    with transaction.atomic():
        job = delayq.schedule(close_order, 7)
        with pytest.raises(delayq.ConfigError, match="published when this transaction commits"):
            job.wait("1s")
        with pytest.raises(delayq.NotFinished):
            job.result()  # it only looks
        with pytest.raises(delayq.ConfigError, match="published when this transaction commits"):
            async_to_sync(job.aresult)("1s")


def test_nobody_waits_in_a_task(delayq_redis, monkeypatch):
    monkeypatch.setattr(job_module, "_in_task", lambda: True)
    job = delayq.schedule(close_order, 7)
    with pytest.raises(delayq.ConfigError, match="cannot wait for another job"):
        job.wait("1s")


@pytest.mark.parametrize("wait", [0, "1s"])
def test_a_job_that_nobody_knows_has_no_result(delayq_redis, wait):
    with pytest.raises(delayq.ResultGone, match="No row has the result"):
        delayq.Job(id=uuid4(), queue="orders").result(wait)


def test_a_job_of_redis_alone_may_end_still(delayq_redis):
    job = delayq.schedule(ping, delay="1h", durability="redis")
    with pytest.raises(delayq.NotFinished):
        job.result()
    assert job.error == ""
    assert job.attempts == 0


def test_what_has_ended_is_gone_where_no_row_is_kept(delayq_redis, settings):
    job = delayq.schedule(ping, delay="1h", durability="redis")
    job.cancel()
    with pytest.raises(delayq.NotFinished):  # its mirror may be about to write the row
        job.result()
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "failures"}
    with pytest.raises(delayq.ResultGone, match=r"DELAYQ\['AUDIT'\]"):
        job.result()


def test_a_row_that_no_mirror_writes_is_not_waited_for_for_ever(delayq_redis, monkeypatch):
    job = delayq.schedule(ping, delay="1h", durability="redis")
    job.cancel()
    monkeypatch.setattr(job_module, "MIRROR_GRACE", 0.2)
    with pytest.raises(delayq.ResultGone):
        job.result("1m")


def test_while_redis_is_away_nothing_is_known_to_be_gone(delayq_redis, monkeypatch):
    job = delayq.Job(id=uuid4(), queue="orders")

    class Away:
        def __enter__(self) -> None:
            raise delayq.StoreUnavailable("away")

        def __exit__(self, *_given: object) -> None: ...

    monkeypatch.setattr(job_module.stores, "guarded", lambda *_: Away())
    with pytest.raises(delayq.NotFinished):
        job.result("100ms")


def test_an_async_wait_holds_up_nobody(delayq_redis):
    """Two waits of half a second at once, and the event loop goes on meanwhile."""
    import asyncio

    job = delayq.schedule(close_order, 7, delay="1h")

    async def view() -> tuple[list[object], int]:
        turns, stop = 0, threading.Event()

        async def tick() -> None:
            nonlocal turns
            while not stop.is_set():
                turns += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.ensure_future(tick())
        waits = await asyncio.gather(*(job.aresult("500ms") for _ in range(2)), return_exceptions=True)
        stop.set()
        await ticking
        return waits, turns

    waits, turns = async_to_sync(view)()
    assert [type(one) for one in waits] == [delayq.NotFinished] * 2
    assert turns > 5


def test_a_sync_wait_in_async_code_names_its_twin(delayq_redis):
    job = delayq.schedule(ping, delay="1h", durability="redis")

    async def view() -> None:
        job.result()

    with pytest.raises(SynchronousOnlyOperation, match=r"await job\.aresult"):
        async_to_sync(view)()
