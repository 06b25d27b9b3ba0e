"""Commands whose reader closes the pipe, and commands that run with PgBouncer."""

from __future__ import annotations

import os
import sys

import pytest
from django.core.management import ManagementUtility
from django.db import connection

import django_delayq as delayq
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    "words", [("delayq", "list"), ("delayq", "status"), ("delayq", "settings"), ("delayq_gateway", "list")], ids=" ".join
)
def test_a_reader_that_leaves_ends_a_command_without_a_traceback(orders, monkeypatch, capfd, words):
    for number in range(3):
        delayq.schedule(close_order, number, delay="1h")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as ended:
            ManagementUtility(["manage.py", *words]).execute()
        assert ended.value.code == 1
        pipe.flush()  # as Python does when it ends
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("words", [("list", "--state", "scheduled"), ("cancel", "--state", "scheduled", "--yes"), ("doctor",)])
def test_a_command_opens_no_cursor_of_the_server(orders, run, monkeypatch, words):
    for number in range(3):
        delayq.schedule(close_order, number, delay="1h")

    def refuse(*_args, **_options):
        raise AssertionError("with PgBouncer the next transaction does not find that cursor")

    monkeypatch.setattr(connection, "chunked_cursor", refuse)
    run(*words)
