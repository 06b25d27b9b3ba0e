"""An old copy is never taken for a new store, whatever was under way when it was made, and whatever Redis allows us to ask."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror import restore
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Event, Job
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.mirror.test_road import ran
from tests.servers import USER
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def without_info(redis_server, orders, monkeypatch):
    """A loop of the queue "orders" where INFO is not allowed."""
    monkeypatch.setattr(restore, "LOOK", 0.0)
    redis_server.link.execute("ACL", "SETUSER", USER, "-info")
    yield RestoreLoop(stores.link, orders.config, prefix="delayq")
    redis_server.link.execute("ACL", "SETUSER", USER, "+info")


def test_a_copy_of_a_restore_that_was_under_way_is_swept_when_another_has_been_since(orders, loop, wipe, redis_server):
    delayq.schedule(close_order, 99, delay="2h")
    job = delayq.schedule(close_order, 7)
    settle_down(orders, loop)
    wipe()
    copies, finish = [], loop._finish
    loop._finish = lambda way: (copies.append(snapshot(redis_server.link)), finish(way))
    settle_down(orders, loop)
    stores.link.execute("ZADD", orders.store.keys["normal"], clock.wall_ms(), ids.short(job.id))
    assert ran(orders) == [7]
    settle_down(orders, loop)
    wipe()
    settle_down(orders, loop)
    bring_back(redis_server.link, copies[0])
    assert ids.short(job.id) in in_redis(orders)
    settle_down(orders, loop)
    assert ids.short(job.id) not in in_redis(orders)
    assert Job.objects.get(pk=job.id).state == "succeeded"


def test_an_old_copy_is_swept_where_info_is_not_allowed(orders, without_info, redis_server):
    delayq.schedule(close_order, 99, delay="2h")
    settle_down(orders, without_info)
    job = delayq.schedule(close_order, 7)
    settle_down(orders, without_info)
    copy = snapshot(redis_server.link)
    assert ran(orders) == [7]
    settle_down(orders, without_info)
    redis_server.link.execute("FLUSHALL")
    settle_down(orders, without_info)
    bring_back(redis_server.link, copy)
    settle_down(orders, without_info)
    assert ids.short(job.id) not in in_redis(orders)
    assert Job.objects.get(pk=job.id).state == "succeeded"


def test_where_info_is_not_allowed_an_epoch_is_confirmed_once(orders, without_info, monkeypatch):
    delayq.schedule(close_order, 1)
    settle_down(orders, without_info)
    assert stores.link.execute("HGET", orders.store.keys["meta"], "server") == b""
    confirmed = without_info.epoch.confirm
    monkeypatch.setattr(without_info.epoch, "confirm", lambda *args, **options: pytest.fail("once more"))
    without_info.poll()
    monkeypatch.setattr(without_info.epoch, "confirm", confirmed)
    delayq.schedule(close_order, 1, key="the script is there")
    calls, send = [], Link._send
    monkeypatch.setattr(Link, "_send", lambda link, commands: (calls.append(commands), send(link, commands))[1])
    delayq.schedule(close_order, 2, key="k")
    assert len(calls) == 2, "one asks about the key, one schedules, and no row is asked"
    with transaction.atomic():
        job = delayq.schedule(close_order, 3)
        connection.run_on_commit.clear()
    assert job.cancel() is delayq.Change.DONE, "nothing has been lost, so nobody runs it"


def test_a_change_is_carried_over_once_by_looks_at_what_has_come_since(orders, loop, monkeypatch):
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    asked, sent = [], []
    pending = restore.pending_changes
    monkeypatch.setattr(restore, "pending_changes", lambda *args, **options: asked.append(options) or pending(*args, **options))
    monkeypatch.setattr(loop, "_send_again", lambda changes: sent.extend(changes))
    for at in (clock.wall_ms() - 600_000, clock.wall_ms()):
        Event.objects.create(job_id=job.id, queue="orders", at=clock.now(), kind="cancelled", stream_id=f"{at}-7")
    for _ in range(5):
        loop.poll()
        orders.fold()
    assert [change.job for change in sent] == [job.id]
    assert all("after" in options for options in asked), "the whole hour was looked at before"
