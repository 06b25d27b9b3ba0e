"""How much code one job really runs through: files, functions, and moves from one file to another.

The limits are the highest figures of today, in a whole run of the tests. A change may only lower them.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.test import Client

import django_delayq as delayq
from django_delayq.producer import publish
from tests.tasks_for_tests import close_order

PACKAGE = f"{Path(delayq.__file__).parent}/"


class Figures(NamedTuple):
    files: int
    functions: int
    moves: int


class Trace:
    """Counts the calls in the package, except those in the test kit."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, str, int]] = set()
        self.moves = 0
        self._last = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        file = code.co_filename.removeprefix(PACKAGE)
        if file.startswith("testing/"):
            return
        self.files.add(file)
        self.functions.add((file, code.co_name, code.co_firstlineno))
        self.moves += file != self._last
        self._last = file

    def of(self, call: Callable[[], object]) -> Figures:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return Figures(len(self.files), len(self.functions), self.moves)


def put(number: int) -> Any:
    with transaction.atomic():
        return delayq.schedule(close_order, number, delay="1h", key=f"o:{number}")


def cancel_by_key(key: str) -> object:
    return delayq.cancel(key=key, queue="orders")


@pytest.fixture
def warm(transactional_db, delayq, monkeypatch, caplog):
    """Whatever a process does once, or once a second, has been done. Runs write no log lines, even if a test before made them."""
    caplog.set_level(logging.WARNING, "django_delayq.worker.job")
    monkeypatch.setattr(publish, "UNCONFIRMED", 3600.0)
    for number in range(3):
        put(number)
    delayq.advance("1h")
    put(8)
    cancel_by_key("o:8")
    return delayq


def within(found: Figures, limits: Figures) -> None:
    assert all(there <= limit for there, limit in zip(found, limits, strict=True)), f"{found} is above {limits}"


def test_schedule_with_a_key_in_a_transaction(warm):
    within(Trace().of(lambda: put(9)), Figures(26, 140, 93))


def test_from_schedule_to_the_row_of_the_ended_job(warm):
    def whole() -> None:
        put(9)
        warm.advance("1h")

    within(Trace().of(whole), Figures(45, 288, 331))


def test_cancel_by_key(warm):
    put(9)
    within(Trace().of(lambda: cancel_by_key("o:9")), Figures(24, 112, 164))


def test_cancel_of_selected_jobs_in_the_admin(warm):
    user = get_user_model().objects.create_superuser("ann")
    client = Client()
    client.force_login(user)

    def cancel(job: Any) -> None:
        form = {"action": "cancel", "_selected_action": [str(job.id)], "index": "0", "confirmed": "1", "reason": ""}
        assert client.post("/admin/delayq/job/", form).status_code == 302

    cancel(put(10))
    job = put(9)
    within(Trace().of(lambda: cancel(job)), Figures(42, 316, 637))
