"""Fair words: from the option to the claim, and what people see of them."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

import django_delayq as delayq
from django_delayq import ids
from django_delayq.console import why_not_yet
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.job_meta import NAMED, Quota, Rate, SharedName, in_meta
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.reads import queue_depth
from tests.laws import dump as dumps
from tests.laws.history import History, Look, Sees
from tests.laws.judge import judge
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import bill, close_order

pytestmark = pytest.mark.django_db(transaction=True)


def claimed(orders) -> list[str]:
    return [job.id for job in orders.claim(want=1)]


def test_tenants_take_turns_and_one_job_of_b_does_not_wait_for_all_of_a(orders):
    first, *_, last = [delayq.schedule(bill, "a", number) for number in range(5)]
    other = delayq.schedule(bill, "b", 1)
    assert claimed(orders) == [ids.short(first.id)]
    assert claimed(orders) == [ids.short(other.id)]
    assert Job.objects.get(pk=last.id).shared_name == SharedName("", 0, None, "tenant:a")


def test_an_option_of_the_call_counts_before_that_of_the_task(orders):
    job = bill.using(fair="all").schedule("a", 1)
    assert Job.objects.get(pk=job.id).shared_name.fair == "all"
    job = close_order.using(fair="order:{order_id}").schedule(7)
    assert Job.objects.get(pk=job.id).shared_name.fair == "order:7"


@pytest.mark.parametrize("value", ["", 7, ("a", 1), "{tenant", "{unknown}", "a\n"])
def test_a_fair_word_that_is_not_valid_is_refused(value):
    with pytest.raises(ConfigError, match="fair"):
        delayq.task(name="x", fair=value)(lambda tenant: None)


def test_arguments_that_make_no_word_are_refused():
    with pytest.raises(PayloadError, match="creates a name that has 207 characters"):
        delayq.schedule(bill, "x" * 200, 1)


@pytest.mark.parametrize(
    "name",
    [
        SharedName("n", 3),
        SharedName("n", 3, Rate("r", Quota(1, 1000, 1))),
        SharedName("", 0, Rate("r", Quota(1, 1000, 1))),
        SharedName("n", 1, None, "f"),
        SharedName("", 0, Rate("r", Quota(1, 1000, 1)), "f"),
        SharedName("", 0, None, "f"),
    ],
)
def test_a_name_survives_the_payload(name):
    assert in_meta({NAMED: name.packed()}) == name


@pytest.mark.parametrize(
    "value",
    [["", 0], ["", 0, []], ["", 0, [], ""], ["n", 1, [], "\n"], ["n", 1, None, "f"], ["n", 1, [], "f", 1], ["n", 1, ["r"], "f"], "f"],
)
def test_what_is_no_name_is_ignored(value):
    assert in_meta({NAMED: value}) is None


def test_the_words_and_their_waiting_jobs_are_listed(orders):
    for number in range(3):
        delayq.schedule(bill, "a", number)
    delayq.schedule(bill, "b", 1)
    seen = queue_depth.fair_words(stores.places, [store.keys for store in stores.parts("orders")])
    assert [(one.word, one.waiting) for one in seen.figures] == [("tenant:a", 3), ("tenant:b", 1)]
    assert all(one.oldest_ms for one in seen.figures)
    depth = stores.inspector().by_partition(["orders"])[0][0]
    assert (depth.scheduled, depth.due, depth.blocked, depth.behind) == (4, 4, 0, 2)
    out = io.StringIO()
    call_command("delayq", "fair", "--json", stdout=out)
    assert [(one["word"], one["waiting"]) for one in json.loads(out.getvalue())] == [("tenant:a", 3), ("tenant:b", 1)]
    out = io.StringIO()
    call_command("delayq", "fair", "--queue", "orders", stdout=out)
    assert "tenant:a" in out.getvalue()


def test_the_page_of_a_job_says_how_many_come_before_it(orders):
    *_, last = [delayq.schedule(bill, "a", number) for number in range(3)]
    job = Job.objects.get(pk=last.id)
    found = why_not_yet.of(job, stores.view_of(job.id, "orders"), "")
    turn = next(one for one in found if one.code == "turn")
    assert turn.fields == {"name": "tenant:a", "count": 2}


def test_waiting_jobs_keep_their_word_when_the_option_is_removed(orders, monkeypatch):
    delayq.schedule(bill, "a", 1)
    second = delayq.schedule(bill, "a", 2)
    monkeypatch.setattr(bill, "faired", None)
    third = delayq.schedule(bill, "a", 3, max_attempts=9)  # a new process has no template of the other one
    assert Job.objects.get(pk=third.id).shared_name is None
    assert len(orders.claim()) == 3
    assert Job.objects.get(pk=second.id).shared_name.fair == "tenant:a"


def test_after_a_wipe_one_job_of_each_word_is_in_a_band_and_tenants_take_turns(orders, loop, wipe, redis_server):
    for number in range(6):
        delayq.schedule(bill, "a", number)
    delayq.schedule(bill, "b", 1)
    running = orders.claim(want=2)
    orders.fold()
    wipe()
    settle_down(orders, loop)
    found = dumps.read(redis_server.link, orders.store.keys)
    assert judge(History(sees=Sees.QUEUES, looks=[Look(after=found)])) == []
    assert len(found.normal) == 1  # the only one of b runs
    assert sorted(found.leases) == sorted(job.id for job in running)
    assert len(orders.claim(want=10, ahead_ms=20_000)) == 5


def test_a_restored_job_that_is_due_does_not_wait_for_one_that_is_not(orders, loop, wipe):
    due = delayq.schedule(bill, "a", 1)
    orders.fold()
    wipe()
    delayq.schedule(bill, "a", 2, delay=3600)  # before the other one is restored
    settle_down(orders, loop)
    assert [job.id for job in orders.claim(ahead_ms=20_000)] == [ids.short(due.id)]
