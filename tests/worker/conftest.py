from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import ConnectionHandler

from django_delayq import codec, ids
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.events import Entry, EventLog
from django_delayq.store.scripts.queue import QueueStore, ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from tests import servers
from tests.links import package_link
from tests.servers import as_package
from tests.stage import Actor, manage, project, sqlite
from tests.stage import eventually as eventually
from tests.worker.bench import Bench


class Shop:
    """The project under test: puts jobs in, starts workers, looks at what ran."""

    def __init__(self, url: str, link: Link, folder: Path) -> None:
        self.url = url
        self.link = link
        self.folder = folder
        self.ledger = folder / "ledger"
        self.workers: list[Actor] = []
        self.settings: dict[str, Any] = {}
        self.database = sqlite(":memory:")
        self.environment: dict[str, str] = {}

    @property
    def project(self) -> dict[str, str]:
        """The environment of its processes, beside our own."""
        usual = {"DURABILITY": "redis", "BACKOFF": "100ms", "QUEUES": {"default": {}, "slow": {}}}
        made = project(self.folder, as_package(self.url), self.database, {**usual, **self.settings})
        return {**made, "APP_COUNTS": self.url, **self.environment}

    def keep_rows(self, database: dict[str, Any] | None = None, **settings: Any) -> None:
        """Gives it a database, in a file if no other is named, and with settings other than before."""
        self.settings = {**self.settings, **settings}
        self.database = database or sqlite(self.folder / "db.sqlite3")
        self.migrate()

    def migrate(self) -> None:
        """Makes the tables. Those of a file are made once and copied: a process of Django takes a second."""
        if self.database["ENGINE"].endswith("sqlite3"):
            shutil.copy(tables(), self.database["NAME"])
        else:
            self.manage("migrate", "-v", "0")

    def store(self, queue: str = "default") -> QueueStore:
        return QueueStore(package_link(self.link), prefix="delayq", queue=queue)

    def put(
        self,
        task: str,
        *args: Any,
        queue: str = "default",
        delay_ms: int = 0,
        payload: bytes | None = None,
        options: dict[str, Any] | None = None,
        **fields: Any,
    ) -> str:
        """Schedules a job; returns its short id."""
        return self.put_many(task, [args], queue=queue, delay_ms=delay_ms, payload=payload, options=options, **fields)[0]

    def put_many(
        self,
        task: str,
        calls: list[tuple[Any, ...]],
        *,
        queue: str = "default",
        delay_ms: int = 0,
        payload: bytes | None = None,
        options: dict[str, Any] | None = None,
        **fields: Any,
    ) -> list[str]:
        name = task if "." in task else f"tests.app.shop.tasks.{task}"
        records = [
            JobRecord(
                id=ids.new(),
                task=name,
                durable=False,
                payload=payload or codec.encode_payload(args, {}, options, limit=65536, task=name),
                **fields,
            )
            for args in calls
        ]
        for start in range(0, len(records), 200):
            self.store(queue).schedule([ScheduleItem.of(record, delay_ms=delay_ms) for record in records[start : start + 200]])
        return [ids.short(record.id) for record in records]

    def work(self, *options: str, failpoints: str = "") -> Actor:
        """Starts a worker."""
        command = [sys.executable, "-W", "error", "-m", "django", "delayq_worker", "--roles", "move", *options]
        worker = Actor(self.folder / f"worker{len(self.workers)}.log", command, {**self.project, "DELAYQ_FAILPOINTS": failpoints})
        worker.start()
        self.workers.append(worker)
        return worker

    def release(self, *numbers: int) -> None:
        """Ends the tasks with these numbers that were called without a time, now or later."""
        for number in numbers:
            (self.folder / f"released {number}").touch()

    def manage(self, *words: str) -> str:
        """Runs another command of the project; returns what it printed."""
        return manage(*words, environment=self.project)

    def ran(self) -> list[str]:
        return [line.decode() for line in self.link.execute("LRANGE", "ran", 0, -1)]

    def counts(self) -> dict[int, int]:
        flat = self.link.execute("HGETALL", "counts")
        return {int(number): int(times) for number, times in zip(flat[::2], flat[1::2], strict=True)}

    def events(self, queue: str = "default") -> list[Entry]:
        return EventLog(self.link, Keys("delayq", queue)).read("0-0", 100_000)

    def happened(self, id: str, queue: str = "default") -> list[str]:
        """The kinds of the events of one job."""
        return [item.kind for entry in self.events(queue) for item in entry.items if item.fields and item.fields[0] == id]

    def detail(self, id: str, kind: str, queue: str = "default") -> dict[str, Any]:
        """The detail of a job's last event of that kind."""
        found = [item for entry in self.events(queue) for item in entry.items if item.kind == kind and item.fields[0] == id]
        return json.loads(found[-1].body)

    def left(self, queue: str = "default") -> int:
        """How many jobs are unfinished."""
        return int(self.link.execute("HLEN", Keys("delayq", queue)["jobs"])) - int(
            self.link.execute("ZCARD", Keys("delayq", queue)["failed"])
        )

    def leases(self, queue: str = "default") -> int:
        return int(self.link.execute("ZCARD", Keys("delayq", queue)["leases"]))


@cache
def tables() -> Path:
    """An SQLite file with the tables of the project, and nothing in them."""
    folder = servers.folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "tables.sqlite3"
    manage("migrate", "-v", "0", environment=project(folder, "unix:///nowhere", sqlite(file), {"QUEUES": {"default": {}, "slow": {}}}))
    return file


@pytest.fixture
def shop(redis_server, tmp_path) -> Iterator[Shop]:
    shop = Shop(redis_server.url, redis_server.link, tmp_path)
    yield shop
    for worker in shop.workers:
        worker.kill_tree()


@pytest.fixture
def new_database(django_db_blocker) -> Callable[[dict[str, object]], dict[str, object]]:
    """Makes a database on the server of that entry of DATABASES; returns its own entry."""

    def make(server: dict[str, object]) -> dict[str, object]:
        name = f"shop_{uuid4().hex}"
        with django_db_blocker.unblock(), ConnectionHandler({"default": server})["default"]._nodb_cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return {**server, "NAME": name}

    return make


@pytest.fixture
def durable(shop: Shop, new_database: Callable[[dict[str, object]], dict[str, object]]) -> Shop:
    """A shop whose jobs are durable, with an empty database of the kind that DELAYQ_TEST_DB says."""
    server = json.loads(os.environ["DELAYQ_TEST_DATABASE"])
    shop.keep_rows(None if server["ENGINE"].endswith("sqlite3") else new_database(server), DURABILITY="outbox")
    return shop


@pytest.fixture
def bench(redis_server) -> Iterator[Bench]:
    bench = Bench(redis_server.link)
    yield bench
    bench.close()
