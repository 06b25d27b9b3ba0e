"""Collects the traces and metrics that this process exports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import missing


class Exported:
    """Stores spans and metrics in memory."""

    def __init__(self) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider(metric_readers=[self._reader])
        self.tracer = self.tracer_provider.get_tracer("tests")

    @property
    def spans(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())

    def of(self, operation: str) -> list[Any]:
        return [span for span in self.spans if span.attributes.get("messaging.operation.name") == operation]

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics if data else []
        return [point for metric in found if metric.name == name for point in metric.data.data_points]


@pytest.fixture
def exported() -> Iterator[Exported]:
    """Instruments delayq."""
    try:
        from django_delayq.contrib.otel import DelayqInstrumentor

        found = Exported()
    except ImportError:
        missing("OpenTelemetry is not installed")
    DelayqInstrumentor().instrument(tracer_provider=found.tracer_provider, meter_provider=found.meter_provider)
    yield found
    DelayqInstrumentor().uninstrument()
