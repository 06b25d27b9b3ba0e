"""Runs the programs that docs/more/gateway.md shows and offers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import django_delayq as delayq
from django_delayq import ids
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from tests.contrib.gateway.conftest import Caller
from tests.depths import queue_depth
from tests.stage import Actor, eventually

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "more" / "gateway.md").read_text()
PROGRAMS = DOCS / "clients"
Run = Callable[..., str]


@pytest.fixture
def run_client(caller: Caller, live_server: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a program with the URL and the token of the project."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    delayq.task(name="orders.tasks.close_order", queue="orders")(lambda order_id: None)

    def program(*words: str) -> str:
        if shutil.which(words[0]) is None:
            pytest.skip(f"{words[0]} is not installed")
        environment = {**os.environ, "QUEUE_URL": f"{live_server.url}/queue/v1", "QUEUE_TOKEN": caller.text, "NO_PROXY": "*"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return program


def test_curl(run_client: Run) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    told = run_client("bash", str(PROGRAMS / "client.sh"))
    job = Job.objects.get()
    assert job.short_id in told
    assert '"change": "done"' in told
    assert (job.task, job.args, job.key, job.state) == ("orders.tasks.close_order", [42], "close-order:42", "cancelled")


def test_python(run_client: Run) -> None:
    assert lines(run_client(sys.executable, str(PROGRAMS / "client.py"))) == ["scheduled", "done"]


def test_node(run_client: Run) -> None:
    assert lines(run_client("node", str(PROGRAMS / "client.mjs"))) == ["scheduled", "done"]


def test_go(run_client: Run) -> None:
    assert lines(run_client("go", "run", str(PROGRAMS / "client.go"))) == ["scheduled", "done"]


def test_php(run_client: Run) -> None:
    assert lines(run_client("php", str(PROGRAMS / "client.php"))) == ["scheduled", "done"]


# By file extension: the commands that a program needs, and the command that runs it.
COMMANDS = {
    "sh": (("bash", "curl", "jq"), ("bash",)),
    "py": ((sys.executable,), (sys.executable,)),
    "mjs": (("node",), ("node",)),
    "go": (("go",), ("go", "run")),
    "php": (("php",), ("php",)),
}


def test_the_page_offers_every_program() -> None:
    programs = {f"{name}.{ending}" for name in ("client", "consumer") for ending in COMMANDS}
    assert programs == {path.name for path in PROGRAMS.iterdir()} == set(re.findall(r"\.\./clients/([\w.]+)", PAGE))


@pytest.mark.parametrize("ending", COMMANDS)
def test_a_consumer_acks_what_it_has_packed_and_retries_what_it_could_not(
    caller: Caller, live_server: Any, settings: Any, tmp_path: Path, ending: str
) -> None:
    needed, words = COMMANDS[ending]
    queue = f"parcels-{ending}"
    for program in needed:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], queue: {"CONSUMER": "pull", "BACKOFF": "1h"}}}
    good = [delayq.push(queue, {"order": number}) for number in (1, 2, 3)]
    bad = delayq.push(queue, {"note": "no order"})
    file, log = tmp_path / f"consumer.{ending}", tmp_path / "log"
    text, found = re.subn(r"(wait\W+)60\b", r"\g<1>1", (PROGRAMS / f"consumer.{ending}").read_text())
    assert found == 1
    file.write_text(text.replace("queues/parcels/", f"queues/{queue}/"))
    environment = {
        **os.environ,
        "QUEUE_URL": f"{live_server.url}/queue/v1",
        "QUEUE_TOKEN": caller.text,
        "NO_PROXY": "*",
        "no_proxy": "*",
    }
    actor, before = Actor(log, [*words, str(file)], environment), set(threading.enumerate())
    actor.start()
    try:

        def settled() -> bool:
            assert actor.alive, actor.text()
            depth = queue_depth(queue)
            return (depth.due, depth.running, depth.retrying) == (0, 0, 1)

        eventually(settled, actor.text)
        later = delayq.push(queue, {"order": 4})
        eventually(lambda: state(later) == "finished" or not actor.alive, actor.text)
        assert actor.alive, actor.text()
    finally:
        actor.kill_tree()
        # Its last request waits on; later, its error would be that of another test, since the queue is not listed there.
        eventually(
            lambda: not [one for one in threading.enumerate() if one not in before and "process_request" in one.name], actor.text
        )
    assert [state(job) for job in good] == ["finished"] * 3
    assert state(bad) == "scheduled"
    assert sorted(line for line in actor.text().splitlines() if line.startswith("packed")) == [
        f"packed {number}" for number in (1, 2, 3, 4)
    ]


def state(job: delayq.Job) -> str:
    view = stores.inspector().job(job.queue, job.id)
    return "" if view is None else view.state


def lines(told: str) -> list[str]:
    first, *others = told.splitlines()
    assert first.split() == ["201", ids.short(Job.objects.get().pk)]
    assert Job.objects.get().state == "cancelled"
    return others
