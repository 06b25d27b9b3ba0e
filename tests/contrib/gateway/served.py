"""Runs the gateway in a separate process on a real ASGI server, with a plain client for it."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from pathlib import Path
from typing import Any, TypeVar

from tests import stage
from tests.servers import as_package
from tests.stage import eventually

BASE = "/queue/v1/"
QUEUES = {"default": {}, "mail": {"CONSUMER": "pull", "DURABILITY": "redis", "BACKOFF": "100ms", "LEASE": 1.0, "MAX_ATTEMPTS": 1000}}
Seen = TypeVar("Seen")


class OverSocket(http.client.HTTPConnection):
    """HTTP over a unix socket. No other process can take its name."""

    def __init__(self, path: Path | str, timeout: float = 60) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self.path))
        except OSError:
            self.close()
            raise


class Answer:
    """A response of the gateway."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers = response.status, response.headers
        raw = response.read()
        self.body: Any = json.loads(raw) if raw else None


class Client:
    """Sends requests with a token. Each request uses a new connection."""

    def __init__(self, address: Path | str, token: str) -> None:
        self.address, self.token = address, token

    def post(self, path: str, body: Any = None) -> Answer:
        return self.answer(self.ask(path, body))

    def get(self, path: str) -> Answer:
        return self.answer(self._sent("GET", path, None, {}))

    def ask(self, path: str, body: Any = None) -> http.client.HTTPConnection:
        """Sends a request and does not wait for the response."""
        return self._sent("POST", path, json.dumps({} if body is None else body), {"Content-Type": "application/json"})

    def answer(self, connection: http.client.HTTPConnection) -> Answer:
        """Reads the response."""
        try:
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def _sent(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> http.client.HTTPConnection:
        connection = OverSocket(self.address)
        try:
            connection.request(method, BASE + path, body, {"Authorization": f"Bearer {self.token}", **headers})
        except OSError:
            connection.close()
            raise
        return connection


class Served:
    """A database with a token, and a server. Call `stop` to stop it."""

    def __init__(self, folder: Path, address: Path, redis: str, cache: str) -> None:
        self.address = address
        database = stage.sqlite(folder / "db.sqlite3")
        self.environment = {
            **stage.project(folder, as_package(redis), database, {"QUEUES": QUEUES}),
            "APP_APPS": "django_delayq.contrib.gateway",
            "GATEWAY_CACHE": cache,
        }
        stage.manage("migrate", "--verbosity=0", environment=self.environment)
        made = ("make", "partner", "--queues=*", "--verbs=*", "--per-minute=1000000", "--json")
        document = stage.manage("delayq_gateway", *made, environment=self.environment)
        self.token: str = json.loads(document[document.index("{") :])["token"]
        self.client = Client(address, self.token)
        words = (*("-m", "uvicorn", "tests.contrib.gateway.asgi:application"), "--lifespan=off", f"--uds={address}")
        self.server = stage.Actor(folder / "uvicorn.log", [sys.executable, *words], self.environment)

    def start(self) -> None:
        """Starts the server, and returns when it answers."""
        self.server.start()
        eventually(self._listens, self.server.text)

    def kill(self) -> None:
        """Kills the server, as the death of its host does."""
        self.server.kill_tree()

    stop = kill

    def _listens(self) -> bool:
        assert self.server.alive, self.server.text()
        try:
            return self.client.get("queues").status == 200
        except (OSError, http.client.HTTPException):
            return False
