"""`delayq upgrade`, and what the doctor says of formats."""

from __future__ import annotations

import pytest

from django_delayq import conf
from django_delayq.mirror.upgrade_loop import UpgradeLoop
from django_delayq.producer.stores import stores
from django_delayq.store import formats, scripts
from django_delayq.store.format_store import FormatStore
from django_delayq.store.worker_registry import WorkerRegistry


@pytest.fixture
def newer_release(monkeypatch):
    """From here on this process is of the next release."""

    def install() -> None:
        monkeypatch.setattr(formats, "FORMAT", formats.FORMAT + 1)
        scripts.built.cache_clear()

    yield install
    monkeypatch.undo()
    scripts.built.cache_clear()


def look(queue: str = "orders") -> int:
    return FormatStore(stores.queue(queue, 0)).look()


def beat(worker: str, **facts) -> None:
    WorkerRegistry(stores.link, prefix=conf.get().prefix).beat(worker, {"queues": ["orders"], "version": "0.1.0", **facts})


def findings(run) -> set[str]:
    return {found["code"] for found in run("doctor", "--json").json["findings"]}


def test_upgrade_gives_every_queue_the_newest_format(orders, run):
    orders.scheduled(2)
    answer = run("upgrade", "--yes", "--json")
    assert answer.code == 0
    assert answer.json["queues"]["orders"] == {"before": 0, "after": formats.FORMAT}
    assert {look(queue) for queue in conf.get().queues} == {formats.FORMAT}
    assert orders.scheduled(1)[0].state == "scheduled"


def test_upgrade_may_be_called_again(orders, run):
    run("upgrade", "--yes")
    answer = run("upgrade", "--yes")
    assert (answer.code, answer.out) == (0, f"Every queue has format {formats.FORMAT}, the newest of this release.\n")


def test_upgrade_asks_first(orders, run):
    assert run("upgrade", typed="no").code == 1
    assert look() == 0
    assert run("upgrade", typed="yes").code == 0
    assert look() == formats.FORMAT


def test_a_dry_run_raises_nothing(orders, run):
    answer = run("upgrade", "--dry-run")
    assert (answer.code, look()) == (0, 0)
    assert f"Would give format {formats.FORMAT} to " in answer.out


@pytest.mark.parametrize("facts", [{}, {"format": formats.FORMAT - 1}, {"format": "?"}])
def test_a_worker_of_an_older_release_stands_in_the_way_and_is_named(orders, run, facts):
    beat("old:7:w", **facts)
    answer = run("upgrade", "--yes")
    assert (answer.code, look()) == (1, 0)
    assert "old:7:w" in answer.error
    assert "Replace" in answer.error
    assert run("upgrade", "--yes", "--force").code == 0
    assert look() == formats.FORMAT


def test_a_worker_of_this_release_does_not_stand_in_the_way(orders, run):
    beat("new:7:w", format=formats.FORMAT)
    assert run("upgrade", "--yes").code == 0
    assert look() == formats.FORMAT


def test_an_older_web_process_that_has_just_called_stands_in_the_way(orders, run, newer_release):
    run("upgrade", "--yes")
    old = formats.FORMAT
    orders.scheduled(1)
    newer_release()
    answer = run("upgrade", "--yes", "--json")
    assert (answer.code, look()) == (1, old)
    [named] = answer.json["older"]
    assert f"knows format {old} only" in named
    assert run("upgrade", "--yes", "--force").code == 0
    assert look() == formats.FORMAT


def test_a_queue_with_a_newer_format_is_no_business_of_this_release(orders, run):
    stores.link.execute("HSET", stores.queue("orders", 0).keys["meta"], "format", formats.FORMAT + 1)
    answer = run("upgrade", "--yes")
    assert answer.code == 1
    assert "format" in answer.error
    assert "D021" in findings(run)


def test_the_doctor_says_when_an_upgrade_is_due(orders, run):
    assert "D020" not in findings(run)  # nobody has used the queue
    orders.scheduled(1)
    beat("old:7:w")
    [found] = [found for found in run("doctor", "--json").json["findings"] if found["code"] == "D020"]
    assert "old:7:w" in found["hint"]
    WorkerRegistry(stores.link, prefix=conf.get().prefix).leave("old:7:w")
    [found] = [found for found in run("doctor", "--json").json["findings"] if found["code"] == "D020"]
    assert "delayq upgrade" in found["hint"]
    run("upgrade", "--yes")
    assert "D020" not in findings(run)


class TestByItself:
    """The mirror raises the format when no older process has shown itself for an hour."""

    def loop(self) -> UpgradeLoop:
        config = conf.get()
        return UpgradeLoop(stores.link, config.queue("orders"), prefix=config.prefix)

    def test_never_from_format_0(self, orders, newer_release):
        newer_release()
        self.loop().poll()
        assert look() == 0

    def test_not_while_an_older_process_has_called(self, orders, run, newer_release):
        run("upgrade", "--yes")
        old = formats.FORMAT
        orders.scheduled(1)
        newer_release()
        self.loop().poll()
        assert look() == old

    def test_not_while_a_worker_of_an_older_release_beats(self, orders, run, newer_release):
        run("upgrade", "--yes")
        old = formats.FORMAT
        newer_release()
        beat("old:7:w", format=old)
        self.loop().poll()
        assert look() == old

    def test_after_an_hour(self, orders, run, newer_release):
        run("upgrade", "--yes")
        old = formats.FORMAT
        orders.scheduled(1)
        keys = stores.queue("orders", 0).keys
        hour_ago = int(stores.link.execute("HGET", keys["meta"], f"seen:{old}")) - formats.QUIET_MS
        stores.link.execute("HSET", keys["meta"], f"seen:{old}", hour_ago)
        newer_release()
        self.loop().poll()
        assert look() == formats.FORMAT
