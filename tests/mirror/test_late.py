"""Late calls to a Redis that has lost data, or late passes of a mirror that lags far behind: no ended job starts again, and no
acknowledged job is missing.
"""

from __future__ import annotations

import pytest
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror import restore
from django_delayq.mirror.reconcile_rows import pending_changes
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Checkpoint, Event, Job
from django_delayq.producer.stores import stores
from django_delayq.store.keys import Keys
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.mirror.test_road import due_in, ran, relayed
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)
HOUR_MS = 3_600_000


@pytest.mark.parametrize("auto", [True, False], ids=["auto", "manual"])
@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "unnoticed"])
def test_a_publication_behind_a_rollback_raises_no_job_that_has_ended(
    orders,
    redis_server,
    monkeypatch,
    auto,
    noticed,
):
    monkeypatch.setattr(restore, "LOOK", 0.0)
    loop = RestoreLoop(stores.link, orders.config, prefix="delayq", auto=auto)
    delayq.schedule(close_order, 99, delay="1h")
    settle_down(orders, loop)
    stores.reset()
    copy = snapshot(redis_server.link)
    with transaction.atomic():
        job = delayq.schedule(close_order, 7)
        held = list(connection.run_on_commit)
        connection.run_on_commit.clear()
    relayed(orders)
    assert ran(orders) == [7]
    orders.fold()
    clock.sleep(0.01)
    bring_back(redis_server.link, copy)
    if noticed:
        loop.poll()
    for _, hook, _ in held:
        hook()
    if noticed and not auto:
        assert ids.short(job.id) not in in_redis(orders), "the epoch is another since it was noticed"
    orders.fold()
    settle_down(orders, RestoreLoop(stores.link, orders.config, prefix="delayq"))
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert ids.short(job.id) not in in_redis(orders)


@pytest.mark.parametrize("kind", ["cancelled", "merged", "scheduled"])
def test_a_job_that_has_succeeded_has_succeeded(orders, kind):
    job = delayq.schedule(close_order, 1)
    orders.fold()
    assert ran(orders) == [1]
    orders.fold()
    told = {"scheduled": f"{clock.wall_ms()} n", "merged": f"{ids.short(ids.new())} keep", "cancelled": "0 0 -"}
    events = Keys("delayq", "orders")["events"]
    stores.link.execute("XADD", events, "*", "at", clock.wall_ms(), "by", "", kind, f"{ids.short(job.id)} {told[kind]}")
    orders.fold()
    assert Job.objects.get().state == "succeeded"


def test_a_row_that_was_cancelled_stays_cancelled_when_it_is_published_late(orders, loop, wipe):
    job = delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    assert job.cancel() is delayq.Change.DONE
    orders.fold()
    events = Keys("delayq", "orders")["events"]
    late = f"{ids.short(job.id)} {clock.wall_ms()} n"
    stores.link.execute("XADD", events, "*", "at", clock.wall_ms(), "by", "", "scheduled", late)
    orders.fold()
    assert Job.objects.get().state == "cancelled"
    assert job.requeue() is delayq.Change.DONE
    orders.fold()
    assert Job.objects.get().state == "scheduled"


@pytest.mark.parametrize("kind", ["merged", "replaced"])
def test_no_job_is_merged_into_itself(orders, kind):
    job = delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    id = ids.short(job.id)
    forged = ("merged", f"{id} {id} keep") if kind == "merged" else ("cancelled", f'{id} 0 0 -\n{{"r":"{id}"}}')
    events = Keys("delayq", "orders")["events"]
    stores.link.execute("XADD", events, "*", "at", clock.wall_ms(), "by", "", *forged)
    orders.fold()
    assert Job.objects.get().merged_into is None
    assert job.cancel() in (delayq.Change.DONE, delayq.Change.FINISHED)


def test_a_change_is_pending_however_far_the_mirror_is_behind(orders):
    job = delayq.schedule(close_order, 7, delay="1d")
    now = clock.wall_ms()
    folded, told, old = (now - minutes * 60_000 for minutes in (120, 90, 200))
    for at, kind in ((told, "cancelled"), (old, "rescheduled")):
        Event.objects.create(job_id=job.id, queue="orders", at=clock.now(), kind=kind, stream_id=f"{at}-0")
    assert [change.kind for change in pending_changes("orders", 0, f"{folded}-0")] == ["cancelled"]


@pytest.mark.parametrize("behind", [False, True], ids=["soon", "an hour behind"])
def test_a_new_date_of_a_job_whose_row_says_that_it_runs_holds(orders, loop, wipe, behind):
    job = delayq.schedule(close_order, 7)
    (run,) = orders.claim()
    orders.fold()
    assert orders.settle(run, "retry", delay=HOUR_MS) == "done"
    assert delayq.reschedule(job, delay="7d") is delayq.Change.DONE
    if behind:
        Checkpoint.objects.update(last_event=f"{clock.wall_ms() - 2 * HOUR_MS}-0")
        Job.objects.update(last_event=f"{clock.wall_ms() - 2 * HOUR_MS}-0")
        event = Event.objects.get(kind="rescheduled")
        Event.objects.filter(pk=event.pk).update(stream_id=f"{clock.wall_ms() - HOUR_MS * 3 // 2}-0")
    wipe()
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "scheduled"}
    assert due_in(job) > 86_400
