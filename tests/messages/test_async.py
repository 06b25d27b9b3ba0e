"""The async variants: a wait blocks nothing else."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation

import django_delayq as delayq
from django_delayq.store.scripts.queue import QueueStore
from tests.depths import queue_depth

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_wait_is_ended_by_a_push_of_the_same_event_loop():
    async def both() -> list[object]:
        waiting = asyncio.ensure_future(delayq.apull("quick", wait="30s"))
        await asyncio.sleep(0.1)
        await delayq.apush("quick", "woken")
        return [message.body async for message in await waiting]

    assert async_to_sync(both)() == ["woken"]


def test_a_block_settles_at_its_end():
    async def run() -> None:
        await delayq.apush("quick", 1)
        await delayq.apush("quick", 2)
        async with await delayq.apull("quick", 2) as batch:
            batch[0].ack()
            batch[1].retry("1h")

    async_to_sync(run)()
    assert queue_depth("quick").scheduled == 1


def test_outside_a_block_the_verbs_are_awaited():
    async def run() -> None:
        await delayq.apush("quick", 1)
        (message,) = await delayq.apull("quick")
        with pytest.raises(SynchronousOnlyOperation, match=r"message\.aack"):
            message.ack()
        await message.aextend()
        await message.aack()

    async_to_sync(run)()
    assert queue_depth("quick").running == 0


def test_a_wait_that_is_cancelled_leaves_nothing_taken():
    async def run() -> None:
        waiting = asyncio.ensure_future(delayq.apull("quick", wait="30s"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        await delayq.apush("quick", 1)

    async_to_sync(run)()
    assert delayq.pull("quick")[0].attempt == 1


def test_what_is_being_taken_when_the_caller_is_cancelled_goes_back(monkeypatch):
    taken = threading.Event()
    real = QueueStore.claim

    def slow(*args, **kwargs):
        claim = real(*args, **kwargs)
        if claim.jobs:
            taken.set()
            time.sleep(0.2)
        return claim

    async def run() -> None:
        await delayq.apush("quick", 1)
        monkeypatch.setattr(QueueStore, "claim", slow)
        waiting = asyncio.ensure_future(delayq.apull("quick"))
        while not taken.is_set():
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()

    async_to_sync(run)()
    monkeypatch.setattr(QueueStore, "claim", real)
    assert delayq.pull("quick")[0].attempt == 1


def test_several_wait_at_once_and_each_message_goes_to_one():
    async def run() -> list[object]:
        waiting = [asyncio.ensure_future(delayq.apull("quick", wait="30s")) for _ in range(3)]
        await asyncio.sleep(0.1)
        for number in range(3):
            await delayq.apush("quick", number)
        return [message.body for batch in await asyncio.gather(*waiting) for message in batch]

    assert sorted(async_to_sync(run)()) == [0, 1, 2]


def test_in_an_event_loop_the_sync_ones_are_refused():
    async def run() -> None:
        with pytest.raises(SynchronousOnlyOperation):
            delayq.pull("quick")
        with pytest.raises(SynchronousOnlyOperation):
            delayq.push("quick", 1)

    async_to_sync(run)()
