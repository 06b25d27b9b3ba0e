"""`delayq set-aside`, and the doctor's findings about it."""

from __future__ import annotations

from datetime import timedelta

import pytest

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.models import Job, SetAside
from django_delayq.producer.stores import stores
from tests.management.test_doctor import findings
from tests.mirror.test_set_aside import narrow
from tests.tasks_for_tests import close_order


@pytest.fixture
def kept(orders) -> SetAside:
    job = delayq.schedule(close_order, 7)
    with narrow():
        orders.settle(orders.claim()[0], "fail", detail=b'{"m":"%s"}' % (b"L" * 21))
        orders.fold()
    assert Job.objects.get(pk=job.id).state == "running"
    return SetAside.objects.get()


def test_it_shows_them_and_takes_them_in(run, kept):
    shown = run("set-aside").out
    assert ids.short(kept.job_id) in shown
    assert kept.code in shown
    assert "LLLL" not in run("set-aside", "--json").out
    assert run("set-aside", "--retry", "--dry-run").out == "Rejected events that would be retried: 1.\n"
    assert run("set-aside", "--retry").code == 2, "there is nobody to confirm it"
    answer = run("set-aside", "--retry", "--yes", "--json")
    assert (answer.code, answer.json) == (0, {"taken_in": 1, "refused": 0})
    assert Job.objects.get(pk=kept.job_id).state == "failed"
    assert run("set-aside").out == "There are no rejected events.\n"


def test_what_is_refused_again_stays_and_the_exit_code_says_so(run, kept):
    with narrow():
        answer = run("set-aside", "--retry", "--yes", "--queue", "orders")
    assert (answer.code, answer.out) == (1, "Saved events: 0. Rejected again: 1.\n")
    assert SetAside.objects.get().tries == 2


def test_the_doctor_tells_of_them(run, kept):
    [finding] = findings(run("doctor", "--json"), "D011")
    assert "The database rejected events of 'orders': 1" in finding["message"]
    assert "delayq set-aside --queue orders" in finding["hint"]


def test_they_are_kept_until_their_retention_has_passed(run, kept, settings):
    SetAside.objects.update(noticed_at=clock.now() - timedelta(days=400))
    run("prune", "--yes")
    assert SetAside.objects.exists(), "for ever, unless somebody says otherwise"
    settings.DELAYQ = {**settings.DELAYQ, "RETENTION": {"set_aside": "365d"}}
    assert run("prune", "--dry-run", "--json").json["would_delete"]["orders set_aside"] == 1
    run("prune", "--yes")
    assert not SetAside.objects.exists()


def test_a_merged_proposal_is_pruned_an_hour_after_its_end(run, orders):
    holder = delayq.schedule(close_order, 7, delay="1h", key="k")
    old, young, cancelled = (delayq.schedule(close_order, 7, delay="1h") for _ in range(3))
    orders.fold()
    for job, ending, minutes in ((old, "merged", 61), (young, "merged", 59), (cancelled, None, 61)):
        ended = {"state": "cancelled", "ending": ending, "finished_at": clock.now() - timedelta(minutes=minutes)}
        Job.objects.filter(pk=job.id).update(**ended)
    run("prune", "--yes")
    assert set(Job.objects.values_list("pk", flat=True)) == {holder.id, young.id, cancelled.id}


def test_a_mirror_that_is_half_as_far_behind_as_it_may_be_is_an_error(run, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_MAX_EVENTS": 1000}
    delayq.schedule(close_order, 7)
    stores.link.execute("HSET", orders.store.keys["meta"], "surplus", 1000)  # 400 at most, of one entry
    assert findings(run("doctor", "--json"), "D012") == []
    delayq.schedule(close_order, 8)
    answer = run("doctor", "--json")
    [finding] = findings(answer, "D012")
    assert answer.code == 1
    assert "800 jobs behind" in finding["message"]
