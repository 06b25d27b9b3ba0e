"""A master dies under live workers and web processes, and its replica becomes the master: each job runs once, and none is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.links import opened
from tests.topologies import Trio
from tests.worker.conftest import Shop, eventually
from tests.worker.test_restore import Site


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio(save="") as trio:
        yield trio


def killed(trio: Trio) -> None:
    trio.master.kill()


def frozen(trio: Trio) -> None:
    trio.master.pause()


@pytest.mark.slow
@pytest.mark.parametrize("harmed", [frozen, killed])
def test_jobs_run_once_and_none_is_lost(shop: Shop, trio: Trio, harmed: Callable[[Trio], None]) -> None:
    site = Site(shop, trio.master, REDIS=trio.url)
    workers = [site.work("--processes", "2"), site.work()]
    # Nothing ends until the master is gone, since what it has not passed on would run again.
    site.schedule(((0, 8), 0, 12.0), ((100, 160), 11, 0.0), ((200, 260), 10, 0.0), ((900, 910), 3600, 0.0))
    site.running(8)
    eventually(lambda: site.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)])
    trio.wait_equal()
    harmed(trio)
    site.schedule(((300, 320), 0, 0.0), ((400, 420), 1, 0.0))  # Redis is away: these are rows
    trio.wait_promoted(trio.replica)
    shop.link = opened(trio.replica.url)
    site.schedule(((500, 520), 0, 0.0))
    eventually(lambda: site.states() == {"succeeded": 188, "scheduled": 10}, "188 jobs", patience=90)
    site.none_ran_twice()
    assert len(site.runs()) == 188
    assert shop.left() == 10
    eventually(lambda: shop.link.execute("CLIENT", "LIST").count(b"cmd=blpop") == 3, "the wake lines at the new master")
    for worker in workers:
        worker.signal(15)
        assert worker.wait() == 0, worker.text()
