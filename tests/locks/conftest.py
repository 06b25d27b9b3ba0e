from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq import clock, setting_readers


@pytest.fixture(autouse=True)
def locks(delayq_redis, monkeypatch) -> None:
    """A Redis for the test, and permission for short leases."""
    monkeypatch.setattr(setting_readers, "SHORTEST_LEASE", 0.05)


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits until a condition is true."""

    def wait(what: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = clock.monotonic() + seconds
        while not what():
            assert clock.monotonic() < deadline, "it did not come about"
            clock.sleep(0.01)

    return wait
