"""The responses of the health port."""

from __future__ import annotations

import select
import socket

from django_delayq.worker.supervisor.probe import Answer, Probe, judged


def asked(probe: Probe, path: str) -> bytes:
    """The response for that path, while the probe runs its passes."""
    with socket.create_connection(("127.0.0.1", probe.port), timeout=30) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        poll = select.poll()
        probe.register(poll)
        while ready := poll.poll(100):
            for descriptor, _ in ready:
                probe.ready(descriptor)
            poll = select.poll()
            probe.register(poll)
        return client.recv(65_536)


def broken() -> Answer:
    raise LookupError("no such label")


def test_an_answer_that_cannot_be_given_ends_neither_the_probe_nor_who_calls_it(caplog):
    probe = Probe(0, {"/health": lambda: judged(True, {}), "/metrics": broken}, host="127.0.0.1")
    try:
        answer = asked(probe, "/metrics")
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"LookupError" not in answer
        assert "LookupError" in caplog.text
        assert asked(probe, "/health").startswith(b"HTTP/1.1 200 ")
    finally:
        probe.close()
