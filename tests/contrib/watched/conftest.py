from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from django_delayq.contrib.health import urls as health_urls
from django_delayq.contrib.prometheus import urls as metrics_urls
from tests.admin.conftest import Staff, staff
from tests.management.conftest import orders, without_database
from tests.worker.conftest import bench, durable, eventually, new_database, shop

__all__ = ["Staff", "bench", "durable", "new_database", "orders", "shop", "staff"]

TOKEN = "only-for-tests-0123456789"


@pytest.fixture(autouse=True)
def backend() -> None:
    """No backend for Django's tasks, and only the queues of the settings. Replaces the fixture with this name in the parent folder."""


@pytest.fixture
def watched(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project has the URLs and a token. The timeout is long, so that answers arrive even if this machine is busy."""
    settings.ROOT_URLCONF = "tests.contrib.watched.watched_urls"
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKEN": TOKEN}
    for views in (health_urls, metrics_urls):
        monkeypatch.setattr(views, "TIMEOUT", 60.0)


@pytest.fixture
def hanging(watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets how long a view waits for something that hangs. Other requests must answer within this time."""
    for views in (health_urls, metrics_urls):
        monkeypatch.setattr(views, "TIMEOUT", 5.0)


@pytest.fixture
def watcher(watched: None) -> Client:
    """A client with the token."""
    return Client(headers={"authorization": f"Bearer {TOKEN}"})


@pytest.fixture
def hanging_database(
    hanging: None, transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """A database that is locked, so that all connections wait. The end of the test releases the lock, and the waiting threads end."""
    file = tmp_path / "locked.sqlite3"
    with closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        without_database(settings, monkeypatch, str(file), timeout=600)
        yield
        holder.execute("ROLLBACK")
    eventually(lambda: not waiting(), "the end of those who waited")


def waiting() -> list[threading.Thread]:
    """Returns the threads of requests without an answer."""
    return [thread for thread in threading.enumerate() if thread.name == "delayq-question"]
