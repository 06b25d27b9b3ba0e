"""The example's partner as a process, and the worker's calls to it."""

from __future__ import annotations

import http.client
import json
import sqlite3
import sys
import time
import urllib.request
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from django_delayq.targets import webhook
from tests.ports import free_port
from tests.servers import Server

EXAMPLE = Path(__file__).parents[2] / "example_project"
SECRET = "whsec_bm9ib2R5IGtub3dzIHRoaXMgb25l"


class Told(NamedTuple):
    """The partner's response. `status` 0: the partner closed the connection."""

    status: int
    text: str = ""
    retry_after: str | None = None


class Partner(Server):
    """The process."""

    def __init__(self, ledger: Path) -> None:
        super().__init__()
        self.ledger, self.port = ledger, free_port()
        self.environment = {"PARTNER_SECRET": SECRET}

    def command(self) -> list[str]:
        return [sys.executable, str(EXAMPLE / "partner.py"), "--port", str(self.port), "--ledger", str(self.ledger)]

    def ready(self) -> bool:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
            return True
        return False

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def rows(self, query: str) -> list[tuple]:
        with closing(sqlite3.connect(self.ledger, timeout=20)) as ledger:
            return ledger.execute(query).fetchall()

    def tell(self, id: str, body: object, secret: str = SECRET) -> Told:
        """Makes one attempt of a delivery, as a worker does."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        stamp = int(time.time())
        signed = (id, str(stamp), webhook.signatures(id, stamp, content, [secret]))
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            try:
                connection.request("POST", "/orders/", content, dict(zip(webhook.HEADERS, signed, strict=True)))
                answer = connection.getresponse()
            except http.client.RemoteDisconnected:
                return Told(0)
            return Told(answer.status, answer.read().decode().strip(), answer.headers["Retry-After"])
