"""While one of two servers is away, nothing that is asked of a queue on the other goes near it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import django_delayq as delayq
from django_delayq.producer import acts, queues
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from tests.tasks_for_tests import close_order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]


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
