"""`DELAYQ["INLINE"]`: jobs run at once, in the process that schedules them."""

from __future__ import annotations

import pytest
from django.db import transaction

import django_delayq
from django_delayq import under_test
from django_delayq.models import Job
from tests.testing.shop import SEEN, fail_twice, settle_cart

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def inline(settings, monkeypatch):
    monkeypatch.setenv(under_test.URL, "redis://127.0.0.1:1/0")  # nobody is there
    settings.DELAYQ = {**settings.DELAYQ, "INLINE": True}


def test_a_job_runs_at_once_whatever_its_date_and_neither_redis_nor_a_row_knows_it():
    job = settle_cart.using(delay="30m", key="k").schedule(1)
    assert (SEEN, job.created) == ([("settle_cart", 1, 1)], True)
    assert not Job.objects.exists()


def test_it_runs_at_the_commit_and_not_after_a_rollback():
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        django_delayq.schedule(settle_cart, 1)
        raise ValueError("no")
    with transaction.atomic():
        django_delayq.schedule(settle_cart, 2)
        withdrawn = django_delayq.schedule(settle_cart, 3)
        withdrawn.cancel()
        assert SEEN == []
    assert SEEN == [("settle_cart", 2, 1)]


def test_its_error_reaches_the_caller_and_there_is_no_second_attempt():
    with pytest.raises(RuntimeError, match="the bank is closed"):
        django_delayq.schedule(fail_twice, 1)
    assert len(SEEN) == 1


def test_at_a_commit_its_error_is_logged_and_the_hooks_that_follow_run(caplog):
    ran = []
    with transaction.atomic():
        django_delayq.schedule(fail_twice, 1)
        transaction.on_commit(lambda: ran.append("the file is deleted"))
        django_delayq.schedule(settle_cart, 2)
    assert ran == ["the file is deleted"]
    assert SEEN[-1] == ("settle_cart", 2, 1)
    assert "RuntimeError: the bank is closed" in caplog.text


def test_the_follow_up_of_a_success_runs_too():
    django_delayq.schedule(settle_cart, 1, then=settle_cart.using(delay="1h").bind(2))
    with pytest.raises(RuntimeError):
        django_delayq.schedule(fail_twice, 3, then=settle_cart.bind(4))
    assert [number for _, number, _ in SEEN] == [1, 2, 3]


def test_many_run_in_their_order():
    django_delayq.schedule_many(settle_cart.bind(n) for n in range(3))
    assert [seen[1] for seen in SEEN] == [0, 1, 2]


def test_a_key_of_a_period_runs_one_job(monkeypatch):
    one = settle_cart.using(key="k", once_for="1h")
    first, again = one.schedule(1), one.schedule(1)
    assert (again.id, again.created) == (first.id, False)
    third, fourth = django_delayq.schedule_many([one.bind(1), settle_cart.bind(2)])
    assert (third.created, fourth.created) == (False, True)
    assert SEEN == [("settle_cart", 1, 1), ("settle_cart", 2, 1)]
