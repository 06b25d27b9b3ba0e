"""Reports of the state of a worker: `--health-port` answers `GET /health`, `/ready` and `/metrics`. systemd (`Type=notify`), or another
listener at `$NOTIFY_SOCKET`, gets messages. Both run in the supervisor's own loop, without a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django_delayq import clock
from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

MOST_CLIENTS: Final = 128
MOST_WAITING: Final = 1_024  # connections that wait to be accepted; beyond it the kernel makes a client try again after a second
PATIENCE: Final = 5.0  # seconds for a client to send its request and read the response
MOST_BYTES: Final = 4_096

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"  # the content type that Prometheus expects
READY_LOOK: Final = 0.5  # seconds between checks whether the worker has begun to claim


@dataclass(frozen=True, slots=True)
class Answer:
    """The response for a path: facts, or text for a machine. `status` begins with the status code."""

    status: str
    facts: dict[str, Any] | bytes


def judged(well: bool, facts: dict[str, Any]) -> Answer:
    """200 if all is well, else 503."""
    return Answer("200 OK" if well else "503 Service Unavailable", facts)


def not_found(text: str) -> Answer:
    """404, with a hint about the valid paths."""
    return Answer("404 Not Found", {"error": text})


class _Client:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.request = b""
        self.answer = b""
        self.deadline = clock.monotonic() + PATIENCE


class Probe:
    """A listening socket and its few clients. A client cannot block the supervisor or another client. A client that has sent its
    request gets its response before it is dropped, and a new client is never refused because of silent clients.

    Args:
        port: where to listen; 0 for any free port (`port` has the number).
        answers: maps a path to a function that makes the response. Everyone who reaches the port can read it.
        host: the address to listen on; "": all of IPv4, "::": all.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, port: int, answers: dict[str, Callable[[], Answer]], *, host: str = "") -> None:
        self._answers = answers
        self._clients: dict[int, _Client] = {}  # the oldest first
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()
        self._listener = socket.create_server((host, port), family=family, backlog=MOST_WAITING, dualstack_ipv6=both)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    def register(self, poll: select.poll) -> None:
        """Adds its descriptors to the descriptors that the supervisor waits for."""
        poll.register(self._listener.fileno(), select.POLLIN)
        for descriptor, client in self._clients.items():
            poll.register(descriptor, select.POLLOUT if client.answer else select.POLLIN)

    def ready(self, descriptor: int) -> None:
        """Handles an event on a descriptor; ignores descriptors of others."""
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._clients:
            client = self._clients[descriptor]
            try:
                self._serve(client)
            except BlockingIOError:
                pass
            except OSError:
                self._drop(descriptor)

    def poll(self) -> float:
        """Drops clients that take too long."""
        now = clock.monotonic()
        for descriptor, client in list(self._clients.items()):
            if client.deadline < now:
                self._drop(descriptor)
        return 1.0

    def close(self) -> None:
        """Stops listening. In a forked child: closes the copies of the sockets."""
        self._listener.close()
        for descriptor in list(self._clients):
            self._drop(descriptor)

    def _accept(self) -> None:
        """Accepts the waiting clients, up to a number. Most have sent their request by then, and get the response at once."""
        with contextlib.suppress(OSError):
            for _ in range(MOST_WAITING):
                sock, _address = self._listener.accept()
                sock.setblocking(False)
                if len(self._clients) >= MOST_CLIENTS:
                    oldest = next(iter(self._clients))
                    self.ready(oldest)  # its request may have come in the meantime
                    if oldest in self._clients:
                        self._drop(oldest)
                self._clients[sock.fileno()] = _Client(sock)
                self.ready(sock.fileno())

    def _serve(self, client: _Client) -> None:
        if not client.answer:
            received = client.sock.recv(MOST_BYTES)
            client.request += received
            if not received or len(client.request) > MOST_BYTES:
                self._drop(client.sock.fileno())
                return
            if b"\r\n\r\n" not in client.request and b"\n\n" not in client.request:
                return
            client.answer = self._answer(client.request)
        client.answer = client.answer[client.sock.send(client.answer) :]
        if not client.answer:
            self._drop(client.sock.fileno())

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return _response(Answer("405 Method Not Allowed", {"error": "GET only"}), True)
        found = self._answers.get(words[1].partition("?")[0])
        try:
            answer = not_found(f"try {', '.join(self._answers)}") if found is None else found()
            return _response(answer, words[0] == "GET")
        except Exception:  # some of this code belongs to the project; a request must not end the supervisor
            logger.exception("GET %s failed", words[1])
            return _response(Answer("500 Internal Server Error", {"error": "see the log of the worker"}), words[0] == "GET")

    def _drop(self, descriptor: int) -> None:
        client = self._clients.pop(descriptor)
        with contextlib.suppress(OSError):
            client.sock.close()


def _response(answer: Answer, with_body: bool) -> bytes:
    kind, body = (TEXT, answer.facts) if isinstance(answer.facts, bytes) else ("application/json", json.dumps(answer.facts).encode())
    head = f"HTTP/1.1 {answer.status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (body if with_body else b"")


class Systemd:
    """Sends the messages of `sd_notify`.

    1. It sends READY=1 once the worker claims.
    2. It sends WATCHDOG=1 twice per watchdog time, from the supervisor's own loop: if the loop hangs, systemd ends the worker.
    3. It sends STOPPING=1 when the worker leaves.

    If a message is not delivered, the next pass sends it again, or it is lost. The worker never waits for it.

    Args:
        address: a path, or the name of an abstract socket after "@".
        watchdog: the watchdog time in seconds; 0 for none.
        claims: whether the worker has begun to claim.
    """

    def __init__(self, address: str, watchdog: float, claims: Callable[[], bool]) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = watchdog
        self._claims = claims
        self._ready = False
        self._next_at = 0.0
        self._heard = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def poll(self) -> float:
        """Does one pass, and sends a message if it is due. Returns a pause that ends in time for the next message."""
        if not self._ready and self._claims():
            self._ready = self._say("READY=1")
        if self._watchdog and clock.monotonic() >= self._next_at:
            self._say("WATCHDOG=1")
            self._next_at = clock.monotonic() + self._watchdog / 2
        pause = self._watchdog / 4 if self._watchdog else 60.0
        return pause if self._ready else min(READY_LOOK, pause)

    def stopping(self) -> None:
        """Reports that the worker is leaving."""
        self._say("STOPPING=1")

    def close(self) -> None:
        """Closes the socket at the end of the worker. In a forked child, the socket belongs to the supervisor."""
        self._socket.close()

    def _say(self, text: str) -> bool:
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            if self._heard:
                logger.warning("systemd could not be notified of %s: %s", text, error)
            self._heard = False
            return False
        self._heard = True
        return True


def systemd_from_environment(claims: Callable[[], bool], environment: Mapping[str, str] = os.environ) -> Systemd | None:
    """None if the environment names no socket. A watchdog for another process is ignored."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    watchdog = 0.0
    if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        with contextlib.suppress(ValueError):
            watchdog = max(0.0, int(environment.get("WATCHDOG_USEC", "0")) / 1e6)
    return Systemd(address, watchdog, claims)
