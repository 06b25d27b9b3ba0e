"""Traces and metrics of jobs by OpenTelemetry: `DelayqInstrumentor().instrument()`, or the command `opentelemetry-instrument`.

May import all below, and opentelemetry-api, no SDK. No threads, no queries: who exports, and when, the project's provider decides.
"""

from __future__ import annotations

try:
    from django_delayq.contrib.otel.instrumentor import DelayqInstrumentor
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    hint = 'Traces need the package opentelemetry-api: pip install "django-delayq[otel]"'
    raise ModuleNotFoundError(hint, name=error.name) from error

__all__ = ["DelayqInstrumentor"]
