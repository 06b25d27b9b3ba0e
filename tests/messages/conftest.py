from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq import conf, setting_readers
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.producer.stores import stores


@pytest.fixture(autouse=True)
def messages(settings, delayq_redis, monkeypatch) -> None:
    """Queues of messages that accept short leases."""
    monkeypatch.setattr(setting_readers, "SHORTEST_LEASE", 0.05)
    own = {"CONSUMER": "pull", "BACKOFF": "300ms", "MAX_ATTEMPTS": 3}
    queues = {**settings.DELAYQ["QUEUES"], "mail": own, "quick": {**own, "DURABILITY": "redis"}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}


@pytest.fixture
def mirrored() -> Callable[[str], None]:
    """Mirrors the events that Redis has for a queue into rows."""

    def fold(queue: str) -> None:
        MirrorLoop(stores.link, conf.get().queue(queue), prefix="delayq").drain()

    return fold
