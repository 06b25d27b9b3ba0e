from __future__ import annotations

import pytest

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
