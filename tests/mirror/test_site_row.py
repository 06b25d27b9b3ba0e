"""The id and the checkpoint are read by the caller's connection where that works, and else apart from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import connection, transaction

from django_delayq import under_test
from django_delayq.mirror.site_row import DatabaseSite
from django_delayq.models import Checkpoint, Site
from django_delayq.store.scripts.site import Facts, SiteRefused

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def database(monkeypatch) -> DatabaseSite:
    """As a project has it outside of tests."""
    monkeypatch.setattr(under_test, "derives_site", lambda: False)
    Site.objects.update_or_create(number=1, defaults={"site": "0123456789abcdef"})
    Checkpoint.objects.create(queue="orders", address="here", last_event="5-1")
    return DatabaseSite()


def test_the_id_and_the_checkpoint_are_read(database):
    assert database.id("delayq") == "0123456789abcdef"
    assert database.partition_facts("orders", 0) == Facts("here", "5-1")
    assert database.partition_facts("orders", 1) == Facts("", "0-0")
    Checkpoint.objects.update(mirror_tokens="1-a 2-b")
    assert database.all_partition_facts() == {("orders", 0): Facts("here", "5-1", "1-a 2-b")}


def test_in_a_transaction_what_is_committed_counts(database):
    with transaction.atomic():
        Checkpoint.objects.update(last_event="1-1")
        assert database.partition_facts("orders", 0, apart=True) == Facts("here", "5-1")
        assert database.id("delayq") == "0123456789abcdef"


def test_a_read_that_fails_leaves_the_callers_transaction_whole(database, monkeypatch):
    def refuse() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT no_such_column FROM delayq_site")

    monkeypatch.setattr("django_delayq.mirror.site_row._checkpoints", refuse)
    with transaction.atomic():
        with pytest.raises(SiteRefused):
            database.id("delayq")
        assert Site.objects.get().site == "0123456789abcdef"


def test_in_a_broken_transaction_it_is_read_all_the_same(database):
    with transaction.atomic():
        transaction.set_rollback(True)
        assert database.id("delayq") == "0123456789abcdef"


def test_in_an_event_loop_it_is_read_all_the_same(database):
    async def ask() -> str:
        return database.id("delayq")

    assert asyncio.run(ask()) == "0123456789abcdef"


def test_a_database_without_an_id_says_what_to_do(database):
    Site.objects.all().delete()
    with pytest.raises(SiteRefused, match="delayq adopt makes an id"):
        database.id("delayq")


def test_without_the_database_the_address_is_the_one_that_was_read_with_the_id(database, monkeypatch):
    assert database.id("delayq")

    def away(*_: Any, **__: Any) -> Any:
        raise connection.Database.OperationalError("away")

    monkeypatch.setattr("django.db.models.query.QuerySet.values_list", away)
    monkeypatch.setattr("django_delayq.mirror.site_row.Error", connection.Database.OperationalError)
    assert database.partition_facts("orders", 0) == Facts("here", "")
    assert database.all_partition_facts() is None
    with pytest.raises(SiteRefused, match="id of this site could not be read"):
        database.id("delayq")


def test_under_test_nothing_is_read(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert DatabaseSite().id("delayq") == DatabaseSite().id("delayq")
        assert DatabaseSite().partition_facts("orders", 0) is None
