"""The switch: who calls it has the jobs of this process traced and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

from django_delayq import signals
from django_delayq.contrib.otel.producer_spans import WATCHER_NAME, TraceWatcher
from django_delayq.contrib.otel.run_spans import RunSpans
from django_delayq.contrib.otel.telemetry import Telemetry
from django_delayq.producer import watchers
from django_delayq.worker.run_context import ENDS


class DelayqInstrumentor:
    """Works as other instrumentations of OpenTelemetry do: one for the process, `instrument()` and `uninstrument()`, each of which may
    be called again. `opentelemetry-instrument` finds it by its entry point.
    """

    _receivers: list[tuple[Signal, Callable[..., None]]] = []  # of all instances; Django's signals hold no receiver by themselves

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether it is switched on."""
        return bool(self._receivers)

    def instrument(self, *, tracer_provider: Any = None, meter_provider: Any = None, **_: Any) -> None:
        """Switches it on, unless it is. Without providers those of the process are asked, also if they are set later: in a worker, by a
        receiver of `process_started`, say.
        """
        if self._receivers:
            return
        telemetry = Telemetry(tracer_provider, meter_provider)
        runs = RunSpans(telemetry)

        def flush(**_: Any) -> None:
            telemetry.flush()

        watchers.add(TraceWatcher(telemetry))
        self._receivers += [
            (signals.job_started, runs.started),
            *((end, runs.ended) for end in ENDS.values()),
            (signals.process_stopped, flush),
        ]
        for told, receiver in self._receivers:
            told.connect(receiver, weak=False)

    def uninstrument(self, **_: Any) -> None:
        """Switches it off. Runs that are under way end without a word."""
        watchers.remove(WATCHER_NAME)
        for told, receiver in self._receivers:
            told.disconnect(receiver)
        self._receivers.clear()
