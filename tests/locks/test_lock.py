"""`with delayq.lock(…)`: one holder at a time, which knows when it has lost the lock."""

from __future__ import annotations

import gc
import os
import re
import threading
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.exceptions import DelayqError
from django_delayq.locks import lock as lock_module
from django_delayq.producer.stores import stores
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import lock_store
from django_delayq.store.scripts.lock_store import LockStore
from tests.links import losing
from tests.servers import as_package
from tests.stage import eventually, many_open_files

KEYS = Keys.of("delayq", "default", 0)


def names(redis_server) -> list[str]:
    return sorted(name.decode() for name in redis_server.link.execute("HKEYS", KEYS["locks"]))


def test_within_its_block_a_name_is_one_holder_s_and_behind_it_anybody_s(redis_server):
    lock = delayq.lock("order:42")
    assert (lock.held, lock.fence) == (False, 0)
    with lock as same:
        assert same is lock
        assert lock.held
        lock.check()
        first = lock.fence
        with pytest.raises(delayq.LockTaken), delayq.lock("order:42"):
            raise AssertionError
        with delayq.lock("order:43") as other:
            assert other.fence > first
            assert names(redis_server) == ["order:42", "order:43"]
    assert names(redis_server) == []
    assert (lock.held, lock.fence) == (False, first)
    with lock:
        assert lock.fence > first


def test_who_is_refused_hears_whose_it_is_since_when_and_for_how_long(redis_server):
    mine, other = delayq.lock("order:42", lease="40s"), delayq.lock("order:42", wait="0.05s")
    with mine, pytest.raises(delayq.LockTaken) as told, other:
        raise AssertionError
    error = told.value
    assert isinstance(error, DelayqError)
    assert (error.code, error.fields["lock"]) == ("lock_taken", "order:42")
    assert error.fields["holder"].endswith(f":{os.getpid()}")
    assert abs((clock.now() - error.fields["since"]).total_seconds()) < 60
    assert 0 < error.fields["left"] <= 40
    assert "'order:42' is held by" in str(error)
    assert re.search(r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0000; its lease ends in ", str(error))
    assert 0 <= error.fields["held"] < 60
    assert error.reason == "waits for lock order:42"


def test_what_cannot_be_is_refused_before_anything_is_asked(settings):
    for name in ("", "x" * 201, "a\nb", "half \ud800", 42):
        with pytest.raises(delayq.PayloadError, match="1 to 200 printable characters"):
            delayq.lock(name)
    for options in ({"lease": 0.01}, {"lease": "13h"}, {"wait": -1}, {"wait": "soon"}):
        with pytest.raises(delayq.ConfigError, match=r"lock\(a\)"):
            delayq.lock("a", **options)
    with pytest.raises(delayq.QueueUnknown):
        delayq.lock("a", queue="nowhere")
    assert delayq.lock("x" * 200).name == "x" * 200


def test_a_lock_stands_on_the_server_of_its_queue_and_names_of_two_queues_are_two(settings, redis_server):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}, "mail": {}}}
    with delayq.lock("a") as first, delayq.lock("a", queue="mail") as second:
        assert (first.queue, second.queue) == ("orders", "mail")
        assert redis_server.link.execute("HKEYS", Keys.of("delayq", "orders", 0)["locks"]) == [b"a"]


def test_its_own_block_is_not_entered_twice_and_stays_open(redis_server):
    with delayq.lock("a") as lock:
        with pytest.raises(delayq.ConfigError, match="this lock is already in use"), lock:
            pass
        assert lock.held
        assert names(redis_server) == ["a"]


def test_an_error_in_the_block_passes_and_gives_the_lock_back(redis_server):
    with pytest.raises(ZeroDivisionError), delayq.lock("a"):
        raise ZeroDivisionError
    assert names(redis_server) == []


def test_a_process_with_many_open_files_waits_as_others_do(redis_server):
    with delayq.lock("a"), many_open_files(), pytest.raises(delayq.LockTaken):
        delayq.lock("a", wait="20ms").__enter__()


def test_who_waits_gets_it_when_it_is_given_back(redis_server):
    got, order = threading.Event(), []

    def waits() -> None:
        with delayq.lock("a", wait="60s") as lock:
            order.append(("other", lock.fence))
            got.set()

    thread = threading.Thread(target=waits)
    with delayq.lock("a") as lock:
        thread.start()
        eventually(lambda: redis_server.link.execute("ZSCORE", KEYS["lock_waits"], "a"))
        assert not got.is_set()
        order.append(("first", lock.fence))
    assert got.wait(30)
    thread.join()
    assert [who for who, _ in order] == ["first", "other"]
    assert order[0][1] < order[1][1]


def test_who_waits_is_woken_and_does_not_ask_meanwhile(redis_server, monkeypatch):
    """The sleep between two looks is an hour, so a look after the sleep would come too late."""
    from django_delayq.locks import lock as module

    monkeypatch.setattr(module, "LONGEST_SLEEP", 3600.0)
    monkeypatch.setattr(lock_store, "WAITS_MS", 3_600_000)
    got, real, looks = threading.Event(), LockStore.lock, []

    def counted(self, name, *args, **how):
        looks.append(name)
        return real(self, name, *args, **how)

    def waits() -> None:
        with delayq.lock("a", wait="1h"):
            got.set()

    def waited_for(name: str) -> bool:
        return bool(redis_server.link.execute("ZSCORE", KEYS["lock_waits"], name))

    thread = threading.Thread(target=waits, daemon=True)
    with delayq.lock("a", lease="1h"):
        monkeypatch.setattr(LockStore, "lock", counted)
        thread.start()
        eventually(lambda: waited_for("a"))
        others = LockStore(stores.link, KEYS)
        for name in ("b", "c"):  # what others wait for is no reason to look
            assert real(others, name, "one", lease_ms=60_000, holder="x")
            real(others, name, "two", lease_ms=60_000, holder="y", waits=True)
            others.unlock(name, "one")
        assert not got.is_set()
    assert got.wait(30)
    thread.join()
    assert looks == ["a", "a"]


def test_who_waits_for_one_that_has_vanished_gets_it_when_its_lease_has_ended(redis_server):
    store = LockStore(stores.link, KEYS)
    assert store.lock("a", "vanished", lease_ms=300, holder="a process that was killed")
    with delayq.lock("a", wait="60s") as lock:
        assert lock.held


def test_a_lease_is_extended_while_the_block_runs_and_by_one_thread(redis_server):
    before = set(threading.enumerate())  # threads of other tests' servers may run a little longer

    def extenders() -> int:
        return sum(thread.name == "delayq-locks" for thread in set(threading.enumerate()) - before)

    def ends() -> list[bytes]:
        return redis_server.link.execute("ZRANGE", KEYS["lock_ends"], 0, -1, "WITHSCORES")[1::2]

    def later(than: list[bytes]) -> bool:
        return all(now > then for now, then in zip(ends(), than, strict=True))

    with delayq.lock("a", lease="3s") as one, delayq.lock("b", lease="3s") as other:
        for _ in range(3):
            eventually(partial(later, ends()))
        assert one.held
        assert other.held
        assert extenders() == 1
    assert extenders() <= 1


def test_what_is_not_held_for_long_needs_no_thread_at_all(redis_server):
    lock_module._by_process.clear()
    threads = threading.active_count()
    assert not lock_module.process_leases()._threads
    with delayq.lock("a"):
        assert threading.active_count() <= threads + 1


@pytest.mark.slow
def test_the_thread_of_a_server_where_nothing_is_held_ends_and_another_begins_with_the_next_lock(redis_server, monkeypatch):
    monkeypatch.setattr(lock_module, "IDLE", 0.05)
    lock_module._by_process.clear()
    for _ in range(2):
        with delayq.lock("a", lease="6s") as lock:
            ends = lock._holding.good_until
            eventually(lambda lock=lock, ends=ends: lock._holding.good_until > ends)
            assert lock.held
        eventually(lambda: not lock_module.process_leases()._threads)


def test_a_lock_that_nobody_has_a_reference_to_is_not_extended(redis_server):
    lock = delayq.lock("a", lease="200ms")
    lock.__enter__()
    del lock
    gc.collect()
    with delayq.lock("a", wait="30s"):
        pass


def test_the_thread_outlives_what_it_meets(redis_server, monkeypatch, caplog):
    real, failed = LockStore.prolong, []

    def fails(self, held, **how):
        if len(failed) < 2:
            failed.append(RuntimeError("of ours") if not failed else delayq.StoreUnavailable("away"))
            raise failed[-1]
        return real(self, held, **how)

    monkeypatch.setattr(LockStore, "prolong", fails)
    with delayq.lock("a", lease="6s") as lock:
        first = redis_server.link.execute("ZSCORE", KEYS["lock_ends"], "a")
        eventually(lambda: redis_server.link.execute("ZSCORE", KEYS["lock_ends"], "a") > first)
        assert lock.held
    assert "RuntimeError" in caplog.text
    assert "This is tried again" in caplog.text


# lost


def steal(redis_server, name: str = "a") -> None:
    """Gives the lock to another holder, as after an expired lease."""
    redis_server.link.execute("HDEL", KEYS["locks"], name)
    assert LockStore(stores.link, KEYS).lock(name, "thief", lease_ms=60_000, holder="thief")


def test_a_lock_that_somebody_else_has_is_lost_at_the_next_look(redis_server):
    with pytest.raises(delayq.LeaseLost) as told, delayq.lock("a", lease="300ms") as lock:
        steal(redis_server)
        eventually(lambda: not lock.held)
        with pytest.raises(delayq.LeaseLost):
            lock.check()
    assert (told.value.code, told.value.fields) == ("lock_lost", {"lock": "a", "fence": lock.fence})
    with pytest.raises(delayq.LockTaken):
        lock.__enter__()


def test_it_is_lost_at_the_end_of_the_block_where_nobody_has_looked(redis_server):
    with pytest.raises(delayq.LeaseLost), delayq.lock("a"):
        steal(redis_server)
    with pytest.raises(delayq.LeaseLost), delayq.lock("b"):
        redis_server.link.execute("FLUSHALL")


def test_an_error_of_the_block_is_not_hidden_by_a_lost_lock(redis_server, caplog):
    with pytest.raises(ZeroDivisionError), delayq.lock("a"):
        steal(redis_server)
        raise ZeroDivisionError
    assert "was lost" in caplog.text


def test_behind_a_wipe_somebody_else_gets_it_with_a_higher_number_and_the_former_one_hears(redis_server):
    with pytest.raises(delayq.LeaseLost), delayq.lock("a", lease="300ms") as former:
        redis_server.link.execute("FLUSHALL")
        with delayq.lock("a", wait="60s") as latter:
            assert latter.fence > former.fence
            eventually(lambda: not former.held)
            assert latter.held


def test_a_look_outside_of_the_block_says_so(redis_server):
    lock = delayq.lock("a")
    with pytest.raises(delayq.LeaseLost, match="its block has not begun"):
        lock.check()


# Redis


def test_while_redis_is_away_nothing_is_taken_and_what_is_held_is_held_for_its_lease(own_redis, settings):
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    assert conf.get().redis == server.url
    with pytest.raises(delayq.LeaseLost), delayq.lock("a", lease="1s") as lock:
        server.stop()
        with pytest.raises(delayq.StoreUnavailable):
            delayq.lock("b").__enter__()
        eventually(lambda: not lock.held)
        with pytest.raises(delayq.LeaseLost):
            lock.check()


def test_a_block_that_ends_within_its_lease_was_held_though_redis_cannot_be_told(own_redis, settings, caplog):
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    with delayq.lock("a", lease="1h") as lock:
        assert lock.held
        server.stop()
    assert "could not be released" in caplog.text


@pytest.mark.slow
def test_a_server_that_stands_still_costs_the_locks_that_it_keeps_and_no_other(own_redis, settings, monkeypatch):
    frozen, other = own_redis(), own_redis()
    queues = {"default": {}, "others": {"REDIS": as_package(other.url)}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": frozen.url, "QUEUES": queues}
    real, hangs, extended = LockStore.prolong, [], []

    def prolong(self, held, **how):
        hangs.append(held[0][0])
        try:
            answers = real(self, held, **how)
        finally:
            hangs.remove(held[0][0])
        extended.extend(name for name, *_ in held if "lost" in hangs)
        return answers

    monkeypatch.setattr(LockStore, "prolong", prolong)
    with delayq.lock("good", lease="6s", queue="others"):
        lost = delayq.lock("lost", lease="9s")
        lost.__enter__()
        frozen.pause()
        try:
            eventually(lambda: "good" in extended, 60.0)  # while the call to the other server hangs
            eventually(lambda: not lost.held, 60.0)
            with pytest.raises(delayq.LeaseLost):
                lost.check()
        finally:
            frozen.resume()
        with pytest.raises(delayq.LeaseLost):
            lost.__exit__(None, None, None)


@pytest.fixture
def lose(monkeypatch):
    return losing(monkeypatch, LockStore)


def test_a_lock_whose_reply_was_lost_is_taken_all_the_same(redis_server, lose):
    lose("lock", 1)
    with delayq.lock("a") as lock:
        assert redis_server.link.execute("HGET", KEYS["meta"], "fence") == str(lock.fence).encode()
    assert names(redis_server) == []


def test_a_lock_that_was_never_asked_for_is_asked_for_once_more(redis_server, lose):
    lose("lock", 1, sent=False)
    with delayq.lock("a") as lock:
        assert lock.held


def test_where_it_is_never_known_whether_it_was_taken_it_is_free_a_lease_later(redis_server, lose):
    lose("lock", 2)
    with pytest.raises(delayq.StoreUnavailable), delayq.lock("a", lease="200ms"):
        raise AssertionError
    stores.forget()  # that Redis was away a moment ago
    with delayq.lock("a", wait="30s"):
        pass


def test_a_lock_that_was_given_back_without_a_reply_was_held_to_the_end(redis_server, lose):
    lose("unlock", 1)
    with delayq.lock("a"):
        pass
    assert names(redis_server) == []


def test_a_lock_that_is_lost_is_not_taken_for_held_because_a_reply_was_lost(redis_server, lose):
    lose("unlock", 1)
    with pytest.raises(delayq.LeaseLost), delayq.lock("a", lease="300ms") as lock:
        steal(redis_server)
        eventually(lambda: not lock.held)


def test_a_copy_of_the_process_does_not_hold_what_its_parent_holds_and_takes_locks_of_its_own(redis_server):
    with delayq.lock("a") as lock:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            said = "?"
            try:
                try:
                    lock.check()
                except delayq.LeaseLost as error:
                    said = error.code
                try:
                    lock.__exit__(None, None, None)
                except delayq.LeaseLost:
                    said += " left"
                with delayq.lock("b", lease="3s") as own:
                    first = stores.link.execute("ZSCORE", KEYS["lock_ends"], "b")
                    eventually(lambda: stores.link.execute("ZSCORE", KEYS["lock_ends"], "b") > first)  # by a thread of the copy's own
                    said += " held" if own.held else " lost"
            finally:
                os.write(writer, said.encode())
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as told:
            assert told.read() == "lock_forked left held"
        os.waitpid(child, 0)
        lock.check()
        assert names(redis_server) == ["a"]


def test_in_async_code_the_block_is_an_async_one(redis_server):
    import asyncio

    from django.core.exceptions import SynchronousOnlyOperation

    async def wrong():
        with delayq.lock("a"):
            raise AssertionError

    with pytest.raises(SynchronousOnlyOperation, match="async with delayq"):
        asyncio.run(wrong())


PAGE = (Path(__file__).parents[2] / "docs" / "more" / "locks.md").read_text()


@pytest.mark.django_db(transaction=True)
def test_the_fence_is_written_under_the_lock() -> None:
    code = re.findall(r"```python\n(.+?)```", PAGE, flags=re.DOTALL)[0]
    order, fences = mock.Mock(), []
    for _ in range(2):
        exec(code, {"delayq": delayq, "ask_partner": lambda order: 7, "order": 42, "Order": order})
        written = order.objects.filter.return_value.update.call_args.kwargs
        assert written["price"] == 7
        assert order.objects.filter.call_args.kwargs == {"pk": 42, "fence__lt": written["fence"]}
        fences.append(written["fence"])
    assert fences[0] < fences[1]
