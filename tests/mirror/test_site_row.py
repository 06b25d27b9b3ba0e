"""The id and the checkpoint are read by the caller's connection where that works, and else apart from it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

import django_delayq as delayq
from django_delayq import clock, ids, under_test
from django_delayq.mirror import checkpoint, restore
from django_delayq.mirror.checkpoint import locked_checkpoint
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.mirror.site_row import DatabaseSite
from django_delayq.models import Checkpoint, Event, Job, Site
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.site import Facts, SiteRefused
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.mirror.test_road import ran
from tests.servers import USER
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def database(monkeypatch) -> DatabaseSite:
    """As a project has it outside of tests."""
    monkeypatch.setattr(under_test, "derives_site", lambda: False)
    Site.objects.update_or_create(number=1, defaults={"site": "0123456789abcdef"})
    Checkpoint.objects.create(queue="orders", address="here", last_event="5-1")
    return DatabaseSite()


def test_the_id_and_the_checkpoint_are_read(database):
    assert database.id("delayq") == "0123456789abcdef"
    assert database.partition_facts("orders", 0) == Facts("here", "5-1")
    assert database.partition_facts("orders", 1) == Facts("", "0-0")
    Checkpoint.objects.update(mirror_tokens="1-a 2-b")
    assert database.all_partition_facts() == {("orders", 0): Facts("here", "5-1", "1-a 2-b")}


def test_in_a_transaction_what_is_committed_counts(database):
    with transaction.atomic():
        Checkpoint.objects.update(last_event="1-1")
        assert database.partition_facts("orders", 0, apart=True) == Facts("here", "5-1")
        assert database.id("delayq") == "0123456789abcdef"


def test_a_read_that_fails_leaves_the_callers_transaction_whole(database, monkeypatch):
    def refuse() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT no_such_column FROM delayq_site")

    monkeypatch.setattr("django_delayq.mirror.site_row._checkpoints", refuse)
    with transaction.atomic():
        with pytest.raises(SiteRefused):
            database.id("delayq")
        assert Site.objects.get().site == "0123456789abcdef"


def test_in_a_broken_transaction_it_is_read_all_the_same(database):
    with transaction.atomic():
        transaction.set_rollback(True)
        assert database.id("delayq") == "0123456789abcdef"


def test_in_an_event_loop_it_is_read_all_the_same(database):
    async def ask() -> str:
        return database.id("delayq")

    assert asyncio.run(ask()) == "0123456789abcdef"


def test_a_database_without_an_id_says_what_to_do(database):
    Site.objects.all().delete()
    with pytest.raises(SiteRefused, match=r"To create an id, run manage\.py delayq adopt"):
        database.id("delayq")


def test_without_the_database_the_address_is_the_one_that_was_read_with_the_id(database, monkeypatch):
    assert database.id("delayq")

    def away(*_: Any, **__: Any) -> Any:
        raise connection.Database.OperationalError("away")

    monkeypatch.setattr("django.db.models.query.QuerySet.values_list", away)
    monkeypatch.setattr("django_delayq.mirror.site_row.Error", connection.Database.OperationalError)
    assert database.partition_facts("orders", 0) == Facts("here", "")
    assert database.all_partition_facts() is None
    with pytest.raises(SiteRefused, match="id of this site could not be read"):
        database.id("delayq")


def test_under_test_nothing_is_read(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert DatabaseSite().id("delayq") == DatabaseSite().id("delayq")
        assert DatabaseSite().partition_facts("orders", 0) is None


def test_the_first_turn_makes_the_checkpoint_and_each_is_counted():
    for count in (1, 2):
        with locked_checkpoint("orders", 0) as (mine, held):
            assert (held.turns, mine.get().queue) == (count, "orders")
    assert Checkpoint.objects.count() == 1


def test_a_turn_that_has_fallen_asleep_is_over(monkeypatch):
    can_say_so = connection.vendor == "postgresql" or (connection.vendor == "mysql" and connection.mysql_is_mariadb)
    if not can_say_so:
        pytest.skip("this database cannot end a transaction that sleeps")
    monkeypatch.setattr(checkpoint, "FROZEN", 1)
    asleep, awake, trouble = threading.Event(), threading.Event(), []

    def sleeper() -> None:
        try:
            with locked_checkpoint("orders", 0) as (mine, _):
                asleep.set()
                awake.wait(60)
                mine.update(last_event="9-9")
        except DatabaseError as error:
            trouble.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=sleeper)
    thread.start()
    assert asleep.wait(60)
    with locked_checkpoint("orders", 0) as (mine, _):
        mine.update(last_event="1-1")
    awake.set()
    thread.join(60)
    assert trouble
    assert Checkpoint.objects.get().last_event == "1-1"


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
