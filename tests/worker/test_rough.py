"""Tasks that do what no task should: the worker, and the other jobs, come out of it well."""

from __future__ import annotations

import pytest

from django_delayq.store.keys import Keys
from tests.worker.conftest import Shop, eventually

pytestmark = pytest.mark.slow

GROUPS = """
from django.contrib.auth.models import Group
print(list(Group.objects.values_list("name", flat=True)))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_task_that_ends_its_process_counts_as_a_crash_whatever_the_exit_code(shop: Shop, code: int) -> None:
    shop.settings = {"MAX_CRASHES": 1}
    id = shop.put("leave_by_itself", code)
    shop.work()
    eventually(lambda: "failed" in shop.happened(id), patience=8)
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
    bystander = shop.put("async_nap", 1, 2.0)
    worker = shop.work()
    eventually(lambda: shop.ran() == ["began 1 1"])
    id = shop.put(task)
    eventually(lambda: "succeeded" in shop.happened(bystander), patience=10)
    eventually(lambda: len(shop.happened(id)) > 2)
    assert shop.happened(id)[2] == ("retried" if task == "async_exit" else "succeeded")
    assert "it goes on" in worker.text()


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
    eventually(lambda: "succeeded" in shop.happened(id), patience=10)


def test_a_transaction_left_open_does_not_swallow_what_the_next_job_writes(shop: Shop) -> None:
    shop.keep_rows()
    shop.put("leave_open")
    id = shop.put("write_row")
    assert shop.work("--burst", "--threads", "1").wait() == 0
    assert shop.happened(id)[-1] == "succeeded"
    assert shop.manage("shell", "-v", "0", "-c", GROUPS) == "['whole']"


def test_a_queue_that_redis_cannot_serve_does_not_stop_the_others(shop: Shop) -> None:
    shop.settings = {"LEASE": 2, "QUEUES": {"broken": {}, "default": {}}}
    running = shop.put("nap", 1, 8.0)
    shop.put("nap", 2, 600.0, queue="broken")
    workers = [shop.work(), shop.work()]  # one that would take over
    eventually(lambda: len(shop.ran()) == 2)
    shop.link.execute("SET", Keys("delayq", "broken")["leases"], "no sorted set any more")
    eventually(lambda: all("unexpected error" in worker.text() for worker in workers))
    id = shop.put("count", 1)
    eventually(lambda: "succeeded" in shop.happened(id), patience=10)
    eventually(lambda: "succeeded" in shop.happened(running))
    assert shop.happened(running) == ["scheduled", "claimed", "succeeded"]
