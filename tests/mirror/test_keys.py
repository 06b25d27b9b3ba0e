"""The holder of a key, whatever Redis lacks and whatever an old copy of it contains."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import InterfaceError, connection, transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror import relay
from django_delayq.models import Job
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.store.connection.error_replies import StoreError
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.mirror.test_road import Gone, due_in, ran, relayed
from tests.tasks_for_tests import close_order, ping

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def old_copy(orders, loop, redis_server):
    """Restarts Redis with the content that it had at the first call, before any process notices."""

    class Copy:
        def __enter__(self) -> None:
            self.held = snapshot(redis_server.link)

        def __exit__(self, *_: object) -> None:
            bring_back(redis_server.link, self.held)
            redis_server.link.execute("HSET", orders.store.keys["meta"], "server", "a-former-run")

    delayq.schedule(ping, delay="5h")
    settle_down(orders, loop)
    return Copy()


def numbers(orders) -> dict[int, str]:
    """Number of the order -> the state of its row."""
    return {row.args[0]: row.ending or row.state for row in Job.objects.filter(queue="orders")}


def settled(orders, loop) -> None:
    settle_down(orders, loop)
    relayed(orders)
    settle_down(orders, loop)


# --- after a running holder ---


def test_a_follower_that_was_replaced_never_comes_in(orders, unpublished):
    delayq.schedule(close_order, 1, key="k")
    (running,) = orders.claim()
    orders.fold()
    unpublished(2, key="k", on_conflict="after")
    delayq.schedule(close_order, 3, key="k", on_conflict="after")
    orders.settle(running, "ack")
    relayed(orders)
    assert ran(orders) == [3]
    unpublished.later[0]()
    assert ran(orders) == []
    orders.fold()
    assert numbers(orders) == {1: "succeeded", 2: "replaced", 3: "succeeded"}


def test_a_job_that_waits_for_a_holder_keeps_its_date_though_the_row_of_the_holder_is_unconfirmed(orders):
    delayq.schedule(close_order, 1, key="k", on_conflict="after")
    orders.claim()
    job = delayq.schedule(close_order, 2, key="k", on_conflict="after", delay="1d")
    assert Job.objects.get(pk=job.id).run_at > clock.now() + timedelta(hours=23)


def test_while_redis_is_away_the_oldest_row_that_waits_has_its_key(orders, unpublished, settings):
    first, _ = unpublished(1, key="k"), unpublished(2, key="k")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "unix:///nowhere/delayq.sock"}
    stores.reset()
    job = delayq.schedule(close_order, 3, key="k")
    assert (job.id, job.created) == (first.id, False)
    with pytest.raises(delayq.KeyTaken) as taken:
        delayq.schedule(close_order, 3, key="k", on_conflict="error")
    assert taken.value.holder == first.id
    assert Job.objects.count() == 2


def test_of_those_that_wait_behind_a_holder_the_rows_are_read_once_per_call(orders, unpublished, django_assert_max_num_queries):
    for number in range(20):
        delayq.schedule(close_order, number, key=f"k{number}")
    orders.claim()
    orders.fold()
    waiting = [unpublished(100 + number, key=f"k{number}", on_conflict="after").id for number in range(20)]
    clock = connection.vendor != "sqlite"  # asked for what time it is
    with django_assert_max_num_queries(7 + clock):  # one of them looks for unresolved rows of these keys
        replies = Publisher(orders.store).publish_rows(waiting).replies
    assert {reply.status for reply in replies} == {"behind"}


# --- on an old copy ---


@pytest.mark.parametrize("in_transaction", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("durability", ["outbox", "redis"])
@pytest.mark.parametrize("policy", ["keep", "earliest", "latest", "replace", "error"])
def test_a_holder_that_has_ended_by_its_row_holds_no_key(orders, loop, old_copy, policy, durability, in_transaction):
    first = delayq.schedule(close_order, 1, key="k", delay="1h")
    orders.fold()
    with old_copy:
        first.run_now()
        assert ran(orders) == [1]
        orders.fold()
    with transaction.atomic() if in_transaction else stores.guarded():
        second = delayq.schedule(close_order, 2, key="k", on_conflict=policy, durability=durability)
    assert second.created
    settled(orders, loop)
    assert numbers(orders) == {1: "succeeded", 2: "scheduled"}
    assert in_redis(orders) == {ids.short(second.id): "scheduled"}


@pytest.mark.parametrize("policy", ["keep", "earliest", "latest", "replace", "after"])
def test_a_holder_that_only_its_row_knows_holds_its_key(orders, loop, old_copy, policy):
    with old_copy:
        first = delayq.schedule(close_order, 1, key="k", delay="1h")
        orders.fold()
    delay = "5m" if policy == "earliest" else "2h"
    second = delayq.schedule(close_order, 2, key="k", delay=delay, on_conflict=policy)
    settled(orders, loop)
    replaced = policy in ("replace", "after")
    assert second.created is replaced
    assert numbers(orders) == ({1: "replaced", 2: "scheduled"} if replaced else {1: "scheduled"})
    wanted = {"keep": 3600, "earliest": 300, "latest": 7200, "replace": 7200, "after": 3600}[policy]
    assert abs(due_in(second if replaced else first) - wanted) < 5


@pytest.mark.parametrize("policy", ["replace", "after"])
def test_what_runs_by_its_row_is_not_replaced_where_it_still_waits(orders, loop, old_copy, policy):
    first = delayq.schedule(close_order, 1, key="k")
    with old_copy:
        orders.claim()
        orders.fold()
    if policy == "replace":
        with pytest.raises(delayq.KeyTaken):
            delayq.schedule(close_order, 2, key="k", on_conflict=policy)
    else:
        delayq.schedule(close_order, 2, key="k", on_conflict=policy)
        Publisher(orders.store).publish_rows([Job.objects.get(args=[2]).pk])
    assert in_redis(orders) == {ids.short(first.id): "scheduled"}
    orders.fold()
    assert numbers(orders) == {1: "running"} | ({2: "scheduled"} if policy == "after" else {})


def test_what_was_requeued_before_a_restart_holds_its_key(orders, loop, redis_server):
    first = delayq.schedule(close_order, 1, key="k", max_attempts=1)
    (running,) = orders.claim()
    orders.settle(running, "fail")
    orders.fold()
    assert first.requeue() is delayq.Change.DONE
    redis_server.link.execute("HSET", orders.store.keys["meta"], "server", "a-former-run")
    second = delayq.schedule(close_order, 2, key="k")
    assert (second.id, second.created) == (first.id, False)


def test_a_key_costs_no_second_call_in_an_epoch_that_is_confirmed(orders, loop, monkeypatch):
    delayq.schedule(close_order, 0)
    settle_down(orders, loop)
    delayq.schedule(close_order, 0)  # it knows the epoch now
    sent = []
    send = Publisher.send
    monkeypatch.setattr(Publisher, "send", lambda self, *args: sent.append(args) or send(self, *args))
    delayq.schedule(close_order, 1, key="k")
    assert len(sent) == 2, "the question, and the job"
    delayq.schedule(close_order, 1, key="k")
    assert len(sent) == 3, "the question"


@pytest.fixture
def still(monkeypatch):
    """No time passes."""
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)


@pytest.fixture
def sent(monkeypatch):
    """The mode of each call of schedule.lua."""
    modes: list[str] = []
    send = Publisher.send
    monkeypatch.setattr(
        Publisher, "send", lambda self, items, epoch, mode="": modes.append(mode or "put in") or send(self, items, epoch, mode)
    )
    return modes


@pytest.mark.parametrize(("durability", "calls"), [("outbox", ["ask told", "told"]), ("redis", ["told"])])
def test_redis_says_once_a_second_that_nobody_has_confirmed_the_epoch(orders, loop, wipe, sent, monkeypatch, durability, calls):
    settle_down(orders, loop)
    wipe()
    now = clock.monotonic()
    for seconds, first in ((0, True), (0.5, False), (1.1, True)):
        monkeypatch.setattr(clock, "monotonic", lambda seconds=seconds: now + seconds)
        sent.clear()
        assert delayq.schedule(close_order, 1, key=f"k{seconds}", durability=durability).created
        assert sent == (["ask" if durability == "outbox" else "put in"] if first else []) + calls


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_nothing_is_remembered_of_a_key_in_an_epoch_that_nobody_has_confirmed(orders, loop, wipe, still, durability):
    settle_down(orders, loop)
    wipe()
    delayq.schedule(close_order, 1, key="k", durability=durability)
    ended = delayq.schedule(close_order, 2, key="other", durability=durability)
    ended.cancel()
    assert delayq.schedule(close_order, 3, key="other", durability=durability).created
    assert not delayq.schedule(close_order, 4, key="other", durability=durability).created


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_epoch_that_is_confirmed_meanwhile_is_asked_as_any(orders, loop, wipe, still, sent, durability):
    settle_down(orders, loop)
    wipe()
    delayq.schedule(close_order, 1, key="k1", durability=durability)
    settle_down(orders, loop)
    assert delayq.schedule(close_order, 2, key="k2", durability=durability).created
    sent.clear()
    assert delayq.schedule(close_order, 3, key="k3", durability="redis").created
    assert "put in" in sent
    assert len(in_redis(orders)) == 3


def test_a_batch_in_an_epoch_that_nobody_has_confirmed_asks_once_for_all_its_keys(
    orders, loop, wipe, sent, django_assert_max_num_queries
):
    settle_down(orders, loop)
    wipe()
    with django_assert_max_num_queries(8):
        jobs = delayq.schedule_many([close_order.using(key=f"k{number}").bind(number) for number in range(50)])
    assert all(job.created for job in jobs)
    assert sent == ["ask", "ask told", "told"]


def test_a_batch_whose_keys_are_held_ends_its_rows_at_once(orders, django_assert_max_num_queries):
    holders = delayq.schedule_many([close_order.using(key=f"k{number}").bind(number) for number in range(50)])
    orders.fold()
    with django_assert_max_num_queries(8), transaction.atomic():
        jobs = delayq.schedule_many([close_order.using(key=f"k{number}").bind(number) for number in range(50)])
    assert [job.id for job in jobs] == [job.id for job in holders]
    ended = Job.objects.filter(ending="merged")
    assert {row.args[0]: row.merged_into for row in ended} == {number: job.id for number, job in enumerate(holders)}
    assert all(row.error.endswith(ids.short(row.merged_into)) for row in ended)


# --- moved by a policy ---


@pytest.mark.parametrize(("policy", "delay", "wanted"), [("earliest", "5m", 300), ("latest", "2h", 7200)])
def test_a_date_that_a_policy_moved_holds_when_redis_is_wiped_before_the_mirror_has_seen_it(orders, loop, wipe, policy, delay, wanted):
    job = delayq.schedule(close_order, 1, key="k", delay="1h")
    settled(orders, loop)
    assert delayq.schedule(close_order, 2, key="k", delay=delay, on_conflict=policy).id == job.id
    wipe()
    settled(orders, loop)
    assert abs(due_in(job) - wanted) < 5


@pytest.mark.parametrize(("policy", "mine", "theirs"), [("earliest", "10m", "1m"), ("latest", "2h", "5h")])
def test_of_two_calls_at_once_the_date_that_the_policy_wants_counts(orders, loop, monkeypatch, policy, mine, theirs):
    holder = delayq.schedule(close_order, 1, key="o:7", delay="1h")
    settle_down(orders, loop)
    ask = Publisher.ask

    def overtaken(publisher, item):
        reply = ask(publisher, item)
        monkeypatch.setattr(Publisher, "ask", ask)
        delayq.schedule(close_order, 2, key="o:7", delay=theirs, on_conflict=policy)
        return reply

    monkeypatch.setattr(Publisher, "ask", overtaken)
    job = delayq.schedule(close_order, 3, key="o:7", delay=mine, on_conflict=policy)
    assert (job.id, job.created) == (holder.id, False)
    assert abs(due_in(holder) - (60 if policy == "earliest" else 18_000)) < 5


def test_of_a_batch_in_which_one_is_refused_nothing_is_moved(orders):
    first = delayq.schedule(close_order, 1, key="a", delay="1h")
    delayq.schedule(close_order, 2, key="b", delay="1h")
    with pytest.raises(delayq.KeyTaken):
        delayq.schedule_many(
            [
                close_order.using(key="a", delay="5m", on_conflict="earliest").bind(3),
                close_order.using(key="b", on_conflict="error").bind(4),
            ]
        )
    assert abs(due_in(first) - 3600) < 5


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_batch_that_takes_a_key_twice_is_refused_as_a_whole(orders, durability):
    one = close_order.using(on_conflict="error", durability=durability)
    with pytest.raises(delayq.KeyTaken, match="same batch"):
        delayq.schedule_many([one.using(key=key).bind(number) for number, key in enumerate("xyx")])
    assert in_redis(orders) == {}
    assert not Job.objects.exists()


# --- requeue ---


@pytest.fixture
def failed(orders) -> delayq.Job:
    job = delayq.schedule(close_order, 1, key="k", max_attempts=1)
    (running,) = orders.claim()
    orders.settle(running, "fail")
    orders.fold()
    return job


def test_a_requeue_does_not_take_the_key_of_a_job_that_redis_has_lost(orders, loop, wipe, failed):
    delayq.schedule(close_order, 2, key="k", delay="1h")
    settled(orders, loop)
    wipe()
    assert failed.requeue() is delayq.Change.CONFLICT
    settled(orders, loop)
    assert numbers(orders) == {1: "failed", 2: "scheduled"}


def test_a_requeue_does_not_take_the_key_of_a_job_that_is_not_published_yet(orders, failed, unpublished):
    unpublished(2, key="k")
    assert failed.requeue() is delayq.Change.CONFLICT
    relayed(orders)
    assert numbers(orders) == {1: "failed", 2: "scheduled"}


@pytest.mark.parametrize("durability", ["outbox", "redis"])
@pytest.mark.parametrize("cancelled", [False, True], ids=["scheduled", "cancelled"])
def test_a_job_of_the_open_transaction_cannot_be_requeued_in_it(orders, durability, cancelled):
    with pytest.raises(Gone), transaction.atomic():
        job = delayq.schedule(close_order, 1, durability=durability)
        if cancelled:
            job.cancel()
        assert job.requeue() is delayq.Change.CONFLICT
        assert in_redis(orders) == {}
        raise Gone
    assert in_redis(orders) == {}


# --- expiry ---


def test_a_holder_that_has_expired_holds_no_key(orders, unpublished):
    first = delayq.schedule(close_order, 1, key="k", expires="1h")
    stores.link.execute("HSET", orders.store.keys["jobs"], ids.short(first.id), expired(orders, first))
    second = delayq.schedule(close_order, 2, key="k")
    assert second.created
    assert ran(orders) == [2]
    orders.fold()
    assert numbers(orders) == {1: "expired", 2: "succeeded"}


def test_a_debounced_job_with_an_expiry_runs(orders):
    first = delayq.schedule(close_order, 1, key="k", delay="10m", expires="30m", on_conflict="latest")
    second = delayq.schedule(close_order, 2, key="k", delay="20m", expires="40m", on_conflict="latest")
    assert (second.id, second.created) == (first.id, False), "it is moved within its own expiry"
    third = delayq.schedule(close_order, 3, key="k", delay="35m", expires="50m", on_conflict="latest")
    assert third.created, "behind it the newer one takes its place"
    orders.fold()
    assert numbers(orders) == {1: "replaced", 3: "scheduled"}
    assert abs(due_in(third) - 35 * 60) < 5


def expired(orders, job: delayq.Job) -> bytes:
    """Its record, with an expiry that has passed."""
    record = stores.link.execute("HGET", orders.store.keys["jobs"], ids.short(job.id))
    head, _, rest = record.partition(b" ")
    return head.rpartition(b":")[0] + b":1 " + rest


# --- after a commit ---


def test_a_refusal_behind_a_commit_drops_no_other_hook(orders, caplog):
    holder = delayq.schedule(close_order, 0, key="k", delay="1h")
    other = delayq.schedule(close_order, 1, delay="1h")
    heard = []
    with transaction.atomic():
        refused = delayq.schedule(close_order, 2, key="k", on_conflict="error", durability="redis")
        own = refused.id
        second = delayq.schedule(close_order, 3, durability="redis")
        assert other.cancel() is delayq.Change.DONE
        transaction.on_commit(lambda: heard.append(True))
    assert (refused.id, refused.created) == (holder.id, False)
    assert ids.short(own) in caplog.text
    assert second.created
    assert heard == [True]
    assert Job.objects.get(pk=other.id).state == "cancelled"


def test_a_redis_that_is_away_behind_a_commit_drops_no_other_hook(orders, caplog, monkeypatch):
    heard = []

    def away(*_: object) -> None:
        raise delayq.StoreUnavailable("Redis is away")

    monkeypatch.setattr(Publisher, "send", away)
    with transaction.atomic():
        jobs = [delayq.schedule(close_order, number, durability="redis") for number in range(2)]
        transaction.on_commit(lambda: heard.append(True))
    assert heard == [True]
    assert all(job.short_id in caplog.text for job in jobs)


def test_a_job_that_was_asked_about_while_the_epoch_is_confirmed_is_in(orders, loop, wipe, monkeypatch):
    """The rows are asked, and meanwhile the restore loop confirms the server: redis durability knows no epoch."""
    settle_down(orders, loop)
    wipe()
    decide = Publisher._decided

    def confirmed(publisher, items, replies):
        again = decide(publisher, items, replies)
        settle_down(orders, loop)
        return again

    monkeypatch.setattr(Publisher, "_decided", confirmed)
    with transaction.atomic():
        job = delayq.schedule(close_order, 1, key="k", durability="redis")
    assert job.created
    assert in_redis(orders) == {ids.short(job.id): "scheduled"}


def test_a_proposal_of_redis_durability_whose_answer_was_lost_points_to_the_holder(orders, lost_reply):
    holder = delayq.schedule(close_order, 0, key="k", delay="1h")
    orders.fold()
    with transaction.atomic():
        job = delayq.schedule(close_order, 1, key="k", durability="redis")
        lost_reply(1)
    assert (job.id, job.created) == (holder.id, False)


# --- how much is sent ---


def test_what_is_merely_not_mirrored_is_not_sent_again(orders, monkeypatch):
    for number in range(20):
        with transaction.atomic():
            delayq.schedule(close_order, number, key="k", on_conflict="replace", delay="1h")
    sent = []
    send = Publisher.send
    monkeypatch.setattr(Publisher, "send", lambda self, items, *rest: sent.append(len(items)) or send(self, items, *rest))
    with transaction.atomic():
        delayq.schedule(close_order, 99, key="k", on_conflict="replace", delay="1h")
    assert sent == [1]


# --- the relay ---


def test_the_relay_publishes_nothing_while_the_mirror_is_too_far_behind(orders, unpublished, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_MAX_EVENTS": 1000}
    job = unpublished()
    behind = type(orders)()
    behind.relay._young = -3600
    pipe = [("XADD", orders.store.keys["events"], "*", "x", "y")] * 1000
    stores.link.execute_many(pipe)
    behind.relay._waits = lambda mark: False
    with pytest.raises(StoreError, match="1000 jobs behind"):
        behind.relay.poll()
    assert stores.inspector().job("orders", job.id) is None


def test_the_relay_is_slower_while_all_that_is_left_waits_behind_a_running_job(orders, unpublished):
    delayq.schedule(close_order, 1, key="k")
    orders.claim()
    orders.fold()
    unpublished(2, key="k", on_conflict="after")
    orders.relay._young = -3600
    assert orders.relay.poll() == relay.BEHIND
    unpublished(3)
    assert orders.relay.poll() == relay.PAUSE


def test_of_those_that_wait_behind_a_holder_the_last_takes_over_a_delay_as_one(orders, unpublished):
    delayq.schedule(close_order, 1, key="k")
    held = orders.claim()[0]
    orders.fold()
    ahead = clock.now() + timedelta(minutes=10)  # what another clock shows, which dates both rows
    for number, minutes in ((2, 5), (3, 60)):
        job = unpublished(number, key="k", on_conflict="after", delay=f"{minutes}m")
        Job.objects.filter(pk=job.id).update(created_at=ahead, run_at=ahead + timedelta(minutes=minutes))
    relayed(orders)
    orders.settle(held, "ack")
    relayed(orders)
    assert in_redis(orders) == {ids.short(job.id): "scheduled"}
    assert abs(due_in(job) - 300) < 5


def test_a_database_that_breaks_behind_the_commit_does_not_break_the_request(orders, monkeypatch):
    def broken(*_: object) -> None:
        raise InterfaceError("the connection is closed")

    with transaction.atomic():
        job = delayq.schedule(close_order, 1, key="k")
        monkeypatch.setattr(Publisher, "publish_before", broken)
    relayed(orders)
    assert in_redis(orders) == {ids.short(job.id): "scheduled"}


@pytest.mark.parametrize("change", ["requeue", "reschedule", "run_now"])
def test_what_is_brought_back_is_not_merged_into_what_it_has_displaced(orders, loop, old_copy, change):
    delayq.schedule(close_order, 1, delay="1h", key="k")
    settle_down(orders, loop)
    with old_copy:
        job = delayq.schedule(close_order, 2, delay="1h", key="k", on_conflict="replace")
        orders.fold()
    if change == "requeue":
        assert job.requeue() is delayq.Change.CONFLICT, "it has not ended"
    else:
        moved = job.reschedule(delay="2h") if change == "reschedule" else job.run_now()
        assert moved is delayq.Change.DONE
    settle_down(orders, loop)
    assert numbers(orders)[2] == "scheduled"
    assert ids.short(job.id) in in_redis(orders)
