"""Django's pool of connections to PostgreSQL in a worker: no two processes share one, and each task gets its own answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from django.db import ConnectionHandler

from django_delayq.mirror import database_connections
from django_delayq.store.keys import Keys
from tests.worker.conftest import Shop, eventually

POOL = {"min_size": 2, "max_size": 10, "timeout": 20}
PUT = """
import time
import django_delayq as delayq
from tests.app.shop.tasks import own_answer
for start in range(0, {jobs}, 50):
    delayq.schedule_many(own_answer.bind(n) for n in range(start, start + 50))
    time.sleep({pause})
"""
ONE = {"min_size": 1, "max_size": 1, "timeout": 2}
PUT_IN_TRANSACTION = """
import django_delayq as delayq
from django.db import transaction
from django_delayq.models import Job
from tests.app.shop.tasks import own_answer
with transaction.atomic():
    assert not Job.objects.exists()
    job = delayq.schedule(own_answer, 1, delay="1h")
print(job.state)
"""
STATES = """
from collections import Counter
from django_delayq.models import Job
import json
print(json.dumps(Counter(Job.objects.values_list("state", flat=True))))
"""


@pytest.fixture
def pooled(shop: Shop, postgres: dict[str, Any], new_database: Callable[[dict[str, object]], dict[str, object]]) -> Shop:
    """A shop whose processes each have a pool."""
    shop.keep_rows({**new_database(postgres), "OPTIONS": {"pool": POOL}}, DURABILITY="outbox")
    return shop


def asked(shop: Shop, jobs: int) -> bool:
    return shop.manage("shell", "-v", "0", "-c", STATES) == json.dumps({"succeeded": jobs})


def test_each_task_gets_the_answer_to_its_own_query(pooled: Shop) -> None:
    worker = pooled.work("--roles", "move,mirror,relay", "--processes", "2")
    pooled.manage("shell", "-v", "0", "-c", PUT.format(jobs=300, pause=0))
    eventually(lambda: asked(pooled, 300))
    assert pooled.ran() == []
    assert "ended" not in worker.text(), "the process that keeps the records has lived"
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.slow
def test_each_task_gets_its_own_answer_while_processes_are_killed_and_replaced(pooled: Shop) -> None:
    worker = pooled.work("--roles", "move,mirror,relay", "--processes", "3", "--max-jobs", "200")
    eventually(lambda: len(worker.children()) == 4)
    killed: set[int] = set()
    with ThreadPoolExecutor(1) as web:
        putting = web.submit(pooled.manage, "shell", "-v", "0", "-c", PUT.format(jobs=2000, pause=0.25))
        while not putting.done():
            alive = eventually(lambda: set(worker.children()) - killed)
            time.sleep(0.5)  # so that they work
            killed.add(child := sorted(alive)[len(killed) % len(alive)])
            with suppress(ProcessLookupError):  # it has had its 200 jobs
                os.kill(child, signal.SIGKILL)
        putting.result()
    assert len(killed) > 5
    eventually(lambda: asked(pooled, 2000), "the end of all jobs", 180)
    assert pooled.ran() == []
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_pool_needs_no_second_connection_for_a_thread_that_has_one(
    shop: Shop, postgres: dict[str, Any], new_database: Callable[[dict[str, object]], dict[str, object]], monkeypatch: Any
) -> None:
    monkeypatch.setenv("APP_SITE", "own")
    shop.keep_rows({**new_database(postgres), "OPTIONS": {"pool": ONE}}, DURABILITY="outbox")
    assert shop.manage("shell", "-v", "0", "-c", PUT_IN_TRANSACTION) == "scheduled"
    assert shop.link.execute("EXISTS", Keys("delayq", "default")["meta"]), "the thread has published its job"


def test_a_pool_is_closed_before_a_fork_and_its_sockets_are_named(
    postgres: dict[str, Any], monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any
) -> None:
    with django_db_blocker.unblock():
        handler = ConnectionHandler({"default": {**postgres, "OPTIONS": {"pool": POOL}}})
        monkeypatch.setattr(database_connections, "connections", handler)
        with handler["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
        handler["default"].pool.wait()
        mine = sockets()
        closed = database_connections.close_all()
        assert set(closed.values()) == {"a connection to the database 'default'"}
        assert len(closed) >= POOL["min_size"]
        assert set(closed) <= mine
        assert not set(closed) & sockets()
        with handler["default"].cursor() as cursor:  # it may be used again, by a pool of its own
            cursor.execute("SELECT 1")
        assert len(database_connections.close_all()) >= 1


def sockets() -> set[int]:
    """The inodes of the open sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as sock:
                found.add(os.fstat(sock.fileno()).st_ino)
        except OSError:
            continue
    return found
