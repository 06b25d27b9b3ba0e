"""Web processes whose queues are on two servers, of which one hangs or is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, conf, under_test
from django_delayq.console import health, overview
from django_delayq.exceptions import ConfigError, LeaseLost, StoreUnavailable
from django_delayq.locks.lock import process_leases
from django_delayq.management import queue_findings
from django_delayq.management.left_partitions import serving_what_is_left
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Job
from django_delayq.producer import acts, breaker, queues
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link, connect
from django_delayq.store.scripts.limits import LimitStore
from django_delayq.store.scripts.lock_store import LockStore
from tests.tasks_for_tests import close_order, ping

# Commands that only producers, scripts of theirs and readers send, as often as before there were servers of queues.
SENT_BEFORE = {
    "evalsha": 11,
    "time": 17,
    "hgetall": 4,
    "zcard": 34,
    "zcount": 42,
    "zrange": 18,
    "hmget": 22,
    "info": 3,
    "script|load": 0,
}

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]


@pytest.fixture
def own(own_redis, settings):
    """The server of `redis`, a queue of redis durability, and of `away`; `orders` is on the shared one."""
    server = own_redis()
    queues = {**settings.DELAYQ["QUEUES"], "away": {"REDIS": server.url, "DURABILITY": "outbox"}}
    queues["redis"] = {**queues["redis"], "REDIS": server.url}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    return server


@pytest.fixture
def tries(monkeypatch) -> list[str]:
    """The addresses that something was sent to."""
    sent: list[str] = []
    real = Link._send

    def watched(link, commands):
        sent.append(link.where)
        return real(link, commands)

    monkeypatch.setattr(Link, "_send", watched)
    return sent


def on(server, queue: str) -> int:
    link = connect(server.url, name="test")
    try:
        return int(link.execute("HLEN", f"delayq:{{{queue}}}:jobs"))
    finally:
        link.close()


def test_one_call_puts_jobs_in_on_both_servers(own, delayq_redis):
    jobs = delayq.schedule_many(
        close_order.using(delay="1h", queue=queue).bind(n) for n in range(30) for queue in ("orders", "redis", "away")
    )
    assert all(job.created for job in jobs)
    assert [on(own, queue) for queue in ("orders", "redis", "away")] == [0, 30, 30]
    assert [on(delayq_redis, queue) for queue in ("orders", "redis", "away")] == [30, 0, 0]
    assert delayq.get(jobs[1].id).queue == "redis"
    assert [delayq.cancel(job) for job in jobs[:3]] == ["done"] * 3


@pytest.mark.parametrize("harm", [pytest.param("pause", marks=pytest.mark.slow), "terminate"])
def test_a_server_that_is_away_has_a_breaker_of_its_own(own, tries, harm, monkeypatch):
    monkeypatch.setattr(breaker, "COOLDOWN", 60.0)  # longer than all of this takes on any machine
    with transaction.atomic():  # what asks for epochs
        delayq.schedule(close_order, 0, queue="away")
        delayq.schedule(close_order, 0)
    getattr(own, harm)()
    with transaction.atomic():
        away = [delayq.schedule(close_order, n, queue="away") for n in range(3)]
        well = [delayq.schedule(close_order, n) for n in range(3)]
    assert [job.created for job in well] == [True] * 3
    assert [job.created for job in away] == [None] * 3
    assert Job.objects.filter(published=None, pk__in=[job.id for job in away]).count() == 3
    tries.clear()
    delayq.schedule(close_order, 9, queue="away")
    assert tries == []  # it is left alone
    delayq.schedule(close_order, 9)
    assert tries
    with pytest.raises(StoreUnavailable):
        delayq.schedule(ping)
    assert stores.breaker.open_until == 0


def test_a_task_is_paused_on_the_servers_that_answer_and_later_on_the_others(own):
    own.terminate()
    reply = delayq.pause(task=close_order)
    assert (reply.changed, set(reply.unconfirmed)) == (True, {"away", "redis"})
    assert LimitStore(stores.queue("orders", 0)).paused()
    own.start()
    stores.reset()
    PauseLoop().poll()
    assert LimitStore(stores.queue("away", 0)).paused()
    assert delayq.resume(task=close_order).unconfirmed == ()


def test_what_another_server_has_is_found_while_one_is_away(own):
    there = delayq.schedule(close_order, 1, delay="1h", durability="redis", queue="redis")
    own.terminate()
    here = delayq.schedule(close_order, 1, delay="1h", durability="redis", queue="orders")
    assert delayq.get(here.id).queue == "orders"
    assert delayq.cancel(here.id) == "done"
    with pytest.raises(StoreUnavailable):  # it may be there
        delayq.get(there.id)
    with pytest.raises(StoreUnavailable):
        delayq.cancel(there.id)


def test_a_lock_is_on_the_shared_server_unless_it_names_a_queue(own):
    own.terminate()
    with delayq.lock("a") as lock:
        assert lock.held
    with pytest.raises(StoreUnavailable), delayq.lock("a", queue="redis"):
        pass
    own.start()
    clock.sleep(0.01)
    stores.forget()
    with delayq.lock("a", queue="redis"):
        link = connect(own.url, name="test")
        assert link.execute("EXISTS", "delayq:{redis}:locks") == 1
        link.close()
        process_leases().poll()


def test_a_server_that_hangs_holds_up_no_lease_on_another(own, monkeypatch):
    hangs, extended, goes_on = threading.Event(), threading.Event(), threading.Event()
    real = LockStore.prolong

    def prolong(store, claims):
        if store.link is stores.places.of("redis", 0):
            hangs.set()
            goes_on.wait()
            return real(store, claims)
        answers = real(store, claims)
        if hangs.is_set():
            extended.set()
        return answers

    monkeypatch.setattr(LockStore, "prolong", prolong)
    # The lease of the lock whose server hangs may run out meanwhile: that is no matter of this test.
    with delayq.lock("b", lease="9s") as healthy, suppress(LeaseLost), delayq.lock("a", lease="5s", queue="redis"):
        try:
            assert hangs.wait(30)
            assert extended.wait(30)
            assert healthy.held
        finally:
            goes_on.set()


@pytest.mark.parametrize("shared_is_away", [False, True])
def test_people_see_what_is_there_and_what_is_missing(own, own_redis, settings, shared_is_away):
    shared = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": shared.url}
    delayq.schedule(close_order, 1, delay="1h", queue="away")
    delayq.schedule(close_order, 1, delay="1h")
    (shared if shared_is_away else own).terminate()
    seen = overview.look()
    assert seen.error is None
    missing = {name for name, queue in conf.get().queues.items() if (queue.redis == shared.url) == shared_is_away}
    assert set(seen.missing) == missing
    assert {queue.name for queue in seen.queues} == set(conf.get().queues) - missing
    assert (seen.unseen is not None) == shared_is_away
    assert sum(queue.depth.scheduled for queue in seen.queues) == 1
    assert health.redis_signs(seen)[0].level == "bad"
    told = {(name, labels.get("queue", "")): value for name, labels, value in health.redis_samples()}
    assert told["delayq_up", ""] == 0
    assert {queue for name, queue in told if name == "delayq_jobs_due"} == set(conf.get().queues) - missing
    (own if shared_is_away else shared).terminate()
    stores.forget()
    assert overview.look().error is not None


def test_rows_of_a_server_that_is_away_are_counted_and_those_of_another_are_found(own, monkeypatch):
    monkeypatch.setattr(overview, "FRESH", -60.0)
    for queue in ("away", "orders"):
        delayq.schedule(close_order, 1, delay="1h", queue=queue)
    Job.objects.update(published=None)
    assert overview.count_unpublished() == 2
    assert overview.count_absent() == 0
    own.terminate()
    assert overview.count_absent() == 1
    assert stores.breaker.open_until == 0, "the shared one is well"


def test_doctor_tells_of_a_server_that_goes_while_it_looks(own, monkeypatch):
    real = queue_findings.partition_findings

    def going(queue, partitions):
        found = real(queue, partitions)
        if queue.name == "away":
            own.terminate()
        return found

    monkeypatch.setattr(queue_findings, "partition_findings", going)
    found = [one.message for one in queue_findings.redis_findings() if one.code == "D007"]
    assert [own.url.partition("://")[2].partition("?")[0] in message for message in found] == [True]


def test_a_wrong_value_is_told_with_its_place(settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"REDIS": 7}}}
    with pytest.raises(ConfigError, match=r'\["QUEUES"\]\["orders"\]\["REDIS"\]'):
        conf.get()


def test_in_tests_of_a_project_all_queues_go_to_the_server_of_tests():
    given = {"TEST_REDIS": "redis://tests/1", "QUEUES": {"a": {"REDIS": "redis://production/1", "LEASE": 9}, "b": {}}}
    assert under_test.own(given, "delayq-test")["QUEUES"] == {"a": {"LEASE": 9}, "b": {}}


def a_little_of_all() -> None:
    """The calls of producers and users, which need all its scripts."""
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(5)]
    delayq.schedule_many(close_order.using(queue=queue).bind(n) for n in range(5) for queue in ("orders", "redis"))
    delayq.cancel(jobs[0])
    overview.look()
    health.redis_samples()
    with delayq.lock("a"):
        pass


def test_who_gives_no_queue_a_server_sends_what_was_sent_before(delayq_redis):
    """The numbers are those of the release before; but that each look at the workers asks for the time, and each look at a
    queue counts the jobs that a pause holds, and those that wait for the turn of their fair word.
    """
    a_little_of_all()
    delayq_redis.link.execute("CONFIG", "RESETSTAT")
    a_little_of_all()
    lines = delayq_redis.link.execute("INFO", "commandstats").decode().splitlines()
    counts = {line.partition(":")[0].removeprefix("cmdstat_"): int(line.partition("calls=")[2].partition(",")[0]) for line in lines[1:]}
    assert {name: counts.get(name, 0) for name in SENT_BEFORE} == SENT_BEFORE
    assert list(stores.servers()) == [("", 0)]


def test_durable_jobs_come_to_the_server_to_which_their_queue_moves(own_redis, settings):
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(3)]
    common = {"prefix": "delayq"}
    loop = RestoreLoop(stores.places, conf.get().queue("orders"), **common)
    loop.poll()
    MirrorLoop(stores.places, conf.get().queue("orders"), **common).drain()
    own = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "orders": {"REDIS": own.url}}}
    loop = RestoreLoop(stores.places, conf.get().queue("orders"), **common)
    until = clock.monotonic() + 30
    while on(own, "orders") < 3:
        assert clock.monotonic() < until
        clock.sleep(min(loop.poll(), 0.1))
    assert [delayq.cancel(job) for job in jobs] == ["done"] * 3


@pytest.mark.slow
def test_a_worker_that_starts_waits_once_for_a_server_that_hangs_and_not_for_each_queue(own, tries):
    queues = ["redis", "away", "orders"]
    places, config = stores.places, conf.get()
    serving_what_is_left(places, config, queues)
    own.pause()
    del tries[:]
    assert serving_what_is_left(places, config, queues).queues == config.queues
    assert tries.count(places.of("away", 0).where) == 1
    assert places.of("orders", 0).where in tries, "the others are looked at"
    own.resume()


@pytest.fixture
def servers(own_redis, settings):
    """The shared one, and that of `own` and of `pulled`; `default` and `mail` are on the shared one."""
    made = {"shared": own_redis(), "own": own_redis()}
    elsewhere = {"REDIS": made["own"].url}
    listed = {"default": {}, "mail": {"CONSUMER": "pull"}, "own": elsewhere, "pulled": {"CONSUMER": "pull", **elsewhere}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": made["shared"].url, "QUEUES": listed}
    return made


def put(queue: str, **options: Any) -> delayq.Job:
    return delayq.schedule(close_order, 1, queue=queue, delay="1h", **options)


def pushed(queue: str) -> None:
    delayq.push(queue, {"order": 7})
    with delayq.pull(queue, 1, wait=0) as batch:
        assert [message.body for message in batch] == [{"order": 7}]
        batch.ack()


def locked(queue: str) -> None:
    with delayq.lock("a", queue=queue) as lock:
        assert lock.held


def paused(queue: str) -> None:
    delayq.pause(queue, actor="kim")
    delayq.resume(queue, actor="kim")


def of_key(queue: str) -> None:
    job = put(queue, key="k")
    assert delayq.get(key="k", queue=queue).id == job.id
    assert put(queue, key="k").created is False
    assert delayq.cancel(key="k", queue=queue) is delayq.Change.DONE


def put_back(queue: str) -> None:
    job = put(queue)
    assert job.cancel() is delayq.Change.DONE
    assert acts.requeue(job.id, queue=queue) is delayq.Change.DONE


WORK: dict[str, Callable[[str], object]] = {
    "schedule": put,
    "many": lambda queue: delayq.schedule_many(close_order.using(queue=queue, delay="1h").bind(n) for n in range(3)),
    "cancel": lambda queue: put(queue).cancel(),
    "reschedule": lambda queue: put(queue).reschedule(delay="2h"),
    "run now": lambda queue: put(queue).run_now(),
    "state": lambda queue: put(queue).state,
    "by key": of_key,
    "requeue": put_back,
    "pause": paused,
    "purge": lambda queue: sum(queues.purge(queue, actor="kim", reason="")),
    "lock": locked,
}


@pytest.mark.parametrize("away", ["shared", "own"])
@pytest.mark.parametrize("what", [*WORK, "pull"])
def test_what_is_asked_of_a_healthy_server_asks_no_other(servers, monkeypatch, what, away):
    healthy = {"shared": ("own", "pulled"), "own": ("default", "mail")}[away]
    stores.servers()
    servers[away].terminate()
    asked: list[str] = []
    real = Link._send
    monkeypatch.setattr(Link, "_send", lambda link, commands: (asked.append(link.where), real(link, commands))[1])
    if what == "pull":
        pushed(healthy[1])
    else:
        WORK[what](healthy[0])
    assert asked
    assert [where for where in asked if servers[away].socket in where] == []
