"""Traces and metrics of jobs by OpenTelemetry: `DelayqInstrumentor().instrument()`, or the command `opentelemetry-instrument`.

It needs opentelemetry-api, but no SDK, and starts no threads: the providers of the project export the data.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, Final, NamedTuple

from django.db import connections

try:
    from opentelemetry import baggage, context, metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    hint = 'Traces need the package opentelemetry-api: pip install "django-delayq[otel]"'
    raise ModuleNotFoundError(hint, name=error.name) from error

import django_delayq
from django_delayq import clock, ids
from django_delayq.contrib.run_receivers import OpenRun, RunReceiver
from django_delayq.logger import class_name
from django_delayq.producer import carriers
from django_delayq.producer.carriers import Call
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker import hanging_calls
from django_delayq.worker.current import CurrentJob

__all__ = ["DelayqInstrumentor"]

NAME: Final = "django_delayq.contrib.otel"
WATCHER_NAME: Final = "django_delayq.otel"  # the name of the trace context in a job
FLUSH: Final = 5.0  # seconds

# The names of OpenTelemetry's messaging conventions. They are in development and may be renamed, so no stable package contains them.
# Taken from version 1.44 of <https://opentelemetry.io/docs/specs/semconv/messaging/> on 2026-11-23. Other names begin with `delayq.`.
SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
SEND: Final = "send"
PROCESS: Final = "process"

OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
ERROR_TYPE: Final = "error.type"

TASK: Final = "delayq.task"

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # seconds, as the conventions advise


SENDING: Final[dict[str, Any]] = {"messaging.system": "delayq", OPERATION_NAME: SEND}
PROCESSING: Final[dict[str, Any]] = {**SENDING, OPERATION_NAME: PROCESS}


class DelayqInstrumentor:
    """An OpenTelemetry instrumentation. There is one instance per process, and you can call `instrument()` and `uninstrument()` several
    times. `opentelemetry-instrument` finds it by its entry point.
    """

    _active: list[RunSpans] = []  # of all instances

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether jobs are traced."""
        return bool(self._active)

    def instrument(self, *, tracer_provider: Any = None, meter_provider: Any = None, **_: Any) -> None:
        """Starts tracing jobs, unless they are already traced. Without arguments, it uses the process's providers, even if your project
        sets them later, such as in a receiver of `process_started`.
        """
        if self._active:
            return
        telemetry = Telemetry(tracer_provider, meter_provider)
        runs = RunSpans(telemetry)
        carriers.add_watcher(SendSpans(telemetry))
        runs.connect()
        self._active.append(runs)

    def uninstrument(self, **_: Any) -> None:
        """Stops tracing jobs. No spans are created for runs that have already started."""
        carriers.remove_watcher(WATCHER_NAME)
        for runs in self._active:
            runs.disconnect()
        self._active.clear()


class Telemetry:
    """The tracer and the metrics, of these providers, or of those that the process has when they are used."""

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        version = django_delayq.__version__
        self.providers = tracer_provider, meter_provider
        self.tracer = trace.get_tracer(NAME, version, tracer_provider, schema_url=SCHEMA)
        meter = metrics.get_meter(NAME, version, meter_provider, schema_url=SCHEMA)
        self.sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were put in.")
        self.consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Runs of jobs.")
        histogram = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=BUCKETS)
        self.send_duration = histogram("messaging.client.operation.duration", description="Duration of calls that put jobs in.")
        self.process_duration = histogram("messaging.process.duration", description="Duration of runs.")


class OpenSpan(NamedTuple):
    """The span of a call that schedules jobs, or of a run. `started`: monotonic seconds."""

    span: Span
    token: Token[Context]
    started: float


class SendSpans:
    """A watcher that creates a span for each call that schedules jobs. The context of this span goes into each job."""

    name = WATCHER_NAME

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def begins(self, call: Call) -> OpenSpan:
        """Starts the span, as a child of the current one."""
        attributes = {**SENDING, OPERATION_TYPE: SEND}
        if not call.many:
            attributes |= {DESTINATION_NAME: call.queue, TASK: call.task}
        span = self._telemetry.tracer.start_span(_send_name(call.queue), kind=SpanKind.PRODUCER, attributes=attributes)
        return OpenSpan(span, context.attach(trace.set_span_in_context(span)), clock.monotonic())

    def pack(self) -> dict[str, str] | None:
        """The current context, as the propagators of the project write it: by default `traceparent`, `tracestate` and `baggage`."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier or None

    def ends(self, call: Call, begun: OpenSpan, error: BaseException | None) -> None:
        """Ends the span. Jobs of an open transaction count as sent: the commit publishes them."""
        span = begun.span
        context.detach(begun.token)
        if call.many:
            _describe_batch(span, call)
        elif call.plans:
            plan = call.plans[0]
            span.set_attributes({MESSAGE_ID: ids.short(plan.job.id), "messaging.message.body.size": len(plan.payload)})
            if plan.job.created is False:
                span.set_attribute("delayq.created", False)
        kind = None if error is None else _set_error(span, error)
        self._measure(call, clock.monotonic() - begun.started, kind)
        span.end()

    def _measure(self, call: Call, seconds: float, kind: str | None) -> None:
        shared = SENDING if kind is None else {**SENDING, ERROR_TYPE: kind}
        queues = Counter(plan.queue for plan in call.plans)
        for queue, count in queues.items():
            self._telemetry.sent.add(count, {**shared, DESTINATION_NAME: queue})
        place = {DESTINATION_NAME: next(iter(queues))} if len(queues) == 1 else {}
        self._telemetry.send_duration.record(seconds, {**shared, OPERATION_TYPE: SEND, **place})


def _describe_batch(span: Span, call: Call) -> None:
    span.set_attribute("messaging.batch.message_count", len(call.plans))
    queues, tasks = {plan.queue for plan in call.plans}, {plan.task for plan in call.plans}
    if len(queues) == 1:
        (queue,) = queues
        span.set_attribute(DESTINATION_NAME, queue)
        span.update_name(_send_name(queue))
    if len(tasks) == 1:
        span.set_attribute(TASK, next(iter(tasks)))


def _send_name(queue: str) -> str:
    return f"{SEND} {queue}" if queue else SEND


class RunSpans(RunReceiver[OpenSpan]):
    """Creates a span for each run. A run may start days after its job was scheduled, so its span begins a new trace, with a link to the
    span of the call that scheduled the job.
    """

    name = WATCHER_NAME
    runs: ContextVar[OpenRun | None] = ContextVar(f"{NAME}.runs", default=None)

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def started(self, job: CurrentJob) -> OpenSpan:
        """Starts the span."""
        sent = propagate.extract(self.context_of(job), Context())
        creator = trace.get_current_span(sent).get_span_context()
        span = self._telemetry.tracer.start_span(
            f"{PROCESS} {job.queue}",
            kind=SpanKind.CONSUMER,
            links=[Link(creator)] if creator.is_valid else None,
            attributes={
                **PROCESSING,
                OPERATION_TYPE: PROCESS,
                DESTINATION_NAME: job.queue,
                MESSAGE_ID: job.short_id,
                "messaging.client.id": job.worker,
                TASK: job.task,
                "delayq.attempt": job.attempt,
                "delayq.lateness": job.lateness.total_seconds(),
            },
        )
        inside = trace.set_span_in_context(span)
        for name, value in baggage.get_all(sent).items():
            inside = baggage.set_baggage(name, value, inside)
        return OpenSpan(span, context.attach(inside), clock.monotonic())

    def ended(self, job: CurrentJob, state: OpenSpan, outcome: Outcome, error: BaseException | None) -> None:
        """Ends the span, and counts the run."""
        context.detach(state.token)
        seconds = clock.monotonic() - state.started
        state.span.set_attribute("delayq.outcome", outcome.kind)
        failed = {} if error is None else {ERROR_TYPE: _set_error(state.span, error)}
        state.span.end()
        place = {DESTINATION_NAME: job.queue, TASK: job.task}
        self._telemetry.consumed.add(1, {**PROCESSING, **place, **failed})
        self._telemetry.process_duration.record(seconds, {**PROCESSING, OPERATION_TYPE: PROCESS, **place, **failed})

    def flush(self, **_: Any) -> None:
        """Asks the providers to export. It waits at most FLUSH seconds, so an exporter that hangs cannot delay the end of the
        process.
        """
        tracer_provider, meter_provider = self._telemetry.providers
        providers = tracer_provider or trace.get_tracer_provider(), meter_provider or metrics.get_meter_provider()
        flushes = [flush for one in providers if (flush := getattr(one, "force_flush", None)) is not None]
        hanging_calls.answers(FLUSH, *flushes, behind=connections.close_all)


def _set_error(span: Span, error: BaseException) -> str:
    """Marks the span as failed. Returns the value of `error.type`."""
    kind = class_name(error)
    span.set_attribute(ERROR_TYPE, kind)
    try:
        text = f"{kind}: {error}"
        span.record_exception(error)
    except Exception:  # the __str__ of the error failed
        text = kind
    span.set_status(Status(StatusCode.ERROR, text))
    return kind
