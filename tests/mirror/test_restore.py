from __future__ import annotations

from dataclasses import replace

import pytest

import django_delayq as delayq
from django_delayq import clock, failpoints, ids
from django_delayq.mirror import reconcile_rows, restore
from django_delayq.mirror.atomic_runs import run_atomic
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Attempt, Checkpoint, Event, Job, of_state
from django_delayq.producer import acts
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.record import JobRecord, ScheduleItem
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.depths import queue_depth
from tests.mirror.restoring import Committing, bring_back, end_what_is_lost, in_redis, settle_down, snapshot
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


def test_unfinished_rows_come_back_after_a_wipe(orders, loop, wipe):
    later = delayq.schedule(close_order, 1, delay="1h", key="k")
    done = delayq.schedule(close_order, 2)
    orders.fold()
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    wipe()
    settle_down(orders, loop)
    view = stores.inspector().job("orders", later.id)
    row = Job.objects.get(pk=later.id)
    assert (view.state, view.date_ms) == ("scheduled", clock.to_ms(row.run_at))
    assert stores.inspector().find("orders", "k") == later.id
    assert stores.inspector().job("orders", done.id) is None
    assert (row.state, Job.objects.get(pk=done.id).state) == ("scheduled", "succeeded")
    assert Event.objects.filter(job=later.id, kind="restored").count() == 1


@pytest.mark.parametrize("pages", [(1, 1), (3, 2), (4, 4), (9, 3), (100, 100)])
@pytest.mark.parametrize("rolled", [False, True])
def test_all_rows_come_back_once_whatever_the_pages(orders, loop, redis_server, wipe, monkeypatch, pages, rolled):
    """Also what is overdue, whose row the mirror gives a later date meanwhile."""
    monkeypatch.setattr(reconcile_rows, "LISTED", pages[0])
    monkeypatch.setattr(reconcile_rows, "MOST", pages[1])
    monkeypatch.setattr(restore, "SLICE", 0.0)
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    now = clock.wall_ms()
    dates = [clock.from_ms(now + hours * 3_600_000) for hours in (3, -1, 2, 2, -1, -2, 5, -2, 4)]
    jobs = delayq.schedule_many(close_order.using(run_at=date).bind(1) for date in dates)
    orders.fold()
    if rolled:
        bring_back(redis_server.link, copy)
    else:
        wipe()
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "scheduled" for job in jobs}
    assert (loop.progress.done, loop.progress.back) == (9, 9)
    assert Event.objects.filter(kind="restored").count() == 9


def test_a_row_that_ends_between_its_listing_and_its_turn_stays_ended(orders, loop, wipe, monkeypatch):
    monkeypatch.setattr(reconcile_rows, "MOST", 1)
    monkeypatch.setattr(restore, "SLICE", 0.0)
    jobs = delayq.schedule_many(close_order.using(delay="1h").bind(number) for number in range(3))
    orders.fold()
    wipe()
    while loop.progress.done < 1:
        orders.fold()
        loop.poll()
    Job.objects.filter(pk=jobs[2].id).update(state="succeeded", finished_at=clock.now())
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "scheduled" for job in jobs[:2]}


def test_an_epoch_that_changed_after_the_look_is_not_confirmed(orders, loop):
    epoch, checkpoint = loop.look()
    confirm = loop.epoch.confirm
    assert confirm(epoch.generation, server="the one before", mirrored=checkpoint.last_event) == "changed"
    assert confirm(epoch.generation, server=epoch.server, mirrored=checkpoint.last_event) == "ok"


def test_attempts_and_crashes_come_back_and_what_ran_has_a_lease(orders, loop, wipe):
    waiting = delayq.schedule(close_order, 1, delay=0, max_attempts=5)
    running = delayq.schedule(close_order, 2, delay=0, max_attempts=5)
    orders.fold()
    jobs = {job.id: job for job in orders.claim()}
    orders.settle(jobs[ids.short(waiting.id)], "retry", delay=60_000)
    orders.settle(jobs[ids.short(running.id)], "crash")
    [again] = orders.claim()
    orders.fold()
    wipe()
    settle_down(orders, loop)
    first, second = stores.inspector().jobs("orders", [waiting.id, running.id])
    assert (first.state, first.attempt, first.crashes) == ("scheduled", 1, 0)
    assert (second.state, second.attempt, second.crashes) == ("running", 0, 1)
    assert first.date_ms == clock.to_ms(Job.objects.get(pk=waiting.id).run_at)
    assert 20_000 < second.date_ms - second.now_ms <= 30_000
    assert orders.settle(again, "retry") == "gone"


def test_how_often_a_job_has_asked_comes_back_also_of_one_that_runs(orders, loop, wipe):
    waiting, running = (delayq.schedule(close_order, number, delay=0) for number in (1, 2))
    orders.fold()
    for _ in range(2):
        jobs = {job.id: job for job in orders.claim()}
        for job in jobs.values():
            orders.settle(job, "ask", delay=0)
        orders.fold()
    [job, again] = sorted(orders.claim(), key=lambda one: one.id)
    assert (job.asks, again.asks) == (2, 2)
    orders.settle(job, "ask", delay=60_000)
    orders.fold()
    wipe()
    settle_down(orders, loop)
    first, second = stores.inspector().jobs("orders", [waiting.id, running.id])
    assert (first.state, first.attempt, first.asks) == ("scheduled", 0, 3)
    assert (second.state, second.attempt, second.asks) == ("running", 0, 2)
    assert [Job.objects.get(pk=one.id).asked for one in (waiting, running)] == [3, 2]


def test_what_is_unpublished_is_left_to_the_relay(orders, loop, wipe):
    job = delayq.schedule(close_order, 1, delay="1h")
    wipe()  # before the mirror has seen it
    settle_down(orders, loop)
    assert in_redis(orders) == {}
    orders.relay.poll()
    assert in_redis(orders) == {ids.short(job.id): "scheduled"}


@pytest.mark.parametrize("noted", ["in the step", "in the row"])
def test_a_job_of_which_an_atomic_run_has_committed_does_not_rise(orders, loop, wipe, noted):
    job = delayq.schedule(close_order, 1, delay=0)
    orders.fold()
    [run] = orders.claim()
    orders.fold()
    # The event of its end went with Redis.
    if noted == "in the step":
        run_atomic(Committing(job.id, run.fence), lambda: 7)
    else:  # as an older worker has left it, whose mirror had read the row before the run committed, and wrote it after
        Job.objects.filter(pk=job.id).update(settled=run.fence)
    wipe()
    settle_down(orders, loop)
    assert in_redis(orders) == {}
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.finished_at is not None) == ("succeeded", True)
    assert row.result == (7 if noted == "in the step" else None)
    assert list(row.attempt_set.values_list("outcome", "message")) == [("succeeded", "")]


def test_a_job_that_has_run_before_its_row_was_known_to_be_published_is_no_unpublished_one(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    job = delayq.schedule(close_order, 2, delay=0)
    [run] = orders.claim()
    run_atomic(Committing(job.id, run.fence), lambda: 7)
    wipe()  # before the mirror has seen anything of it
    settle_down(orders, loop)
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.published) == ("succeeded", row.finished_at)


@pytest.mark.parametrize("place", ["restore.confirmed", "restore.note", "restore.noted"])
def test_a_restore_that_dies_at_its_end_leaves_no_row_unmended(orders, loop, wipe, place):
    job = delayq.schedule(close_order, 1, delay=0)
    orders.fold()
    [run] = orders.claim()
    orders.fold()
    Job.objects.filter(pk=job.id).update(settled=run.fence)
    wipe()
    failpoints.arm(f"{place}=raise:died@1")
    try:
        with pytest.raises(failpoints.FailpointError):
            settle_down(orders, loop)
    finally:
        failpoints.arm("")
    settle_down(orders, loop)
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert in_redis(orders) == {}


def test_a_key_that_was_taken_meanwhile_ends_the_row(orders, loop, wipe):
    old = delayq.schedule(close_order, 1, delay="1h", key="k")
    orders.fold()
    wipe()
    new = JobRecord(id=ids.new(), task=close_order.name, key="k", payload=b"[[2]]")
    orders.store.schedule([ScheduleItem.of(new, delay_ms=7_200_000)])  # by one who does not ask the rows
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(new.id): "scheduled"}
    row = Job.objects.get(pk=old.id)
    assert (row.state, row.error) == ("cancelled", f"key held by {ids.short(new.id)}")


def test_an_adopted_run_is_a_running_row_again(orders, loop, wipe):
    job = delayq.schedule(close_order, 1, delay=0, max_attempts=5)
    orders.fold()
    [held] = orders.claim()
    orders.fold()
    wipe()
    settle_down(orders, loop)
    assert Job.objects.get(pk=job.id).state == "running"
    item = RestoreItem(id=held.id, record=held.record, attempt=held.attempt, crashes=0, fence=held.fence, delay_ms=30_000)
    assert EpochStore(orders.store).adopt([item], worker="host:1:w", epoch=held.epoch)[1] == ["adopted"]
    orders.fold()
    assert Job.objects.get(pk=job.id).state == "running"
    assert Attempt.objects.get(job=job.id).outcome == "running"
    assert orders.settle(held, "ack") == "done"
    orders.fold()
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert Attempt.objects.get(job=job.id).outcome == "succeeded"


def test_what_redis_has_to_tell_is_folded_before_rows_are_believed_though_no_mirror_runs(orders, loop, redis_server):
    job = delayq.schedule(close_order, 1)
    waits = delayq.schedule(close_order, 2, delay="1h")
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    delayq.schedule(close_order, 3, delay="1h")
    settle_down(orders, loop)
    bring_back(redis_server.link, copy)
    assert orders.settle(orders.claim()[0], "ack") == "done"
    assert waits.cancel() is delayq.Change.DONE
    for _ in loop.drain():
        pass
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert Job.objects.get(pk=waits.id).state == "cancelled"
    assert {ids.short(job.id), ids.short(waits.id)}.isdisjoint(in_redis(orders))


@pytest.fixture
def looks_for_the_lost(orders, loop, wipe):
    """Makes Redis lose everything, and restores it. A worker can still adopt a lost run for a moment."""

    def bring_about():
        loop.queue = replace(loop.queue, lease=0.2)
        wipe()
        settle_down(orders, loop)
        assert loop.look()[1].way_back

    return bring_about


def test_they_say_so_also_where_another_restore_that_came_too_late_has_noted_its_own_way_back_last(orders, loop, looks_for_the_lost):
    waited = delayq.schedule(close_order, 1, delay="1h", durability="redis")
    settle_down(orders, loop)
    looks_for_the_lost()
    Checkpoint.objects.update(way_back="its generation")
    end_what_is_lost(orders, loop)
    assert Job.objects.get(pk=waited.id).error == reconcile_rows.LOST


def test_the_rows_of_jobs_of_redis_durability_that_redis_has_lost_say_so(orders, loop, looks_for_the_lost):
    waited, ran = (delayq.schedule(close_order, 1, delay=delay, durability="redis") for delay in ("1h", 0))
    assert len(orders.claim()) == 1
    settle_down(orders, loop)
    looks_for_the_lost()
    came = delayq.schedule(close_order, 2, delay="1h", durability="redis")
    end_what_is_lost(orders, loop)
    assert dict(Job.objects.values_list("id", "state")) == {
        waited.id: "scheduled",
        ran.id: "running",
        came.id: "scheduled",
    }
    assert set(Job.objects.filter(of_state("unresolved")).values_list("id", flat=True)) == {waited.id, ran.id}
    assert Job.objects.get(pk=waited.id).error == reconcile_rows.LOST
    assert Attempt.objects.get(job=ran.id).outcome == "crashed"
    assert acts.requeue_by_person(waited.id) is delayq.Change.DONE
    settle_down(orders, loop)
    assert Job.objects.get(pk=waited.id).state == "scheduled"


def test_a_run_of_redis_durability_that_its_worker_adopts_is_not_lost(orders, loop, looks_for_the_lost):
    job = delayq.schedule(close_order, 1, durability="redis")
    [held] = orders.claim()
    settle_down(orders, loop)
    looks_for_the_lost()
    item = RestoreItem(id=held.id, record=held.record, attempt=held.attempt, crashes=0, fence=held.fence, delay_ms=30_000)
    assert EpochStore(orders.store).adopt([item], worker="host:1:w", epoch=held.epoch)[1] == ["adopted"]
    end_what_is_lost(orders, loop)
    assert Job.objects.get(pk=job.id).state == "running"


def test_while_the_lost_are_looked_for_nothing_waits(orders, loop, looks_for_the_lost):
    job = delayq.schedule(close_order, 1, delay="1h")
    assert job.cancel() is delayq.Change.DONE
    delayq.schedule(close_order, 1, durability="redis")
    orders.fold()
    looks_for_the_lost()
    assert stores.link.execute("HGET", orders.store.keys["meta"], "rolled") is None
    assert job.requeue() is delayq.Change.DONE


def test_another_looks_for_the_lost_when_who_brought_all_back_has_died(orders, loop, looks_for_the_lost):
    job = delayq.schedule(close_order, 1, delay="1h", durability="redis")
    settle_down(orders, loop)
    looks_for_the_lost()
    another = RestoreLoop(stores.link, loop.queue, prefix="delayq")
    end_what_is_lost(orders, another)
    assert Job.objects.get(pk=job.id).error == reconcile_rows.LOST


def test_in_manual_mode_it_pauses_and_waits(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    wipe()
    manual = RestoreLoop(stores.link, orders.config, prefix="delayq", auto=False)
    manual.poll()
    assert queue_depth("orders").paused_by == "restore"
    assert in_redis(orders) == {}


def test_in_manual_mode_a_worker_does_not_pause_what_the_command_has_brought_back_meanwhile(orders, loop, wipe):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    wipe()
    RestoreLoop(stores.link, orders.config, prefix="delayq", auto=False).poll()

    class Slow(RestoreLoop):
        def unfinished(self):
            """Behind the look, in front of the pause."""
            settle_down(orders, loop)  # the command
            assert stores.queue("orders", 0).resume(actor="command")
            return super().unfinished()

    Slow(stores.link, orders.config, prefix="delayq", auto=False).poll()
    assert len(in_redis(orders)) == 1
    assert not queue_depth("orders").paused


def test_in_manual_mode_an_empty_queue_needs_nobody(orders, redis_server):
    manual = RestoreLoop(stores.link, orders.config, prefix="delayq", auto=False)
    delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, manual)
    assert not queue_depth("orders").paused


def test_a_pause_on_an_empty_redis_does_not_pass_for_a_restore(orders, loop, wipe):
    job = delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    wipe()
    delayq.pause("orders")
    orders.fold()
    delayq.schedule(close_order, 2, delay="1h")
    orders.fold()
    settle_down(orders, loop)
    assert in_redis(orders)[ids.short(job.id)] == "scheduled"
