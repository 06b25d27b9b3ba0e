"""How often calls with many jobs ask Redis and the database. The number of jobs does not change it."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

import django_delayq as delayq
from django_delayq import clock
from django_delayq.models import Job
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import close_order

JOBS = 60
KEYS = [f"k{number}" for number in range(JOBS)]
# By durability, keys and policy: the calls of Redis and, at most, of the database, BEGIN and COMMIT included.
ALONE = {
    ("redis", "none", "keep"): (1, 0),
    ("redis", "free", "keep"): (2, 0),
    ("redis", "held", "keep"): (1, 1),
    ("redis", "held", "earliest"): (2, 2),
    ("redis", "held", "latest"): (2, 2),
    ("redis", "held", "replace"): (2, 1),
    ("outbox", "none", "keep"): (1, 4),
    ("outbox", "free", "keep"): (2, 5),
    ("outbox", "held", "keep"): (1, 1),
    ("outbox", "held", "earliest"): (3, 11),
    ("outbox", "held", "latest"): (3, 11),
    ("outbox", "held", "replace"): (2, 6),
    ("outbox", "held", "after"): (2, 6),
}
IN_TRANSACTION = {
    ("outbox", "free", "keep"): (1, 6),
    ("outbox", "held", "keep"): (1, 8),
    ("outbox", "held", "latest"): (1, 8),
}
CALLS = [(*case, False, *most) for case, most in ALONE.items()] + [(*case, True, *most) for case, most in IN_TRANSACTION.items()]


def many(durability: str, policy: str = "keep", keys: list[str] | None = None, delay: str = "1h") -> list[delayq.Job]:
    one = close_order.using(durability=durability, delay=delay)
    return delayq.schedule_many(
        one.using(key=key, on_conflict=policy).bind(number) if key else one.bind(number)
        for number, key in enumerate(keys or [""] * JOBS)
    )


@pytest.mark.parametrize(("durability", "keys", "policy", "in_transaction", "redis", "database"), CALLS)
def test_schedule_many_asks_once_for_all_its_keys(orders, loop, sent, durability, keys, policy, in_transaction, redis, database):
    many(durability)
    settle_down(orders, loop)
    many(durability, keys=KEYS if keys == "held" else None, delay="2h")  # the process now knows the epoch
    orders.fold()
    orders.store.reschedule_many([])  # Redis has the script
    sent.clear()
    with CaptureQueriesContext(connection) as queries, transaction.atomic() if in_transaction else ExitStack():
        many(durability, policy, KEYS if keys != "none" else None, "3h" if policy == "latest" else "1h")
    texts = [query["sql"][:140] for query in queries]
    assert len(sent) == redis
    assert len(texts) <= database, "\n".join(texts)


@pytest.mark.parametrize("durability", ["outbox", "redis"])
@pytest.mark.parametrize(("policy", "hours"), [("earliest", 1), ("latest", 3)])
def test_each_holder_of_a_batch_gets_the_date_of_its_own_job(orders, loop, durability, policy, hours):
    holders = many(durability, keys=KEYS, delay="2h")
    settle_down(orders, loop)
    at = clock.now() + timedelta(hours=hours)
    jobs = delayq.schedule_many(
        close_order.using(durability=durability, key=key, on_conflict=policy, run_at=at + timedelta(seconds=number)).bind(number)
        for number, key in enumerate(KEYS)
    )
    assert [(job.id, job.created) for job in jobs] == [(holder.id, False) for holder in holders]
    dates = dict(Job.objects.values_list("pk", "run_at"))
    if durability == "outbox":  # the rows have the dates before the mirror has seen the events
        assert [round((dates[holder.id] - at).total_seconds()) for holder in holders] == list(range(JOBS))
    orders.fold()
    dates = dict(Job.objects.values_list("pk", "run_at"))
    assert [round((dates[holder.id] - at).total_seconds()) for holder in holders] == list(range(JOBS))
    assert Job.objects.count() == JOBS


def test_the_dates_of_a_batch_hold_when_redis_is_wiped_before_the_mirror_has_seen_them(orders, loop, wipe):
    holders = many("outbox", keys=KEYS, delay="2h")
    settle_down(orders, loop)
    many("outbox", "latest", KEYS, "5h")
    wipe()
    settle_down(orders, loop)
    hours = [(orders.store.link.execute("ZSCORE", orders.store.keys["normal"], job.short_id), job) for job in holders]
    assert {round((int(score) - clock.wall_ms()) / 3_600_000) for score, _ in hours} == {5}


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_batch_that_names_a_key_twice_moves_its_holder_to_the_date_that_the_policy_wants(orders, loop, policy):
    (holder,) = many("outbox", keys=["k"], delay="2h")
    settle_down(orders, loop)
    first = clock.now() + timedelta(hours=1 if policy == "earliest" else 3)
    later = [first, first - timedelta(minutes=9), first + timedelta(minutes=9)]
    delayq.schedule_many(close_order.using(key="k", on_conflict=policy, run_at=at).bind(1) for at in later)
    orders.fold()
    wanted = later[1] if policy == "earliest" else later[2]
    assert abs((Job.objects.get(pk=holder.id).run_at - wanted).total_seconds()) < 1


def test_holders_that_a_batch_cannot_move_at_once_are_moved_one_by_one(orders, loop):
    """One is locked by another row update, one has started, and one is gone from Redis."""
    holders = many("outbox", keys=["a", "b", "c"], delay="2h")
    settle_down(orders, loop)
    Job.objects.filter(pk=holders[0].id).update(last_event="0-1")  # as if the mirror was behind when the row was read
    orders.store.link.execute("ZADD", orders.store.keys["normal"], clock.wall_ms() - 1000, holders[1].short_id)
    orders.claim(1)
    jobs = many("outbox", "latest", ["a", "b", "c"], "5h")
    assert [job.id for job in jobs] == [holder.id for holder in holders]
    settle_down(orders, loop)
    hours = {row.key: round((row.run_at - clock.now()).total_seconds() / 3600) for row in Job.objects.filter(state="scheduled")}
    assert hours == {"a": 5, "c": 5}


def test_messages_are_pulled_extended_and_acknowledged_by_one_call_each(transactional_db, delayq_redis, settings, sent):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"mail": {"CONSUMER": "pull"}}}
    for number in range(2 * JOBS):
        delayq.push("mail", number)
    calls = []
    for _ in range(2):  # Redis has the scripts the second time
        sent.clear()
        with delayq.pull("mail", JOBS) as batch:
            calls.append(len(sent))
            batch.extend("1m")
            calls.append(len(sent))
            batch.ack()
            calls.append(len(sent))
    assert calls[3:] == [1, 2, 3]
