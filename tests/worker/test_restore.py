"""Redis loses all or some of its data while workers and web processes run: durable jobs return, none that was running runs twice, and
none that has ended runs again. The longest cases are slow tests; tests/mirror has each case in one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from tests.links import opened
from tests.stage import ROOT
from tests.worker.conftest import Shop, eventually

pytestmark = pytest.mark.slow

SCHEDULE = """
import json, sys
import django
django.setup()
import django_delayq as delayq
from tests.app.shop.tasks import write_down
for numbers, delay, seconds in json.loads(sys.argv[1]):
    delayq.schedule_many(write_down.using(delay=delay).bind(number, seconds) for number in range(*numbers))
"""


class Site:
    """A shop with a database, whose jobs are durable, and a ledger of all runs."""

    def __init__(self, shop: Shop, server, *, database_server: dict[str, object] | None = None, **settings) -> None:
        self.shop = shop
        self.server = server
        shop.url, shop.link = server.url, opened(server.url)
        self.database = shop.folder / "db.sqlite3"
        self.ledger = shop.ledger
        shop.keep_rows(database_server, **{"DURABILITY": "outbox", "LEASE": 5, **settings})

    def schedule(self, *those: tuple[tuple[int, int], float, float | None]) -> None:
        """Per group: numbers from and to, delay, and how long the task takes; None: until it is released."""
        environment = {**os.environ, **self.shop.project}
        subprocess.run([sys.executable, "-c", SCHEDULE, json.dumps(those)], cwd=ROOT, env=environment, check=True)

    def work(self, *options: str, failpoints: str = ""):
        return self.shop.work("--roles", "move,mirror,relay", "--threads", "4", *options, failpoints=failpoints)

    def rows(self, question: str) -> list[tuple]:
        with contextlib.closing(sqlite3.connect(self.database, isolation_level=None, timeout=30)) as connection:
            return connection.execute(question).fetchall()

    def make_due(self) -> None:
        """The rows of all scheduled jobs say that they are due, which a restore passes on."""
        self.rows("UPDATE delayq_job SET run_at = created_at WHERE state = 'scheduled'")

    def states(self) -> dict[str, int]:
        return dict(self.rows("SELECT state, count(*) FROM delayq_job GROUP BY state"))

    def runs(self) -> Counter[int]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return Counter(int(line.split()[0]) for line in lines)

    def running(self, count: int) -> None:
        """Waits until that many jobs run, and the rows show it."""
        eventually(lambda: self.states().get("running", 0) == count == self.shop.leases(), f"{count} running jobs")

    def all_succeed(self, count: int) -> None:
        eventually(lambda: self.states() == {"succeeded": count}, f"{count} jobs", patience=60)

    def none_ran_twice(self) -> None:
        assert {number: times for number, times in self.runs().items() if times != 1} == {}


def flushed(site: Site) -> None:
    site.server.call("FLUSHALL")


def volume_lost(site: Site) -> None:
    site.server.kill()
    for path in [*site.server.directory.glob("*.rdb"), *site.server.directory.glob("appendonlydir/*")]:
        path.unlink()
    site.server.start()


@pytest.mark.parametrize("wiped", [flushed, pytest.param(volume_lost, marks=pytest.mark.slow)])
def test_what_runs_goes_on_and_what_waits_comes_back_when_redis_is_wiped(shop: Shop, own_redis, wiped: Callable[[Site], None]) -> None:
    site = Site(shop, own_redis(appendonly="yes", save=""))
    workers = [site.work(), site.work()]
    site.schedule(((0, 8), 0, None))
    site.running(8)
    site.schedule(((100, 140), 6, 0.0), ((200, 210), 0.5, 0.0))
    wiped(site)
    site.schedule(((300, 310), 0, 0.0))
    eventually(lambda: all("has confirmed its running jobs after the change in Redis" in worker.text() for worker in workers))
    shop.release(*range(8))
    site.all_succeed(68)
    site.none_ran_twice()
    assert site.runs().keys() == {*range(8), *range(100, 140), *range(200, 210), *range(300, 310)}
    for worker in workers:
        worker.signal(15)
        assert worker.wait() == 0, worker.text()


def test_what_was_done_since_the_copy_does_not_rise_when_redis_is_rolled_back(shop: Shop, own_redis) -> None:
    site = Site(shop, own_redis(save=""))
    keeper = site.work("--roles", "mirror,relay")  # it runs nothing
    site.schedule(((0, 20), 0, 0.0), ((50, 60), 3600, 0.0))
    eventually(lambda: site.states() == {"scheduled": 30})
    eventually(lambda: site.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)])
    assert site.server.call("SAVE") == "+OK"
    worker = site.work()
    eventually(lambda: site.states() == {"scheduled": 10, "succeeded": 20})
    site.schedule(((100, 104), 0, None))
    site.running(4)
    site.schedule(((200, 210), 8, 0.0))
    site.server.kill()
    site.server.start()
    eventually(lambda: any("was rolled back" in one.text() for one in (keeper, worker)))
    shop.release(*range(100, 104))
    eventually(lambda: site.states() == {"scheduled": 10, "succeeded": 34}, patience=60)
    site.none_ran_twice()
    assert shop.left() == 10
    for one in (keeper, worker):
        one.signal(15)
        assert one.wait() == 0, one.text()


def test_a_restart_that_lost_nothing_is_confirmed_at_once(shop: Shop, own_redis) -> None:
    site = Site(shop, own_redis(appendonly="yes", appendfsync="always", save=""))
    worker = site.work()
    site.schedule(((0, 4), 0, None))
    site.running(4)
    site.schedule(((10, 30), 4, 0.0))
    site.server.kill()
    site.server.start()
    site.schedule(((40, 50), 0, 0.0))
    shop.release(*range(4))
    site.all_succeed(34)  # how soon claims go on is measured by the campaign
    site.none_ran_twice()
    assert "rolled back" not in worker.text()


def test_a_restore_that_is_killed_begins_anew(shop: Shop, own_redis) -> None:
    site = Site(shop, own_redis(appendonly="yes", save=""))
    worker = site.work("--roles", "mirror,relay", failpoints="restore.sent=kill@3")
    site.schedule(((0, 1500), 0, 0.0))
    eventually(lambda: site.rows("SELECT count(*) FROM delayq_job WHERE published IS NOT NULL") == [(1500,)])
    flushed(site)
    eventually(lambda: worker.text().count("records (pid") >= 2, "two deaths in the middle")
    site.work("--roles", "move")
    site.all_succeed(1500)
    site.none_ran_twice()


def test_in_manual_mode_the_queue_waits_for_the_command(shop: Shop, own_redis) -> None:
    site = Site(shop, own_redis(appendonly="yes", save=""), RESTORE="manual")
    worker = site.work()
    site.schedule(((0, 2), 0, None))
    site.running(2)
    site.schedule(((10, 20), 3600, 0.0))
    flushed(site)
    site.make_due()
    eventually(lambda: "manage.py delayq restore" in worker.text())
    assert "by restore: run manage.py delayq restore" in shop.manage("delayq", "status")
    shop.release(0, 1)
    eventually(lambda: set(range(2)) <= site.runs().keys(), "the end of what runs")
    assert site.runs().keys() == {0, 1}
    shop.manage("delayq", "restore", "--yes")
    site.all_succeed(12)
    site.none_ran_twice()
