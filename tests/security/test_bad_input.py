"""Foreign data in Redis is set aside with an event. It stops no loop and breaks no page."""

from __future__ import annotations

import time

import pytest

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.console import overview
from django_delayq.models import Event, Job
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.keys import NAMES, Keys
from django_delayq.store.reads.inspector import Inspector
from tests.admin.conftest import JOBS, QUEUES, WORKERS, staff
from tests.security.vandal import POISON, Vandal, babble, litter
from tests.tasks_for_tests import close_order
from tests.worker.bench import Bench, task
from tests.worker.conftest import Shop, eventually

__all__ = ["staff"]
KINDS = {"failed", "aside", "expired"}


def drain(bench: Bench, passes: int = 12) -> None:
    for _ in range(passes):
        bench.run()


def vandal(bench: Bench, **fields) -> Vandal:
    return Vandal(bench.board.link, bench.board.keys, task="note", **fields)


@pytest.mark.parametrize("name", sorted(POISON))
def test_each_is_set_aside_and_the_next_job_runs(redis_server, name):
    bench, ran = Bench(redis_server.link), []
    bench.tasks["note"] = task(ran.append)
    POISON[name](vandal(bench))
    bench.put("note", 2)
    drain(bench)
    bench.close()
    assert ran == [2]
    assert KINDS & set(bench.kinds())
    assert bench.mover.stuck_for == 0
    link, keys = bench.board.link, bench.board.keys
    for left in ("high", "normal", "low", "leases"):
        assert link.execute("ZCARD", keys[left]) == 0


def test_a_task_that_nobody_registered_is_parked_and_not_run(redis_server):
    bench = Bench(redis_server.link)
    vandal(bench).due(ids.short(ids.new()), b'1nr os.system\n[["true"],{}]')
    drain(bench)
    bench.close()
    assert "snoozed" in bench.kinds()


def test_a_large_record_runs_like_any_other(redis_server):
    bench, ran = Bench(redis_server.link), []
    bench.tasks["note"] = task(lambda text: ran.append(len(text)))
    one = vandal(bench)
    one.due(one.id(), one.record(b'[["' + b"x" * 10_000_000 + b'"],{}]'))
    drain(bench, 3)
    bench.close()
    assert ran == [10_000_000]


@pytest.mark.parametrize("score", ["-inf", "-1e300", "-5", "0", "1.5"])
def test_a_date_that_is_none_is_long_ago(redis_server, score):
    bench, ran = Bench(redis_server.link), []
    bench.tasks["note"] = task(ran.append)
    one = vandal(bench)
    one.due(one.id(), one.record(), score=score)
    drain(bench, 3)
    bench.close()
    assert ran == [1]


def test_a_job_with_two_dates_runs_once(redis_server):
    bench, ran = Bench(redis_server.link), []
    bench.tasks["note"] = task(ran.append)
    one = vandal(bench)
    id = one.id()
    for band in ("high", "normal", "low"):
        one.due(id, one.record(), band=band)
    drain(bench, 4)
    bench.close()
    assert ran == [1]


def test_a_date_for_a_job_that_runs_is_set_aside_and_the_run_goes_on(board):
    board.put(1)
    board.claim()
    board.link.execute("ZADD", board.keys["high"], 1, ids.short(_id(1)))
    assert board.claim("n2").jobs == []
    assert board.settle(1, "ack") == "done"


def _id(number: int):
    from tests.store.board import job_id

    return job_id(number)


def test_litter_harms_nobody(redis_server):
    bench, ran = Bench(redis_server.link), []
    bench.tasks["note"] = task(ran.append)
    litter(redis_server.link, bench.board.keys)
    for number in range(20):
        bench.put("note", number, key=f"k{number}")
    drain(bench, 20)
    bench.extender.poll()
    bench.stores[0].tidy()
    bench.stores[0].pause()
    bench.stores[0].resume()
    bench.close()
    assert sorted(ran) == list(range(20))
    assert bench.mover.stuck_for == 0


@pytest.mark.parametrize("holder", [b"\xff", b"", b"no id", b"z" * 22, b"0" * 22])
def test_a_key_that_nobody_holds_is_free_whatever_stands_there(orders, delayq_redis, holder):
    keys = Keys("delayq", "orders")
    delayq_redis.link.execute("HSET", keys["keys"], "k", holder)
    delayq_redis.link.execute("HSET", keys["jobs"], holder, b"1nr t another key\n[[],{}]")
    assert delayq.cancel(key="k", queue="orders") is delayq.Change.UNKNOWN
    job = delayq.schedule(close_order, 1, key="k", delay="1h")
    assert job.created is True
    assert delayq.reschedule(key="k", queue="orders", delay="2h") is delayq.Change.DONE
    assert delayq.cancel(key="k", queue="orders") is delayq.Change.DONE


@pytest.mark.parametrize("name", ["wake", "events", "stats", "spread"])
def test_what_a_script_writes_last_is_made_anew_when_it_is_of_a_wrong_type(redis_server, name):
    """A script reads some keys first, and fails at these before it writes. An error at these other keys would leave half of a
    transition.
    """
    bench, ran = Bench(redis_server.link), []
    bench.tasks["note"] = task(ran.append)
    bench.put("note", 1)
    bench.move()
    redis_server.link.execute("DEL", bench.board.keys[name])
    if name == "wake" or name == "stats":
        redis_server.link.execute("SET", bench.board.keys[name], "not ours")
    else:
        redis_server.link.execute("LPUSH", bench.board.keys[name], "not ours")
    bench.consumers[0].poll(bench.take())
    bench.settler.poll()
    bench.close()
    assert ran == [1]
    assert bench.board.log.length() >= 1 if name == "events" else bench.kinds()[-1] == "succeeded"
    assert redis_server.link.execute("HLEN", bench.board.keys["jobs"]) == 0


def test_a_stream_whose_ids_have_run_out_is_begun_anew(board):
    board.link.execute("XADD", board.keys["events"], "18446744073709551615-18446744073709551615", "at", "1")
    board.put(1)
    board.claim()
    assert board.settle(1, "ack") == "done"
    assert [item.kind for entry in board.log.read("0-0", 10) for item in entry.items][-1] == "succeeded"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("wake", "stats", "spread", "events")])
def test_a_key_of_a_wrong_type_errs_and_loses_nothing_when_it_is_gone(board, name):
    """The package cannot use such a key, but all other data stays whole."""
    board.put(1)
    board.link.execute("RENAME", board.keys[name], "kept") if board.link.execute("EXISTS", board.keys[name]) else None
    board.link.execute("SET", board.keys[name], "not ours")
    try:
        board.claim()
    except StoreError:
        pass
    board.link.execute("DEL", board.keys[name])
    if board.link.execute("EXISTS", "kept") and not board.link.execute("EXISTS", board.keys[name]):
        board.link.execute("RENAME", "kept", board.keys[name])
    view = Inspector(board.link, prefix="t").job("q", _id(1))
    assert view is not None
    assert view.state in ("scheduled", "running")


# the mirror


def test_the_mirror_goes_on_behind_entries_that_say_nothing(orders, delayq_redis):
    keys = Keys("delayq", "orders")
    for _ in range(3):
        babble(delayq_redis.link, keys)
        litter(delayq_redis.link, keys)
    job = delayq.schedule(close_order, 1)
    [claimed] = [one for one in orders.claim() if one.id == ids.short(job.id)]
    orders.settle(claimed, "ack")
    orders.fold()
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert orders.mirror.log.length() == 0
    orders.relay.poll()


def test_what_was_set_aside_without_a_name_is_an_event_of_the_queue(orders, delayq_redis):
    one = Vandal(delayq_redis.link, Keys("delayq", "orders"), task="t")
    POISON["an id with spaces"](one)
    orders.claim()
    orders.fold()
    [event] = Event.objects.filter(kind="aside")
    assert (event.job_id, event.queue) == (None, "orders")
    assert "reason" in event.detail


@pytest.mark.parametrize("name", sorted(POISON))
def test_every_poison_reaches_the_database(orders, delayq_redis, name):
    POISON[name](Vandal(delayq_redis.link, Keys("delayq", "orders"), task="tests.tasks_for_tests.close_order"))
    for claimed in orders.claim():
        orders.settle(claimed, "fail", detail=b'{"c":"Poison","m":"as the executor says"}')
    orders.fold()
    told = Event.objects.filter(kind__in=["aside", "expired"]).count() + Job.objects.filter(state="failed").count()
    assert told >= 1


# people


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("page", [JOBS, QUEUES, WORKERS, "/admin/delayq/"])
def test_pages_show_what_they_can(orders, delayq_redis, staff, settings, page, zone):
    settings.TIME_ZONE = zone
    keys, client = Keys("delayq", "orders"), staff()
    running = delayq.schedule(close_order, 1)
    orders.claim()
    litter(delayq_redis.link, keys)
    one = Vandal(delayq_redis.link, keys, task="tests.tasks_for_tests.close_order")
    for poison in POISON.values():
        poison(one)
    job = delayq.schedule(close_order, 1, delay="1h")
    delayq_redis.link.execute("ZADD", keys["leases"], "1e300", ids.short(running.id))
    record = one.record(expires_ms=clock.LAST_MS).replace(b"%d" % clock.LAST_MS, b"%d" % clock.MAX_MS)
    for date in (clock.MAX_MS, clock.LAST_MS):
        told = f"{ids.short(ids.new())} {date} n\n".encode() + record
        delayq_redis.link.execute("XADD", keys["events"], "*", "scheduled", told)
    orders.fold()
    for score, paused in (("+inf", "garbage"), ("-inf", "1e300")):
        delayq_redis.link.execute("ZADD", keys["normal"], score, ids.short(job.id))
        delayq_redis.link.execute("HSET", keys["meta"], "paused", paused, "paused_by", b"\xff")
        assert client.get(page).status_code == 200
        for shown in Job.objects.values_list("pk", flat=True):
            assert client.get(f"{JOBS}{shown}/change/").status_code == 200
        assert overview.look().trouble == ""


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["doctor", "--json"], ["list"], ["purge", "orders", "--yes"]])
def test_commands_say_what_they_can(orders, delayq_redis, run, words):
    litter(delayq_redis.link, Keys("delayq", "orders"))
    for poison in POISON.values():
        poison(Vandal(delayq_redis.link, Keys("delayq", "orders"), task="t"))
    assert run(*words).code in (0, 1)


# all of it, at once, with real workers


@pytest.mark.slow
def test_a_thousand_poison_records_among_ten_thousand_jobs(shop: Shop, redis_server):
    keys = Keys("delayq", "default")
    one = Vandal(redis_server.link, keys, task="tests.app.shop.tasks.count", seed=7)
    litter(redis_server.link, keys)
    for step in range(100):
        shop.put_many("count", [(number,) for number in range(step * 100, step * 100 + 100)])
        for _ in range(10):
            one.harm()
    assert len(one.done) == 1000
    assert set(one.done) == set(POISON)
    worker = shop.work("--processes", "2")
    eventually(lambda: len(shop.counts()) >= 10_000, patience=300)
    eventually(lambda: not redis_server.link.execute("ZCOUNT", keys["normal"], "-inf", int(time.time() * 1000)), patience=60)
    eventually(lambda: redis_server.link.execute("ZCOUNT", keys["leases"], "-inf", "4000000000000") == 0, patience=60)
    counts = shop.counts()
    assert sorted(counts) == list(range(10_000))
    assert set(counts.values()) == {1}
    aside = {item.fields[0] for entry in shop.events() for item in entry.items if item.kind in KINDS}
    assert one.ids <= aside, "each that bears an id is told of"
    assert "was replaced" not in worker.text()
    assert worker.process.poll() is None
    worker.signal(15)
    assert worker.wait() == 0
