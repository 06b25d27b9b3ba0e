"""Async twins do what their sync functions do, and sync functions refuse to hold up an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

import django_delayq as delayq
from django_delayq.models import Job
from django_delayq.producer import schedule as module
from tests.tasks_for_tests import close_order, ping

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_is_scheduled_moved_and_cancelled_in_async_code(delayq_redis):
    async def view() -> delayq.Job:
        job = await delayq.aschedule(close_order, 7, delay="1h", key="o:7", note="n")
        assert await job.astate() is delayq.State.SCHEDULED
        assert await job.areschedule(delay="2h") is delayq.Change.DONE
        found = await delayq.aget(key="o:7", queue="orders")
        assert found is not None
        assert found.id == job.id
        assert await delayq.areschedule(job.id, delay="3h") is delayq.Change.DONE
        assert await job.acancel(reason="paid") is delayq.Change.DONE
        assert await delayq.arequeue(job) is delayq.Change.DONE
        assert await job.arun_now() is delayq.Change.DONE
        assert await delayq.acancel(key="o:7", queue="orders") is delayq.Change.DONE
        return job

    job = async_to_sync(view)()
    assert job.created is True
    assert Job.objects.get(pk=job.id).args == [7]


def test_many_jobs_are_scheduled_in_async_code(delayq_redis):
    async def view() -> list[delayq.Job]:
        return await delayq.aschedule_many(ping.using(delay="1h").bind(n) for n in range(300))

    jobs = async_to_sync(view)()
    assert len({job.id for job in jobs}) == 300
    assert all(job.state is delayq.State.SCHEDULED for job in jobs)


def test_a_task_with_options_has_twins_too(delayq_redis):
    job = async_to_sync(close_order.using(delay="1h").aschedule)(7)
    assert job.state is delayq.State.SCHEDULED


def test_queues_are_paused_in_async_code(delayq_redis):
    assert async_to_sync(delayq.apause)("orders")
    assert async_to_sync(delayq.aresume)("orders")


def test_a_twin_commits_by_itself_where_its_caller_has_no_transaction(delayq_redis):
    async_to_sync(close_order.aschedule)(7)
    with transaction.atomic():  # the caller's thread, and so the caller's transaction
        job = async_to_sync(close_order.aschedule)(8)
        transaction.set_rollback(True)
    assert [row.args for row in Job.objects.all()] == [[7]]
    assert job.state is None


CALLS = {
    "aschedule": lambda job: delayq.schedule(close_order, 7),
    "task.aschedule": lambda job: close_order.schedule(7),
    "aschedule_many": lambda job: delayq.schedule_many([close_order.bind(7)]),
    "acancel": lambda job: job.cancel(),
    "areschedule": lambda job: job.reschedule(delay=5),
    "arun_now": lambda job: delayq.run_now(job),
    "arequeue": lambda job: delayq.requeue(job.id),
    "aget": lambda job: delayq.get(job.id),
    "job.astate": lambda job: job.state,
    "apause": lambda job: delayq.pause("orders"),
    "aresume": lambda job: delayq.resume("orders"),
}


@pytest.mark.parametrize("twin", CALLS)
def test_a_sync_call_in_async_code_names_its_twin(delayq_redis, twin, monkeypatch):
    job = delayq.schedule(ping, delay="1h", durability="redis")

    async def view() -> object:
        return CALLS[twin](job)

    with pytest.raises(SynchronousOnlyOperation, match=rf"await .*\b{twin}\("):
        asyncio.run(view())
    assert job.state is delayq.State.SCHEDULED
    assert list(Job.objects.all()) == []


def test_every_function_that_waits_has_a_twin_with_its_parameters():
    waits = ["schedule", "schedule_many", "cancel", "reschedule", "run_now", "requeue", "get", "pause", "resume"]
    for name in waits:
        twin = getattr(delayq, f"a{name}")
        assert inspect.signature(twin) == inspect.signature(getattr(delayq, name)), name
        assert inspect.iscoroutinefunction(twin), name
        assert twin.__name__ == f"a{name}"
        assert twin.__doc__.startswith(f"Async version of `{name}`")


def test_who_gives_up_waiting_is_told_the_ids(delayq_redis, monkeypatch):
    arrived, go_on, put = threading.Event(), threading.Event(), module.put_one

    def slow(*given):
        arrived.set()
        go_on.wait(60)
        return put(*given)

    monkeypatch.setattr(module, "put_one", slow)

    async def view() -> tuple[object, ...]:
        task = asyncio.ensure_future(delayq.aschedule(ping, 7, delay="1h", durability="redis"))
        await asyncio.to_thread(arrived.wait, 60)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            return error.jobs
        finally:
            go_on.set()
        raise AssertionError("it went on")

    (id,) = asyncio.run(view())
    asyncio.run(sync_to_async(connections.close_all)())  # those of the thread
    for _ in range(100):
        if (job := delayq.get(id, queue="redis")) is not None:
            break
        threading.Event().wait(0.05)
    assert job is not None  # the thread cannot be called back
    assert job.state is delayq.State.SCHEDULED


def test_who_gives_up_waiting_for_many_is_told_all_ids(delayq_redis, monkeypatch):
    def gone(*_given):
        raise asyncio.CancelledError

    monkeypatch.setattr(module, "put_all", gone)
    with pytest.raises(asyncio.CancelledError) as caught:
        async_to_sync(delayq.aschedule_many)([ping.bind(n) for n in range(3)])
    assert len(set(caught.value.jobs)) == 3
