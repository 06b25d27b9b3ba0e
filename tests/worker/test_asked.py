"""Quiet and stop, asked through Redis."""

from __future__ import annotations

from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.worker.conftest import Shop, eventually


def test_a_worker_that_is_asked_claims_no_more_and_then_leaves_in_order(shop: Shop) -> None:
    worker = shop.work("--grace", "20")
    running = shop.put("nap", 1, 4)
    registry = WorkerRegistry(shop.link, prefix="delayq")
    eventually(lambda: registry.all() and registry.all()[0]["state"] == "working")
    [shown] = eventually(lambda: [job for facts in registry.all() for job in facts["jobs"]])
    assert (shown["id"], shown["queue"], shown["attempt"]) == (running, "default", 1)
    assert shown["task"].endswith("nap")

    id = registry.all()[0]["id"]
    assert registry.ask(id, "quiet", by="admin:clerk")
    eventually(lambda: registry.all()[0]["state"] == "quiet")
    assert registry.asked(id) is None
    left = shop.put("count", 1)
    assert registry.ask(id, "stop", by="admin:clerk")
    assert worker.wait() == 0  # not hurried
    assert shop.happened(running)[-1] == "succeeded"
    assert shop.happened(left) == ["scheduled"]
    assert "stop requested by admin:clerk" in worker.text()
    assert registry.all() == []
    assert not registry.ask(id, "stop", by="admin:clerk")
