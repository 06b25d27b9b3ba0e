"""Troubles that last for three leases: a worker that is frozen, and a Redis that is away."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from django_delayq.store.connection.link import connect
from django_delayq.store.keys import Keys
from tests.laws import dump
from tests.worker.conftest import Shop, eventually

pytestmark = pytest.mark.slow

LEASE = 5
PAY = """
from tests.app.shop.tasks import pay_slowly, stay
print(*[pay_slowly.schedule(1, None).id.hex, *[stay.schedule(number, None).id.hex for number in (2, 3, 4)]])
"""
LOOK = """
from django.contrib.auth.models import Group
from django_delayq.models import Job
print(Group.objects.count(), sorted(Job.objects.values_list("state", "attempts", "crashes")))
"""


def ledger(shop: Shop) -> Counter[str]:
    return Counter(shop.ledger.read_text().splitlines() if shop.ledger.exists() else [])


def test_a_worker_frozen_for_three_leases_and_thawed_changes_nothing(shop: Shop) -> None:
    shop.keep_rows(LEASE=LEASE, DURABILITY="outbox")
    roles = ("--roles", "move,mirror,relay", "--threads", "4")
    frozen = shop.work(*roles)
    shop.manage("shell", "-v", "0", "-c", PAY)
    eventually(lambda: sum(ledger(shop).values()) == 4)
    eventually(lambda: not shop.events())  # frozen in the middle of a write it would keep SQLite from everybody
    os.killpg(frozen.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    shop.release(1, 2, 3, 4)
    try:
        other = shop.work(*roles)
        eventually(lambda: sum(line.startswith("ended") for line in ledger(shop).elements()) == 4)
        eventually(lambda: shop.left() == 0 and not shop.events())
        left = dump.read(shop.link, Keys("delayq", "default"))
        said = shop.manage("shell", "-v", "0", "-c", LOOK)
        time.sleep(max(0.0, stopped + 3 * LEASE - time.monotonic()))
    finally:
        os.killpg(frozen.pid, signal.SIGCONT)
    # It finishes the runs that it thinks are its own, and may not settle any.
    eventually(lambda: ledger(shop) == Counter([f"{what} {n}" for what in ("began", "ended") for n in (1, 2, 3, 4)] * 2))
    frozen.signal(signal.SIGTERM)
    assert frozen.wait() == 0
    after = dump.read(shop.link, Keys("delayq", "default"))
    after.meta["alive"], after.claims = left.meta["alive"], left.claims  # signs of life, as every worker gives them
    assert after.difference(left) == []
    assert not shop.events()
    assert said == shop.manage("shell", "-v", "0", "-c", LOOK) == f"1 {[('succeeded', 1, 1)] * 4}"
    assert other.process.poll() is None


@pytest.mark.parametrize("how", ["paused", "killed"])
def test_none_of_200_running_jobs_runs_twice_when_redis_is_away_for_three_leases(shop: Shop, own_redis, how) -> None:
    server = own_redis(appendonly="yes", appendfsync="always")
    shop.url, shop.link = server.url, connect(server.url, name="test")
    shop.keep_rows(LEASE=LEASE)
    workers = [shop.work("--threads", "100", "-v", "0") for _ in range(2)]
    eventually(lambda: all(len(worker.children()) == 1 for worker in workers))
    ids = shop.put_many("stay", [(number, None) for number in range(200)])
    eventually(lambda: len(ledger(shop)) == 200)
    if how == "paused":
        server.pause()
    else:
        server.kill()
    time.sleep(3 * LEASE)
    if how == "paused":
        server.resume()
        server.wait_ready()
    else:
        server.start()
    shop.release(*range(200))
    eventually(lambda: all("succeeded" in shop.happened(id) for id in ids), patience=60)
    assert ledger(shop) == Counter(f"{what} {number}" for what in ("began", "ended") for number in range(200))
    assert all(shop.happened(id).count("succeeded") == 1 and "crashed" not in shop.happened(id) for id in ids)
    assert shop.leases() == 0


def test_a_worker_of_20_queues_leaves_within_its_grace_and_3_s_while_redis_hangs(shop: Shop, own_redis) -> None:
    """The promise is an upper bound. The addition here is for a slow machine; twenty calls of two seconds would take longer."""
    grace, slow_machine = 1.0, 24.0
    server = own_redis()
    shop.url, shop.link = server.url, connect(server.url, name="test")
    shop.keep_rows(DURABILITY="outbox", QUEUES={"default": {}, **{f"q{number}": {} for number in range(19)}})
    worker = shop.work("--roles", "move,mirror,relay", "--processes", "2", "--grace", str(grace))
    id = shop.put("nap", 1, 60.0)
    eventually(lambda: "began" in " ".join(shop.ran()))
    assert "claimed" in shop.happened(id)
    server.pause()
    try:
        eventually(lambda: "not available" in worker.text(), "the worker notices")
        worker.signal(signal.SIGTERM)
        assert worker.wait(grace + 3.0 + slow_machine) == 0, worker.text()
        assert not worker.children()
    finally:
        server.resume()
