"""Which processes of a worker keep records, and what each of them does."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from django_delayq import conf
from django_delayq.exceptions import StoreUnavailable
from django_delayq.management import record_keepers
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.worker.spec import Hooks
from django_delayq.worker.supervisor.process_recovery import DeadProcess, ProcessRecovery
from django_delayq.worker.supervisor.supervisor import ServerLinks
from tests.links import opened

pytestmark = pytest.mark.usefixtures("delayq_redis")


@pytest.fixture
def kept(monkeypatch) -> dict[str, tuple[list[str], list[str]]]:
    """The queues of each process, and its loops without a queue."""
    found: dict[str, tuple[list[str], list[str]]] = {}

    class Kept:
        def __init__(self, _places: Any, _config: Any, queues: Any, _roles: Any, **_: Any) -> None:
            self.mirrors: list[Any] = []
            self.queues: list[str] = [queue.name for queue in queues]
            self.loops: list[str] = []

        def add(self, runner: Any) -> None:
            self.loops.append(runner.name)

        def run(self, **_: Any) -> None:
            found[str(len(found))] = self.queues, self.loops

    monkeypatch.setattr(record_keepers, "Service", Kept)
    monkeypatch.setattr(record_keepers.database_connections, "close_all", dict)
    return found


def keep(queues: list[str]) -> list[Any]:
    made = record_keepers.record_keepers(conf.get(), queues, {}, ["mirror", "relay"], {"metrics_queues": False}, Hooks())
    for process, _ in made:
        process.target(SimpleNamespace(is_set=lambda: True, wait=lambda *_: True))
    return [process for process, _ in made]


COMMON = ["operations", "prune of operations", "prune of ticks", "batches", "changes at commits", "pauses", "schedules"]


def test_on_one_server_one_process_does_all(kept):
    [process] = keep(["default", "orders"])
    assert (process.name, process.queues) == ("records", ("default", "orders"))
    assert list(kept.values()) == [(["default", "orders"], COMMON)]


def test_operations_and_schedules_wait_for_no_server_where_there_are_several(kept, own_redis, settings):
    queues = {**settings.DELAYQ["QUEUES"], "own": {"REDIS": own_redis().url}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    processes = keep(["default", "orders", "own"])
    assert [(process.name, process.queues) for process in processes] == [
        ("records", ("default", "orders")),
        ("records-2", ("own",)),
        ("operations", ()),
    ]
    assert list(kept.values()) == [(["default", "orders"], []), (["own"], []), ([], COMMON)]


class Elsewhere:
    """Two servers, of which the second has the queue `own`."""

    def __init__(self, shared: Link, own: Link) -> None:
        self.shared, self._own = shared, own

    def of(self, queue: str, _partition: int) -> Link:
        return self._own if queue == "own" else self.shared


def test_of_several_servers_the_processes_of_one_that_is_away_have_nothing_to_finish(redis_server, tmp_path):
    shared, own = opened(redis_server.url), opened(f"unix://{tmp_path}/nobody")
    lines: Any = [SimpleNamespace(store=SimpleNamespace(link=link), lease=30.0) for link in (shared, own)]
    links = ServerLinks(Elsewhere(shared, own), lines)  # type: ignore[arg-type]  # a stand-in
    with pytest.raises(StoreUnavailable):
        own.execute("PING")
    assert (links.lost(["default"]), links.lost(["own"]), links.lost(["default", "own"]), links.lost([])) == (False, True, False, False)


def test_a_worker_is_ready_while_a_server_of_its_own_queues_answers(redis_server, tmp_path):
    well, away, nowhere = opened(redis_server.url), opened(f"unix://{tmp_path}/nobody"), opened(f"unix://{tmp_path}/else")

    def answers(shared: Link, *held: Link, beaten: bool) -> bool:
        lines: Any = [SimpleNamespace(store=SimpleNamespace(link=link), lease=30.0) for link in held]
        return ServerLinks(Elsewhere(shared, shared), lines).answers(beaten)  # type: ignore[arg-type]  # a stand-in

    assert answers(well, well, away, beaten=True)
    assert answers(away, away, well, beaten=False), "what it does not need alone is away"
    assert not answers(away, away, nowhere, beaten=False)
    assert not answers(well, away, beaten=True), "it shows itself, and can do nothing"
    assert answers(well, beaten=True), "it has no lines"
    assert not answers(away, beaten=False)


class Slot:
    """The addresses of one slot of a Cluster, by node."""

    home = "the Cluster"
    moves = True

    def __init__(self, node: Link, asked: list[Link]) -> None:
        self.met, self._asked = node, asked

    @property
    def away(self) -> bool:
        return self.met.away

    def set_cooldown(self, *_: float) -> None:
        pass

    def execute(self, *command: str) -> Any:
        self._asked.append(self.met)
        return self.met.execute(*command)


def test_each_master_is_asked_once_whether_it_answers_and_one_that_did_not_last(redis_server, tmp_path):
    well, *away = (opened(url) for url in (redis_server.url, f"unix://{tmp_path}/nobody", f"unix://{tmp_path}/else"))
    asked: list[Link] = []

    def answers(*nodes: Link) -> bool:
        shared, *held = (Slot(node, asked) for node in nodes)
        lines: Any = [SimpleNamespace(store=SimpleNamespace(link=link), lease=30.0) for link in held]
        return ServerLinks(Elsewhere(shared, shared), lines).answers(False)  # type: ignore[arg-type]  # a stand-in

    assert not answers(away[0], away[1], away[1], away[0], away[1])
    assert asked == [away[1]]
    assert answers(away[0], away[1], well)
    assert asked == [away[1], well]


def test_of_several_servers_none_is_waited_for_until_the_leases_on_another_have_run_out(redis_server):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        shared = opened(redis_server.url)
        own = opened(f"redis://127.0.0.1:{deaf.getsockname()[1]}/0", timeout=3_600.0)
        lines: Any = [SimpleNamespace(store=SimpleNamespace(link=link), lease=lease) for link, lease in ((shared, 3.0), (own, 30.0))]
        ServerLinks(Elsewhere(shared, own), lines)  # type: ignore[arg-type]  # a stand-in
        with pytest.raises(StoreUnavailable):
            own.execute("PING")
        alone: Any = opened(redis_server.url)
        ServerLinks(alone, [SimpleNamespace(store=SimpleNamespace(link=alone), lease=3.0)])  # type: ignore[list-item]  # a stand-in
        connections = [link.dedicated() for link in (shared, alone)]
        assert [connection.socket_timeout for connection in connections] == [0.375, 2.0], "one server alone is waited for"
        for connection in connections:
            connection.disconnect()


def test_what_waits_for_a_server_that_is_away_keeps_no_worker_from_leaving(redis_server, tmp_path):
    well, away = opened(redis_server.url), opened(f"unix://{tmp_path}/nobody")
    lines: Any = [SimpleNamespace(store=SimpleNamespace(link=link), lease_ms=30_000, max_crashes=3) for link in (well, away)]
    recovery = ProcessRecovery(lines=lines)
    dead = DeadProcess(worker="w", lines=lines, held=[], claims=["", ""], ran="snooze")
    recovery.add(dead)
    with pytest.raises(StoreUnavailable):
        away.execute("PING")
    assert not recovery.hindered, "some of it can be given back"
    dead.left = {1}
    assert recovery.hindered


def test_a_line_that_is_refused_keeps_nothing_of_its_neighbours_from_being_given_back():
    link, asked = Mock(), list[int]()
    link.server = link

    def line(number: int) -> Any:
        def claim(*_: Any, **__: Any) -> Any:
            asked.append(number)
            if number == 0:
                raise StoreRefused(code="redis_slot", where="there", cause="TRYAGAIN")
            return SimpleNamespace(jobs=[])

        return SimpleNamespace(store=SimpleNamespace(link=link, claim=claim), lease_ms=30_000, max_crashes=3)

    lines = [line(number) for number in range(3)]
    recovery = ProcessRecovery(lines=lines)
    recovery.add(dead := DeadProcess(worker="w", lines=lines, held=[], claims=["", "", ""], ran="snooze"))
    with pytest.raises(StoreRefused):
        recovery.poll()
    assert (asked, dead.left) == ([0, 1, 2], {0})
