"""Queues that users paused stay paused, whatever Redis loses."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import models
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
    orders.store.pause(actor="ann", reason="strike")  # the reply was lost, and nothing noted
    assert not delayq.pause("orders", actor="ann", reason="strike")
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


def test_without_the_database_a_pause_works_in_redis(orders, caplog):
    with connection.schema_editor() as editor:
        editor.delete_model(models.Pause)
    try:
        with transaction.atomic():
            assert delayq.pause("orders")
            delayq.schedule(close_order, 1)  # the transaction is still good for something
        assert paused()[0]
        assert delayq.resume("orders")
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(models.Pause)
    assert "only in Redis" in caplog.text


@pytest.mark.parametrize("paused_first", [True, False])
def test_what_a_process_did_that_notes_nothing_is_known_from_its_event(orders, loop, wipe, paused_first):
    delayq.schedule(close_order, 1, delay="1h")
    if paused_first:
        delayq.pause("orders", actor="ann")
        orders.store.resume(actor="bob")
    else:
        orders.store.pause(actor="bob", reason="strike")
    orders.fold()
    wipe()
    settle_down(orders, loop)
    assert paused() == ((False, "", "") if paused_first else (True, "bob", "strike"))


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
