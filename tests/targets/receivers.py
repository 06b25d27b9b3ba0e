"""Hosts that receive deliveries, on raw sockets, so that they can answer as badly as real hosts do."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Says = Callable[[Any], None]


@dataclass
class Request:
    """A request that a host received."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Host:
    """A host that answers each request with the next item of `script`. It repeats the last item, and answers 200 if the script is
    empty.
    """

    script: list[Says] = field(default_factory=list)
    context: ssl.SSLContext | None = None
    family: socket.AddressFamily = socket.AF_INET

    def __post_init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.names: list[str | None] = []  # server names from the clients' handshakes
        self.over = threading.Event()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        address = ("127.0.0.1", 0) if self.family == socket.AF_INET else ("::1", 0)
        self._listener = socket.create_server(address, family=self.family)
        self.port: int = self._listener.getsockname()[1]
        if self.context is not None:
            self.context.sni_callback = lambda _socket, name, _context: self.names.append(name)
        self._threads = [threading.Thread(target=self._listen, daemon=True)]
        self._threads[0].start()

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"{'https' if self.context else 'http'}://{host}:{self.port}{path}"

    def close(self) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._open:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        for thread in self._threads:
            thread.join(30)

    def _listen(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
                with self._lock:
                    self._open.append(connection)
            with connection, connection.makefile("rb") as lines:
                while (request := _read(lines)) is not None:
                    with self._lock:
                        said = self.script[min(len(self.requests), len(self.script) - 1)] if self.script else answer(200)
                        self.requests.append(request)
                    if said(Exchange(connection, request, self.over)) == "close":
                        return
        except OSError:
            pass
        finally:
            connection.close()


@dataclass
class Exchange:
    """A request that was read, and the connection for its answer."""

    connection: socket.socket
    request: Request
    over: threading.Event

    def send(self, text: bytes) -> None:
        self.connection.sendall(text)


def _read(lines: Any) -> Request | None:
    line = lines.readline().decode("latin-1").strip()
    if not line:
        return None
    headers: dict[str, str] = {}
    while one := lines.readline().decode("latin-1").strip():
        name, _, value = one.partition(":")
        headers[name.lower()] = value.strip()
    return Request(line, headers, lines.read(int(headers.get("content-length", 0))))


# what they say


def answer(status: int, body: bytes | str = b"", **headers: str) -> Says:
    raw = body.encode() if isinstance(body, str) else body
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(raw)}\r\n{named}\r\n".encode()
    return lambda exchange: exchange.send(head + raw)


def echo(exchange: Exchange) -> None:
    """Answers 401 with everything that the request contained."""
    answer(401, json.dumps(exchange.request.headers))(exchange)


def drop(exchange: Exchange) -> str:
    """Answers nothing and closes the connection."""
    return "close"


def half(text: bytes) -> Says:
    """Sends a part of an answer, and stops."""

    def say(exchange: Exchange) -> str:
        exchange.send(text)
        return "close"

    return say


def hang(exchange: Exchange) -> str:
    """Answers nothing and keeps the connection open."""
    exchange.over.wait(30)
    return "close"


def drip(text: bytes, behind: bytes = b"x", every: float = 0.02) -> Says:
    """Sends a byte now and then, for ever."""

    def say(exchange: Exchange) -> str:
        exchange.send(text)
        while not exchange.over.is_set():
            exchange.send(behind)
            time.sleep(every)
        return "close"

    return say


def flood(size: int) -> Says:
    """Answers 200 with a body of that many bytes."""

    def say(exchange: Exchange) -> None:
        exchange.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // 65536):
            exchange.send(b"a" * 65536)

    return say
