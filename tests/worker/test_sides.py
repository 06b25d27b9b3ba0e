"""A worker with the mirror's process beside its task processes, and one that starts again when the code changes."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tests.worker.conftest import Shop, eventually

SCHEDULE = """
import django_delayq as delayq
from tests.app.shop.tasks import count
print(count.using(key="one").schedule(21).id)
"""
LOOK = """
from django_delayq.models import Job
for job in Job.objects.all():
    print(job.state, job.result, job.attempts)
"""


def test_a_burst_with_all_roles_leaves_the_database_up_to_date(durable: Shop) -> None:
    durable.manage("shell", "-v", "0", "-c", SCHEDULE)
    assert durable.work("--burst", "--roles", "move,mirror,relay").wait() == 0
    assert durable.manage("shell", "-v", "0", "-c", LOOK) == "succeeded 42 1"


@pytest.mark.slow
def test_a_side_process_that_dies_is_started_again(durable: Shop) -> None:
    worker = durable.work("--roles", "mirror,relay")
    (first,) = eventually(worker.children)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: worker.children() not in ([], [first]))
    durable.manage("shell", "-v", "0", "-c", SCHEDULE)
    eventually(lambda: durable.manage("shell", "-v", "0", "-c", LOOK) == "scheduled None 0")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.slow
def test_while_the_database_takes_nothing_jobs_go_on_and_the_mirror_catches_up(durable: Shop) -> None:
    if not durable.database["ENGINE"].endswith("sqlite3"):  # no file that could be locked: nothing here to take away
        pytest.skip("of SQLite, whose file can be locked; test_database_down.py has the others")
    durable.work("--roles", "move,mirror,relay")
    durable.manage("shell", "-v", "0", "-c", SCHEDULE)
    eventually(lambda: durable.manage("shell", "-v", "0", "-c", LOOK) == "succeeded 42 1")
    lock = sqlite3.connect(durable.database["NAME"], isolation_level=None, timeout=20)
    lock.execute("BEGIN EXCLUSIVE")
    try:
        ids = durable.put_many("count", [(number,) for number in range(100, 150)])
        failing = durable.put("err")
        eventually(lambda: len(durable.counts()) == 51 and "failed" in durable.happened(failing))
        assert durable.events()  # not one of them can be folded
        assert all("succeeded" in durable.happened(id) for id in ids)
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    eventually(lambda: not durable.events())
    said = Counter(line.split()[0] for line in durable.manage("shell", "-v", "0", "-c", LOOK).splitlines())
    assert said == {"succeeded": 51, "failed": 1}


def test_a_worker_reloads_when_its_code_changes(shop: Shop, tmp_path: Path) -> None:
    stall = tmp_path / "stall"
    stall.mkdir()
    (stall / "__init__.py").write_text("")
    tasks = "import django_delayq as delayq\n@delayq.task\ndef price():\n    return {price}\n"
    (stall / "tasks.py").write_text(tasks.format(price=1))
    os.utime(stall / "tasks.py", (1, 1))
    shop.environment = {"APP_APPS": "stall", "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    worker = shop.work("--reload")
    before, running = shop.put("stall.tasks.price"), shop.put("nap", 1, None)
    eventually(lambda: "succeeded" in shop.happened(before) and len(shop.ran()) == 1)
    eventually(lambda: "registered" in worker.text())
    (stall / "tasks.py").write_text(tasks.format(price=2))
    shop.release(1)
    eventually(lambda: "starting again" in worker.text())
    assert shop.happened(running)[-1] == "succeeded"
    after = shop.put("stall.tasks.price")
    eventually(lambda: "succeeded" in shop.happened(after))
    assert [shop.detail(id, "succeeded")["r"] for id in (before, after)] == [1, 2]
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_task_process_that_grows_too_large_is_replaced(shop: Shop) -> None:
    worker = shop.work("--max-memory", "1M")
    eventually(lambda: "MB of memory" in worker.text())
    id = shop.put("count", 1)
    eventually(lambda: "succeeded" in shop.happened(id))


def test_a_burst_gives_up_when_redis_is_not_there(shop: Shop) -> None:
    shop.url = "unix:///nowhere/r.sock"
    worker = shop.work("--burst")
    assert worker.wait() == 1
    assert "not available" in worker.text()


def test_a_burst_without_task_processes_brings_the_database_up_to_date(durable: Shop) -> None:
    durable.manage("shell", "-v", "0", "-c", SCHEDULE)
    assert durable.work("--burst").wait() == 0
    assert durable.work("--burst", "--roles", "mirror,relay").wait() == 0
    assert durable.manage("shell", "-v", "0", "-c", LOOK) == "succeeded 42 1"
