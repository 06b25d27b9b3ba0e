"""A real worker reports to a server by Sentry's own transport, and has sent all before its processes end."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.conftest import missing
from tests.worker.conftest import Shop

try:
    import sentry_sdk
except ImportError:
    sentry_sdk = None  # type: ignore[assignment]

ENQUEUE = """
import sentry_sdk
from tests.app.shop import tasks
with sentry_sdk.start_transaction(name="request"):
    tasks.count.schedule(1), tasks.async_facts.using(max_attempts=1).schedule(2), tasks.err.using(max_attempts=1).schedule()
sentry_sdk.flush()
"""


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """The DSN of a server, and what it was sent: type and payload of each item."""
    items: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            lines = gzip.decompress(body).splitlines() if self.headers.get("Content-Encoding") == "gzip" else body.splitlines()
            items.extend((json.loads(head)["type"], json.loads(load)) for head, load in zip(lines[1::2], lines[2::2], strict=True))
            time.sleep(0.1)  # the transport sends one after the other: what is not waited for is lost
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://key@127.0.0.1:{http.server_port}/1", items
        http.shutdown()


def test_transactions_and_errors_of_task_processes_are_sent_before_they_end(durable: Shop, server) -> None:
    if sentry_sdk is None:
        missing("sentry_sdk is not installed")
    dsn, items = server
    durable.environment = {"DJANGO_SETTINGS_MODULE": "tests.contrib.sentry_settings", "SENTRY_DSN": dsn}
    durable.manage("shell", "-v", "0", "-c", ENQUEUE)
    worker = durable.work("--roles", "move,mirror,relay", "--burst")
    assert worker.wait() == 0, worker.text()
    transactions = [payload for kind, payload in items if kind == "transaction"]
    web = next(one for one in transactions if one["transaction"] == "request")
    published = {span["description"]: span for span in web["spans"] if span["op"] == "queue.publish"}
    runs = {one["transaction"]: one for one in transactions if one["contexts"]["trace"]["op"] == "queue.process"}
    names = {f"tests.app.shop.tasks.{name}" for name in ("count", "async_facts", "err")}
    assert set(published) == set(runs) == names, worker.text()
    for name, run in runs.items():
        context = run["contexts"]["trace"]
        assert (context["trace_id"], context["parent_span_id"]) == (web["contexts"]["trace"]["trace_id"], published[name]["span_id"])
        assert context["data"]["messaging.message.id"] == published[name]["data"]["messaging.message.id"]
    (error,) = (payload for kind, payload in items if kind == "event")
    assert error["exception"]["values"][0]["type"] == "ValueError"
    assert error["tags"]["delayq.task"] == "tests.app.shop.tasks.err"
    assert error["contexts"]["trace"]["span_id"] == runs["tests.app.shop.tasks.err"]["contexts"]["trace"]["span_id"]
    assert "Traceback" not in worker.text()
