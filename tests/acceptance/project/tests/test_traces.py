"""The data that OpenTelemetry and Sentry receive. An exporter and a transport store it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
import sentry_sdk
from django.test import Client
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind
from orders.models import Order
from orders.tasks import remind
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from django_delayq.contrib.otel import DelayqInstrumentor
from django_delayq.contrib.sentry import DelayqIntegration
from django_delayq.testing.kit import Kit

NewOrder = Callable[..., Order]


class Traces:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind == kind]


@pytest.fixture
def traces() -> Generator[Traces]:
    kept = Traces()
    DelayqInstrumentor().instrument(tracer_provider=kept.provider)
    yield kept
    DelayqInstrumentor().uninstrument()


def test_a_run_links_to_the_request_that_has_scheduled_its_job(client: Client, delayq: Kit, traces: Traces) -> None:
    with traces.provider.get_tracer("shop").start_as_current_span("POST /orders/") as request:
        client.post("/orders/", {"total": 7})
    delayq.advance("20m")
    sent, ran = traces.of(SpanKind.PRODUCER), traces.of(SpanKind.CONSUMER)
    assert ([span.name for span in sent], [span.name for span in ran]) == (["send orders"] * 2, ["process orders"])
    assert {span.parent and span.parent.span_id for span in sent} == {request.get_span_context().span_id}
    (link,) = ran[0].links
    (by,) = [span for span in sent if about(span)["delayq.task"] == "orders.tasks.remind"]
    assert place(link.context) == place(by.context)
    assert about(ran[0])["messaging.message.id"] == about(by)["messaging.message.id"]
    assert about(ran[0])["delayq.outcome"] == "ack"
    assert ran[0].parent is None
    assert place(ran[0].context)[0] != link.context.trace_id, "a run is no part of the request's trace"


def place(context: SpanContext | None) -> tuple[int, int]:
    """Returns the ids of the trace and of the span."""
    assert context
    return context.trace_id, context.span_id


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_each_attempt_links_to_the_same_and_tells_its_error(client: Client, delayq: Kit, traces: Traces, new_order: NewOrder) -> None:
    client.post(f"/orders/{new_order(email='').pk}/receipt/")
    delayq.drain()
    (sent,) = traces.of(SpanKind.PRODUCER)
    ran = traces.of(SpanKind.CONSUMER)
    assert [about(span)["delayq.outcome"] for span in ran] == ["retry", "retry", "fail"]
    assert [[place(link.context) for link in span.links] for span in ran] == [[place(sent.context)]] * 3
    assert [span.status.is_ok for span in ran] == [False] * 3
    assert [about(span)["error.type"] for span in ran] == ["LookupError"] * 3


class Reports:
    def __init__(self) -> None:
        self.sent: list[tuple[str | None, Any]] = []

    def of(self, kind: str) -> list[Any]:
        return [about for name, about in self.sent if name == kind]


@pytest.fixture
def reports() -> Generator[Reports]:
    kept = Reports()

    class Kept(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            kept.sent += [(item.type, item.payload.json) for item in envelope.items]

    sentry_sdk.init(
        dsn="https://key@sentry.example.com/1",
        traces_sample_rate=1.0,
        integrations=[DelayqIntegration()],
        transport=Kept,
    )
    yield kept
    sentry_sdk.get_client().close()
    sentry_sdk.init()


def test_sentry_hears_of_an_error_once_when_no_attempt_is_left(delayq: Kit, reports: Reports, new_order: NewOrder) -> None:
    with sentry_sdk.start_transaction(name="checkout"):
        remind.using(max_attempts=2).schedule(new_order(email="").pk)
    assert [run.outcome for run in delayq.advance("1m")] == ["retry", "fail"]
    (told,) = reports.of("event")
    assert told["tags"]["delayq.task"] == "orders.tasks.remind"
    checkout, *runs = reports.of("transaction")
    assert "queue.publish" in {span["op"] for span in checkout["spans"]}
    assert [(run["transaction"], run["contexts"]["trace"]["op"]) for run in runs] == [("orders.tasks.remind", "queue.process")] * 2
    assert {run["contexts"]["trace"]["trace_id"] for run in runs} == {checkout["contexts"]["trace"]["trace_id"]}
