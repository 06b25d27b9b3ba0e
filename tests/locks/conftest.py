from __future__ import annotations

import pytest

from django_delayq import setting_readers


@pytest.fixture(autouse=True)
def locks(delayq_redis, monkeypatch) -> None:
    """A Redis for the test, and permission for short leases."""
    monkeypatch.setattr(setting_readers, "SHORTEST_LEASE", 0.05)
