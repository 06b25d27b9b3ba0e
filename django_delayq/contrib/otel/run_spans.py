"""The spans of runs. A run may come days after its job was scheduled, so it is no part of that trace: its span is the root of another
one, and links to the span that put the job in.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any, Final, NamedTuple

from opentelemetry import baggage, context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind

from django_delayq import clock
from django_delayq.contrib.otel import conventions as named
from django_delayq.contrib.otel.producer_spans import WATCHER_NAME
from django_delayq.contrib.otel.telemetry import Telemetry, fail
from django_delayq.contrib.run_failures import failure_of
from django_delayq.store.queue import Outcome
from django_delayq.worker.current import CurrentJob

OPERATION: Final = {named.MESSAGING_SYSTEM: named.SYSTEM, named.OPERATION_NAME: named.PROCESS}


class ProcessSpan(NamedTuple):
    """What is open while a run lasts. `fence`: of the run; `started`: monotonic seconds; `outer`: that of the run inside of which this
    one was scheduled, where jobs run inline.
    """

    fence: str
    span: Span
    token: Token[Context]
    started: float
    outer: ProcessSpan | None


OPEN: Final[ContextVar[ProcessSpan | None]] = ContextVar("django_delayq.contrib.otel.open", default=None)


class RunSpans:
    """Receivers of the signals about runs, which come in the thread of the run; the coroutine of an async task begins in a copy of that
    context.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def started(self, job: CurrentJob, **_: Any) -> None:
        """Starts the span of a run."""
        sent = propagate.extract(_texts(job.propagated_context(WATCHER_NAME)), Context())
        creator = trace.get_current_span(sent).get_span_context()
        span = self._telemetry.tracer.start_span(
            f"{named.PROCESS} {job.queue}",
            kind=SpanKind.CONSUMER,
            links=[Link(creator)] if creator.is_valid else None,
            attributes={
                **OPERATION,
                named.OPERATION_TYPE: named.PROCESS,
                named.DESTINATION_NAME: job.queue,
                named.MESSAGE_ID: job.short_id,
                named.CLIENT_ID: job.worker,
                named.TASK: job.task,
                named.ATTEMPT: job.attempt,
                named.LATENESS: job.lateness.total_seconds(),
            },
        )
        inside = trace.set_span_in_context(span)
        for name, value in baggage.get_all(sent).items():
            inside = baggage.set_baggage(name, value, inside)
        OPEN.set(ProcessSpan(job.fence, span, context.attach(inside), clock.monotonic(), OPEN.get()))

    def ended(self, job: CurrentJob, outcome: Outcome, **_: Any) -> None:
        """Ends it. Only what failed is an error: a task that asks for another run, or is cancelled, has said how its run ends."""
        opened = OPEN.get()
        if opened is None or opened.fence != job.fence:
            return  # it began before anybody listened
        OPEN.set(opened.outer)
        context.detach(opened.token)
        seconds = clock.monotonic() - opened.started
        opened.span.set_attribute(named.OUTCOME, outcome.kind)
        error = failure_of(outcome)
        failed = {} if error is None else {named.ERROR_TYPE: fail(opened.span, error)}
        opened.span.end()
        place = {named.DESTINATION_NAME: job.queue, named.TASK: job.task}
        self._telemetry.consumed.add(1, {**OPERATION, **place, **failed})
        self._telemetry.process_duration.record(seconds, {**OPERATION, named.OPERATION_TYPE: named.PROCESS, **place, **failed})


def _texts(context: Any) -> dict[str, str]:
    """Nothing that stands in Redis is believed to be what was written there."""
    return {name: value for name, value in context.items() if isinstance(value, str)} if isinstance(context, Mapping) else {}
