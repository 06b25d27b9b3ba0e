"""Spans of Sentry in either of its two forms: gathered into a transaction, or, with `trace_lifecycle="stream"`, sent one by one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import sentry_sdk

try:
    from sentry_sdk import traces
    from sentry_sdk.tracing_utils import has_span_streaming_enabled
except ImportError:  # an SDK that does not know the second form
    traces = None  # type: ignore[assignment]  # a module otherwise

IDENTIFIER: Final = "delayq"
ORIGIN: Final = f"auto.queue.{IDENTIFIER}"
SYSTEM: Final = "delayq"
# What Sentry's page about queues reads.
MESSAGING_SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
LATENCY: Final = "messaging.message.receive.latency"  # ms
RETRIES: Final = "messaging.message.retry.count"
COUNT: Final = "messaging.batch.message_count"


def publish_span(name: str) -> AbstractContextManager[Any] | None:
    """A span under the one that is current; None where nothing is, since nobody would see it. The context travels all the same."""
    streams = _streams()
    if (traces.get_current_span() if streams else sentry_sdk.get_current_span()) is None:
        return None
    if not streams:
        return sentry_sdk.start_span(op="queue.publish", name=name, origin=ORIGIN)
    attributes: dict[str, Any] = {"sentry.op": "queue.publish", "sentry.origin": ORIGIN}
    return traces.start_span(name=name, attributes=attributes)


def process_span(name: str, headers: Mapping[str, str], sampling: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """A transaction, or the first span of a tree. It continues the trace of those headers. `sampling`: what a sampler may look at."""
    if not _streams():
        transaction = sentry_sdk.continue_trace(dict(headers), op="queue.process", name=name, source="task", origin=ORIGIN)
        return sentry_sdk.start_transaction(transaction, custom_sampling_context=dict(sampling))
    traces.continue_trace(dict(headers))
    sentry_sdk.get_current_scope().set_custom_sampling_context(dict(sampling))
    attributes: dict[str, Any] = {"sentry.op": "queue.process", "sentry.origin": ORIGIN, "sentry.segment.name.source": "task"}
    return traces.start_span(name=name, attributes=attributes, parent_span=None)


def note(span: Any, values: Mapping[str, Any]) -> None:
    """Writes values on a span."""
    write = span.set_attribute if hasattr(span, "set_attribute") else span.set_data
    for name, value in values.items():
        write(name, value)


def conclude(span: Any, status: str) -> None:
    """Says how it ended, in Sentry's words for transactions; streamed spans know ok and error only."""
    if hasattr(span, "set_attribute"):
        span.status = "error" if status == "internal_error" else "ok"
    else:
        span.set_status(status)


def make_current(span: Any) -> None:
    """What is reported now belongs to that span, and not to the one that Sentry opens around each receiver of a signal."""
    setattr(sentry_sdk.get_current_scope(), "streamed_span" if hasattr(span, "set_attribute") else "span", span)


def _streams() -> bool:
    return traces is not None and has_span_streaming_enabled(sentry_sdk.get_client().options)
