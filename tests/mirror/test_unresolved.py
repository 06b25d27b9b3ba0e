"""A job that has ended without an event of this site is read as neither success nor failure."""

from __future__ import annotations

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, conf, signals
from django_delayq.exceptions import KeyTaken, ResultGone
from django_delayq.mirror import reconcile_rows
from django_delayq.mirror.prune import PruneLoop
from django_delayq.models import Event, Job, Step
from django_delayq.producer import acts
from django_delayq.producer.stores import stores
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import close_order

KEY = {"key": "o:7", "queue": "orders"}
END = {"ack": "succeeded", "fail": "failed", "cancel": "cancelled"}


@pytest.fixture
def unresolved(orders, unpublished):
    """Runs a job whose row has heard nothing, loses all events of it, and lets the relay look."""
    orders.relay._young = -3600

    def make(outcome: str = "ack", **options) -> delayq.Job:
        job = unpublished(**options)
        orders.relay.poll()
        orders.settle(orders.claim()[0], outcome)
        stores.link.execute("UNLINK", orders.store.keys["events"])
        for _ in range(4):
            orders.relay.poll()
        return job

    return make


def relayed(orders) -> None:
    for _ in range(4):
        orders.relay.poll()
        orders.fold()


def forget_end(orders) -> None:
    """The tombstone has had its hour."""
    stores.link.execute("UNLINK", orders.store.keys["finished"])


@pytest.mark.parametrize("outcome", END)
def test_an_end_without_an_event_is_read_as_no_end(orders, unresolved, outcome):
    job = unresolved(outcome)
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.derived, row.finished_at, row.published) == ("scheduled", "unresolved", None, None)
    assert "how it ended is not known" in row.error
    assert END[outcome] in row.error, "what Redis says helps the person who decides"


def test_nobody_is_told_of_an_unknown_end(orders, unresolved):
    told = []
    signals.job_ended.connect(receiver := lambda **about: told.append(about), weak=False)
    try:
        unresolved("fail")
        relayed(orders)
    finally:
        signals.job_ended.disconnect(receiver)
    assert told == []
    assert Job.objects.count() == 1, "no follow-up"


def test_it_never_runs_again_by_itself(orders, unresolved, loop, wipe):
    job = unresolved()
    forget_end(orders)
    relayed(orders)
    assert orders.claim() == [], "the relay leaves it out when its tombstone is gone"
    wipe()
    settle_down(orders, loop)
    relayed(orders)
    assert orders.claim() == [], "restore leaves it out"
    assert Job.objects.get(pk=job.id).derived == "unresolved"


def test_it_is_not_pruned(orders, unresolved):
    job = unresolved()
    Job.objects.update(run_at=clock.from_ms(0), created_at=clock.from_ms(0))
    PruneLoop(stores.places, conf.get().queue("orders")).prune()
    assert Job.objects.get().pk == job.id


@pytest.mark.parametrize("within", [False, True], ids=["autocommit", "transaction"])
@pytest.mark.parametrize("gone", [False, True], ids=["young", "after an hour"])
def test_it_holds_its_key(orders, unresolved, within, gone):
    job = unresolved(key="o:7")
    if gone:
        forget_end(orders)
    assert delayq.get(**KEY).id == job.id

    def again(**options) -> delayq.Job:
        if not within:
            return delayq.schedule(close_order, 8, key="o:7", **options)
        with transaction.atomic():
            return delayq.schedule(close_order, 8, key="o:7", **options)

    for policy in ("keep", "earliest", "latest"):
        kept = again(on_conflict=policy)
        assert (kept.id, kept.created) == (job.id, False), policy
    for policy in ("error", "replace"):
        if within:
            assert again(on_conflict=policy).created is False  # logged: a commit hook raises nothing
        else:
            with pytest.raises(KeyTaken):
                again(on_conflict=policy)
    relayed(orders)
    assert orders.claim() == []


def test_what_comes_after_it_waits_until_a_person_has_decided(orders, unresolved):
    job = unresolved(key="o:7")
    after = delayq.schedule(close_order, 8, key="o:7", on_conflict="after")
    relayed(orders)
    assert orders.claim() == []
    assert acts.mark_succeeded(job) is delayq.Change.DONE
    relayed(orders)
    assert [claimed.id for claimed in orders.claim()] == [after.short_id]


def test_a_row_that_was_committed_meanwhile_does_not_pass_it_by_the_relay(orders, unresolved, unpublished):
    job = unresolved(key="o:7")
    late = unpublished(8, key="o:7")
    relayed(orders)
    assert orders.claim() == []
    row = Job.objects.get(pk=late.id)
    assert (row.state, row.ending, row.merged_into) == ("cancelled", "merged", job.id)


def test_a_job_that_has_ended_is_not_requeued_beside_it(orders, unresolved):
    failed = delayq.schedule(close_order, 1, key="o:7")
    orders.settle(orders.claim()[0], "fail")
    orders.fold()
    unresolved(key="o:7")
    assert failed.requeue() is delayq.Change.CONFLICT


def test_code_hears_that_it_cannot_be_changed(orders, unresolved):
    job = unresolved(key="o:7")
    assert (job.state, job.cancel(), job.reschedule(delay="1h")) == (None, "conflict", "conflict")
    assert delayq.cancel(**KEY) is delayq.Change.CONFLICT
    with pytest.raises(ResultGone, match="no event reports its end"):
        job.result()


@pytest.mark.parametrize(("mark", "state"), [(acts.mark_succeeded, "succeeded"), (acts.mark_failed, "failed")])
def test_a_person_says_how_it_ended(orders, unresolved, mark, state):
    job = unresolved(key="o:7")
    assert mark(**KEY, actor="clerk", reason="the bank has it") is delayq.Change.DONE
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.ending, row.derived) == (state, None, state)
    assert row.finished_at is not None
    told = Event.objects.get(job=job.id)
    assert (told.kind, told.actor, told.reason, told.detail) == ("resolved", "clerk", "the bank has it", {"state": state})
    assert mark(job) is delayq.Change.FINISHED
    assert delayq.schedule(close_order, 8, key="o:7").created, "the key is free"


def test_what_is_not_unresolved_cannot_be_marked(orders):
    job = delayq.schedule(close_order, 7)
    assert acts.mark_succeeded(job) is delayq.Change.CONFLICT
    assert acts.mark_failed(delayq.Job(delayq.ids.new() if hasattr(delayq, "ids") else job.id, "orders")) in ("unknown", "conflict")


@pytest.mark.parametrize("outcome", END)
@pytest.mark.parametrize("gone", [False, True], ids=["young", "after an hour"])
def test_code_does_not_requeue_it_whatever_redis_says_of_its_end(orders, unresolved, outcome, gone):
    job = unresolved(outcome, key="o:7")
    if gone:
        forget_end(orders)
    assert job.requeue() is delayq.Change.CONFLICT
    assert delayq.requeue(**KEY) is delayq.Change.CONFLICT
    with transaction.atomic():
        assert delayq.requeue(job.id) is delayq.Change.CONFLICT
    assert orders.claim() == []
    assert Job.objects.get().derived == "unresolved"


@pytest.mark.parametrize("outcome", END)
@pytest.mark.parametrize("gone", [False, True], ids=["young", "after an hour"])
def test_a_person_requeues_it_whatever_redis_says_of_its_end(orders, unresolved, outcome, gone):
    job = unresolved(outcome, key="o:7")
    if gone:
        forget_end(orders)
    assert acts.requeue_by_person(job, actor="clerk") is delayq.Change.DONE
    [claimed] = orders.claim()
    assert claimed.id == job.short_id
    orders.settle(claimed, "ack")
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.ending, row.error) == ("succeeded", None, "")


def test_its_event_comes_after_all(orders, unpublished, delayq_redis):
    orders.relay._young = -3600
    job = unpublished(key="o:7")
    orders.relay.poll()
    orders.settle(orders.claim()[0], "fail")
    link = delayq_redis.link
    events = link.execute("DUMP", orders.store.keys["events"])
    stores.link.execute("UNLINK", orders.store.keys["events"])
    for _ in range(4):
        orders.relay.poll()
    assert Job.objects.get().derived == "unresolved"
    link.execute("RESTORE", orders.store.keys["events"], 0, events)
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.ending) == ("failed", None)
    assert "not known" not in row.error


@pytest.mark.parametrize(
    ("mark", "outcome", "state"),
    [
        (acts.mark_succeeded, "fail", "succeeded"),
        (acts.mark_succeeded, "cancel", "succeeded"),
        (acts.mark_failed, "ack", "succeeded"),
        (acts.mark_failed, "cancel", "cancelled"),
    ],
)
def test_a_success_by_a_person_stays_and_a_failure_by_a_person_ends_by_its_event(
    orders, unpublished, delayq_redis, mark, outcome, state
):
    orders.relay._young = -3600
    job = unpublished(key="o:7")
    orders.relay.poll()
    orders.settle(orders.claim()[0], outcome)
    link = delayq_redis.link
    events = link.execute("DUMP", orders.store.keys["events"])
    stores.link.execute("UNLINK", orders.store.keys["events"])
    for _ in range(4):
        orders.relay.poll()
    assert mark(job, actor="clerk") is delayq.Change.DONE
    link.execute("RESTORE", orders.store.keys["events"], 0, events)
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.ending) == (state, None)


def test_the_atomic_run_of_this_database_proves_an_end(orders, unpublished):
    orders.relay._young = -3600
    job = unpublished()
    orders.relay.poll()
    [claimed] = orders.claim()
    Step.objects.create(job_id=job.id, name="", fence=claimed.fence, at=clock.now(), result=42)
    orders.settle(claimed, "ack")
    stores.link.execute("UNLINK", orders.store.keys["events"])
    for _ in range(4):
        orders.relay.poll()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.result, row.ending) == ("succeeded", 42, None)


def test_a_mirror_that_has_the_row_in_hand_does_not_undo_what_a_person_says(orders, unresolved, monkeypatch):
    job = unresolved()
    stores.link.execute("XADD", orders.store.keys["events"], "*", "at", clock.wall_ms(), "by", "x", "dropped", job.short_id)
    batch = orders.mirror.load(orders.mirror.log.read("0-0", 10))
    assert batch.jobs[job.id].ending == "unknown"
    orders.fold()
    assert Job.objects.get().derived == "unresolved", "that Redis has dropped it says nothing of its end"
    assert acts.mark_succeeded(job) is delayq.Change.DONE
    assert Job.objects.get().state == "succeeded"


def test_a_job_of_redis_durability_that_ran_before_redis_lost_all_is_not_called_failed(orders, loop, wipe):
    job = delayq.schedule(close_order, 7, key="o:7", durability="redis")
    [claimed] = orders.claim()
    settle_down(orders, loop)
    orders.settle(claimed, "ack")
    wipe()
    assert reconcile_rows.give_up("orders", 0, [job.id]) == 1
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.derived) == ("running", "unresolved")
    assert reconcile_rows.give_up("orders", 0, [job.id]) == 0
    again = delayq.schedule(close_order, 8, key="o:7")
    assert (again.id, again.created) == (job.id, False)
