"""The signals around the forks of a worker."""

from __future__ import annotations

import os
import signal

import pytest

from tests.worker.conftest import Shop, eventually


@pytest.mark.slow
def test_a_project_cleans_up_before_each_fork_and_begins_anew_in_each_process(shop: Shop) -> None:
    """Also for a process that replaces another one. The worker closes the connections of receivers, so no process inherits one."""
    shop.environment = {"APP_APPS": "tests.app.clean_up.CleanUp", "APP_CACHE": shop.url}
    shop.keep_rows()
    worker = shop.work("--roles", "move,mirror,relay", "-v", "2")

    def told() -> list[list[str]]:
        return [line.decode().split() for line in shop.link.execute("LRANGE", "forks", 0, -1)]

    eventually(lambda: len(told()) >= 4)
    first = [pid for word, process, pid in told() if (word, process) == ("after", "task-1")]
    os.kill(int(first[0]), signal.SIGKILL)
    eventually(lambda: len(told()) >= 6)
    before = [(process, pid) for word, process, pid in told() if word == "before"]
    assert before == [("task-1", str(worker.pid)), ("records", str(worker.pid)), ("task-1", str(worker.pid))]
    after = [(process, pid) for word, process, pid in told() if word == "after"]
    assert sorted(process for process, _ in after) == ["records", "task-1", "task-1"]
    assert len({pid for _, pid in after} | {str(worker.pid)}) == 4
    id = shop.put("count", 1)
    eventually(lambda: "succeeded" in shop.happened(id))
    assert "does not start" not in worker.text()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "task-1 inherits sockets: " in worker.text()
