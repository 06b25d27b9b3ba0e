"""Cancels, requeues and ends that were answered or recorded, and that Redis lost."""

from __future__ import annotations

import threading

import pytest
from django.db import connection

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror import reconcile_rows, restore
from django_delayq.mirror.checkpoint import needs_restore
from django_delayq.models import Attempt, Checkpoint, Event, Job
from django_delayq.producer.outbox import jobs
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.recovery import ADOPTION_MS, EpochStore
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("by", ["id", "key"])
def test_a_cancel_that_redis_forgot_is_not_undone(orders, loop, wipe, by):
    job = delayq.schedule(close_order, 1, delay="1h", key="k")
    orders.fold()
    assert (job.cancel() if by == "id" else delayq.cancel(key="k", queue="orders")) is delayq.Change.DONE
    wipe()  # and with it the event
    settle_down(orders, loop)
    assert in_redis(orders) == {}
    row = Job.objects.get(pk=job.id)
    assert row.state == "cancelled"
    assert row.finished_at is not None


def test_a_cancel_is_noted_before_the_row_has_seen_anything(orders, loop, wipe):
    job = delayq.schedule(close_order, 1, delay="1h")
    assert job.cancel() is delayq.Change.DONE
    orders.mirror.poll()  # scheduled and cancelled
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.settled) == ("cancelled", "")


def test_a_requeue_behind_a_cancel_that_redis_forgot_counts(orders, loop):
    job = delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    job.cancel()
    assert job.requeue() is delayq.Change.DONE
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.settled) == ("scheduled", "")


@pytest.fixture
def forgotten_cancel(orders, loop, redis_server):
    """A cancelled job that waits in another server, whose data is older. The mirror has not seen the cancel, so nothing says that."""
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    job.cancel()
    bring_back(redis_server.link, copy)
    redis_server.link.execute("HSET", orders.mirror.log.keys["meta"], "server", "the one before")
    return job


def test_a_cancel_that_another_server_forgot_is_done_again(orders, loop, forgotten_cancel):
    job = forgotten_cancel
    settle_down(orders, loop)
    assert in_redis(orders) == {}
    assert (Job.objects.get(pk=job.id).state, Job.objects.get(pk=job.id).settled) == ("cancelled", "")


def test_a_job_whose_cancel_another_server_forgot_gets_no_new_date(orders, loop, forgotten_cancel):
    job = forgotten_cancel
    assert job.reschedule(delay="2h") is delayq.Change.FINISHED
    settle_down(orders, loop)
    assert in_redis(orders) == {}
    assert Job.objects.get(pk=job.id).state == "cancelled"


@pytest.fixture
def before_the_note(monkeypatch):
    """Takes what is to happen between Redis' answer to a cancel and the note of it in the row."""
    write = jobs.apply

    def do(meanwhile) -> None:
        def late(*args):
            monkeypatch.undo()
            meanwhile()
            return write(*args)

        monkeypatch.setattr(jobs, "apply", late)

    return do


def test_a_cancel_that_is_noted_after_redis_forgot_it_is_done_again(orders, loop, redis_server, before_the_note):
    job = delayq.schedule(close_order, 1)
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)

    def replaced():
        bring_back(redis_server.link, copy)
        redis_server.link.execute("HSET", orders.mirror.log.keys["meta"], "generation", "the one before")
        settle_down(orders, loop)

    before_the_note(replaced)
    assert job.cancel() is delayq.Change.DONE
    assert in_redis(orders) == {}
    assert orders.claim() == []


def test_a_cancel_that_redis_forgot_before_the_note_answers_what_is_true(orders, loop, wipe, before_the_note):
    job = delayq.schedule(close_order, 1)
    settle_down(orders, loop)
    held = []

    def wiped():
        wipe()
        settle_down(orders, loop)
        held.extend(orders.claim(ahead_ms=ADOPTION_MS + 1000))  # until then it waits for the worker that ran it

    before_the_note(wiped)
    assert job.cancel() is delayq.Change.RUNNING
    assert [one.id for one in held] == [ids.short(job.id)]


def test_what_restore_brings_after_the_note_of_a_cancel_does_not_rise(orders, loop, wipe, before_the_note):
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    before_the_note(wipe)
    found = reconcile_rows.fields_of(loop.unfinished())  # read by a restore that comes late with it
    assert job.cancel() is delayq.Change.DONE
    assert loop.epoch.restore(loop.items(found), epoch=orders.store.epoch()) == ["finished"]


def test_a_cancel_is_noted_though_the_mirror_folds_meanwhile(orders, loop, wipe, before_the_note):
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    job.reschedule(delay="2h")

    def folded_but_the_cancel():
        moved, cancelled = orders.mirror.log.read("0-0", 10)
        orders.fold()  # as if the cancel's event were not there yet
        Event.objects.filter(stream_id=cancelled.id).delete()
        Job.objects.filter(pk=job.id).update(state="scheduled", finished_at=None, last_event=moved.id)

    before_the_note(folded_but_the_cancel)
    job.cancel()
    wipe()
    settle_down(orders, loop)
    assert in_redis(orders) == {}


def test_a_cancel_before_a_restart_that_lost_nothing_answers_done(orders, loop, redis_server, before_the_note):
    job = delayq.schedule(close_order, 1)
    settle_down(orders, loop)
    before_the_note(lambda: redis_server.link.execute("HSET", orders.mirror.log.keys["meta"], "generation", "another"))
    assert job.cancel() is delayq.Change.DONE


def test_a_cancel_that_another_server_forgot_is_done_again_also_after_claims_went_on(orders, loop, forgotten_cancel):
    now = clock.wall_ms()
    for number, at in enumerate((now, now + 61_000)):
        orders.store.claim("host:1:w", f"m{number}", want=1, lease_ms=30_000, max_crashes=3, now_ms=at)
    settle_down(orders, loop)
    assert in_redis(orders) == {}


def test_a_requeue_takes_back_what_was_noted_of_the_cancel(orders, loop, redis_server):
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    job.cancel()
    job.requeue()
    redis_server.link.execute("HSET", orders.mirror.log.keys["meta"], "server", "the one before")
    loop.poll()
    assert in_redis(orders) == {ids.short(job.id): "scheduled"}


def test_a_run_whose_end_redis_forgot_is_over_when_another_begins(orders, loop, redis_server):
    job = delayq.schedule(close_order, 1, delay=0)
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    [first] = orders.claim()
    orders.mirror.poll()
    bring_back(redis_server.link, copy)  # the claim is forgotten, and the mirror has seen it
    [second] = orders.claim()
    Checkpoint.objects.update(last_event="0-0")
    orders.settle(second, "ack")
    orders.fold()
    outcomes = dict(Attempt.objects.filter(job=job.id).values_list("fence", "outcome"))
    assert outcomes == {first.fence: "crashed", second.fence: "succeeded"}


def test_a_restore_that_died_is_followed_by_another_whatever_its_host_s_clock_says(orders, loop, wipe, monkeypatch):
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    wipe()
    EpochStore(orders.store).confirm("", phase="adopt", renew="g1", progress="who-died 0 1")
    ahead = loop.look()[0].now_ms
    assert abs(ahead - clock.wall_ms()) < 10_000
    loop.poll()
    assert in_redis(orders) == {}, "it may be at work still"
    link, meta = stores.link, orders.mirror.log.keys["meta"]
    link.execute("HSET", meta, "restoring", f"{ahead - 5001} who-died 0 1")
    monkeypatch.setattr(clock, "wall_ms", lambda: ahead - 3_600_000)
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "scheduled"}


@pytest.mark.parametrize("ended", ["failed", "cancelled"])
def test_a_requeue_that_redis_forgot_counts(orders, loop, redis_server, ended):
    job = delayq.schedule(close_order, 1, delay=0, key="k")
    if ended == "failed":
        orders.settle(orders.claim()[0], "fail")
    else:
        job.cancel()
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    clock.sleep(0.002)
    assert job.requeue() is delayq.Change.DONE
    settle_down(orders, loop)
    bring_back(redis_server.link, copy)
    assert loop.look()[0].older
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "scheduled"}
    assert stores.inspector().find("orders", "k") == job.id
    assert Job.objects.get().state == "scheduled"


def test_an_end_that_the_rows_have_not_seen_counts_on_older_data(orders, loop, redis_server):
    job = delayq.schedule(close_order, 1, delay=0)
    late = delayq.schedule(close_order, 2, delay="1h")
    settle_down(orders, loop)
    orders.settle(orders.claim()[0], "ack")
    redis_server.link.execute("DEL", orders.mirror.log.keys["events"])
    items = loop.items(reconcile_rows.read_rows([job.id, late.id]))
    assert loop.epoch.restore(items, epoch=orders.store.epoch()) == ["finished", "there"]


@pytest.mark.parametrize("writer", ["mirror", "relay"])
def test_what_is_written_of_the_old_epoch_while_restore_reads_is_not_lost(orders, loop, wipe, redis_server, monkeypatch, writer):
    """The mirror read that a job is in Redis, or the relay published it. Then Redis is wiped, and only then the row is updated."""
    early = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    if writer == "relay":
        monkeypatch.setattr(stores.breaker, "open_until", clock.monotonic() + 60)  # Redis is away
    job = delayq.schedule(close_order, 1, delay="1h")
    monkeypatch.setattr(stores.breaker, "open_until", 0.0)
    threads = []

    def bring_back_rows() -> None:
        try:
            while loop.poll() != restore.IDLE or needs_restore(*loop.look()):
                clock.sleep(0.01)
        finally:
            connection.close()

    def wiped_meanwhile():
        wipe()
        threads.append(threading.Thread(target=bring_back_rows))
        threads[0].start()
        threads[0].join(0.5)

    if writer == "mirror":
        write = orders.mirror._write
        monkeypatch.setattr(orders.mirror, "_write", lambda entries: (write(entries), wiped_meanwhile()))
    else:
        clock.sleep(0.002)
        orders.relay.poll()
        redis_server.link.execute("DEL", orders.mirror.log.keys["events"])  # so that the relay has the word
        answered = orders.relay._answered
        monkeypatch.setattr(orders.relay, "_answered", lambda *all: (wiped_meanwhile(), answered(*all)))
    (orders.mirror if writer == "mirror" else orders.relay).poll()
    monkeypatch.undo()
    threads[0].join(60)
    settle_down(orders, loop)
    for _ in range(3):
        clock.sleep(0.002)
        orders.relay.poll()
        orders.fold()
    assert in_redis(orders) == {ids.short(one.id): "scheduled" for one in (early, job)}


def test_a_server_is_confirmed_after_what_was_read_of_the_last_one_is_written(orders, loop, redis_server, monkeypatch):
    """The mirror read how a job ended, then a server with older data takes over. Only then is the row updated."""
    delayq.schedule(close_order, 1)
    settle_down(orders, loop)
    copy, write, threads = snapshot(redis_server.link), orders.mirror._write, []
    orders.settle(orders.claim()[0], "ack")

    def look_once() -> None:
        try:
            loop.poll()
        finally:
            connection.close()

    def replaced_meanwhile(entries):
        write(entries)
        bring_back(redis_server.link, copy)
        redis_server.link.execute("HSET", orders.mirror.log.keys["meta"], "server", "the one before")
        threads.append(threading.Thread(target=look_once))
        threads[0].start()
        threads[0].join(0.5)

    monkeypatch.setattr(orders.mirror, "_write", replaced_meanwhile)
    orders.mirror._fold_batch()  # and no trim: that another server would refuse, and this one is the same
    monkeypatch.undo()
    threads[0].join(60)
    assert orders.claim() == []
    settle_down(orders, loop)
    assert orders.claim() == []
    assert Job.objects.get().state == "succeeded"


def test_each_wipe_shows_though_the_same_process_comes_first_again(orders, wipe):
    found = set()
    for number in range(3):
        delayq.schedule(close_order, number, delay="1h")
        found.add(orders.mirror.log.generation())
        wipe()
    assert len(found) == 3
