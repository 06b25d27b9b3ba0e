"""Redis wiped with 100,000 jobs waiting and 200 running."""

from __future__ import annotations

import os
import time

import pytest

from tests import servers
from tests.conftest import missing
from tests.worker.conftest import Shop, eventually
from tests.worker.test_restore import Site

WAITING = int(os.environ.get("DELAYQ_TEST_WAITING", "100000"))
RUNNING = 200
LIMIT = 30.0  # seconds


@pytest.mark.slow
def test_a_hundred_thousand_jobs_come_back_and_two_hundred_go_on(shop: Shop, own_redis) -> None:
    try:
        database = servers.PostgresServer()
    except servers.ServerMissing as error:
        missing(str(error))
    database.start()
    try:
        site = Site(shop, own_redis(appendonly="yes", save=""), database_server=database.database(), LEASE=30)
        site.schedule(((1000, 1000 + WAITING), 7200, 0.0))
        workers = [site.work("--processes", "2", "--threads", str(RUNNING // 4 + 20)) for _ in range(2)]
        eventually(lambda: not shop.link.execute("XLEN", "delayq:{default}:events"), "the mirror", patience=300)
        site.schedule(((0, RUNNING), 0, 60.0))
        eventually(lambda: shop.leases() == RUNNING, f"{RUNNING} running jobs", patience=50)
        time.sleep(3)  # what no thread has begun in a second is given back
        assert shop.leases() == RUNNING
        began = time.monotonic()
        site.server.call("FLUSHALL")
        site.schedule(((500, 501), 7200, 0.0))
        accepted = time.monotonic() - began
        eventually(lambda: shop.leases() == RUNNING, "the adoption of what runs", patience=60)
        adopted = time.monotonic() - began
        scheduled = "delayq:{default}:schedule:normal"
        eventually(lambda: shop.link.execute("ZCARD", scheduled) == WAITING + 1, "all jobs", patience=120)
        back = time.monotonic() - began
        text = "\n".join(worker.text() for worker in workers)
        said = [line for line in text.splitlines() if "restored in" in line]
        print(f"schedules accepted after {accepted:.1f} s, running jobs adopted after {adopted:.1f} s, all back after {back:.1f} s")
        print("\n".join(said))
        assert accepted < LIMIT
        assert adopted < LIMIT - 5
        eventually(lambda: not shop.leases(), "the end of what ran, and of what was run again", patience=200)
        site.none_ran_twice()
        assert site.runs().keys() == set(range(RUNNING))
    finally:
        for worker in shop.workers:
            worker.kill_tree()
        database.stop()
