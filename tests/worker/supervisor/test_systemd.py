"""The messages that a worker sends to systemd, received by a real datagram socket."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_delayq.worker.supervisor import probe
from django_delayq.worker.supervisor.probe import Answer, Probe, judged
from tests.worker.conftest import Shop, eventually


class Listener:
    """Listens as systemd does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)
        self.heard: list[str] = []

    def hear(self) -> list[str]:
        """All messages so far."""
        while True:
            try:
                self.heard.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return self.heard

    def wait_for(self, word: str, times: int = 1) -> None:
        eventually(lambda: self.hear().count(word) >= times, f"{word} × {times}")


Listen = Callable[..., Listener]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    made: list[Listener] = []

    def make(address: str = "") -> Listener:
        made.append(Listener(address or str(tmp_path / "notify")))
        return made[-1]

    yield make
    for each in made:
        each.socket.close()


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_a_worker_says_when_it_claims_that_it_lives_and_when_it_leaves(shop: Shop, listen: Listen, abstract: bool) -> None:
    listening = listen(f"@delayq-{os.getpid()}-{time.monotonic_ns()}" if abstract else "")
    shop.environment = {"NOTIFY_SOCKET": listening.address, "WATCHDOG_USEC": "400000"}
    job = shop.put("count", 1)
    worker = shop.work("--processes", "2")
    listening.wait_for("READY=1")
    listening.wait_for("WATCHDOG=1", 5)
    eventually(lambda: "succeeded" in shop.happened(job))
    assert "STOPPING=1" not in listening.heard
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert listening.hear().count("READY=1") == 1
    assert listening.heard.count("STOPPING=1") == 1


@pytest.mark.slow
def test_a_worker_is_not_ready_before_redis_has_answered_a_claim(own_redis, shop: Shop, listen: Listen) -> None:
    server = own_redis()
    shop.url = server.url
    server.pause()
    listening = listen()
    shop.environment = {"NOTIFY_SOCKET": listening.address, "WATCHDOG_USEC": "400000"}
    worker = shop.work()
    listening.wait_for("WATCHDOG=1", 4)  # it lives, and waits
    assert "READY=1" not in listening.heard
    server.resume()
    listening.wait_for("READY=1")
    assert worker.alive


@pytest.mark.slow
def test_a_supervisor_that_hangs_says_no_more_that_it_lives(shop: Shop, listen: Listen) -> None:
    listening = listen()
    shop.environment = {"NOTIFY_SOCKET": listening.address, "WATCHDOG_USEC": "200000"}
    worker = shop.work()
    listening.wait_for("READY=1")
    worker.signal(signal.SIGSTOP)
    eventually(lambda: Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    listening.hear()
    before = len(listening.heard)
    time.sleep(1)  # five times what was allowed
    assert len(listening.hear()) == before
    worker.signal(signal.SIGCONT)
    listening.wait_for("WATCHDOG=1", listening.heard.count("WATCHDOG=1") + 2)


def test_a_worker_of_roles_alone_is_ready_when_its_processes_are_there(shop: Shop, listen: Listen) -> None:
    listening = listen()
    shop.keep_rows()
    shop.environment = {"NOTIFY_SOCKET": listening.address}
    shop.work("--roles", "mirror,relay")
    listening.wait_for("READY=1")
    assert "WATCHDOG=1" not in listening.heard  # nobody has asked for it


def test_a_listener_that_is_gone_ends_no_worker_and_is_told_of_once(shop: Shop, listen: Listen) -> None:
    listening = listen()
    shop.environment = {"NOTIFY_SOCKET": listening.address, "WATCHDOG_USEC": "100000"}
    worker = shop.work()
    listening.wait_for("READY=1")
    listening.socket.close()
    eventually(lambda: "systemd could not be notified of" in worker.text())
    job = shop.put("count", 1)
    eventually(lambda: "succeeded" in shop.happened(job))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.text().count("systemd could not be notified of") == 1


def test_nobody_is_told_anything_where_nobody_listens() -> None:
    assert probe.systemd_from_environment(lambda: True, {}) is None
    assert probe.systemd_from_environment(lambda: True, {"NOTIFY_SOCKET": "vsock:2:1234"}) is None


def test_a_watchdog_of_another_process_is_none_of_ours(listen: Listen) -> None:
    listening = listen()
    told = probe.systemd_from_environment(
        lambda: False, {"NOTIFY_SOCKET": listening.address, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getppid())}
    )
    assert told is not None
    told.poll()
    told.close()
    assert listening.hear() == []


def test_a_worker_is_ready_once_and_then_again_only_if_it_was_not_heard(tmp_path: Path, listen: Listen) -> None:
    address = str(tmp_path / "late")
    told = probe.Systemd(address, 0.0, lambda: True)
    assert told.poll() <= probe.READY_LOOK  # nothing is listening yet, so it is sent again
    listening = listen(address)
    told.poll()
    assert told.poll() > probe.READY_LOOK
    assert listening.hear() == ["READY=1"]
    told.close()


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
