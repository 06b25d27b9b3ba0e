"""Servers that refuse commands that nothing needs, and proxies that cut idle connections: work goes on, and the log has one line about
it. A command that is needed stops the worker before it runs a job.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

import django_delayq as delayq
from django_delayq import pull, push  # here, not in two threads at once
from django_delayq.producer.stores import stores
from django_delayq.store.connection import commands
from django_delayq.worker import loop
from django_delayq.worker.loop import LineBreaks
from tests.links import opened
from tests.servers import USER, RedisServer, as_package
from tests.worker.conftest import Shop, eventually

REFUSED = ("-client", "-blpop", "-xread")


@pytest.fixture
def narrow(own_redis) -> Iterator[RedisServer]:
    """A server whose user may do nothing without which the package can do."""
    server = own_redis()
    opened(server.url).execute("ACL", "SETUSER", USER, *REFUSED)
    commands.forget()
    yield server
    commands.forget()


@pytest.fixture
def on_narrow(narrow, settings, delayq_redis) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": as_package(narrow.url)}
    stores.reset()


def test_a_worker_without_client_blpop_and_xread_runs_jobs_and_says_so_once(shop: Shop, narrow):
    shop.url, shop.link = narrow.url, opened(narrow.url)
    shop.keep_rows()
    worker = shop.work("--roles", "move,mirror,relay")
    shop.put_many("count", [(n,) for n in range(3)], delay_ms=200)
    eventually(lambda: len(shop.counts()) == 3)
    shop.put("count", 4)  # to an idle worker
    eventually(lambda: len(shop.counts()) == 4)
    eventually(lambda: not shop.leases())
    worker.signal(15)
    assert worker.wait() == 0, worker.text()
    lines = worker.text().splitlines()
    for name in ("BLPOP", "XREAD"):
        said = [line for line in lines if f"refuses {name}" in line]
        assert 0 < len(said) <= 2, "one for each process that tries it"
    assert not [line for line in lines if "works again" in line or "wake line" in line]


@pytest.mark.parametrize("rule", ["-xtrim", "-hset"])
def test_a_worker_does_not_start_without_a_command_that_it_needs(shop: Shop, own_redis, rule):
    server = own_redis()
    opened(server.url).execute("ACL", "SETUSER", USER, rule)
    shop.url, shop.link = server.url, opened(server.url)
    shop.keep_rows()
    worker = shop.work("--burst")
    assert worker.wait() == 1
    assert "delayq.E021: Redis at" in worker.text()
    assert f"rejects {rule[1:].upper()}" in worker.text()
    assert f"ACL SETUSER <user> '~delayq:*' +{rule[1:]}" in worker.text()


@pytest.mark.usefixtures("on_narrow")
@pytest.mark.django_db(transaction=True)
def test_a_consumer_waits_for_a_message_where_blpop_is_refused(settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull", "DURABILITY": "redis"}}}
    late = threading.Timer(0.5, lambda: push("mail", 1))
    late.start()
    assert len(pull("mail", wait=30)) == 1
    late.join()


@pytest.mark.usefixtures("on_narrow")
def test_a_lock_is_waited_for_where_xread_is_refused():
    holder = delayq.lock("order:42")
    holder.__enter__()
    late = threading.Timer(0.5, lambda: holder.__exit__(None, None, None))
    late.start()
    with delayq.lock("order:42", wait=30) as lock:
        assert lock.held
    late.join()


class CuttingProxy:
    """Leads on to a server, and cuts what waits for longer than a moment."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            behind = socket.socket(socket.AF_UNIX)
            behind.connect(self._server.socket)
            behind.settimeout(0.3)
            threading.Thread(target=self._up, args=(line, behind), daemon=True).start()
            threading.Thread(target=self._down, args=(line, behind), daemon=True).start()

    def _up(self, line: socket.socket, behind: socket.socket) -> None:
        try:
            while data := line.recv(65536):
                behind.sendall(data)
        except OSError:
            pass
        behind.close()

    def _down(self, line: socket.socket, behind: socket.socket) -> None:
        try:
            while data := behind.recv(65536):
                line.sendall(data)
        except OSError:
            self.cuts += 1
        line.close()
        behind.close()


@pytest.fixture
def proxy(own_redis, settings, delayq_redis) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(own_redis())
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": as_package(f"redis://127.0.0.1:{proxy.port}/0")}
    stores.reset()
    yield proxy
    proxy.close()
    stores.reset()


@pytest.mark.django_db(transaction=True)
def test_a_consumer_and_who_waits_for_a_lock_survive_connections_that_are_cut(proxy, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull", "DURABILITY": "redis"}}}
    cut = threading.Event()

    def push_later() -> None:
        eventually(lambda: proxy.cuts > 2)
        push("mail", 1)
        cut.set()

    threading.Thread(target=push_later, daemon=True).start()
    assert len(pull("mail", wait=30)) == 1
    assert cut.is_set()
    holder = delayq.lock("order:42")
    holder.__enter__()
    before = proxy.cuts

    def leave_later() -> None:
        eventually(lambda: proxy.cuts > before + 2)
        holder.__exit__(None, None, None)

    threading.Thread(target=leave_later, daemon=True).start()
    with delayq.lock("order:42", wait=30) as lock:
        assert lock.held


def test_a_line_that_breaks_again_and_again_is_reported_once_an_hour(caplog, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(loop.clock, "monotonic", lambda: now[0])
    breaks = LineBreaks("wake line", rand=lambda: 0.5)
    error = delayq.StoreUnavailable("The wake line to Redis at there broke: cut.")
    breaks.broke(error)
    assert caplog.records == [], "one break is no news"
    assert not breaks.over
    for _ in range(2000):
        now[0] += 1.5
        assert breaks.over, "the next one is made at once"
        breaks.broke(error)
    assert len(caplog.records) == 1
    for _ in range(1000):
        now[0] += 1.5
        breaks.broke(error)
    assert len(caplog.records) == 2


def test_a_line_that_breaks_at_once_is_not_made_in_a_circle(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(loop.clock, "monotonic", lambda: now[0])
    breaks = LineBreaks("wake line", rand=lambda: 0.5)
    made = 0
    while now[0] < 1060.0:
        if breaks.over:
            made += 1
            breaks.broke(delayq.StoreUnavailable("broke"))
        now[0] += 0.01
    assert made < 120
