"""Processes that die, servers that go away: what was promised is kept."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker.supervisor import lease_files
from tests.worker.conftest import Shop, eventually

pytestmark = pytest.mark.slow


def test_jobs_of_a_killed_task_process_run_again_at_once(shop: Shop) -> None:
    ids = shop.put_many("nap", [(number, 1.0) for number in range(4)])
    worker = shop.work("--threads", "4")
    eventually(lambda: len(shop.ran()) == 4)
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    eventually(lambda: all("succeeded" in shop.happened(id) for id in ids), patience=10)  # a lease is 30 s
    for id in ids:
        assert shop.happened(id) == ["scheduled", "claimed", "crashed", "claimed", "succeeded"]
        assert shop.detail(id, "crashed")["v"] == {"signal": "SIGKILL"}
        told = f"job {id} (tests.app.shop.tasks.nap) crashed in attempt 1: its process was killed by SIGKILL, perhaps out of memory"
        assert told in worker.text()
    assert worker.process.poll() is None


def test_what_only_waited_in_a_killed_process_counts_no_crash(shop: Shop) -> None:
    # Claims, and dies before the jobs are written down anywhere: only Redis knows of them.
    ids = shop.put_many("count", [(number,) for number in range(5)])
    shop.work(failpoints="mover.claimed=kill@1")
    eventually(lambda: any("snoozed" in shop.happened(id) for id in ids), patience=10)
    assert all("crashed" not in shop.happened(id) for id in ids)


def test_a_job_that_kills_its_process_is_poison_after_some_crashes_and_its_neighbours_are_not(shop: Shop) -> None:
    shop.settings = {"MAX_CRASHES": 2}
    good = shop.put("nap", 2, 0.2)
    id = shop.put("die", 1)
    shop.work()
    eventually(lambda: "failed" in shop.happened(id))
    assert shop.ran().count("began 1") == 3
    assert shop.detail(id, "failed")["c"] == "Poison"
    assert shop.detail(id, "failed")["k"] == shop.detail(id, "crashed")["k"] == "process_sigkill"
    eventually(lambda: "succeeded" in shop.happened(good))
    assert shop.happened(good).count("crashed") == 2  # it had its last chance alone


def test_a_job_on_its_last_chance_is_given_back_when_the_worker_leaves(shop: Shop) -> None:
    shop.settings = {"MAX_CRASHES": 1}
    suspect = shop.put("nap", 1, 0.0)
    (job,) = shop.store().claim("gone", "n1", want=1, lease_ms=30_000, max_crashes=1).jobs
    crash = Outcome(id=job.id, attempt=job.attempt, fence=job.fence, kind="crash")
    shop.store().settle([crash], worker="gone", max_crashes=1)
    neighbour = shop.put("nap", 2, 5.0)
    worker = shop.work()
    eventually(lambda: "last chance" in worker.text() and len(shop.ran()) == 1)
    worker.signal(signal.SIGTERM)
    eventually(lambda: shop.happened(suspect)[-1] == "snoozed")
    assert shop.happened(neighbour)[-1] == "claimed"
    assert worker.wait() == 0
    assert shop.happened(neighbour)[-1] == "succeeded"
    assert all(line.split()[1] == "2" for line in shop.ran())


def test_children_end_with_their_supervisor(shop: Shop) -> None:
    shop.put("nap", 1, 600)
    worker = shop.work("--processes", "2")
    eventually(lambda: len(shop.ran()) == 1 and len(worker.children()) == 2)
    children = worker.children()
    worker.signal(signal.SIGKILL)
    eventually(lambda: not any(_lives(child) for child in children))


@pytest.mark.skipif(lease_files.place() is None, reason="no /dev/shm here: such jobs wait for the end of their leases")
def test_a_worker_that_is_started_again_gives_back_what_the_killed_one_held(shop: Shop) -> None:
    ran = shop.put_many("nap", [(number, 0.5) for number in range(2)])
    worker = shop.work("--threads", "2")
    eventually(lambda: len(shop.ran()) == 2)
    waited = shop.put_many("nap", [(number, 0.01) for number in range(2, 4)])
    worker.kill_tree()
    assert shop.leases() >= 2
    shop.work("--threads", "4")
    eventually(lambda: all("succeeded" in shop.happened(id) for id in ran + waited), patience=10)  # a lease is 30 s
    for id in ran:
        assert shop.happened(id) == ["scheduled", "claimed", "crashed", "claimed", "succeeded"]
    assert all("crashed" not in shop.happened(id) for id in waited)


@pytest.mark.skipif(lease_files.place() is None, reason="no /dev/shm here: such jobs wait for the end of their leases")
def test_a_neighbour_gives_back_what_a_killed_worker_held_and_nothing_of_a_frozen_one(shop: Shop) -> None:
    killed_id = shop.put("nap", 1, 10.0)  # in that time two workers start, also on a busy machine
    killed = shop.work("--threads", "1", "--queues", "default")
    eventually(lambda: len(shop.ran()) == 1)
    frozen_id = shop.put("nap", 2, 5.0, queue="slow")
    frozen = shop.work("--threads", "1", "--queues", "slow")
    eventually(lambda: len(shop.ran()) == 2)
    os.killpg(frozen.pid, signal.SIGSTOP)
    neighbour = shop.work("--threads", "1")
    eventually(lambda: "queues" in neighbour.text())
    killed.kill_tree()
    registry = WorkerRegistry(shop.link, prefix="delayq")
    eventually(lambda: [worker["pid"] for worker in registry.all() if worker.get("died")] == [killed.pid])
    assert all(worker["silent"] for worker in registry.all() if worker.get("died"))
    eventually(lambda: "succeeded" in shop.happened(killed_id), patience=40)
    assert shop.happened(killed_id) == ["scheduled", "claimed", "crashed", "claimed", "succeeded"]
    assert shop.detail(killed_id, "crashed")["k"] == "worker_died"
    os.killpg(frozen.pid, signal.SIGCONT)
    eventually(lambda: "succeeded" in shop.happened(frozen_id, "slow"), patience=20)
    assert shop.happened(frozen_id, "slow") == ["scheduled", "claimed", "succeeded"]


def test_a_killed_worker_tree_loses_nothing(shop: Shop, capsys) -> None:
    lease = 5
    shop.settings = {"LEASE": lease}
    ids = shop.put_many("nap", [(number, 0.05) for number in range(500)])
    worker = shop.work("--threads", "4", "--processes", "2")
    eventually(lambda: len(shop.ran()) > 200)
    worker.kill_tree()
    killed = time.monotonic()
    shop.work("--threads", "4", "--processes", "2")
    eventually(lambda: shop.left() == 0, patience=60)
    with capsys.disabled():
        print(f" all ended {time.monotonic() - killed:.1f} s after the kill; promised: {lease + 5} s ", end="")
    ended = Counter(line.split()[1] for line in shop.ran() if line.startswith("ended"))
    assert len(ended) == 500
    assert all(times <= 2 for times in ended.values())
    assert len(ids) == 500


def test_a_task_that_holds_the_interpreter_keeps_its_lease(shop: Shop) -> None:
    shop.settings = {"LEASE": 2}
    id = shop.put("hog", 7.0)
    shop.work()
    shop.work()  # the worker that would take over
    eventually(lambda: "succeeded" in shop.happened(id))
    assert shop.happened(id) == ["scheduled", "claimed", "succeeded"]
    assert shop.ran() == ["began hog", "ended hog"]


def test_a_worker_waits_for_redis_and_goes_on(shop: Shop, own_redis) -> None:
    server = own_redis(appendonly="yes", appendfsync="always")
    from django_delayq.store.connection.link import connect

    shop.url, shop.link = server.url, connect(server.url, name="test")
    ids = shop.put_many("nap", [(number, 0.2) for number in range(20)], delay_ms=0)
    worker = shop.work("--threads", "4")
    eventually(lambda: len([line for line in shop.ran() if line.startswith("ended")]) >= 4)
    server.terminate()
    time.sleep(2)
    server.start()
    eventually(lambda: all("succeeded" in shop.happened(id) for id in ids))
    assert worker.process.poll() is None
    # A task whose note could not be written erred, and was retried; but none was run by two at once, and none crashed.
    assert all("crashed" not in shop.happened(id) for id in ids)


def test_ten_workers_of_four_threads_run_each_of_20000_jobs_once(shop: Shop) -> None:
    for start in range(0, 20_000, 200):
        shop.put_many("count", [(number,) for number in range(start, start + 200)])
    workers = [shop.work("--threads", "4", "--burst", "-v", "0") for _ in range(10)]
    for worker in workers:
        assert worker.wait(300) == 0
    counts = shop.counts()
    assert len(counts) == 20_000
    assert set(counts.values()) == {1}
    assert shop.left() == 0


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
