"""A job that is running according to its row counts as running, even if Redis lost it, until its worker had time to report it."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.exceptions import KeyTaken
from django_delayq.models import Attempt, Job
from django_delayq.store.scripts.record import ClaimedJob
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.mirror.restoring import in_redis, settle_down
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["behind the wipe", "behind the restore"])
def lost(request, orders, loop, wipe):
    """Schedules a job, lets it run, and Redis lose it; a worker that has not heard of that yet goes on with it."""

    def bring_about(**options) -> tuple[delayq.Job, ClaimedJob]:
        job = delayq.schedule(close_order, 1, **options)
        (run,) = orders.claim()
        orders.fold()
        wipe()
        if request.param == "behind the restore":
            settle_down(orders, loop)
        return job, run

    return bring_about


def adopted(orders, run: ClaimedJob) -> bool:
    """Its worker tells that it has it."""
    item = RestoreItem(id=run.id, record=run.record, attempt=run.attempt, crashes=run.crashes, fence=run.fence, delay_ms=30_000)
    return EpochStore(orders.store).adopt([item], worker="host:1:w", epoch=run.epoch)[1] == ["adopted"]


def goes_on(orders, loop, run: ClaimedJob) -> None:
    """It is still its worker's run, and ends as one."""
    settle_down(orders, loop)
    assert adopted(orders, run)
    assert orders.settle(run, "ack") == "done"
    orders.fold()
    assert Job.objects.get(pk=ids.full(run.id)).state == "succeeded"


def later(orders, ms: int) -> list[ClaimedJob]:
    return orders.store.claim("host:1:w", f"later{ms}", want=9, lease_ms=30_000, max_crashes=3, now_ms=clock.wall_ms() + ms).jobs


@pytest.mark.parametrize("policy", ["replace", "earliest", "keep"])
def test_what_runs_is_neither_replaced_nor_moved(orders, loop, lost, policy):
    job, run = lost(key="k")
    if policy == "replace":
        with pytest.raises(KeyTaken):
            delayq.schedule(close_order, 2, key="k", on_conflict=policy)
    else:
        assert delayq.schedule(close_order, 2, key="k", on_conflict=policy).id == job.id
    assert later(orders, 4000) == []
    goes_on(orders, loop, run)


def test_what_runs_does_not_begin_at_once(orders, loop, lost):
    job, run = lost()
    assert job.run_now() is delayq.Change.RUNNING
    assert later(orders, 4000) == []
    goes_on(orders, loop, run)


def test_what_runs_is_asked_to_stop(orders, loop, lost):
    job, run = lost()
    assert job.cancel() is delayq.Change.RUNNING
    settle_down(orders, loop)
    assert adopted(orders, run)
    assert orders.store.extend([(run.id, run.fence)], worker="host:1:w", lease_ms=30_000) == {run.id: "cancel"}


def test_what_was_asked_to_stop_is_asked_again(orders, loop, wipe):
    job = delayq.schedule(close_order, 1)
    orders.claim()
    assert job.cancel() is delayq.Change.RUNNING
    orders.fold()
    wipe()
    settle_down(orders, loop)
    assert Job.objects.get().cancel_requested
    assert later(orders, 31_000) == []
    orders.fold()
    assert Job.objects.get().state == "cancelled"
    assert Attempt.objects.get().outcome == "crashed", "nobody tells of it any more"


def test_what_follows_waits_for_what_runs(orders, loop, wipe):
    job = delayq.schedule(close_order, 1, key="k")
    (run,) = orders.claim()
    orders.fold()
    follower = delayq.schedule(close_order, 2, key="k", on_conflict="after")
    wipe()
    orders.relay._young = -3600
    orders.relay.poll()
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "running"}
    assert adopted(orders, run)
    assert orders.settle(run, "ack") == "done"
    orders.fold()
    orders.relay.poll()
    assert in_redis(orders) == {ids.short(follower.id): "scheduled"}


def test_what_nobody_tells_of_is_begun_again_at_the_end_of_a_lease_and_counts_no_crash(orders, loop, lost):
    _, run = lost(max_attempts=1)
    settle_down(orders, loop)
    assert later(orders, 29_000) == []
    (again,) = later(orders, 31_000)
    assert (again.id, again.attempt, again.crashes) == (run.id, 1, 0)
    orders.fold()
    row = Job.objects.get()
    assert (row.state, row.attempts, row.crashes) == ("running", 1, 0)
    assert sorted(Attempt.objects.values_list("outcome", flat=True)) == ["crashed", "running"]
    assert not adopted(orders, run)


def test_a_second_wipe_finds_it_running_still(orders, loop, wipe, lost):
    job, run = lost()
    settle_down(orders, loop)
    wipe()
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "running"}
    goes_on(orders, loop, run)
