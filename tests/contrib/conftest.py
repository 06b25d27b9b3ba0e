from __future__ import annotations

import pytest

from django_delayq import conf, under_test
from django_delayq.producer.task import registry
from tests.conftest import missing
from tests.contrib.envelopes import sentry
from tests.contrib.spans import exported

__all__ = ["exported", "sentry"]

BACKEND = "django_delayq.contrib.tasks.DelayqBackend"
TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "orders", "redis"]}}


@pytest.fixture
def looks():
    """What the jobs of tests/contrib/shipping.py have seen."""
    from tests.contrib import shipping

    return shipping.LOOKS


@pytest.fixture(autouse=True)
def backend(monkeypatch, settings):
    """Django's tasks go to delayq. Jobs are isolated, as in a project's own tests."""
    try:
        from django_delayq.contrib.tasks import api
    except ImportError:
        missing("Neither Django's tasks nor the package django-tasks are installed")
    monkeypatch.setattr(under_test, "ISOLATES", True)
    monkeypatch.setenv(under_test.URL, settings.REDIS_URL)
    settings.TASKS = TASKS
    from tests.contrib import mail, shipping

    for seen in (mail.SEEN, shipping.SEEN, shipping.LOOKS):
        seen.clear()
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, **shipping.TASKS})
    yield api.OURS.task_backends["default"]
    conf._config = None
    from django_delayq.contrib.tasks import backend

    for told, receiver in backend.RECEIVERS:  # other tests count the receivers
        told.disconnect(receiver)
