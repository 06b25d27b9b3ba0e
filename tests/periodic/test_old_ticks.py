"""Ticks are deleted after their jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_delayq import clock, conf, ids
from django_delayq.mirror import prune
from django_delayq.mirror.prune import OldTicksLoop
from django_delayq.models import Job, Periodic, Tick, database
from django_delayq.producer.outbox.agreed_clock import ClocksDiffer
from django_delayq.producer.stores import stores


@pytest.fixture
def schedule(db) -> Periodic:
    now = clock.now()
    return Periodic.objects.create(name="s", task="t", owner="code", every_ms=1000, decided_to=now, created_at=now)


@pytest.fixture
def make(schedule):
    def one(number: int, *, days: float, job: str = "", fate: str = "scheduled") -> Tick:
        then = clock.now() - timedelta(days=days)
        id = ids.new()
        if job:
            Job.objects.create(id=id, queue="orders", task="t", state=job, run_at=then, created_at=then, finished_at=then)
        at = then + timedelta(microseconds=number)
        return Tick.objects.create(schedule=schedule, at=at, run_at=at, fate=fate, job_id=id, written_at=then)

    return one


def test_ticks_go_whose_jobs_have_gone_and_those_that_had_none(make):
    make(1, days=8)
    make(2, days=8, fate="missed")
    kept = [make(3, days=8, job="failed"), make(4, days=6), make(5, days=0, job="succeeded")]
    loop = OldTicksLoop(stores.places, conf.get())
    assert loop.poll() == prune.TICKS_PAUSE
    assert list(Tick.objects.order_by("pk")) == kept


def test_those_that_stay_hide_none_that_go(make, monkeypatch):
    monkeypatch.setattr(prune, "BATCH", 3)
    for number in range(7):
        make(number, days=8, job="failed")
    make(8, days=8)
    young = make(9, days=1)
    loop = OldTicksLoop(stores.places, conf.get())
    assert [loop.poll() for _ in range(4)] == [prune.TICKS_PACE, prune.TICKS_PACE, 0.0, prune.TICKS_PAUSE]
    assert Tick.objects.count() == 8
    assert Tick.objects.filter(pk=young.pk).exists()
    assert OldTicksLoop(stores.places, conf.get()).prune() == 0


def test_a_tick_that_got_another_job_hides_none_that_go(make, monkeypatch):
    monkeypatch.setattr(prune, "BATCH", 2)
    make(1, days=8, job="failed")
    retaken = make(2, days=8, job="failed")
    Tick.objects.filter(pk=retaken.pk).update(written_at=clock.now())
    gone = make(3, days=8)
    young = [make(number, days=1) for number in (4, 5, 6, 7)]
    loop = OldTicksLoop(stores.places, conf.get())
    assert [loop.poll() for _ in range(3)] == [prune.TICKS_PACE, 0.0, prune.TICKS_PAUSE], "it ends where all are young"
    assert not Tick.objects.filter(pk=gone.pk).exists()
    assert Tick.objects.filter(pk__in=[tick.pk for tick in young]).count() == 4


def test_what_stays_is_looked_at_bit_by_bit_and_seldom(make, monkeypatch, django_assert_max_num_queries):
    monkeypatch.setattr(prune, "BATCH", 3)
    for number in range(7):
        make(number, days=8, job="failed")
    loop = OldTicksLoop(stores.places, conf.get())
    pauses = []
    for _ in range(6):
        with django_assert_max_num_queries(4):
            pauses.append(loop.poll())
    assert pauses == 2 * [prune.TICKS_PACE, prune.TICKS_PACE, prune.TICKS_LONG_PAUSE]


def test_where_one_has_gone_more_may_be_at_once(make, monkeypatch):
    monkeypatch.setattr(prune, "BATCH", 2)
    for number in range(3):
        make(number, days=8)
    loop = OldTicksLoop(stores.places, conf.get())
    assert [loop.poll() for _ in range(3)] == [0.0, prune.TICKS_PAUSE, prune.TICKS_LONG_PAUSE]


def test_no_tick_goes_while_the_clocks_of_database_and_redis_differ(make, monkeypatch):
    make(1, days=6)
    shown = clock.now() + timedelta(days=2)
    monkeypatch.setattr(database, "now", lambda: shown)
    with pytest.raises(ClocksDiffer):
        OldTicksLoop(stores.places, conf.get()).poll()
    assert Tick.objects.exists()


def test_by_hand_all_that_may_go_goes(make, monkeypatch):
    monkeypatch.setattr(prune, "BATCH", 2)
    for number in range(3):
        make(number, days=8, job="failed")
        make(number + 10, days=9)
    loop, gone = OldTicksLoop(stores.places, conf.get()), 0
    while found := loop.prune():
        gone += found
    assert gone == 3


@pytest.mark.parametrize(("kept", "left"), [(None, 2), ("1s", 1)])
def test_a_tick_is_kept_for_a_day_and_for_ever_where_jobs_are(make, settings, kept, left):
    settings.DELAYQ = {**settings.DELAYQ, "RETENTION": {"succeeded": kept}}
    make(1, days=2)
    make(2, days=0.5)
    OldTicksLoop(stores.places, conf.get()).poll()
    assert Tick.objects.count() == left
