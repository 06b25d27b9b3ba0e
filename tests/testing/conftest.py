from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import time_machine

from django_delayq import conf, under_test


@pytest.fixture(autouse=True)
def isolated(monkeypatch, settings):
    """Jobs are isolated, as in a project's own tests. The server is the one that the whole run shares."""
    monkeypatch.setattr(under_test, "ISOLATES", True)
    monkeypatch.setenv(under_test.URL, settings.REDIS_URL)
    yield
    conf._config = None


@pytest.fixture(autouse=True)
def nothing_seen():
    from tests.testing.shop import SEEN

    SEEN.clear()


@pytest.fixture
def stopped_clock() -> Iterator[None]:
    """Time passes only where the test moves it, so no job is late on a busy machine."""
    with time_machine.travel(datetime.now(UTC), tick=False):
        yield
