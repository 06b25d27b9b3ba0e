"""The tracer and the instruments of one `instrument()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db import connections
from opentelemetry import metrics, trace
from opentelemetry.trace import Span, Status, StatusCode

import django_delayq
from django_delayq.contrib.otel import conventions as named
from django_delayq.logger import class_name
from django_delayq.worker import hanging_calls

NAME = "django_delayq.contrib.otel"
FLUSH: Final = 5.0  # seconds
Attributes = Mapping[str, str | bool | int | float]


class Telemetry:
    """By the providers given, else by those that the process has, also if these are set later."""

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        version = django_delayq.__version__
        self._providers = tracer_provider, meter_provider
        self.tracer = trace.get_tracer(NAME, version, tracer_provider, schema_url=named.SCHEMA)
        meter = metrics.get_meter(NAME, version, meter_provider, schema_url=named.SCHEMA)
        self.sent = meter.create_counter(named.SENT_MESSAGES, "{message}", "Jobs that were put in.")
        self.consumed = meter.create_counter(named.CONSUMED_MESSAGES, "{message}", "Runs of jobs.")
        self.send_duration = meter.create_histogram(
            named.OPERATION_DURATION, "s", "Duration of calls that put jobs in.", explicit_bucket_boundaries_advisory=named.SECONDS
        )
        self.process_duration = meter.create_histogram(
            named.PROCESS_DURATION, "s", "Duration of runs.", explicit_bucket_boundaries_advisory=named.SECONDS
        )

    def flush(self) -> None:
        """Exports what is ready, within seconds: an exporter that hangs, or a collector that is away, holds up no end of a process. A
        provider that exports by itself, or has nothing to export, is not asked.
        """
        tracer_provider, meter_provider = self._providers
        providers = tracer_provider or trace.get_tracer_provider(), meter_provider or metrics.get_meter_provider()
        flushes = [flush for one in providers if (flush := getattr(one, "force_flush", None)) is not None]
        hanging_calls.answers(FLUSH, *flushes, behind=connections.close_all)


def fail(span: Span, error: BaseException) -> str:
    """Tells a span by what its operation has failed; returns what `error.type` is."""
    kind = class_name(error)
    span.set_attribute(named.ERROR_TYPE, kind)
    try:
        said = f"{kind}: {error}"
        span.record_exception(error)
    except Exception:  # raised by the error itself, which cannot say what it is
        said = kind
    span.set_status(Status(StatusCode.ERROR, said))
    return kind
