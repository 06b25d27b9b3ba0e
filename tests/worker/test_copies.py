"""A copy of a database with the same site id, on the same Redis and prefix: one of the two is refused, and runs no jobs."""

from __future__ import annotations

import pytest

from tests.worker.conftest import eventually
from tests.worker.sites import MakeSite, Site, site

__all__ = ["site"]

pytestmark = pytest.mark.slow  # claims stop after a look of a few seconds
REFUSED = "another database"


def works(one: Site, numbers: range) -> None:
    """Schedules these jobs in that project, and waits for their ends."""
    for number in numbers:
        one.schedule(number)
    eventually(lambda: set(numbers) <= set(one.ran()), one.workers[-1].text())
    eventually(lambda: one.states().keys() == {"succeeded"}, one.workers[-1].text())


def test_the_worker_of_a_copy_refuses_to_start_once_the_mirror_has_had_a_turn(site: MakeSite, own_redis) -> None:
    server = own_redis()
    live = site("live", server)
    live.work()
    works(live, range(1, 2))
    copy = site("copy", server, of=live)
    works(live, range(2, 3))
    said = copy.refused()
    for word in (REFUSED, "'default'", "PREFIX", "manage.py delayq adopt"):
        assert word in said
    live.stop()
    server.call("FLUSHALL")
    assert REFUSED in copy.refused(), "a wipe hides what another database has recorded"
    assert copy.ran() == []
    live.work()
    works(live, range(3, 4))
    assert live.ran() == [1, 2, 3]


@pytest.mark.parametrize("roles", [(), ("--roles", "move")], ids=["all roles", "only move"])
def test_of_a_copy_and_its_original_that_both_run_one_stops(site: MakeSite, own_redis, roles: tuple[str, ...]) -> None:
    server = own_redis()
    live = site("live", server)
    live.work()
    works(live, range(1, 2))
    copy = site("copy", server, of=live)
    copy.work(*roles)
    eventually(lambda: "worker" in copy.workers[0].text())
    live.schedule(2)  # runs in either
    eventually(lambda: sorted(live.ran() + copy.ran()) == [1, 2])
    eventually(lambda: REFUSED in live.workers[0].text() + copy.workers[0].text())
    loser, winner = (copy, live) if REFUSED in copy.workers[0].text() else (live, copy)
    if roles:
        assert loser is copy, "a worker without a mirror records nothing"
    eventually(lambda: "Its jobs are waiting" in loser.workers[0].text())
    before = loser.ran()
    for number in range(10, 20):
        winner.schedule(number)
    eventually(lambda: set(range(10, 20)) <= set(winner.ran()))
    eventually(lambda: winner.states().keys() == {"succeeded"})
    assert loser.ran() == before
    assert REFUSED not in winner.workers[0].text()


def test_a_copy_that_runs_alone_goes_on_and_the_original_needs_adopt(site: MakeSite, own_redis) -> None:
    server = own_redis()
    live = site("live", server)
    live.work()
    works(live, range(1, 2))
    live.stop()
    copy = site("copy", server, of=live)
    copy.work()
    works(copy, range(2, 3))
    assert REFUSED in live.refused()
    copy.stop()
    live.manage("delayq", "adopt", "--yes", "--force")
    live.work()
    works(live, range(3, 4))
    assert live.id in copy.refused()
