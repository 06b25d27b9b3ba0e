"""Tests the statements of docs/howto/audit.md, in the project that the page builds."""

import csv
import sys
from types import ModuleType

import pytest
from django.core.management import call_command

import django_delayq

UPLOADED: dict[str, list[dict]] = {}
sys.modules["shop.storage"] = storage = ModuleType("shop.storage")
storage.upload = UPLOADED.__setitem__


@django_delayq.task
def pay(order_id: int) -> None: ...


@pytest.fixture
def paid(delayq, db):
    return django_delayq.schedule(pay, 7, key="pay:7")


def test_the_function_of_the_page_gets_jobs_before_they_are_deleted(delayq, paid):
    delayq.run_due()
    call_command("delayq", "prune", "--yes")
    assert UPLOADED == {}
    delayq.advance("8d")
    call_command("delayq", "prune", "--yes")
    [(name, [document])] = UPLOADED.items()
    assert name.startswith("delayq/")
    assert (document["job"]["uuid"], document["job"]["state"]) == (str(paid.id), "succeeded")
    assert [run["outcome"] for run in document["attempts"]] == ["succeeded"]
    assert paid.state is None


def test_the_report_of_the_page(delayq, paid, tmp_path, capsys):
    delayq.run_due()
    file = tmp_path / "january.csv"
    call_command("delayq", "report", key="pay:*", since="2020-01-01", output=str(file))
    [row] = csv.DictReader(file.read_text("utf-8-sig").splitlines())
    assert (row["key"], row["runs"], row["state"]) == ("pay:7", "1", "succeeded")
    assert capsys.readouterr().err.startswith("Jobs: 1. succeeded: 1. Jobs that ran more than once: 0.")


def test_a_directory_is_ignored_in_tests(settings):
    from django_delayq import conf

    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": "/var/lib/shop/archive"}
    assert conf.get().archive is None
