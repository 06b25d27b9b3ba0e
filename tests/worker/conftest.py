from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import ConnectionHandler

from django_delayq import codec, ids
from django_delayq.record import JobRecord
from django_delayq.store.connection import Link
from django_delayq.store.events import Entry, EventLog
from django_delayq.store.keys import Keys
from django_delayq.store.queue import QueueStore, ScheduleItem
from tests import servers
from tests.links import package_link
from tests.worker.bench import Bench

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0


def eventually(check: Callable[[], Any], what: str = "it", patience: float = PATIENCE) -> Any:
    """Polls until `check` returns something true, and returns that."""
    deadline = time.monotonic() + patience
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {patience} s; the last look gave {found!r}")
        time.sleep(0.02)


class Worker:
    """A `delayq_worker` in a process group of its own."""

    def __init__(self, url: str, *options: str, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        self.file = open(log, "ab")  # noqa: SIM115
        command = [sys.executable, "-W", "error", "-m", "django", "delayq_worker", "--roles", "move", *options]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.worker.settings", "SHOP_REDIS": url, **environment},
            stdout=self.file,
            stderr=self.file,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[int]:
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def signal(self, sign: int) -> None:
        os.kill(self.pid, sign)

    def kill_tree(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def wait(self, patience: float = PATIENCE) -> int:
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGQUIT)
            time.sleep(1)
            pytest.fail(f"the worker did not end:\n{self.text()}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.file.close()


class Shop:
    """The project under test: puts jobs in, starts workers, looks at what ran."""

    def __init__(self, url: str, link: Link, folder: Path) -> None:
        self.url = url
        self.link = link
        self.folder = folder
        self.workers: list[Worker] = []
        self.settings: dict[str, Any] = {}
        self.environment: dict[str, str] = {}

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
        name = task if "." in task else f"tests.worker.shop.tasks.{task}"
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
            self.store(queue).schedule([ScheduleItem(record=record, delay_ms=delay_ms) for record in records[start : start + 200]])
        return [ids.short(record.id) for record in records]

    def work(self, *options: str, failpoints: str = "") -> Worker:
        """Starts a worker."""
        environment = {**self.environment, "SHOP_DELAYQ": json.dumps(self.settings), "DELAYQ_FAILPOINTS": failpoints}
        worker = Worker(self.url, *options, log=self.folder / f"worker{len(self.workers)}.log", environment=environment)
        self.workers.append(worker)
        return worker

    def manage(self, *words: str) -> str:
        """Runs another command of the project; returns what it printed."""
        environment = {
            **os.environ,
            **self.environment,
            "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
            "SHOP_REDIS": self.url,
            "SHOP_DELAYQ": json.dumps(self.settings),
        }
        done = subprocess.run(
            [sys.executable, "-m", "django", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def migrate(self) -> None:
        """Makes the tables. Those of a file are made once and copied: a process of Django takes a second."""
        file = self.environment.get("SHOP_DATABASE")
        if file and "SHOP_DATABASE_SERVER" not in self.environment:
            shutil.copy(_tables(), file)
        else:
            self.manage("migrate", "-v", "0")

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
def _tables() -> Path:
    """An SQLite file with the tables of the project, and nothing in them."""
    folder = servers.folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "tables.sqlite3"
    environment = {"DJANGO_SETTINGS_MODULE": "tests.worker.settings", "SHOP_REDIS": "unix:///nowhere", "SHOP_DATABASE": str(file)}
    subprocess.run([sys.executable, "-m", "django", "migrate", "-v", "0"], cwd=ROOT, env={**os.environ, **environment}, check=True)
    return file


@pytest.fixture
def shop(redis_server, tmp_path) -> Iterator[Shop]:
    shop = Shop(redis_server.url, redis_server.link, tmp_path)
    yield shop
    for worker in shop.workers:
        worker.close()


@pytest.fixture
def new_database(django_db_blocker) -> Callable[[dict[str, object]], str]:
    """Makes a database on the server of that entry of DATABASES; returns its own entry, as SHOP_DATABASE_SERVER takes it."""

    def make(server: dict[str, object]) -> str:
        name = f"shop_{uuid4().hex}"
        with django_db_blocker.unblock(), ConnectionHandler({"default": server})["default"]._nodb_cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return json.dumps({**server, "NAME": name})

    return make


@pytest.fixture
def durable(shop: Shop, new_database: Callable[[dict[str, object]], str]) -> Shop:
    """A shop whose jobs are durable, with an empty database of the kind that DELAYQ_TEST_DB says."""
    shop.settings = {"DURABILITY": "outbox"}
    server = json.loads(os.environ["DELAYQ_TEST_DATABASE"])
    if server["ENGINE"].endswith("sqlite3"):
        shop.environment = {"SHOP_DATABASE": str(shop.folder / "db.sqlite3")}
    else:
        shop.environment = {"SHOP_DATABASE_SERVER": new_database(server)}
    shop.migrate()
    return shop


@pytest.fixture
def bench(redis_server) -> Iterator[Bench]:
    bench = Bench(redis_server.link)
    yield bench
    bench.close()
