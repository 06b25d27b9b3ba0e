"""Traces of a real worker: each of its processes exports what it has before it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.worker.conftest import Shop

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
