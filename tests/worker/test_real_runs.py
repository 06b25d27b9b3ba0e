"""Runs of real workers: what a job knows of itself, its result, jobs that share a name, requests to a worker, forks and traces."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from django_delayq.states import CARRIED
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.conftest import missing
from tests.worker import serial_run
from tests.worker.conftest import Shop, eventually

OPTIONS = {"meta": {"by": "form", CARRIED: {"Tenant": "acme"}}}


@pytest.mark.parametrize("task", ["facts", "async_facts"])
def test_a_job_knows_what_it_was_scheduled_with_and_runs_inside_its_carriers(shop: Shop, task: str) -> None:
    shop.settings = {"CARRIERS": ["tests.carriers.Tenant"]}
    attempts = 2 if task == "facts" else 1
    id = shop.put(task, 7, "x", options=OPTIONS, max_attempts=attempts)
    shop.work()  # a burst may leave before the retry is due
    eventually(lambda: "succeeded" in shop.happened(id))
    assert shop.detail(id, "succeeded")["r"] == [[7, "x"], {}, {"by": "form"}, attempts, attempts, True, "acme"]


def test_a_job_whose_carrier_fails_has_failed(shop: Shop) -> None:
    shop.settings = {"CARRIERS": ["tests.carriers.Broken"]}
    id = shop.put("count", 7, max_attempts=1)
    shop.work()
    eventually(lambda: "failed" in shop.happened(id))
    assert shop.detail(id, "failed")["m"] == "no tenant None"
    assert shop.counts() == {}


def test_without_carriers_the_meta_of_a_job_is_all_it_has(shop: Shop) -> None:
    id = shop.put("async_facts", options={"meta": {"by": "form"}})
    shop.work()
    eventually(lambda: "succeeded" in shop.happened(id))
    assert shop.detail(id, "succeeded")["r"] == [[], {}, {"by": "form"}, 1, 10, False, None]


WAIT = """
import django_delayq as delayq
from tests.app.shop import tasks
one = delayq.schedule(tasks.count, 21)
print(one.result("30s"), one.wait("1s").value, one.attempts)
later = delayq.schedule(tasks.count, 1, delay="1h")
other = delayq.schedule(tasks.waits, str(later.id), 5)
print(other.wait("30s").value, other.error)
looks = delayq.schedule(tasks.waits, str(one.id), 0)
print(looks.result("30s"))
"""


def test_a_view_gets_what_the_task_has_returned_and_a_task_may_look_but_not_wait(durable: Shop) -> None:
    durable.work("--roles", "move,mirror,relay")
    said = durable.manage("shell", "-v", "0", "-c", WAIT).splitlines()
    assert said[0] == "42 succeeded 1"
    assert said[1].startswith("failed django_delayq.exceptions.ConfigError: job")
    assert "a task cannot wait for another job" in said[1]
    assert said[2] == "42"


@pytest.mark.slow
def test_of_a_name_one_runs_at_a_time_oldest_first_while_workers_are_killed(shop: Shop) -> None:
    shop.settings = {"MAX_CRASHES": 20}
    assert serial_run.play(shop, jobs=200, names=10, seconds=0.01, workers=2, kills=3) == []


@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        (["began a 1 0", "began a 2 1", "ended a 1 0", "ended a 2 1"], "turn 2 of that name has begun"),
        (["began a 1 0", "began a 1 1", "ended a 1 0", "ended a 1 1"], "two runs of one turn"),
        (["began a 1 1", "ended a 1 1", "began a 2 0", "ended a 2 0"], "not the oldest first"),
        (["began a 1 0", "ended a 1 0", "began a 2 1"], "1 jobs have not ended"),
    ],
)
def test_the_ledger_sees_what_breaks_the_promise(ledger: list[str], words: str) -> None:
    assert any(words in found for found in serial_run.wrong(ledger, 2))


def test_the_ledger_takes_what_keeps_it() -> None:
    lost = ["began a 1 0", "began a 2 0", "ended a 2 0", "began b 3 1", "ended b 3 1"]
    assert serial_run.wrong(lost, 2) == []


def test_a_worker_that_is_asked_claims_no_more_and_then_leaves_in_order(shop: Shop) -> None:
    worker = shop.work("--grace", "20")
    running = shop.put("nap", 1, None)
    registry = WorkerRegistry(shop.link, prefix="delayq")
    eventually(lambda: registry.all() and registry.all()[0]["state"] == "working")
    [shown] = eventually(lambda: [job for facts in registry.all() for job in facts["jobs"]])
    assert (shown["id"], shown["queue"], shown["attempt"]) == (running, "default", 1)
    assert shown["task"].endswith("nap")

    id = registry.all()[0]["id"]
    assert registry.ask(id, "quiet", by="admin:clerk")
    eventually(lambda: registry.all()[0]["state"] == "quiet")
    assert registry.asked(id) is None
    left = shop.put("count", 1)
    assert registry.ask(id, "stop", by="admin:clerk")
    eventually(lambda: "stop requested" in worker.text())
    shop.release(1)
    assert worker.wait() == 0  # not hurried
    assert shop.happened(running)[-1] == "succeeded"
    assert shop.happened(left) == ["scheduled"]
    assert "stop requested by admin:clerk" in worker.text()
    assert registry.all() == []
    assert not registry.ask(id, "stop", by="admin:clerk")


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


try:
    import opentelemetry.sdk
except ImportError:
    opentelemetry = None  # type: ignore[assignment]

ENQUEUE = """
from tests.app.shop import tasks
from tests.contrib import traced
from tests.contrib.traced.apps import provide
from opentelemetry import trace
provide() if {provide} else None
tasks.count.schedule(1), tasks.async_facts.using(max_attempts=1).schedule(2), tasks.err.using(max_attempts=1).schedule()
trace.get_tracer_provider().force_flush()
"""


def spans(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "spans.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("when", ["early", "in each process"])
def test_spans_of_task_processes_are_exported_before_they_end(durable: Shop, when: str) -> None:
    if opentelemetry is None:
        missing("OpenTelemetry is not installed")
    durable.environment = {"APP_APPS": "tests.contrib.traced", "APP_TRACED": when}
    durable.manage("shell", "-v", "0", "-c", ENQUEUE.format(provide=when != "early"))
    web = {span["pid"] for span in spans(durable.folder)}
    worker = durable.work("--roles", "move,mirror,relay", "--burst", "--processes", "2")
    assert worker.wait() == 0, worker.text()
    found = {(span["name"], span["attributes"]["delayq.task"].rpartition(".")[2]): span for span in spans(durable.folder)}
    assert len(found) == len(spans(durable.folder)) == 6, worker.text()
    for task in ("count", "async_facts", "err"):
        sent, run = found["send default", task], found["process default", task]
        assert {sent["pid"]} == web
        assert run["pid"] not in web | {worker.pid}
        (link,) = run["links"]
        assert (link["context"]["trace_id"], link["context"]["span_id"]) == (sent["context"]["trace_id"], sent["context"]["span_id"])
        assert run["attributes"]["messaging.message.id"] == sent["attributes"]["messaging.message.id"]
    assert found["process default", "err"]["status"]["status_code"] == "ERROR"
    metrics = (durable.folder / "metrics.jsonl").read_text()
    assert "messaging.process.duration" in metrics
    assert worker.text().count("Traceback") == 0


INSTRUMENTED = {"redis": "RedisInstrumentor", "threading": "ThreadingInstrumentor"}
OF_DRIVERS = {"sqlite3": {"sqlite3": "SQLite3Instrumentor"}, "postgresql": {"psycopg": "PsycopgInstrumentor"}}


@pytest.mark.slow  # on a busy machine a call outside the loops once made a span
def test_loops_make_no_spans_of_drivers_and_tasks_do(durable: Shop) -> None:
    vendor = durable.database["ENGINE"].rpartition(".")[2]
    if vendor not in OF_DRIVERS:
        pytest.skip(f"the test has no instrumentation of {vendor}")
    names = INSTRUMENTED | OF_DRIVERS[vendor]
    if opentelemetry is None or not all(find_spec(f"opentelemetry.instrumentation.{name}") for name in names):
        missing("OpenTelemetry's instrumentations are not installed")
    durable.environment = {
        "APP_APPS": "tests.contrib.traced",
        "APP_TRACED": "in each process",
        "APP_INSTRUMENTED": " ".join(f"opentelemetry.instrumentation.{name}.{kind}" for name, kind in names.items()),
    }
    durable.manage("shell", "-v", "0", "-c", "from tests.app.shop import tasks; tasks.pay.schedule(1)")
    (durable.folder / "spans.jsonl").unlink(missing_ok=True)
    worker = durable.work("--roles", "move,mirror,relay", "--burst")
    assert worker.wait() == 0, worker.text()
    found = spans(durable.folder)
    run = next(span["context"]["span_id"] for span in found if span["name"] == "process default")
    assert {span["parent_id"] for span in found if "db.system" in span["attributes"]} == {run}
