"""The deployed shop: a database, a Redis, uvicorn and a worker, each in a separate process. Tests use only HTTP to reach it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlencode

from scraped import Scraped

FORM = MappingProxyType({"Content-Type": "application/x-www-form-urlencoded"})
TOKEN = "a-token-of-this-deployment"
HOME = Path(__file__).parents[1]
Seen = TypeVar("Seen")


def until(look: Callable[[], Seen | None], what: str = "", seconds: float = 30) -> Seen:
    """Waits until `look` returns a true value, and returns it."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, what or look
        time.sleep(0.02)
    return seen


class Answer(dict[str, Any]):
    """The response of a view."""

    status: int = 0


class OverSocket(http.client.HTTPConnection):
    """HTTP over a unix socket. No other process can take its name."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self.path))


def read(connection: http.client.HTTPConnection, method: str, path: str, body: str, headers: Mapping[str, str]) -> tuple[int, str]:
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """A deployment that `start` starts and `stop` ends. `stop` returns the worker's exit code."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="shop-"))
        self.address = self.home / "web"
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "DELAYQ_EMBEDDED_DIR": str(self.home / "queue"),
            "SHOP_SQLITE": str(self.home / "db.sqlite3"),
            "SHOP_PREFIX": "shop-live",
            "SHOP_METRICS_TOKEN": TOKEN,
            "SHOP_COUNT_EVERY": "1s",
        }
        if named := os.environ.get("SHOP_LIVE_DATABASE"):
            self.environment["SHOP_DATABASE"] = named
        self.port = free_port()
        self.health = ("--health-host", "127.0.0.1", "--health-port", str(self.port))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> Deployment:
        assert self.run("manage.py", "migrate", "--verbosity", "0").wait(60) == 0, self.log()
        self.worker = self.run("manage.py", "delayq_worker", "--processes", "2", "--threads", "4", "--grace", "1", *self.health)
        self.web = self.run("-m", "uvicorn", "shop.asgi:application", "--uds", str(self.address), "--lifespan", "off")
        until(lambda: self.listens() or self.web.poll() is not None, "uvicorn did not start")
        assert self.web.poll() is None, self.log()
        return self

    def listens(self) -> bool:
        """Returns whether the web server accepts connections. The name of its socket exists a moment before that."""
        with socket.socket(socket.AF_UNIX) as line:
            return line.connect_ex(str(self.address)) == 0

    def run(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.home / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *command], cwd=HOME, env=self.environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def stop(self) -> int:
        """Stops the web server, then the worker."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(30)
        return self.worker.returncode

    def remove(self) -> None:
        if "SHOP_REDIS" not in os.environ:
            self.run("-c", "from django_delayq.store.connection import embedded; embedded.stop()").wait(30)
        shutil.rmtree(self.home, ignore_errors=True)

    def log(self) -> list[str]:
        return (self.home / "log").read_text(errors="replace").splitlines()

    def heard(self, name: str) -> list[str]:
        """Returns the jobs, or workers, that the log lists under this name of a signal."""
        return [line.partition(" ")[2] for line in self.log() if line.startswith(f"{name} ")]

    def get(self, path: str) -> Answer:
        return self.ask("GET", path, "", {})

    def post(self, path: str, form: Mapping[str, object] = MappingProxyType({}), headers: Mapping[str, str] = FORM) -> Answer:
        return self.ask("POST", path, urlencode(form), {**FORM, **headers})

    def ask(self, method: str, path: str, body: str, headers: Mapping[str, str]) -> Answer:
        status, said = read(OverSocket(self.address), method, path, body, headers)
        answer = Answer(json.loads(said))
        answer.status = status
        return answer

    def metrics(self) -> Scraped:
        """Returns the metrics of the queues from the project's URL."""
        status, said = read(OverSocket(self.address), "GET", "/metrics", "", {"Authorization": f"Bearer {TOKEN}"})
        assert status == 200, said
        return Scraped(said)

    def worker_metrics(self) -> Scraped:
        """Returns the metrics of the worker from its health port."""
        status, said = read(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30), "GET", "/metrics", "", {})
        assert status == 200, said
        return Scraped(said)

    def leave_behind(self, path: str, form: Mapping[str, object]) -> OverSocket:
        """Sends a request and does not read its response. Close the connection to make the client leave."""
        connection = OverSocket(self.address)
        connection.request("POST", path, urlencode(form), FORM)
        return connection

    def end_of(self, job: str) -> Sequence[str]:
        """Returns state and cause from the ledger."""
        return until(lambda: self.get("/ledger/").get(job), f"{job} has not ended: {self.log()[-20:]}")
