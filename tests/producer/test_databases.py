"""Several databases: a row joins the transaction that decides about it, or the schedule is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections, transaction

import django_delayq as delayq
from django_delayq.exceptions import ConfigError
from django_delayq.models import CommitRequest, Job
from tests.tasks_for_tests import close_order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]


@pytest.fixture
def shop(tmp_path) -> Iterator[str]:
    """The alias of a second database, which holds no rows of jobs. In a file: Django never closes one in memory."""
    usual = connections.settings["default"]
    name = str(tmp_path / "shop.sqlite3")
    connections.settings["shop"] = {**usual, "ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": {}}
    second = connections["shop"]
    second.connect()
    second.ensure_connection = lambda: None  # Django's tests forbid what is not in the settings
    yield "shop"
    second.close()
    del connections["shop"]
    del connections.settings["shop"]


def test_a_schedule_in_a_transaction_of_another_database_is_refused_with_the_way_out(shop):
    with transaction.atomic(using=shop), pytest.raises(ConfigError) as refused:
        delayq.schedule(close_order, 7)
    for word in ("'shop'", "using='default'", "durability='redis'"):
        assert word in str(refused.value)
    assert not Job.objects.exists()


def test_many_in_a_transaction_of_another_database_are_refused(shop):
    with transaction.atomic(using=shop), pytest.raises(ConfigError, match="'shop'"):
        delayq.schedule_many(close_order.using(delay="1h").bind(number) for number in range(3))
    assert not Job.objects.exists()


def test_a_transaction_on_the_database_of_the_rows_as_well_decides(shop):
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=shop), transaction.atomic():
        delayq.schedule(close_order, 7)
        raise ZeroDivisionError
    assert not Job.objects.exists()


def test_a_job_that_shall_not_depend_on_the_other_transaction_says_so(shop):
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=shop):
        assert delayq.schedule(close_order, 7, using="default").created
        raise ZeroDivisionError
    assert Job.objects.count() == 1


def test_a_job_of_redis_durability_follows_the_transaction_that_it_names(shop):
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=shop):
        job = delayq.schedule(close_order, 7, durability="redis", using=shop)
        assert job.created is None
        raise ZeroDivisionError
    with transaction.atomic(using=shop):
        kept = delayq.schedule(close_order, 8, durability="redis", using=shop)
    assert kept.created
    assert job.created is None


def test_a_change_at_the_commit_of_another_database_is_refused_with_the_way_out(shop):
    job = delayq.schedule(close_order, 7, delay="1h")
    for change in (lambda: job.cancel(at_commit=True), lambda: job.reschedule(delay="2h", at_commit=True)):
        with transaction.atomic(using=shop), pytest.raises(ConfigError) as refused:
            change()
        for word in ("'shop'", "'default'", "transaction.on_commit"):
            assert word in str(refused.value)
    with transaction.atomic(using=shop), transaction.atomic():
        assert job.cancel(at_commit=True) is delayq.Change.PENDING
    assert job.state == "cancelled" or job.cancel() is delayq.Change.DONE
    assert not CommitRequest.objects.exists()


def test_a_change_at_a_commit_of_which_django_tells_nobody_is_refused():
    job = delayq.schedule(close_order, 7, delay="1h")
    transaction.set_autocommit(False)
    try:
        with pytest.raises(ConfigError, match=r"transaction\.atomic"):
            job.cancel(at_commit=True)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
