"""Collects the envelopes that this process sends to Sentry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import missing


class Sent:
    """Events, transactions, check-ins and streamed spans, in the order in which they were sent."""

    def __init__(self) -> None:
        self.items: list[tuple[str, Any]] = []

    def take(self, envelope: Any) -> None:
        self.items += [(item.headers.get("type"), item.payload.json) for item in envelope.items]

    def of(self, kind: str) -> list[Any]:
        return [payload for name, payload in self.items if name == kind]

    @property
    def errors(self) -> list[Any]:
        return self.of("event")

    @property
    def transactions(self) -> list[Any]:
        return self.of("transaction")


@pytest.fixture
def sentry() -> Iterator[Callable[..., Sent]]:
    """Sets the SDK up with options of the integration and of the SDK."""
    try:
        import sentry_sdk
        from sentry_sdk.integrations.logging import LoggingIntegration
        from sentry_sdk.transport import Transport
    except ImportError:
        missing("sentry_sdk is not installed")
    from django_delayq.contrib.sentry import RUNS, WATCHER_NAME, DelayqIntegration
    from django_delayq.producer import carriers

    def init(integration: dict[str, Any] | None = None, **options: Any) -> Sent:
        sent = Sent()

        class InMemory(Transport):
            def capture_envelope(self, envelope: Any) -> None:
                sent.take(envelope)

        if options.pop("arguments", False):
            options |= {"data_collection": {"queues": True}} if hasattr(sentry_sdk, "data_collection") else {"send_default_pii": True}
        sentry_sdk.init(
            dsn="http://key@localhost:1/1",
            transport=InMemory,
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=[LoggingIntegration(), DelayqIntegration(**(integration or {})), *options.pop("more", ())],
            **{"traces_sample_rate": 1.0, **options},
        )
        DelayqIntegration.setup_once()  # which the SDK does once in a process
        return sent

    yield init
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)
    carriers.remove_watcher(WATCHER_NAME)
    RUNS.disconnect()
