"""A line to Redis that loses one request, or one reply, of a script: each time the same one, and without a clock."""

from __future__ import annotations

import select
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_delayq.store.keys import Keys
from django_delayq.store.scripts import loader

CHUNK = 1 << 20


class CutLine:
    """Passes on what clients and the server at a unix socket send, in threads. `lose` chooses what does not arrive."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory(prefix="dq-cut-")
        self.path = str(Path(self._folder.name) / "c.sock")
        self._ears = socket.socket(socket.AF_UNIX)
        self._ears.bind(self.path)
        self._ears.listen(50)
        self._lock = threading.Lock()
        self._what, self._mark, self._left = "", b"", 0
        self._then: Callable[[], object] = lambda: None
        self.errors: list[BaseException] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, what: str, script: str, *, then: Callable[[], object] = lambda: None) -> None:
        """The next call of a script: its request never reaches the server, or it is carried out and its reply
        never reaches the client. `then` is called after that, before the client notices.
        """
        self._what, self._then = what, then
        self._mark, self._left = loader.load(script, Keys("delayq", "")).sha.encode(), 1

    @property
    def lost(self) -> bool:
        """Whether the loss has happened."""
        return self._left == 0

    def close(self) -> None:
        self._ears.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._ears.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(self._server)
                self._pass_on(client, server)
            except OSError:
                pass

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        losing = False
        while True:
            ready, _, _ = select.select([client, server], [], [])
            if client in ready:
                request = client.recv(CHUNK)
                if not request:
                    return
                losing = self._is_meant(request)
                if losing and self._what == "request":
                    self._happened()
                    return
                server.sendall(request)
            if server in ready:
                reply = server.recv(CHUNK)
                if not reply:
                    return
                if losing:
                    self._happened()
                    return
                client.sendall(reply)

    def _is_meant(self, request: bytes) -> bool:
        return self._left > 0 and self._mark in request

    def _happened(self) -> None:
        with self._lock:
            self._left -= 1
            then, self._then = self._then, lambda: None
        try:
            then()
        except BaseException as error:  # it is raised where the test looks
            self.errors.append(error)


def through(line: CutLine, spec: Any) -> str:
    """The value of REDIS that leads through the line."""
    scheme, _, rest = str(spec).partition("://")
    user, at, path = rest.rpartition("@")
    query = path.partition("?")[2]
    return f"{scheme}://{user}{at}{line.path}{'?' if query else ''}{query}"


def socket_of(spec: Any) -> str:
    """The unix socket to which a value of REDIS leads."""
    return str(spec).partition("://")[2].rpartition("@")[2].partition("?")[0]
