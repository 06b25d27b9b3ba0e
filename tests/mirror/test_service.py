"""The record keeper sleeps on the event line, and wakes for what concerns it."""

from __future__ import annotations

import logging
import select

import pytest

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.mirror import service as services
from django_delayq.mirror.service import LoopRunner, Service
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.connection.link import Link, connect
from django_delayq.store.connection.places import Nodes
from django_delayq.store.keys import tag
from tests import servers
from tests.links import opened
from tests.tasks_for_tests import close_order
from tests.topologies import ClusterServers


@pytest.fixture
def server(own_redis, settings, transactional_db):
    server = own_redis(appendonly="yes")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    return server


@pytest.fixture
def service(server):
    made = serving(connect(server.url))
    rest(made)
    return made


def serving(link: Link) -> Service:
    config = conf.get()
    return Service(link, config, [config.queue("orders")])


def rest(service: Service, patience: float = 60.0) -> float:
    """Turns until the service would sleep for a second or more; how long that would be."""
    until = clock.monotonic() + patience
    while (pause := service.poll()) < 1.0 or service.descriptor < 0:
        assert clock.monotonic() < until, "it does not come to rest"
        clock.sleep(min(pause, 0.05))
    return pause


def called(service: Service, seconds: float = 30.0) -> bool:
    """Whether the event line wakes it."""
    poll = select.poll()
    poll.register(service.descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def test_an_idle_service_asks_for_nothing_until_an_event_wakes_it(server, service):
    assert not called(service, 0.2)
    job = delayq.schedule(close_order, 1, delay="1h")
    assert called(service)
    service.poll()
    rest(service)
    assert Job.objects.get(pk=job.id).published is not None
    assert not called(service, 0.2)


def test_what_came_before_the_line_was_armed_is_folded_too(server):
    job = delayq.schedule(close_order, 1, delay="1h")
    rest(serving(connect(server.url)))
    assert Job.objects.get(pk=job.id).published is not None


def test_a_silence_calls_nobody_but_the_mirror(server, service, monkeypatch):
    monkeypatch.setattr("django_delayq.store.connection.wake.EventLine.waits", 0.1)
    delayq.schedule(close_order, 1, delay="1h")
    rest(service)  # armed anew, for a tenth of a second
    assert called(service)
    looks = [runner.next for runner in service._restores]
    service._hear(service._line)
    assert service.descriptor == -1
    assert [runner.next for runner in service._restores] == looks
    assert not any(runner.waits for runner in service._folders)


@pytest.mark.slow
def test_a_restart_of_redis_calls_the_restore_loop_at_once(server, service):
    before = service._restores[0].loop._well
    server.terminate()
    assert called(service)
    service._hear(service._line)
    assert [runner.name for runner in service._runners if runner.next == 0.0] == [
        "restore of orders",
        "the mirror of orders",
        "the relay of orders",
        "bringing in far jobs of orders",
    ]
    server.restart()
    rest(service)
    after = service._restores[0].loop._well
    assert after is not None
    assert after != before, "the new run of the server is confirmed"


def test_a_server_that_becomes_a_replica_wakes_it(server, service, own_redis):
    other = own_redis(port=True)
    host, port = other.tcp_url.partition("://")[2].split("/")[0].rsplit("@")[-1].split(":")
    server.call("REPLICAOF", host, port)
    assert called(service)
    with pytest.raises(delayq.StoreUnavailable):
        service._line.drain()


def test_without_leave_to_listen_it_looks_four_times_a_second(server, caplog):
    rules = [rule for rule in servers.acl() if rule != "+xread"]
    admin = opened(server.url)
    admin.execute("ACL", "SETUSER", "deaf", "on", ">pw", *[r for r in rules if r.startswith(("+", "-", "~", "resetch"))])
    separator = "&" if "?" in server.url else "?"
    deaf = serving(connect(f"{server.url}{separator}username=deaf&password=pw"))
    job = delayq.schedule(close_order, 1, delay="1h")
    with caplog.at_level(logging.WARNING):
        until = clock.monotonic() + 30
        while not Job.objects.filter(pk=job.id, published__isnull=False).exists():
            assert clock.monotonic() < until
            clock.sleep(min(0.05, deaf.poll()))
        clock.sleep(0.1)
        pause = deaf.poll()
    assert deaf.descriptor == -1
    assert pause <= 0.25
    assert "refuses XREAD" in caplog.text


def test_a_line_that_does_not_answer_in_its_time_is_broken(service):
    service._line._until = clock.monotonic() - 1
    assert service._line.answered()
    service._line.connection._sock.settimeout(0.1)
    service._hear(service._line)
    assert service.descriptor == -1
    rest(service)
    assert not called(service, 0.1)


class Scripted:
    """A loop that returns the given values."""

    def __init__(self, *answers: float) -> None:
        self.answers = list(answers)

    def poll(self) -> float:
        return self.answers.pop(0)


@pytest.mark.slow
def test_a_server_that_hangs_is_waited_for_once_in_a_pass_whatever_the_queues(server, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {name: {} for name in ("orders", "mail", "stock")}}
    config = conf.get()
    service = Service(connect(server.url, timeout=1.0), config, config.queues.values())
    service.add(beside := LoopRunner("schedules", Scripted(1.0, 1.0)))
    service.poll()
    assert not any(runner.failures for runner in service._runners)
    server.pause()
    for runner in service._runners:
        runner.wake()
    service.poll()
    assert [runner.name for runner in service._runners if runner.failures] == ["restore of orders"]
    assert beside.loop.answers == [], "what needs no Redis has its turn"
    server.resume()
    until = clock.monotonic() + 30
    while any(runner.failures or runner.next == 0.0 for runner in service._runners):
        assert clock.monotonic() < until, "the others have their turns when it answers"
        clock.sleep(0.05)
        beside.loop.answers.append(1.0)
        service.poll()


def test_who_is_called_in_vain_comes_later_the_next_time_and_who_finds_something_does_not(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(services.clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(services.random, "random", lambda: 1.0)
    runner = LoopRunner("m", Scripted(0.25, 0.25, 0.25, 0.25, 0.25, 0.0, 0.25), idle=0.25, asleep=15.0, races=True)
    runner.run_once(listening=True)
    assert runner.next == 115.0
    waits = []
    for _ in range(4):
        now[0] += 10
        runner.call(event=True)
        waits.append(runner.next - now[0])
        now[0] = runner.next
        runner.run_once(listening=True)
    assert waits == [0.0, 0.25, 0.5, 1.0]
    now[0] += 10
    runner.call(event=True)
    now[0] = runner.next
    runner.run_once(listening=True)
    runner.run_once(listening=True)
    now[0] += 10
    runner.call(event=True)
    assert runner.next == now[0], "it folded what it was called for"


def test_many_events_are_gathered_for_a_quarter_of_a_second(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(services.clock, "monotonic", lambda: now[0])
    runner = LoopRunner("m", Scripted(0.25), idle=0.25, asleep=15.0, races=True)
    runner.run_once(listening=True)
    now[0] += 0.1
    runner.call(event=True)
    assert runner.next == pytest.approx(100.25)
    assert runner.waits


def folded() -> set[str]:
    """The queues of the rows that the mirror has seen in Redis."""
    return set(Job.objects.filter(published__isnull=False).values_list("queue", flat=True))


def test_a_service_that_is_to_end_does_not_wait_once_more_for_a_server_that_is_away(server, service, monkeypatch, caplog):
    drained: list[None] = []
    monkeypatch.setattr(service.mirrors[0], "drain", lambda: drained.append(None))
    server.terminate()
    passes = iter([False, True])
    service.run(stop=lambda: next(passes), wait=lambda *_: None)
    assert drained == []
    assert "stops while Redis is unavailable" in caplog.text
    server.start()
    for runner in service._runners:
        runner.wake()
    passes = iter([False, True])
    service.run(stop=lambda: next(passes), wait=lambda *_: None)
    assert drained == [None]


def test_no_pass_of_a_service_is_traced_and_neither_is_its_last_fold(service, monkeypatch):
    """A worker that ends on a busy machine often finds events to fold."""
    utils = pytest.importorskip("opentelemetry.instrumentation.utils")
    traced: list[bool] = []
    for name in ("poll", "_fold_the_rest"):
        monkeypatch.setattr(service, name, lambda: traced.append(utils.is_instrumentation_enabled()) or 0.0)
    passes = iter([False, True])
    service.run(stop=lambda: next(passes), wait=lambda *_: None)
    assert traced == [False, False]
    assert utils.is_instrumentation_enabled()


@pytest.mark.parametrize("known", [True, False], ids=["found away before", "found away at the end"])
def test_a_service_that_is_to_end_folds_what_is_on_the_masters_that_are_there(transactional_db, settings, caplog, known):
    with ClusterServers(cluster_require_full_coverage="no", cluster_node_timeout="60000") as cluster:
        names = ("default", "b", "c", "d", "e")  # on all of three masters
        settings.DELAYQ = {**settings.DELAYQ, "REDIS": cluster.url, "QUEUES": {name: {} for name in names}}
        nodes = {name: cluster.serving(slot_of(f"{{{tag(name, 0)}}}")) for name in names}
        config = conf.get()
        service = Service(Nodes(config.redis, {}, name="test"), config, config.queues.values())
        rest(service)
        for name in names:
            delayq.schedule(close_order, 1, queue=name, delay="1h")
        nodes["b"].terminate()
        gone = {name for name in names if nodes[name] is nodes["b"]}
        assert set() < gone < set(names)
        if known:
            for runner in service._restores:
                runner.wake()
                runner.run_once()
        service.run(stop=lambda: True, wait=lambda *_: None)
        assert folded() == set(names) - gone
        text = "stops while Redis is unavailable" if known else "stopped before it had read all events"
        assert f"the mirror of b {text}" in caplog.text
        stores.reset()
