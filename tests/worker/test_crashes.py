"""Processes that die, servers that go away: what was promised is kept."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from django_delayq import ids
from django_delayq.job_meta import NAMED
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker.supervisor import lease_files
from tests.worker.conftest import Shop, eventually

pytestmark = pytest.mark.slow

LONG = 600  # seconds; with such a lease a job comes back only if somebody gives it back


def test_jobs_of_a_killed_task_process_run_again_at_once(shop: Shop) -> None:
    shop.settings = {"LEASE": LONG}
    ids = shop.put_many("nap", [(number, None) for number in range(4)])
    worker = shop.work("--threads", "4")
    eventually(lambda: len(shop.ran()) == 4)
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    shop.release(*range(4))
    eventually(lambda: all("succeeded" in shop.happened(id) for id in ids))
    for id in ids:
        assert shop.happened(id) == ["scheduled", "claimed", "crashed", "claimed", "succeeded"]
        assert shop.detail(id, "crashed")["v"] == {"signal": "SIGKILL"}
        told = f"job {id} (tests.app.shop.tasks.nap) crashed in attempt 1: its process was killed by SIGKILL, perhaps out of memory"
        assert told in worker.text()
    assert worker.process.poll() is None


def test_what_only_waited_in_a_killed_process_counts_no_crash(shop: Shop) -> None:
    # Claims, and dies before the jobs are written down anywhere: only Redis knows of them.
    shop.settings = {"LEASE": LONG}
    ids = shop.put_many("count", [(number,) for number in range(5)])
    shop.work(failpoints="mover.claimed=kill@1")
    eventually(lambda: any("snoozed" in shop.happened(id) for id in ids))
    assert all("crashed" not in shop.happened(id) for id in ids)


def test_a_job_that_kills_its_process_is_poison_after_some_crashes_and_its_neighbours_are_not(shop: Shop) -> None:
    shop.settings = {"MAX_CRASHES": 2}
    good = shop.put("nap", 2, None)
    id = shop.put("die", 1)
    shop.work()
    eventually(lambda: shop.happened(good).count("crashed") == 2)
    shop.release(2)
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
    neighbour = shop.put("nap", 2, None)
    worker = shop.work()
    eventually(lambda: "must run alone" in worker.text() and len(shop.ran()) == 1)
    worker.signal(signal.SIGTERM)
    eventually(lambda: shop.happened(suspect)[-1] == "snoozed")
    assert shop.happened(neighbour)[-1] == "claimed"
    shop.release(2)
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
    shop.settings = {"LEASE": LONG}
    ran = shop.put_many("nap", [(number, None) for number in range(2)])
    worker = shop.work("--threads", "2")
    eventually(lambda: len(shop.ran()) == 2)
    waited = shop.put_many("nap", [(number, 0.01) for number in range(2, 4)])
    worker.kill_tree()
    assert shop.leases() >= 2
    shop.release(0, 1)
    shop.work("--threads", "4")
    eventually(lambda: all("succeeded" in shop.happened(id) for id in ran + waited))
    for id in ran:
        assert shop.happened(id) == ["scheduled", "claimed", "crashed", "claimed", "succeeded"]
    assert all("crashed" not in shop.happened(id) for id in waited)


@pytest.mark.skipif(lease_files.place() is None, reason="no /dev/shm here: such jobs wait for the end of their leases")
def test_a_neighbour_gives_back_what_a_killed_worker_held_and_nothing_of_a_frozen_one(shop: Shop) -> None:
    killed_id = shop.put("nap", 1, None)
    killed = shop.work("--threads", "1", "--queues", "default")
    eventually(lambda: len(shop.ran()) == 1)
    frozen_id = shop.put("nap", 2, None, queue="slow")
    frozen = shop.work("--threads", "1", "--queues", "slow")
    eventually(lambda: len(shop.ran()) == 2)
    os.killpg(frozen.pid, signal.SIGSTOP)
    neighbour = shop.work("--threads", "1")
    eventually(lambda: "queues" in neighbour.text())
    killed.kill_tree()
    shop.release(1, 2)
    registry = WorkerRegistry(shop.link, prefix="delayq")
    eventually(lambda: [worker["pid"] for worker in registry.all() if worker.get("died")] == [killed.pid])
    assert all(worker["silent"] for worker in registry.all() if worker.get("died"))
    eventually(lambda: "succeeded" in shop.happened(killed_id))
    assert shop.happened(killed_id) == ["scheduled", "claimed", "crashed", "claimed", "succeeded"]
    assert shop.detail(killed_id, "crashed")["k"] == "worker_died"
    os.killpg(frozen.pid, signal.SIGCONT)
    eventually(lambda: "succeeded" in shop.happened(frozen_id, "slow"))
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
    shop.settings = {"LEASE": 5}
    id = shop.put("hog", 11.0)
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


NAMED_ALIKE = {"meta": {NAMED: ["order:1", 1]}}


@pytest.mark.parametrize(
    ("how", "end"), [("does not hear", "failed"), ("aborted", "cancelled"), ("killed", "failed"), ("evicted", "snoozed")]
)
def test_the_next_of_a_name_begins_when_the_process_of_the_holder_is_dead(shop: Shop, how: str, end: str) -> None:
    shop.settings = {"MAX_CRASHES": 0}
    worker = shop.work("--threads", "2", "--grace", "1s")
    (process,) = eventually(worker.children)
    if how == "does not hear":
        holder = shop.put("deaf", 1, options=NAMED_ALIKE, max_attempts=1)
    else:
        holder = shop.put("nap", 1, 600, options=NAMED_ALIKE)
    next_one = shop.put("nap", 2, 0.0, options=NAMED_ALIKE)
    eventually(lambda: len(shop.ran()) == 1)
    if how == "evicted":
        shop.put("deaf", 9, max_attempts=1)  # its neighbour, which has no name
        eventually(lambda: "began 9" in shop.ran())
    shop.work("--threads", "1")
    blocked = Keys("delayq", "default")["blocked"]
    if how in ("aborted", "killed"):  # in the other cases the holder runs for a second only
        eventually(lambda: shop.link.execute("ZCARD", blocked) == 1)
    if how == "aborted":
        shop.store().cancel(ids.full(holder), actor="clerk", abort=True)
    elif how == "killed":
        os.kill(process, signal.SIGKILL)
    eventually(lambda: "claimed" in shop.happened(next_one))
    assert process not in worker.children()
    assert end in shop.happened(holder)
    eventually(lambda: "succeeded" in shop.happened(next_one))
    assert shop.link.execute("ZCARD", blocked) == 0


GROUPS = """
from django.contrib.auth.models import Group
print(list(Group.objects.values_list("name", flat=True)))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_task_that_ends_its_process_counts_as_a_crash_whatever_the_exit_code(shop: Shop, code: int) -> None:
    shop.settings = {"MAX_CRASHES": 1, "LEASE": LONG}
    id = shop.put("leave_by_itself", code)
    shop.work()
    eventually(lambda: "failed" in shop.happened(id))
    assert shop.ran().count(f"began {code}") == 2
    assert shop.detail(id, "failed")["c"] == "Poison"


@pytest.mark.parametrize("slow", ["", "remains.settle=sleep:1.5"])  # its successor would find nothing due meanwhile
def test_a_burst_goes_on_after_a_task_that_ends_its_process(shop: Shop, slow: str) -> None:
    shop.settings = {"MAX_CRASHES": 1}
    id = shop.put("leave_by_itself", 0)
    assert shop.work("--burst", failpoints=slow).wait() == 0
    assert shop.happened(id)[-1] == "failed"


def test_a_copy_that_a_task_forked_does_not_come_back_as_a_worker(shop: Shop) -> None:
    ids = [*shop.put_many("count", [(number,) for number in range(300)]), shop.put("split", 1), shop.put("async_split")]
    ids += shop.put_many("count", [(number,) for number in range(300, 600)])
    shop.work("--threads", "1")
    eventually(lambda: all("succeeded" in shop.happened(id) for id in ids[-302:]))  # both wait for their copy
    assert len([line for line in shop.ran() if line.startswith("copy")]) == 2
    assert set(shop.counts().values()) == {1}


def test_a_copy_does_not_commit_the_transaction_of_an_atomic_run(shop: Shop) -> None:
    shop.keep_rows(DURABILITY="outbox")
    shop.manage("shell", "-v", "0", "-c", "from tests.app.shop.tasks import atomic_split; atomic_split.schedule()")
    assert shop.work("--burst").wait() == 0
    copied, committed = (line.rpartition(" ") for line in shop.ran())
    assert (copied[0], committed[0]) == ("copy", "committed by")
    assert copied[2] != committed[2]


def test_a_task_may_terminate_its_own_child(shop: Shop) -> None:
    id = shop.put("terminate_a_child")
    shop.work()
    eventually(lambda: "succeeded" in shop.happened(id))
    assert shop.detail(id, "succeeded")["r"] == "-15"


@pytest.mark.parametrize("task", ["async_exit", "async_stop"])
def test_a_coroutine_cannot_end_the_event_loop_under_the_others(shop: Shop, task: str) -> None:
    bystander = shop.put("async_nap", 1, None)
    worker = shop.work()
    eventually(lambda: shop.ran() == ["began 1 1"])
    id = shop.put(task)
    eventually(lambda: len(shop.happened(id)) > 2)
    shop.release(1)
    eventually(lambda: "succeeded" in shop.happened(bystander))
    assert shop.happened(id)[2] == ("retried" if task == "async_exit" else "succeeded")
    assert "The loop continues" in worker.text()


def test_database_connections_of_coroutines_are_closed_behind_each_job(shop: Shop) -> None:
    shop.keep_rows()
    ids = [shop.put("async_query", 0) for _ in range(3)]
    assert shop.work("--burst", "--threads", "1").wait() == 0
    assert [shop.detail(id, "succeeded")["r"] for id in ids] == [0, 0, 0]


def test_a_slow_query_of_one_coroutine_does_not_hold_up_those_of_others(shop: Shop) -> None:
    shop.keep_rows()
    shop.put("async_query", 600)
    shop.work()
    eventually(lambda: shop.ran() == ["began 600"])
    id = shop.put("async_query", 0)
    eventually(lambda: "succeeded" in shop.happened(id))


def test_a_transaction_left_open_does_not_swallow_what_the_next_job_writes(shop: Shop) -> None:
    shop.keep_rows()
    shop.put("leave_open")
    id = shop.put("write_row")
    assert shop.work("--burst", "--threads", "1").wait() == 0
    assert shop.happened(id)[-1] == "succeeded"
    assert shop.manage("shell", "-v", "0", "-c", GROUPS) == "['whole']"


def test_a_queue_that_redis_cannot_serve_does_not_stop_the_others(shop: Shop) -> None:
    shop.settings = {"LEASE": 6, "QUEUES": {"broken": {}, "default": {}}}
    running = shop.put("nap", 1, None)
    shop.put("nap", 2, 600.0, queue="broken")
    workers = [shop.work(), shop.work()]  # one that would take over
    eventually(lambda: len(shop.ran()) == 2)
    shop.link.execute("SET", Keys("delayq", "broken")["leases"], "no sorted set any more")
    eventually(lambda: all("unexpected error" in worker.text() for worker in workers))
    leases = Keys("delayq", "default")["leases"]
    end = float(shop.link.execute("ZSCORE", leases, running))
    id = shop.put("count", 1)
    eventually(lambda: "succeeded" in shop.happened(id))
    eventually(lambda: float(shop.link.execute("ZSCORE", leases, running)) > end, "its lease is extended")
    shop.release(1)
    eventually(lambda: "succeeded" in shop.happened(running))
    assert shop.happened(running) == ["scheduled", "claimed", "succeeded"]
