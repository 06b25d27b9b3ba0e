from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import conf, under_test
from django_delayq.producer.task import registry
from django_delayq.targets import delivery
from django_delayq.targets.circuits import circuits
from tests.security.test_tls import Certificates, certificates
from tests.targets.receivers import Host

__all__ = ["certificates"]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # of the specification
TASK = registry._tasks.pop(delivery.NAME)  # other tests do not deliver
registry.followed = any(task.on_failure for task in registry)

Settings = Callable[..., None]


@pytest.fixture(autouse=True)
def backend(monkeypatch, settings) -> Iterator[None]:
    """Deliveries are on, and local hosts are allowed. Jobs are isolated, as in a project's own tests. Replaces the fixture with this
    name in the parent folder.
    """
    monkeypatch.setattr(under_test, "ISOLATES", True)
    monkeypatch.setenv(under_test.URL, settings.REDIS_URL)
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, TASK.name: TASK})
    monkeypatch.setattr(registry, "followed", True)
    settings.DELAYQ = {**settings.DELAYQ, "HTTP": {"ALLOW": ["127.0.0.0/8"], "SECRETS": {"partner": SECRET}, "READ": 5, "TIMEOUT": 5}}
    circuits.clear()
    yield
    circuits.clear()
    delivery.clients.close()
    conf._config = None


@pytest.fixture
def http(settings) -> Settings:
    """Changes the settings of deliveries: `http(ALLOW=[])`."""

    def change(**changes: Any) -> None:
        settings.DELAYQ = {**settings.DELAYQ, "HTTP": {**settings.DELAYQ["HTTP"], **changes}}

    return change


@pytest.fixture
def host() -> Iterator[Callable[..., Host]]:
    """Makes hosts: `host(answer(500), answer(200))`."""
    made: list[Host] = []

    def make(*script: Any, **options: Any) -> Host:
        made.append(Host(list(script), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sealed(certificates: Certificates, http: Settings) -> ssl.SSLContext:
    """The TLS context of a host for the name `localhost`. Deliveries trust its authority."""
    http(CA=certificates.authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    return context
