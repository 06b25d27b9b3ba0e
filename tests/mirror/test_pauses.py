"""Queues that users paused stay paused, whatever Redis loses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import clock, models
from django_delayq.exceptions import ConfigError
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.producer.stores import stores
from tests.depths import queue_depth
from tests.mirror.restoring import bring_back, settle_down, snapshot
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


def paused() -> tuple[bool, str, str]:
    depth = queue_depth("orders")
    return depth.paused, depth.paused_by, depth.paused_reason


def test_a_paused_queue_is_paused_again_after_a_wipe_and_before_anything_comes_back(orders, loop, wipe):
    delayq.schedule(close_order, 1)
    orders.fold()
    assert delayq.pause("orders", actor="ann", reason="the provider is broken")
    wipe()
    loop.poll()
    assert paused() == (True, "ann", "the provider is broken")
    settle_down(orders, loop)
    assert paused() == (True, "ann", "the provider is broken")
    assert orders.claim() == []
    assert delayq.resume("orders")
    assert len(orders.claim()) <= 1  # what comes back overdue waits for those who may run it


def test_a_queue_that_goes_on_is_not_paused_by_a_wipe(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    delayq.pause("orders")
    delayq.resume("orders")
    orders.fold()
    wipe()
    settle_down(orders, loop)
    assert not paused()[0]


def test_a_pause_asked_for_again_after_a_lost_reply_is_noted(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    orders.store.pause(actor="ann", reason="strike")  # its row was lost with another copy of the database
    assert delayq.pause("orders", actor="ann", reason="strike")
    wipe()
    settle_down(orders, loop)
    assert paused() == (True, "ann", "strike")


def test_a_pause_of_ones_own_outlives_the_one_that_waits_for_a_restore_by_hand(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    delayq.pause("orders", actor="ann")
    wipe()
    RestoreLoop(stores.link, orders.config, prefix="delayq", auto=False).poll()
    assert paused()[:2] == (True, "ann")


def test_the_pause_that_waits_for_a_restore_by_hand_is_no_row(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    wipe()
    RestoreLoop(stores.link, orders.config, prefix="delayq", auto=False).poll()
    assert paused()[:2] == (True, "restore")
    assert not models.Pause.objects.filter(paused_at__isnull=False).exists()


@contextmanager
def without_pauses() -> Iterator[None]:
    """The database does not answer where pauses are concerned."""
    with connection.schema_editor() as editor:
        editor.delete_model(models.Pause)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(models.Pause)


def test_without_the_database_a_pause_works_in_redis_and_is_stored_later(orders, loop, wipe, caplog):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    until = clock.now() + timedelta(hours=1)
    with without_pauses():
        assert delayq.pause("orders", actor="ann", reason="strike", until=until)
        assert paused() == (True, "ann", "strike")
    assert "only in Redis" in caplog.text
    PauseLoop().poll()
    row = models.Pause.objects.get()
    assert (row.word, row.paused_by, row.paused_why, row.missing) == ("queue:orders", "ann", "strike", "")
    wipe()
    settle_down(orders, loop)
    assert paused() == (True, "ann", "strike")
    assert clock.to_ms(row.until) == queue_depth("orders").paused_until_ms == clock.to_ms(until)


def test_without_the_database_a_resume_works_in_redis_and_is_stored_later(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    delayq.pause("orders", actor="ann")
    with without_pauses():
        assert delayq.resume("orders", actor="bob")
        assert not paused()[0]
    PauseLoop().poll()
    assert not models.Pause.objects.exists()
    wipe()
    settle_down(orders, loop)
    assert not paused()[0]


def test_a_later_call_counts_more_than_what_was_done_without_the_database(orders):
    with without_pauses():
        delayq.pause("orders", actor="ann")
    assert delayq.resume("orders")
    PauseLoop().poll()
    assert not paused()[0]
    assert not models.Pause.objects.exists()


def test_in_a_transaction_a_pause_is_refused_because_a_rollback_could_not_undo_it(orders):
    with transaction.atomic(), pytest.raises(ConfigError, match="a transaction is open"):
        delayq.pause("orders")
    assert not paused()[0]


def test_a_pause_that_reaches_no_redis_is_stored_and_sent_later(orders, settings):
    there = settings.DELAYQ
    settings.DELAYQ = {**there, "REDIS": "redis://127.0.0.1:1/0"}
    assert delayq.pause("orders", actor="ann").unconfirmed == ("orders",)
    settings.DELAYQ = there
    assert not paused()[0]
    PauseLoop().poll()
    assert paused()[:2] == (True, "ann")


def test_a_late_command_of_a_frozen_process_does_not_last(orders):
    delayq.schedule(close_order, 1)
    orders.store.pause(actor="frozen")  # its process resumed since, and the row is gone
    PauseLoop().poll()
    assert len(orders.claim()) == 1
    delayq.pause("orders", actor="ann")
    orders.store.resume(actor="frozen")
    PauseLoop().poll()
    assert paused()[:2] == (True, "ann")


def test_a_pause_ends_at_its_date_by_the_clock_of_redis(orders, wipe):
    delayq.schedule(close_order, 1)
    delayq.pause("orders", actor="ann", until=clock.now() + timedelta(minutes=1))
    assert orders.claim() == []
    assert len(orders.claim(ahead_ms=61_000)) == 1


def test_a_pause_whose_date_has_passed_loses_its_row_and_leaves_an_event(orders, monkeypatch):
    now = clock.now()
    delayq.pause("orders", actor="ann", until=now + timedelta(seconds=1))
    monkeypatch.setattr(models.database, "now", lambda: now + timedelta(minutes=2))
    PauseLoop().poll()
    assert models.Pause.objects.exists(), "the clock of Redis decides"
    models.Pause.objects.update(until=now - timedelta(minutes=2))
    orders.store.pause(until_ms=clock.to_ms(now - timedelta(minutes=2)))
    PauseLoop().poll()
    assert not models.Pause.objects.exists()
    orders.fold()
    assert models.Event.objects.filter(kind="resumed").get().actor == "until"


def test_a_longer_pause_takes_the_place_of_a_shorter_one(orders):
    soon, later = (clock.now() + timedelta(hours=hours) for hours in (1, 2))
    assert delayq.pause("orders", until=soon)
    assert delayq.pause("orders", until=later)
    assert queue_depth("orders").paused_until_ms == clock.to_ms(later)
    assert delayq.pause("orders")
    assert queue_depth("orders").paused_until_ms == 0
    assert not delayq.pause("orders")


def test_a_person_pauses_a_queue_that_waits_for_a_restore_by_hand(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    wipe()
    RestoreLoop(stores.link, orders.config, prefix="delayq", auto=False).poll()
    assert delayq.pause("orders", actor="ann")
    call_command("delayq", "restore", "--yes")
    assert paused()[:2] == (True, "ann")


def test_a_pause_of_a_queue_that_no_mirror_has_met_is_brought_back(orders, wipe):
    assert delayq.pause("orders", actor="ann", reason="not yet")
    wipe()
    delayq.schedule(close_order, 1)
    settle_down(orders, RestoreLoop(stores.link, orders.config, prefix="delayq"))
    assert paused() == (True, "ann", "not yet")
    assert orders.claim() == []


def test_a_queue_that_is_let_go_on_while_its_pause_is_brought_back_goes_on(orders, loop, wipe, monkeypatch):
    delayq.schedule(close_order, 1, delay="1h")
    delayq.pause("orders", actor="ann")
    orders.fold()
    wipe()
    monkeypatch.setattr(stores.queue("orders", 0).__class__, "resume", resume := Resume(orders.store.resume, loop))
    delayq.resume("orders")
    assert resume.came
    settle_down(orders, loop)
    assert not paused()[0]


class Resume:
    """Makes the restore pause the queues again right before Redis is confirmed."""

    def __init__(self, resume, loop: RestoreLoop) -> None:
        self.resume, self.loop, self.came = resume, loop, 0

    def __call__(self, **options) -> bool:
        self.came += 1
        self.loop.poll()
        return self.resume(**options)


def test_an_old_copy_that_tells_of_a_pause_again_pauses_nothing(orders, loop, redis_server):
    delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    delayq.pause("orders", actor="ann")
    copy = snapshot(redis_server.link)
    orders.fold()
    delayq.resume("orders")
    settle_down(orders, loop)
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    assert not models.Pause.objects.filter(paused_at__isnull=False).exists()
