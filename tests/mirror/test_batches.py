"""Batches: `then` is written once when all members have ended, however they ended."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import Error, connection, transaction
from django.test.utils import CaptureQueriesContext

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.mirror import mirror_loop
from django_delayq.mirror.batches import IDLE, BatchLoop
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.prune import OldOperationsLoop, PruneLoop
from django_delayq.models import Batch, Job, database
from django_delayq.producer import acts
from django_delayq.producer.batch import of_member
from django_delayq.producer.outbox import batches
from django_delayq.producer.stores import stores
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import close_order, ping

THEN = close_order.using(delay="1m").bind(0)


def made(*numbers: int, **options: Any) -> delayq.JobBatch:
    with delayq.batch(**{"then": THEN, **options}) as batch:
        batch.schedule_many(close_order.bind(number) for number in numbers)
    return batch


def run(orders, outcomes: dict[int, str] | None = None) -> None:
    """Runs the due jobs, each to this outcome, and folds."""
    for claimed in orders.claim():
        number = Job.objects.get(pk=ids.full(claimed.id)).args[0]
        orders.settle(claimed, (outcomes or {}).get(number, "ack"))
    orders.fold()


def follow_up_rows() -> list[Job]:
    return list(Job.objects.filter(args=[0]))


def test_the_follow_up_is_written_once_when_the_last_member_has_succeeded(orders):
    batch = made(1, 2, 3)
    (first, *rest) = orders.claim()
    orders.settle(first, "ack")
    orders.fold()
    assert (batch.state, batch.counts, batch.counts.total) == ("running", (1, 0, 0, 2), 3)
    assert follow_up_rows() == []
    for claimed in rest:
        orders.settle(claimed, "ack")
    entries = orders.mirror.log.read("0-0", 100)
    orders.fold()
    (row,) = follow_up_rows()
    assert (batch.state, batch.counts, batch.then.id) == ("succeeded", (3, 0, 0, 0), row.pk)
    assert (row.run_at - row.created_at).total_seconds() == 60
    orders.mirror._write(entries)
    assert batches.end() == []
    assert len(follow_up_rows()) == 1


@pytest.mark.parametrize("outcome", ["fail", "cancel"])
def test_a_batch_that_waits_for_the_end_does_not_ask_how(orders, outcome):
    batch = made(1, 2, when="ended")
    run(orders, {2: outcome})
    assert (batch.state, batch.counts.total, len(follow_up_rows())) == ("failed", 2, 1)


def test_a_batch_that_waits_for_success_waits_until_failed_members_were_put_back(orders):
    batch = made(1, 2)
    run(orders, {2: "fail"})
    assert (batch.state, batch.then, follow_up_rows()) == ("failed", None, [])
    delayq.requeue(Job.objects.get(state="failed").pk)
    orders.fold()
    assert batch.state == "running"
    run(orders)
    assert (batch.state, len(follow_up_rows())) == ("succeeded", 1)


def test_a_requeue_behind_the_follow_up_changes_nothing(orders):
    batch = made(1, 2, when="ended")
    run(orders, {2: "fail"})
    delayq.requeue(Job.objects.get(state="failed").pk)
    orders.fold()
    run(orders)
    BatchLoop().poll()
    assert (batch.counts, len(follow_up_rows())) == ((1, 1, 0, 0), 1)


def test_two_mirrors_that_end_the_last_members_at_once_write_one_follow_up(orders, monkeypatch):
    """Each looks after its commit. Here both look after both commits."""
    made(1, 2)
    looks = []
    monkeypatch.setattr(mirror_loop.batches, "end", lambda ended: looks.append(ended) or [])
    for claimed in orders.claim():
        orders.settle(claimed, "ack")
        orders.fold()
    monkeypatch.undo()
    assert [batches.end(ended) for ended in looks if ended][1:] == [[]]
    assert len(follow_up_rows()) == 1


def test_a_mirror_that_dies_before_it_looks_leaves_the_batch_to_the_loop(orders, monkeypatch):
    made(1)
    monkeypatch.setattr(mirror_loop.batches, "end", refuses)
    run(orders)
    assert follow_up_rows() == []
    monkeypatch.undo()
    handed: list[Any] = []
    assert BatchLoop(handed.extend).poll() == IDLE
    assert [due.id for due in handed] == [row.pk for row in follow_up_rows()]


def refuses(*_given: object) -> None:
    raise Error("no")


def test_a_process_that_dies_before_the_commit_leaves_the_batch_to_the_next(orders, monkeypatch):
    made(1)

    def dies(name: str) -> None:
        if name == "batches.end":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(batches, "failpoint", dies)
        run(orders)
    assert follow_up_rows() == []
    BatchLoop().poll()
    assert len(follow_up_rows()) == 1


def test_the_last_member_may_end_without_an_event(orders):
    batch = made(1, 2, when="ended")
    first, second = Job.objects.order_by("id")
    acts.cancel(first.pk)
    Job.objects.filter(pk=second.pk).update(published=None, ending="unknown")
    acts.mark_failed(second.pk)
    orders.fold()
    BatchLoop().poll()
    assert (batch.counts, len(follow_up_rows())) == ((0, 1, 1, 0), 1)


def test_a_batch_without_members_has_ended(orders):
    batch = made()
    BatchLoop().poll()
    assert (batch.state, len(follow_up_rows())) == ("succeeded", 1)


def test_an_error_in_the_block_leaves_nothing(orders):
    with pytest.raises(ValueError, match="no"), delayq.batch(THEN) as batch:
        batch.schedule(close_order, 1)
        raise ValueError("no")
    assert not Job.objects.exists()
    assert not Batch.objects.exists()
    assert orders.claim() == []
    with pytest.raises(delayq.ConfigError, match="no batch"):
        _ = batch.state


def test_a_rollback_of_the_caller_leaves_nothing(orders):
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        made(1)
        raise ValueError("no")
    assert not Job.objects.exists()
    assert not Batch.objects.exists()


def test_a_merged_job_is_no_member(orders):
    delayq.schedule(close_order, 9, key="k", delay="1h")
    with delayq.batch(THEN) as batch:
        batch.schedule(close_order, 1)
        merged = batch.schedule(close_order, 2, key="k")
    assert merged.created is False
    run(orders)
    assert (batch.counts, len(follow_up_rows())) == ((1, 0, 0, 0), 1)


def test_a_replaced_member_was_cancelled(orders):
    with delayq.batch(THEN, when="ended") as batch:
        batch.schedule(close_order, 1, key="k", delay="1h")
    delayq.schedule(close_order, 9, key="k", delay="1h", on_conflict="replace")
    orders.fold()
    assert (batch.counts, len(follow_up_rows())) == ((0, 0, 1, 0), 1)


def test_a_member_adds_members_while_it_runs(orders):
    batch = made(1)
    (claimed,) = orders.claim()
    mine = of_member(ids.full(claimed.id), lambda: None)
    assert mine.id == batch.id
    mine.schedule_many([close_order.bind(2)])
    orders.settle(claimed, "ack")
    orders.fold()
    assert (batch.counts, follow_up_rows()) == ((1, 0, 0, 1), [])
    run(orders)
    assert (batch.counts, len(follow_up_rows())) == ((2, 0, 0, 0), 1)


def test_a_run_that_lost_its_job_adds_no_members(orders):
    made(1)

    def lost() -> None:
        raise delayq.LeaseLost("lost")

    with pytest.raises(delayq.LeaseLost):
        of_member(Job.objects.get().pk, lost).schedule(close_order, 2)
    assert Job.objects.count() == 1


def test_members_come_from_the_block_or_a_member(orders):
    batch = made(1)
    with pytest.raises(delayq.ConfigError, match="with block"):
        batch.schedule(close_order, 2)
    with pytest.raises(delayq.ConfigError, match="with block"):
        delayq.get_batch(batch.id).schedule(close_order, 2)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"then": close_order}, "then=task.bind"),
        ({"when": "failed"}, "when='failed' must be one of"),
        ({"then": ping.bind()}, "requires durability='outbox'"),
        ({"key": "a\nb"}, "control character"),
    ],
)
def test_what_no_batch_can_be_is_refused(orders, given, why):
    with pytest.raises(delayq.DelayqError, match=why):
        made(1, **given)
    assert not Batch.objects.exists()


def test_a_member_without_a_row_is_refused(orders):
    with pytest.raises(delayq.ConfigError, match="a member of a batch requires durability='outbox'"), delayq.batch() as batch:
        batch.schedule(ping)
    assert not Batch.objects.exists()


def test_a_key_belongs_to_one_batch_until_it_is_over(orders):
    batch = made(1, key="run:7")
    with pytest.raises(delayq.KeyTaken) as caught:
        made(2, key="run:7")
    assert caught.value.holder == batch.id
    assert Job.objects.count() == 1
    assert (delayq.get_batch(key="run:7").id, delayq.get_batch(key="RUN:7")) == (batch.id, None)
    run(orders)
    assert made(3, key="run:7").id == delayq.get_batch(key="run:7").id != batch.id


def test_a_batch_needs_no_follow_up(orders):
    batch = made(1, then=None)
    run(orders)
    assert (batch.state, batch.then, Job.objects.count()) == ("succeeded", None, 1)


def test_members_of_an_open_batch_keep_their_rows(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "failures", "RETENTION": dict.fromkeys(("succeeded", "failed"), "1s")}
    mirror = MirrorLoop(stores.link, conf.get().queue("orders"), prefix="delayq")
    batch = made(1, 2)
    for claimed, outcome in zip(orders.claim(), ("ack", "fail"), strict=True):
        orders.settle(claimed, outcome)
    mirror.drain()
    Job.objects.update(finished_at=database.ago(100))
    prune = PruneLoop(stores.places, conf.get().queue("orders"))
    assert (prune.prune(), batch.counts) == (0, (1, 1, 0, 0))
    OldOperationsLoop(stores.places, conf.get()).prune()  # nobody has put the failed member back
    assert (batch.counts, batch.state, batch.then) == ((1, 1, 0, 0), "failed", None)
    assert prune.prune() == 2
    Batch.objects.update(over_at=database.ago(100))
    OldOperationsLoop(stores.places, conf.get()).prune()
    assert not Batch.objects.exists()


def test_a_failed_member_that_was_erased_lets_no_batch_succeed(orders):
    batch = made(1, 2)
    run(orders, {2: "fail"})
    gone = [Job.objects.get(state="failed").pk]
    batches.forget(gone)
    Job.objects.filter(pk__in=gone).delete()
    BatchLoop().poll()
    assert (batch.state, follow_up_rows()) == ("cancelled", [])


def test_a_cancel_ends_all_members_and_the_follow_up(orders):
    batch = made(*range(1, 6), key="run:7")
    running = orders.claim(2)
    orders.fold()
    assert batch.cancel(actor="ada", reason="wrong month") == "pending"
    assert BatchLoop().poll() == 0.0
    assert BatchLoop().poll() == IDLE
    assert (batch.counts, batch.state) == ((0, 0, 3, 2), "running")
    assert {row.error for row in Job.objects.filter(state="cancelled")} == {"wrong month"}
    assert Job.objects.filter(cancel_requested=True).count() == 2
    for claimed in running:
        orders.settle(claimed, "cancel")
    orders.fold()
    assert (batch.counts, batch.state, batch.then) == ((0, 0, 5, 0), "cancelled", None)
    assert batch.cancel() == "finished"
    made(6, key="run:7")


def test_a_member_that_is_added_behind_a_cancel_is_cancelled_too(orders):
    batch = made(1)
    (claimed,) = orders.claim()
    batch.cancel()
    BatchLoop().poll()
    of_member(ids.full(claimed.id), lambda: None).schedule(close_order, 2)
    BatchLoop().poll()
    orders.settle(claimed, "ack")
    orders.fold()
    BatchLoop().poll()
    assert (batch.counts, batch.state, follow_up_rows()) == ((1, 0, 1, 0), "cancelled", [])


def test_a_cancel_without_redis_waits_for_it(orders, redis_away):
    batch = made(1)
    redis_away()
    assert batch.cancel() == "pending"
    BatchLoop().poll()
    redis_away(False)
    while BatchLoop().poll() == 0.0:
        pass
    BatchLoop().poll()
    assert batch.state == "cancelled"


def test_a_cancel_is_part_of_the_transaction(orders):
    batch = made(1)
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        batch.cancel()
        raise ValueError("no")
    BatchLoop().poll()
    assert batch.state == "running"


def test_a_member_that_a_person_must_resolve_keeps_the_loop_at_rest(orders):
    batch = made(1)
    Job.objects.update(published=None, ending="unknown")
    batch.cancel()
    assert BatchLoop().poll() == IDLE
    assert batch.state == "running"


def test_a_wipe_in_the_middle_changes_nothing(loop, orders, wipe):
    batch = made(1, 2)
    (first, _) = orders.claim()
    orders.settle(first, "ack")
    orders.fold()
    wipe()
    settle_down(orders, loop)
    for claimed in orders.claim(ahead_ms=60_000):  # one is running, as far as its row says
        orders.settle(claimed, "ack")
    orders.fold()
    assert (batch.counts, len(follow_up_rows())) == ((2, 0, 0, 0), 1)


def test_far_members_count_as_others(horizon):
    with delayq.batch(THEN, when="ended") as batch:
        batch.schedule(close_order, 1, delay="2h")
        batch.schedule(close_order, 2, delay="2h", key="k")
    assert batch.counts.left == 2
    for row in Job.objects.all():
        acts.cancel(row.pk)
    BatchLoop().poll()
    assert (batch.counts, len(follow_up_rows())) == ((0, 0, 2, 0), 1)


def test_other_jobs_pay_nothing(orders):
    delayq.schedule(close_order, 1)
    orders.settle(orders.claim()[0], "ack")
    with CaptureQueriesContext(connection) as queries:
        orders.fold()
    asked = "".join(query["sql"] for query in queries)
    assert "delayq_job" in asked
    assert "delayq_batch" not in asked
    assert "FOR UPDATE" not in asked
