from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import conf, under_test
from django_delayq.producer.task import registry
from django_delayq.targets import offering

TARGETS = {
    "shipping": {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": None},
    "invoices": {"KEY": "invoices-out", "KIND": "list", "MAXLEN": 1000},
}
TASK = registry._tasks.pop(offering.NAME)  # other tests do not offer


@pytest.fixture(autouse=True)
def backend(monkeypatch, settings) -> Iterator[None]:
    """There are targets. Jobs are isolated, as in a project's own tests. Replaces the fixture with this name in the parent folder."""
    monkeypatch.setattr(under_test, "ISOLATES", True)
    monkeypatch.setenv(under_test.URL, settings.REDIS_URL)
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, TASK.name: TASK})
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": TARGETS}
    yield
    conf._config = None


@pytest.fixture
def taken(delayq) -> Callable[[str], list[dict[str, Any]]]:
    """Returns the contents of a target, oldest first: the id and the body of each entry."""
    return delayq.offered


@pytest.fixture
def target_key() -> Callable[[str], str]:
    """Returns the key of a target in tests."""
    return lambda to: conf.get().targets[to].key
