"""The database is down under load: jobs go on running, and then every row says what happened."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from django_delayq import ids
from tests import servers
from tests.conftest import missing
from tests.stage import sqlite
from tests.worker.conftest import Shop, eventually

pytestmark = pytest.mark.slow

ROWS = """
import json
from django.db.models import Count
from django_delayq.models import Attempt, Job
runs = dict(Attempt.objects.filter(finished_at__isnull=False).values_list("job_id").annotate(Count("id")).order_by())
print(json.dumps({str(job.id): [job.state, job.attempts, runs.get(job.id, 0)] for job in Job.objects.all()}))
"""
WAITS, WELL, BADLY, GONE = ["scheduled", 0, 0], ["succeeded", 1, 1], ["failed", 3, 3], ["cancelled", 0, 0]
Outage = Callable[[], contextlib.AbstractContextManager[None]]


class MariaDBServer(servers.MariaDBServer):
    """One that has handed to the system what is committed, and so keeps it when it is killed."""

    options = ("--innodb-flush-log-at-trx-commit=2",)


SERVERS: dict[str, type[servers.DatabaseServer]] = {"postgres": servers.PostgresServer, "mysql": MariaDBServer}


@pytest.fixture
def outage(shop: Shop, new_database: Callable[[dict[str, object]], dict[str, object]]) -> Iterator[Outage]:
    """The shop's database, and a way to take it away for a while: a killed server, or a locked file."""
    kind = os.environ.get("DELAYQ_TEST_DB", "sqlite")
    if kind == "sqlite":
        path = str(shop.folder / "db.sqlite3")
        shop.database = sqlite(path, timeout=0.3)

        @contextlib.contextmanager
        def locked() -> Iterator[None]:
            holder = sqlite3.connect(path, timeout=30, isolation_level=None)
            holder.execute("BEGIN EXCLUSIVE")
            yield
            holder.execute("ROLLBACK")
            holder.close()

        yield locked
        return
    try:
        server = SERVERS[kind]()
    except servers.ServerMissing as error:
        missing(str(error))
    server.start()
    shop.database = new_database(server.database())

    @contextlib.contextmanager
    def killed() -> Iterator[None]:
        server.kill()
        yield
        server.start()

    yield killed
    server.stop()


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_jobs_go_on_and_then_every_row_tells_the_truth(shop: Shop, outage: Outage, seconds: int) -> None:
    shop.migrate()
    worker = shop.work("--roles", "move,mirror,relay", "--threads", "8")
    ledger, truth = shop.folder / "ledger", {}
    number = 0

    def load() -> None:
        nonlocal number
        well = shop.put_many("write_down", [(number + step,) for step in range(10)])
        number += 10
        waits = shop.put_many("write_down", [(-1,)] * 2, delay_ms=3_600_000)
        truth.update(dict.fromkeys(well, WELL) | {shop.put("err", max_attempts=3): BADLY} | {waits[0]: WAITS, waits[1]: GONE})
        shop.store().cancel(ids.full(waits[1]))

    def ran() -> int:
        return len(ledger.read_text().splitlines()) if ledger.exists() else 0

    def rows() -> dict[str, list[object]]:
        found = json.loads(shop.manage("shell", "-v", "0", "-c", ROWS))
        return {ids.short(UUID(id)): row for id, row in found.items()}

    for _ in range(10):
        load()
    eventually(lambda: ran() == number)
    with outage():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            load()
            time.sleep(0.1)
        eventually(lambda: ran() == number, "all that was due while the database was down")
        eventually(lambda: not shop.leases())
    load()
    eventually(lambda: not shop.link.execute("XLEN", "delayq:{default}:events"), "the mirror", patience=120)
    eventually(lambda: rows() == truth, "every row as it happened", patience=60)
    assert worker.process.poll() is None
    worker.signal(15)
    assert worker.wait() == 0
