"""The spans of calls that put jobs in, and the context that travels with the jobs."""

from __future__ import annotations

from collections import Counter
from contextvars import Token
from typing import Any, NamedTuple

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from django_delayq import clock, ids
from django_delayq.contrib.otel import conventions as named
from django_delayq.contrib.otel.telemetry import Telemetry, fail
from django_delayq.producer.watchers import Call

WATCHER_NAME = "django_delayq.otel"
OPERATION = {named.MESSAGING_SYSTEM: named.SYSTEM, named.OPERATION_NAME: named.SEND}


class SendSpan(NamedTuple):
    """What is open while a call lasts. `started`: monotonic seconds."""

    span: Span
    token: Token[Context]
    started: float


class TraceWatcher:
    """One span per call. Its context goes with each of the jobs, so no further span is needed for the single jobs of a batch."""

    name = WATCHER_NAME

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def begins(self, call: Call) -> SendSpan:
        """Starts the span, under the one that is current."""
        attributes = {**OPERATION, named.OPERATION_TYPE: named.SEND}
        if not call.many:
            attributes |= {named.DESTINATION_NAME: call.queue, named.TASK: call.task}
        span = self._telemetry.tracer.start_span(_named(call.queue), kind=SpanKind.PRODUCER, attributes=attributes)
        return SendSpan(span, context.attach(trace.set_span_in_context(span)), clock.monotonic())

    def pack(self) -> dict[str, str] | None:
        """The current context, as the project's propagators write it: W3C's `traceparent`, `tracestate` and `baggage` by default."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier or None

    def ends(self, call: Call, begun: SendSpan, error: BaseException | None) -> None:
        """Ends the span. Jobs of a transaction that is still open count as sent: its commit publishes them."""
        span = begun.span
        context.detach(begun.token)
        if call.many:
            _tell_batch(span, call)
        elif call.plans:
            _tell_job(span, call.plans[0])
        kind = None if error is None else fail(span, error)
        self._measure(call, clock.monotonic() - begun.started, kind)
        span.end()

    def _measure(self, call: Call, seconds: float, kind: str | None) -> None:
        shared: dict[str, Any] = OPERATION if kind is None else {**OPERATION, named.ERROR_TYPE: kind}
        queues = Counter(plan.queue for plan in call.plans)
        for queue, count in queues.items():
            self._telemetry.sent.add(count, {**shared, named.DESTINATION_NAME: queue})
        place = {named.DESTINATION_NAME: next(iter(queues))} if len(queues) == 1 else {}
        self._telemetry.send_duration.record(seconds, {**shared, named.OPERATION_TYPE: named.SEND, **place})


def _tell_job(span: Span, plan: Any) -> None:
    span.set_attributes({named.MESSAGE_ID: ids.short(plan.job.id), named.BODY_SIZE: len(plan.payload)})
    if plan.job.created is False:
        span.set_attribute(named.CREATED, False)


def _tell_batch(span: Span, call: Call) -> None:
    span.set_attribute(named.MESSAGE_COUNT, len(call.plans))
    queues, tasks = {plan.queue for plan in call.plans}, {plan.task for plan in call.plans}
    if len(queues) == 1:
        (queue,) = queues
        span.set_attribute(named.DESTINATION_NAME, queue)
        span.update_name(_named(queue))
    if len(tasks) == 1:
        span.set_attribute(named.TASK, next(iter(tasks)))


def _named(queue: str) -> str:
    return f"{named.SEND} {queue}" if queue else named.SEND
