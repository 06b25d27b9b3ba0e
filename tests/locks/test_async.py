"""`async with delayq.lock(…)`: a wait blocks nothing else."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import async_to_sync

import django_delayq as delayq
from django_delayq.producer.stores import stores
from django_delayq.store.keys import Keys

KEYS = Keys.of("delayq", "default", 0)


def names() -> list[bytes]:
    return stores.link.execute("HGETALL", KEYS["locks"])[::2]


def test_coroutines_of_one_loop_have_it_one_after_the_other():
    inside, seen, fences = [0], [], []

    async def works() -> None:
        async with delayq.lock("a", wait="60s") as lock:
            inside[0] += 1
            await asyncio.sleep(0.01)
            seen.append(inside[0])
            fences.append(lock.fence)
            lock.check()
            inside[0] -= 1

    async def run() -> None:
        await asyncio.gather(*(works() for _ in range(8)))

    async_to_sync(run)()
    assert seen == [1] * 8
    assert fences == sorted(set(fences))
    assert names() == []


def test_who_is_refused_hears_so_and_a_lost_lock_is_told_at_the_end():
    async def run() -> None:
        async with delayq.lock("a"):
            with pytest.raises(delayq.LockTaken):
                async with delayq.lock("a", wait="50ms"):
                    raise AssertionError
        with pytest.raises(delayq.LeaseLost):
            async with delayq.lock("a"):
                stores.link.execute("UNLINK", KEYS["locks"])

    async_to_sync(run)()


def test_a_wait_that_is_cancelled_leaves_nothing_taken():
    async def waits() -> None:
        async with delayq.lock("a", wait="60s"):
            raise AssertionError

    async def run() -> None:
        async with delayq.lock("a"):
            waiting = asyncio.ensure_future(waits())
            while not stores.link.execute("ZSCORE", KEYS["lock_waits"], "a"):
                assert not waiting.done()
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    async_to_sync(run)()
    assert names() == []


def test_a_wait_that_is_cancelled_while_it_takes_the_lock_gives_it_back(monkeypatch):
    from django_delayq.store.scripts.lock_store import LockStore

    real, taken = LockStore.lock, []

    async def waits() -> None:
        async with delayq.lock("a"):
            raise AssertionError

    async def run() -> None:
        loop, waiting = asyncio.get_running_loop(), asyncio.ensure_future(waits())

        def cancelled_meanwhile(self, *args, **how):
            found = real(self, *args, **how)
            taken.append(found)
            loop.call_soon_threadsafe(waiting.cancel)
            return found

        monkeypatch.setattr(LockStore, "lock", cancelled_meanwhile)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async_to_sync(run)()
    assert (len(taken), names()) == (1, [])
