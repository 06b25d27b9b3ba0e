"""The one road from row to Redis, whatever breaks on it: what was answered is what happens."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.models import Checkpoint, Event, Job, Step
from django_delayq.producer.outbox import jobs
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.recovery import ADOPTION_MS, EpochStore, RestoreItem
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.tasks_for_tests import close_order, ping

pytestmark = pytest.mark.django_db(transaction=True)


class Gone(Exception):
    """The web process dies here."""


def relayed(orders) -> None:
    """As the service does, until nothing is left."""
    orders.relay._young = -3600
    for _ in range(6):
        orders.fold()
        orders.relay.poll()
    orders.fold()


def due_in(job: delayq.Job) -> float:
    view = stores.inspector().job("orders", job.id)
    assert view is not None, "Redis does not have it"
    return (view.date_ms - view.now_ms) / 1000


def ran(orders) -> list[int]:
    """The numbers of the orders that run when all due jobs are claimed."""
    numbers = []
    for claimed in orders.claim():
        numbers.append(int(claimed.record.partition(b"\n")[2].strip(b"[]").split(b",")[0]))
        orders.settle(claimed, "ack")
    return numbers


# --- what changes a row before it is in Redis ---


@pytest.mark.parametrize(("change", "wanted"), [({"delay": "1h"}, 3600), ({"delay": 0}, 0)], ids=["later", "now"])
def test_a_job_moved_in_the_transaction_that_schedules_it_has_the_new_date(orders, change, wanted):
    with transaction.atomic():
        job = delayq.schedule(close_order, 7, delay="10m")
        assert job.reschedule(**change) is delayq.Change.DONE
    assert abs(due_in(job) - wanted) < 5
    orders.fold()
    assert abs((Job.objects.get().run_at - clock.now()).total_seconds() - wanted) < 5


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_job_cancelled_in_the_transaction_that_schedules_it_does_not_run(orders, durability):
    with transaction.atomic():
        job = delayq.schedule(close_order, 7, durability=durability)
        assert delayq.cancel(job.id) is delayq.Change.DONE
        assert job.cancel() is delayq.Change.DONE, "asked once more"
    assert orders.claim() == []
    relayed(orders)
    assert orders.claim() == []


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_change_that_its_savepoint_takes_back_has_not_happened(orders, durability):
    with transaction.atomic():
        cancelled = delayq.schedule(close_order, 1, durability=durability, delay="10m")
        moved = delayq.schedule(close_order, 2, durability=durability, delay="10m")
        with pytest.raises(Gone), transaction.atomic():
            assert cancelled.cancel() is delayq.Change.DONE
            assert moved.reschedule(delay="2h") is delayq.Change.DONE
            raise Gone
    assert abs(due_in(cancelled) - 600) < 5
    assert abs(due_in(moved) - 600) < 5


def test_a_job_moved_between_commit_and_publication_has_the_new_date(orders, unpublished):
    job = unpublished(delay="10m")
    assert delayq.reschedule(job.id, delay="1h") is delayq.Change.DONE
    assert abs(due_in(job) - 3600) < 5
    unpublished.later[0]()
    assert abs(due_in(job) - 3600) < 5
    relayed(orders)
    assert abs(due_in(job) - 3600) < 5


def test_a_job_that_begins_at_once_when_it_is_moved_before_its_publication_was_moved(orders, unpublished, monkeypatch):
    job, publish = unpublished(delay="10m"), Publisher.publish_rows

    def and_claimed(publisher, *rows, **options):
        published = publish(publisher, *rows, **options)
        assert [claimed.id for claimed in orders.claim()] == [ids.short(job.id)]
        return published

    monkeypatch.setattr(Publisher, "publish_rows", and_claimed)
    assert delayq.run_now(job.id) is delayq.Change.DONE


def test_a_job_cancelled_between_commit_and_publication_does_not_run(orders, unpublished):
    job = unpublished()
    assert delayq.cancel(job.id) is delayq.Change.DONE
    unpublished.later[0]()
    relayed(orders)
    assert orders.claim() == []
    assert Job.objects.get().state == "cancelled"


# --- by key ---


def test_a_cancel_by_key_reaches_every_row_of_the_key(orders, unpublished, lost_reply):
    jobs = []
    for number in range(3):  # Redis hangs
        stores.reset()
        lost_reply(1)
        jobs.append(unpublished(number, key="o:7"))
    stores.reset()
    assert delayq.cancel(key="o:7", queue="orders") is delayq.Change.DONE
    relayed(orders)
    for publish in unpublished.later:
        publish()
    assert orders.claim() == []
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}
    assert len(jobs) == 3


def test_a_cancel_by_key_reaches_the_holder_and_the_rows_behind_it(orders, unpublished):
    delayq.schedule(close_order, 1, delay="1h", key="o:7")
    unpublished(2, key="o:7")
    assert delayq.cancel(key="o:7", queue="orders") is delayq.Change.DONE
    relayed(orders)
    assert in_redis(orders) == {}


def test_a_move_by_key_reaches_a_row_that_redis_does_not_have(orders, unpublished):
    job = unpublished(key="o:7")
    assert delayq.reschedule(key="o:7", queue="orders", delay="1h") is delayq.Change.DONE
    relayed(orders)
    assert abs(due_in(job) - 3600) < 5


def test_while_redis_hangs_a_committed_row_holds_its_key(orders, unpublished, lost_reply):
    first = unpublished(1, key="o:7")
    lost_reply(1)
    stores.reset()
    second = delayq.schedule(close_order, 2, key="o:7")
    assert (second.id, second.created) == (first.id, False)
    stores.reset()
    lost_reply(1)
    with pytest.raises(delayq.KeyTaken):
        delayq.schedule(close_order, 2, key="o:7", on_conflict="error")


def test_while_redis_hangs_a_published_row_swallows_nothing(orders, lost_reply):
    first = delayq.schedule(close_order, 1, key="o:7")
    orders.fold()
    orders.settle(orders.claim()[0], "ack")  # the row has not heard
    stores.reset()
    lost_reply(1)
    second = delayq.schedule(close_order, 2, key="o:7")
    assert second.id != first.id
    assert second.created is None, "the script decides, when it is published"
    stores.reset()
    relayed(orders)
    assert ran(orders) == [2]


def test_a_key_is_decided_at_the_commit(orders):
    first = delayq.schedule(close_order, 1, key="o:7")
    with transaction.atomic():
        second = delayq.schedule(close_order, 2, key="o:7")
        assert second.created is None
        orders.settle(orders.claim()[0], "ack")
    assert (second.created, second.id == first.id) == (True, False)
    assert ran(orders) == [2]


def test_what_is_merged_before_it_is_written_leaves_nothing(orders):
    first = delayq.schedule(close_order, 1, key="o:7", delay="1h")
    orders.fold()
    events = Event.objects.count()
    for number in range(20):
        moved = delayq.schedule(close_order, number, key="o:7", delay=f"{2 + number}h", on_conflict="latest")
        assert (moved.id, moved.created) == (first.id, False)
    orders.fold()
    assert abs(due_in(first) - 21 * 3600) < 5
    assert Job.objects.count() == 1
    assert stores.link.execute("ZCARD", orders.store.keys["finished"]) == 0
    assert events == 0


def test_a_row_that_is_merged_says_into_what_and_its_id_stands_for_that(orders):
    first = delayq.schedule(close_order, 1, key="o:7", delay="1h")
    with transaction.atomic():
        second = delayq.schedule(close_order, 2, key="o:7", delay="1h")
        stored = second.id
    assert second.id == first.id
    row = Job.objects.get(pk=stored)
    assert (row.state, row.ending, row.merged_into) == ("cancelled", "merged", first.id)
    assert delayq.cancel(stored) is delayq.Change.DONE, "the job that took it in"
    assert in_redis(orders) == {}


def test_a_job_that_was_replaced_answers_finished(orders):
    first = delayq.schedule(close_order, 1, key="o:7", delay="1h")
    second = delayq.schedule(close_order, 2, key="o:7", delay="1h", on_conflict="replace")
    assert delayq.cancel(first.id) is delayq.Change.FINISHED
    assert second.state == "scheduled"
    orders.fold()
    assert delayq.cancel(first.id) is delayq.Change.FINISHED


# --- once more after a running holder ---


def test_after_runs_once_more_behind_a_running_holder(orders):
    delayq.schedule(close_order, 1, key="o:7")
    [claimed] = orders.claim()
    behind = delayq.schedule(close_order, 2, key="o:7", on_conflict="after")
    assert behind.created is True
    newest = delayq.schedule(close_order, 3, key="o:7", on_conflict="after", delay="1h")
    relayed(orders)
    assert orders.claim() == []
    found = delayq.get(key="o:7", queue="orders")
    assert found is not None
    assert ids.short(found.id) == claimed.id, "the key names the running one"
    orders.settle(claimed, "retry", delay=0)
    relayed(orders)
    [again] = orders.claim()
    assert again.id == claimed.id, "a retry is no end"
    orders.settle(again, "ack")
    relayed(orders)
    assert ran(orders) == [3], "the last arguments, at the earlier date"
    relayed(orders)
    assert sorted(Job.objects.values_list("state", "ending")) == [
        ("cancelled", "replaced"),
        ("succeeded", None),
        ("succeeded", None),
    ]
    assert delayq.get(newest.id).state == "succeeded"


def test_after_a_waiting_holder_the_new_arguments_count_at_the_earlier_date(orders):
    delayq.schedule(close_order, 1, key="o:7", delay="10m")
    job = delayq.schedule(close_order, 2, key="o:7", delay="1h", on_conflict="after")
    assert job.created is True
    assert abs(due_in(job) - 600) < 5
    assert len(in_redis(orders)) == 1


def test_a_cancel_by_key_ends_the_running_one_and_the_one_behind_it(orders):
    delayq.schedule(close_order, 1, key="o:7")
    [claimed] = orders.claim()
    delayq.schedule(close_order, 2, key="o:7", on_conflict="after")
    orders.fold()
    assert delayq.cancel(key="o:7", queue="orders") is delayq.Change.RUNNING
    orders.settle(claimed, "retry")
    relayed(orders)
    assert orders.claim() == []


def test_after_needs_a_row():
    with pytest.raises(delayq.ConfigError, match="waits as a row"):
        delayq.schedule(ping, key="k", on_conflict="after", durability="redis")


# --- who comes late ---


def test_an_older_job_that_comes_late_does_not_replace_a_newer_one(orders, unpublished):
    unpublished(1, key="price", on_conflict="replace")
    newer = delayq.schedule(close_order, 2, key="price", on_conflict="replace", delay="1h")
    assert newer.created is True
    relayed(orders)
    assert delayq.run_now(newer) is delayq.Change.DONE
    assert ran(orders) == [2]
    assert orders.claim() == []


@pytest.mark.parametrize("way", ["in a transaction", "alone"])
def test_an_older_job_does_not_run_behind_the_one_that_replaced_it(orders, loop, unpublished, way):
    delayq.schedule(close_order, 0, delay="9h")
    settle_down(orders, loop)
    unpublished(1, key="price", on_conflict="replace")
    if way == "alone":
        delayq.schedule(close_order, 2, key="price", on_conflict="replace")
    else:
        with transaction.atomic():
            delayq.schedule(close_order, 2, key="price", on_conflict="replace")
    assert ran(orders) == [2]
    relayed(orders)
    assert ran(orders) == []


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_an_older_job_that_comes_late_does_not_move_a_newer_one(orders, loop, unpublished, policy):
    delayq.schedule(close_order, 0, delay="9h")
    settle_down(orders, loop)  # Redis is known to have all
    unpublished(1, key="o:7", on_conflict=policy, delay="5h" if policy == "latest" else "1s")
    newer = delayq.schedule(close_order, 2, key="o:7", delay="1h", durability="redis")  # which asks no rows
    relayed(orders)
    assert abs(due_in(newer) - 3600) < 5


def test_which_is_older_says_the_database_and_not_the_clock_of_a_web_host(orders, unpublished, monkeypatch):
    unpublished(1, key="price", on_conflict="replace")
    with monkeypatch.context() as patch:
        patch.setattr(clock, "wall_ms", lambda: clock.to_ms(datetime.now(UTC)) - 600_000)
        patch.setattr(ids, "new", lambda: ids.full("0351" + "0" * 18))  # an id of long ago
        with transaction.atomic():
            newer = delayq.schedule(close_order, 2, key="price", on_conflict="replace", delay="1h")
    relayed(orders)
    assert list(in_redis(orders)) == [ids.short(newer.id)]


# --- clocks ---


@pytest.mark.parametrize("skew", [-600, 3600], ids=["behind", "ahead"])
def test_the_clock_of_a_web_host_decides_no_date(orders, unpublished, monkeypatch, skew):
    drawn = [ids.new() for _ in range(2)]  # which would go by that clock, too, and go on from there
    with monkeypatch.context() as patch:
        patch.setattr(clock, "wall_ms", lambda: clock.to_ms(datetime.now(UTC)) + skew * 1000)
        patch.setattr(ids, "new", drawn.pop)
        job = unpublished(delay="10m")
        expiring = delayq.schedule(close_order, 8, delay="10m", expires="20m")
    relayed(orders)
    assert abs(due_in(job) - 600) < 5
    record = stores.inspector().job("orders", expiring.id).record
    assert abs(record.expires_ms - clock.wall_ms() - 1_200_000) < 5_000


# --- lost replies ---


def test_a_schedule_whose_answer_is_lost_is_one_job(orders, lost_reply):
    stores.epoch("orders", 0)
    lost_reply(1)
    job = delayq.schedule(close_order, 7, durability="redis")
    assert job.created is True
    assert list(in_redis(orders)) == [ids.short(job.id)]


def test_the_first_job_of_a_process_waits_for_a_silent_server_twice(orders, lost_reply, monkeypatch):
    delayq.schedule(close_order, 6, durability="redis")  # so Redis has the scripts
    lost_reply(9)
    receive, waits = Link._receive, []
    monkeypatch.setattr(Link, "_receive", lambda *given: waits.append(1) or receive(*given))
    stores.forget()
    with pytest.raises(delayq.StoreUnavailable):
        delayq.schedule(close_order, 7, durability="redis")
    assert len(waits) == 2
    assert stores.breaker.open_until > clock.monotonic()


def test_a_schedule_that_may_have_happened_says_of_which_job(orders, lost_reply):
    stores.epoch("orders", 0)
    lost_reply(2)
    with pytest.raises(delayq.StoreUnavailable, match="makes another job") as trouble:
        delayq.schedule(close_order, 7, durability="redis")
    [id] = trouble.value.jobs
    stores.reset()
    assert delayq.get(id, queue="orders") is not None


def test_a_cancel_whose_answer_is_lost_answers_done_when_it_is_asked_again(orders, loop, wipe, lost_reply):
    job = delayq.schedule(close_order, 7, delay="1h")
    orders.fold()
    lost_reply(1)
    with pytest.raises(delayq.StoreUnavailable):
        job.cancel()
    assert job.cancel() is delayq.Change.DONE
    assert Job.objects.get().state == "cancelled"
    assert job.cancel() is delayq.Change.DONE, "at any age"
    wipe()
    settle_down(orders, loop)
    assert in_redis(orders) == {}, "a cancel that was answered is not undone"


def test_a_move_whose_answer_is_lost_is_told_to_the_row_when_it_is_asked_again(orders, lost_reply):
    job = delayq.schedule(close_order, 7, delay="10m")
    lost_reply(1)
    with pytest.raises(delayq.StoreUnavailable):
        job.reschedule(delay="1h")
    assert job.reschedule(delay="1h") is delayq.Change.DONE
    assert abs((Job.objects.get().run_at - clock.now()).total_seconds() - 3600) < 5


def test_a_cancel_tries_though_a_schedule_has_failed_a_moment_ago(orders):
    job = delayq.schedule(close_order, 7, delay="1h")
    with pytest.raises(delayq.StoreUnavailable), stores.guarded(schedules=True):
        raise delayq.StoreUnavailable("one slow second")
    assert job.cancel() is delayq.Change.DONE


# --- what Redis has lost ---


@pytest.mark.parametrize("by", ["id", "key"])
@pytest.mark.parametrize("before", ["folded", "not folded"])
def test_a_cancel_right_behind_a_wipe_holds(orders, loop, wipe, by, before):
    job = delayq.schedule(close_order, 7, key="o:7", delay="1s")
    if before == "folded":
        orders.fold()
    wipe()
    assert (job.cancel() if by == "id" else delayq.cancel(key="o:7", queue="orders")) is delayq.Change.DONE
    clock.sleep(1.0)
    settle_down(orders, loop)
    relayed(orders)
    assert orders.claim() == []
    assert Job.objects.get().state == "cancelled"


def test_a_due_job_right_behind_a_wipe_may_be_running_and_does_not_begin_when_it_is_not(orders, loop, wipe):
    job = delayq.schedule(close_order, 7)
    orders.fold()
    wipe()
    assert job.cancel() is delayq.Change.RUNNING  # the worker that runs it would report it
    assert job.reschedule(delay="1h") is delayq.Change.RUNNING
    settle_down(orders, loop)
    assert job.cancel() is job.run_now() is delayq.Change.RUNNING  # the worker that runs it may not know of the loss yet
    assert orders.claim(ahead_ms=ADOPTION_MS + 1000) == []
    orders.fold()
    assert Job.objects.get().state == "cancelled"


def test_a_due_job_that_came_back_is_cancelled_when_no_lease_of_before_can_stand(orders, loop, wipe):
    job = delayq.schedule(close_order, 7)
    later = delayq.schedule(close_order, 8, delay="1h")
    orders.fold()
    wipe()
    settle_down(orders, loop)
    assert later.cancel() is delayq.Change.DONE  # it was not due, so no worker had claimed it
    assert job.cancel() is delayq.Change.RUNNING
    meta = orders.mirror.log.keys["meta"]
    until = int(stores.link.execute("HGET", meta, "brought_back").split()[1])
    assert 25_000 < until - clock.wall_ms() <= 30_000, "a lease"
    change = orders.store.cancel(job.id, now_ms=until).change
    assert change is delayq.Change.DONE


def test_a_cancel_of_what_runs_unknown_to_redis_and_rows_is_asked_of_the_run(orders, loop, wipe):
    job = delayq.schedule(close_order, 7)
    orders.fold()
    [held] = orders.claim()
    wipe()  # before the mirror has heard of the claim
    assert job.cancel(actor="clerk") is delayq.Change.RUNNING
    item = RestoreItem(id=held.id, record=held.record, attempt=held.attempt, crashes=0, fence=held.fence, delay_ms=30_000)
    assert EpochStore(orders.store).adopt([item], worker="host:1:w", epoch=held.epoch)[1] == ["adopted"]
    settle_down(orders, loop)
    assert stores.inspector().job("orders", job.id).cancel_by == "clerk"
    assert orders.settle(held, "ack") == "done"
    orders.fold()
    assert Job.objects.get().state == "succeeded"


def test_a_cancel_by_key_reaches_rows_that_have_not_heard_that_they_were_replaced(orders, loop, wipe):
    for number in range(3):
        delayq.schedule(close_order, number, key="o:7", delay="1s", on_conflict="after")
    assert delayq.cancel(key="o:7", queue="orders") is delayq.Change.DONE
    wipe()  # and the events of the replaced ones
    clock.sleep(1.0)
    settle_down(orders, loop)
    relayed(orders)
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


@pytest.mark.parametrize("by", ["id", "key"])
def test_a_move_right_behind_a_wipe_holds(orders, loop, wipe, by):
    job = delayq.schedule(close_order, 7, key="o:7", delay="10m")
    orders.fold()
    wipe()
    target = {"job": job} if by == "id" else {"key": "o:7", "queue": "orders"}
    assert delayq.reschedule(**target, delay="1h") is delayq.Change.DONE
    settle_down(orders, loop)
    assert abs(due_in(job) - 3600) < 5
    assert abs((Job.objects.get().run_at - clock.now()).total_seconds() - 3600) < 5


def test_run_now_right_behind_a_wipe_holds(orders, loop, wipe):
    job = delayq.schedule(close_order, 7, delay="1h")
    orders.fold()
    wipe()
    assert job.run_now() is delayq.Change.DONE
    settle_down(orders, loop)
    assert due_in(job) <= 0


def test_a_key_is_still_held_right_behind_a_wipe(orders, loop, wipe):
    first = delayq.schedule(close_order, 7, key="o:7", delay="1h")
    orders.fold()
    wipe()
    assert delayq.get(key="o:7", queue="orders").id == first.id
    second = delayq.schedule(close_order, 8, key="o:7")
    assert (second.id, second.created) == (first.id, False)
    settle_down(orders, loop)
    assert list(in_redis(orders)) == [ids.short(first.id)]


@pytest.mark.parametrize("act", ["cancel", "reschedule", "run_now"])
def test_a_change_that_redis_rolls_back_holds(orders, loop, redis_server, act):
    job = delayq.schedule(close_order, 7, delay="30m")
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    delayq.schedule(close_order, 8, delay="9h")  # what the copy does not know
    settle_down(orders, loop)
    assert getattr(job, act)(**({"delay": "2h"} if act == "reschedule" else {})) is delayq.Change.DONE
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    if act == "cancel":
        assert ids.short(job.id) not in in_redis(orders)
        assert Job.objects.get(pk=job.id).state == "cancelled"
    else:
        assert abs(due_in(job) - (7200 if act == "reschedule" else 0)) < 10


@pytest.mark.parametrize("act", ["cancel", "reschedule"])
def test_a_replaced_server_does_not_answer_done(orders, loop, own_redis, settings, act):
    """Another one was confirmed meanwhile, and this process still speaks to the one before."""
    job = delayq.schedule(close_order, 7, delay="1h")
    settle_down(orders, loop)
    here = loop.look()[0].server
    Checkpoint.objects.update(servers=f"another {here}")
    with pytest.raises(delayq.StoreUnavailable, match="replaced by another"):
        getattr(job, act)(**({"delay": "2h"} if act == "reschedule" else {}))


def test_what_redis_says_of_an_end_counts_and_not_a_row_that_is_behind(orders):
    job = delayq.schedule(close_order, 7, delay="1h")
    assert job.cancel() is delayq.Change.DONE
    assert job.requeue() is delayq.Change.DONE
    (claimed,) = orders.claim()
    orders.settle(claimed, "fail")
    assert job.cancel() is delayq.Change.FINISHED
    orders.fold()
    assert Job.objects.get().state == "failed"


@pytest.mark.parametrize("folded", [False, True], ids=["before the mirror", "behind the mirror"])
def test_an_atomic_job_that_redis_forgot_is_not_cancelled_when_it_has_run(orders, loop, wipe, monkeypatch, folded):
    job = delayq.schedule(close_order, 7)
    (claimed,) = orders.claim()
    Step.objects.create(job_id=job.id, name="", fence=claimed.fence, at=clock.now(), result="paid")
    wipe()  # before the mirror has heard of it
    if folded:
        tell = jobs.apply
        monkeypatch.setattr(jobs, "apply", lambda *told: (orders.fold(), tell(*told))[1])
    assert job.cancel() is delayq.Change.FINISHED
    assert job.cancel() is delayq.Change.FINISHED
    orders.fold()
    row = Job.objects.get()
    assert (row.state, row.result) == ("succeeded", "paid")


def test_a_cancel_in_a_transaction_that_is_rolled_back_holds(orders):
    job = delayq.schedule(close_order, 7)
    with pytest.raises(Gone), transaction.atomic():
        assert job.cancel() is delayq.Change.DONE
        raise Gone
    assert orders.claim() == []
    orders.fold()
    assert Job.objects.get().state == "cancelled"


@pytest.mark.parametrize("end", ["ack", "cancel"])
def test_what_is_published_late_behind_a_wipe_does_not_raise_what_has_ended(orders, loop, wipe, unpublished, end):
    job = unpublished()
    relayed(orders)
    if end == "ack":
        assert ran(orders) == [7]
    else:
        assert job.cancel() is delayq.Change.DONE
    orders.fold()
    wipe()
    settle_down(orders, loop)
    unpublished.later[0]()
    assert orders.claim() == []
    orders.fold()
    assert Job.objects.get().state == ("succeeded" if end == "ack" else "cancelled")


def test_an_expiry_before_the_date_is_refused():
    with pytest.raises(delayq.ConfigError, match="could never run"):
        delayq.schedule(close_order, 7, delay="1h", expires="1s")
