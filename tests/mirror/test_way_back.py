"""The one way back, and what people were told meanwhile: nothing that has ended rises, and no change that was answered is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count

import pytest

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror import checkpoint, reconcile_rows, restore
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Checkpoint, Event, Job
from django_delayq.producer.stores import stores
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)
START_MS = clock.wall_ms()
entries = count(7)


def told(job: delayq.Job, kind: str, *, run_at: datetime | None = None) -> None:
    """The change that a caller records in the row after Redis answered, although Redis has lost it since."""
    detail = {"run_at": run_at.isoformat()} if run_at else None
    Event.objects.create(
        job_id=job.id,
        queue="orders",
        at=clock.now(),
        kind=kind,
        actor="clerk",
        reason="paid",
        detail=detail,
        stream_id=f"{clock.wall_ms()}-{next(entries)}",  # two may come within one millisecond
    )
    changed = {"run_at": run_at} if run_at else {"state": "cancelled", "finished_at": clock.now()}
    Job.objects.filter(pk=job.id).update(**changed)


def looks(orders, loop: RestoreLoop, times: int = 4) -> None:
    for _ in range(times):
        loop.poll()
        orders.fold()


def until(loop: RestoreLoop, true: Callable[[], bool]) -> None:
    for _ in range(300):
        if true():
            return
        loop.poll()
    raise AssertionError("restore does not come that far")


def due_ms(job: delayq.Job) -> int:
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    return view.date_ms


def hours(number: int) -> datetime:
    """The same date whenever it is asked for."""
    return clock.from_ms((START_MS // 1000 + number * 3600) * 1000)


def test_rows_that_were_read_before_redis_was_wiped_once_more_raise_nothing(orders, loop, wipe, monkeypatch):
    """A restore has read its rows and stops. Another one restores the job, it runs, and Redis is wiped again."""
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    wipe()
    late = RestoreLoop(stores.link, orders.config, prefix="delayq")
    items, ran = late.items, []

    def stands_still(batch):
        found = items(batch)
        if found and not ran:
            stores.link.execute("HDEL", orders.mirror.log.keys["meta"], "restoring")  # as if it had been longer
            settle_down(orders, loop)
            job.run_now()
            ran.append(orders.settle(orders.claim()[0], "ack"))
            orders.fold()
            wipe()
            settle_down(orders, loop)
        return found

    monkeypatch.setattr(late, "items", stands_still)
    for _ in range(20):
        late.poll()
        orders.fold()
    assert ran == ["done"]
    assert in_redis(orders) == {}
    assert Job.objects.get(pk=job.id).state == "succeeded"


def test_a_cancel_that_was_told_to_an_old_primary_is_carried_over_after_the_new_one_was_confirmed(orders, loop, redis_server):
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    new_primary = snapshot(redis_server.link)
    assert job.cancel() is delayq.Change.DONE  # on the old one
    bring_back(redis_server.link, new_primary)
    looks(orders, loop)
    assert in_redis(orders) == {}
    assert Job.objects.get(pk=job.id).state == "cancelled"


def test_what_was_noted_beside_the_row_of_an_old_primary_s_answer_is_carried_over(orders, loop):
    cancelled = delayq.schedule(close_order, 1, delay="1h")
    moved = delayq.schedule(close_order, 2, delay="1h")
    settle_down(orders, loop)
    told(cancelled, "cancelled")
    told(moved, "rescheduled", run_at=hours(9))
    looks(orders, loop)
    assert in_redis(orders) == {ids.short(moved.id): "scheduled"}
    assert due_ms(moved) == clock.to_ms(hours(9)) == clock.to_ms(Job.objects.get(pk=moved.id).run_at)


def test_a_change_that_is_merely_not_folded_yet_is_not_sent_again(orders, loop):
    """Another job may have come after it."""
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    orders.store.reschedule(job.id, due_ms=clock.to_ms(hours(9)))
    told(job, "rescheduled", run_at=hours(9))
    Event.objects.filter(kind="rescheduled").update(stream_id=orders.mirror.log.last_id())
    loop.poll()
    last_ms = clock.to_ms(hours(5))
    orders.store.reschedule(job.id, due_ms=last_ms)
    for _ in range(5):  # without a mirror
        loop.poll()
    orders.fold()
    looks(orders, loop)
    assert due_ms(job) == last_ms


def test_a_server_that_has_a_change_is_not_told_of_it_again_when_it_takes_over(orders, loop, redis_server):
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    orders.store.reschedule(job.id, due_ms=clock.to_ms(hours(9)))
    told(job, "rescheduled", run_at=hours(9))
    Event.objects.filter(kind="rescheduled").update(stream_id=orders.mirror.log.last_id())
    orders.store.reschedule(job.id, due_ms=clock.to_ms(hours(5)))
    redis_server.link.execute("HSET", orders.mirror.log.keys["meta"], "server", "the one before")
    loop.poll()
    assert due_ms(job) == clock.to_ms(hours(5))


@pytest.mark.parametrize("kind", ["cancelled", "rescheduled"])
def test_a_change_of_which_redis_has_forgotten_the_event_counts_when_rows_come_back(orders, loop, redis_server, kind):
    """The old copy has an earlier event of the job, which the row folds after it heard of the change."""
    job = delayq.schedule(close_order, 1, delay=0)
    orders.fold()
    (run,) = orders.claim()
    settle_down(orders, loop)
    assert orders.settle(run, "retry", delay=3_600_000) == "done"
    told(job, kind, run_at=hours(9) if kind == "rescheduled" else None)
    redis_server.link.execute("HSET", orders.mirror.log.keys["meta"], "generation", "older")
    settle_down(orders, loop)
    row = Job.objects.get(pk=job.id)
    if kind == "cancelled":
        assert (row.state, in_redis(orders)) == ("cancelled", {})
    else:
        assert (row.run_at, due_ms(job)) == (hours(9), clock.to_ms(hours(9)))


def test_an_old_copy_of_an_earlier_generation_is_not_taken_for_a_new_store(orders, loop, wipe, redis_server):
    ended = delayq.schedule(close_order, 1, delay=0)
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    assert orders.settle(orders.claim()[0], "ack") == "done"
    orders.fold()
    wipe()
    settle_down(orders, loop)
    later = delayq.schedule(close_order, 2, delay="1h")
    settle_down(orders, loop)
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(later.id): "scheduled"}
    assert Job.objects.get(pk=ended.id).state == "succeeded"


def test_claims_go_on_when_what_is_due_is_back_and_the_rest_comes_oldest_first(orders, loop, wipe, monkeypatch):
    monkeypatch.setattr(reconcile_rows, "MOST", 1)
    monkeypatch.setattr(restore, "SLICE", 0.0)
    jobs = {number: delayq.schedule(close_order, number, run_at=hours(number)) for number in (4, -1, 2, -3, 3)}
    settle_down(orders, loop)
    before = Event.objects.count()
    wipe()

    def claims() -> list[str]:
        reply = orders.store.claim(
            "host:1:w",
            f"n{loop.progress.done}",
            want=9,
            lease_ms=30_000,
            max_crashes=3,
            wary=True,
            now_ms=clock.wall_ms() + 4000,
        )
        return sorted(job.id for job in reply.jobs)

    found = claims()
    assert found == []
    until(loop, lambda: bool(found.extend(claims()) or found))
    assert sorted(found) == sorted(ids.short(jobs[number].id) for number in (-1, -3))
    assert loop.progress.done < len(jobs)
    settle_down(orders, loop)
    order = list(Event.objects.filter(kind="restored").order_by("id").values_list("job_id", flat=True))[before:]
    assert order == [jobs[number].id for number in (-3, -1, 2, 3, 4)]


def test_a_restore_that_dies_when_claims_go_on_takes_nothing_back(orders, loop, wipe, monkeypatch):
    monkeypatch.setattr(reconcile_rows, "MOST", 1)
    monkeypatch.setattr(restore, "SLICE", 0.0)
    due = delayq.schedule(close_order, 1, delay=0)
    delayq.schedule_many(close_order.using(delay="1h").bind(number) for number in range(3))
    settle_down(orders, loop)
    wipe()
    meta = orders.mirror.log.keys["meta"]
    until(loop, lambda: stores.link.execute("HGET", meta, "rolled") == b"rest")
    reply = orders.store.claim("host:1:w", "n", want=9, lease_ms=30_000, max_crashes=3, now_ms=clock.wall_ms() + 4000)
    (run,) = reply.jobs
    stores.link.execute("HDEL", meta, "restoring")
    settle_down(orders, RestoreLoop(stores.link, orders.config, prefix="delayq"))
    assert orders.settle(run, "ack") == "done"
    orders.fold()
    assert Job.objects.get(pk=due.id).state == "succeeded"
    assert len(in_redis(orders)) == 3


def test_a_new_date_behind_what_is_back_already_is_not_passed_over(orders, loop, wipe, monkeypatch):
    """The row is given an earlier date, and whoever did it died before Redis had the job again."""
    monkeypatch.setattr(reconcile_rows, "MOST", 1)
    monkeypatch.setattr(restore, "SLICE", 0.0)
    jobs = [delayq.schedule(close_order, number, run_at=hours(number)) for number in (1, 2, 9)]
    settle_down(orders, loop)
    wipe()
    until(loop, lambda: ids.short(jobs[1].id) in in_redis(orders))
    told(jobs[2], "rescheduled", run_at=hours(0))
    settle_down(orders, loop)
    assert in_redis(orders).keys() == {ids.short(job.id) for job in jobs}


def test_a_checkpoint_of_nothing_needs_no_restore(orders, loop):
    Checkpoint.objects.all().delete()
    assert not checkpoint.needs_restore(*loop.look())


@pytest.fixture
def replaced(redis_server):
    """Lets another server take over, with a copy that is older than what is done here."""

    @contextmanager
    def replace(orders) -> Iterator[None]:
        copy = snapshot(redis_server.link)
        yield
        bring_back(redis_server.link, copy)
        meta = orders.mirror.log.keys["meta"]
        if redis_server.link.execute("HGET", meta, "server") is not None:
            redis_server.link.execute("HSET", meta, "server", "the one before")

    return replace


@pytest.mark.parametrize("due", [False, True])
@pytest.mark.parametrize("change", ["cancel", "reschedule"])
def test_a_change_on_a_wiped_server_that_was_replaced_before_it_was_confirmed_holds(orders, loop, wipe, replaced, change, due):
    """Data that no mirror has confirmed is new, but a copy of it may be older than what was answered."""
    delayq.schedule(close_order, 0, delay="1h")
    settle_down(orders, loop)
    wipe()
    job = delayq.schedule(close_order, 1, delay=0 if due else "1h")
    with replaced(orders):
        made = job.cancel() if change == "cancel" else job.reschedule(run_at=hours(9))
        assert made is delayq.Change.DONE
    settle_down(orders, loop)
    assert orders.claim() == []
    settle_down(orders, loop)
    if change == "cancel":
        assert ids.short(job.id) not in in_redis(orders)
        assert Job.objects.get(pk=job.id).state == "cancelled"
    else:
        assert due_ms(job) == clock.to_ms(hours(9)) == clock.to_ms(Job.objects.get(pk=job.id).run_at)


@pytest.mark.parametrize("change", ["cancel", "reschedule"])
def test_a_change_on_a_server_that_was_replaced_while_jobs_came_back_holds(orders, loop, wipe, replaced, monkeypatch, change):
    monkeypatch.setattr(reconcile_rows, "MOST", 1)
    monkeypatch.setattr(restore, "SLICE", 0.0)
    jobs = [delayq.schedule(close_order, number, run_at=hours(number)) for number in (2, 3, 4)]
    settle_down(orders, loop)
    wipe()
    until(loop, lambda: ids.short(jobs[0].id) in in_redis(orders))
    with replaced(orders):
        made = jobs[0].cancel() if change == "cancel" else jobs[0].reschedule(run_at=hours(9))
        assert made is delayq.Change.DONE
    stores.link.execute("HDEL", orders.mirror.log.keys["meta"], "restoring")  # as if it had been longer
    settle_down(orders, RestoreLoop(stores.link, orders.config, prefix="delayq"))
    assert in_redis(orders).keys() == {ids.short(job.id) for job in jobs[change == "cancel" :]}
    if change == "reschedule":
        assert due_ms(jobs[0]) == clock.to_ms(hours(9))


def test_a_new_date_holds_though_the_old_one_comes_before_the_new_server_is_confirmed(orders, loop, replaced):
    job = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    with replaced(orders):
        assert job.reschedule(run_at=hours(9)) is delayq.Change.DONE
    stores.link.execute("ZADD", orders.mirror.log.keys["normal"], clock.wall_ms() - 1, ids.short(job.id))  # an hour later
    settle_down(orders, loop)
    assert orders.claim() == []
    assert due_ms(job) == clock.to_ms(hours(9))
