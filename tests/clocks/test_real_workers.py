"""Real workers whose host's clock is wrong, by libfaketime: all loops of a worker in their own processes."""

from __future__ import annotations

import time

import pytest

from tests.campaign import faketime
from tests.conftest import missing
from tests.targets.receivers import answer
from tests.targets.test_workers import deliveries, put
from tests.worker.conftest import Shop, eventually, shop

__all__ = ["deliveries", "shop"]

pytestmark = pytest.mark.slow
ROLES = ("--roles", "move,mirror,relay")


@pytest.fixture(params=[-2 * 3600, 25 * 3600, 31 * 86_400], ids=["-2h", "+25h", "+31d"])
def wrong(request) -> dict[str, str]:
    """The environment of a process whose host's clock is wrong."""
    return faketime.ahead(request.param) or missing("libfaketime is not installed")


def rows(shop: Shop) -> int:
    return len(shop.manage("delayq", "list", "--json").splitlines())


def test_a_worker_with_a_wrong_clock_keeps_the_record_and_runs_jobs(shop, wrong):
    shop.keep_rows()
    for number in range(3):
        shop.put("count", number)
    assert shop.work(*ROLES, "--burst").wait() == 0
    before = rows(shop)
    shop.environment.update(wrong)
    worker = shop.work(*ROLES)
    shop.put("count", 9)
    eventually(lambda: shop.counts() == {0: 1, 1: 1, 2: 1, 9: 1}, "the job")
    # The database is a file of this host, so its clock is wrong, too.
    eventually(lambda: "Nothing is deleted while they differ" in worker.log.read_text(), "the look of prune")
    worker.kill_tree()
    shop.environment.clear()
    assert rows(shop) >= before > 0


def test_a_worker_with_a_wrong_clock_waits_as_long_as_a_host_has_asked_for(deliveries, host, wrong):
    busy = host(answer(503, Retry_After="3600"))
    deliveries.environment.update(wrong)
    (id,) = put(deliveries, busy.url(), secret="partner")
    deliveries.work("--processes", "1")
    eventually(lambda: "retried" in deliveries.happened(id), "the first attempt")
    [date] = [int(item.fields[4]) for entry in deliveries.events() for item in entry.items if item.kind == "retried"]
    assert 3000 < date / 1000 - time.time() < 3700
    assert abs(int(busy.requests[0].headers["webhook-timestamp"]) - time.time()) < 300
    assert len(busy.requests) == 1
