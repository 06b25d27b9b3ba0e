"""An app of a project that traces its jobs, with the providers from OpenTelemetry's documentation. The providers export in batches
from a thread. APP_TRACED sets when they are made: "early", before a worker forks, as `opentelemetry-instrument` does; otherwise in
each of the worker's processes. APP_INSTRUMENTED lists instrumentations of drivers and threads.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import import_string
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from django_delayq import signals
from django_delayq.contrib.otel import DelayqInstrumentor

LONG = 3_600_000  # ms: what is exported before is flushed


class FileExporter(SpanExporter):
    """Appends one line of JSON per span."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        lines = [json.dumps({**json.loads(span.to_json()), "pid": os.getpid()}) + "\n" for span in spans]
        with self._file.open("a") as file:
            file.write("".join(lines))
        return SpanExportResult.SUCCESS


def provide(**_: Any) -> None:
    """Makes the providers of this process."""
    folder = Path(settings.APP_FOLDER)
    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(BatchSpanProcessor(FileExporter(folder / "spans.jsonl"), schedule_delay_millis=LONG))
    trace.set_tracer_provider(tracer_provider)
    exporter = ConsoleMetricExporter(
        out=(folder / "metrics.jsonl").open("a"), formatter=lambda data: data.to_json(indent=None) + os.linesep
    )
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=LONG)]))


class TracedConfig(AppConfig):
    """Named in INSTALLED_APPS."""

    name = "tests.contrib.traced"

    def ready(self) -> None:
        DelayqInstrumentor().instrument()
        for name in os.environ.get("APP_INSTRUMENTED", "").split():
            import_string(name)().instrument()
        if os.environ.get("APP_TRACED") == "early":
            # Python 3.12 warns of each fork of a process with threads.
            warnings.filterwarnings("ignore", message=r".*multi-threaded, use of fork\(\).*", category=DeprecationWarning)
            provide()
        else:
            signals.process_started.connect(provide)
