"""Which processes of a worker keep records, and what each of them does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq import conf
from django_delayq.exceptions import StoreUnavailable
from django_delayq.management import record_keepers
from django_delayq.store.connection import Link
from django_delayq.worker.evictions import Evictions
from django_delayq.worker.spec import Hooks
from django_delayq.worker.supervisor.process_recovery import DeadProcess, ProcessRecovery
from django_delayq.worker.supervisor.server_links import ServerLinks
from tests.links import opened

pytestmark = pytest.mark.usefixtures("delayq_redis")


@pytest.fixture
def kept(monkeypatch) -> dict[str, tuple[list[str], list[str]]]:
    """What each process would do: its queues, and the loops of no queue that it has."""
    found: dict[str, tuple[list[str], list[str]]] = {}

    class Kept:
        def __init__(self, _places: Any, _config: Any, queues: Any, _roles: Any, *, operations: bool, **_: Any) -> None:
            self.mirrors: list[Any] = []
            self.queues, self.loops = [queue.name for queue in queues], ["operations"] if operations else []

        def add(self, runner: Any) -> None:
            self.loops.append(runner.name)

        def run(self, **_: Any) -> None:
            found[str(len(found))] = self.queues, self.loops

    monkeypatch.setattr(record_keepers, "Service", Kept)
    monkeypatch.setattr(record_keepers, "connections", SimpleNamespace(close_all=lambda: None))
    return found


def keep(queues: list[str]) -> list[Any]:
    made = record_keepers.record_keepers(conf.get(), queues, {}, ["mirror", "relay"], {"metrics_queues": False}, Hooks())
    for process, _ in made:
        process.target(SimpleNamespace(is_set=lambda: True, wait=lambda *_: True))
    return [process for process, _ in made]


COMMON = ["operations", "schedules", "prune of ticks"]


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
    lines: Any = [SimpleNamespace(store=SimpleNamespace(link=link)) for link in (shared, own)]
    links = ServerLinks(Elsewhere(shared, own), lines)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        own.execute("PING")
    assert (links.lost(["default"]), links.lost(["own"]), links.lost(["default", "own"]), links.lost([])) == (False, True, False, False)


def test_what_waits_for_a_server_that_is_away_keeps_no_worker_from_leaving(redis_server, tmp_path):
    well, away = opened(redis_server.url), opened(f"unix://{tmp_path}/nobody")
    lines: Any = [SimpleNamespace(store=SimpleNamespace(link=link)) for link in (well, away)]
    recovery = ProcessRecovery(lines=lines, evictions=Evictions())
    dead = DeadProcess(worker="w", lines=lines, held=[], claims=["", ""], ran="snooze")
    recovery.add(dead)
    with pytest.raises(StoreUnavailable):
        away.execute("PING")
    assert not recovery.hindered, "some of it can be given back"
    dead.left = {1}
    assert recovery.hindered
