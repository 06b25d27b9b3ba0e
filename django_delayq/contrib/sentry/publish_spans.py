"""The spans of calls that put jobs in, and the headers by which a run continues the trace."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import sentry_sdk

from django_delayq import ids
from django_delayq.contrib.sentry import sentry_spans as spans
from django_delayq.producer.watchers import Call

WATCHER_NAME = "django_delayq.sentry"


class PublishSpan(NamedTuple):
    """What is open while a call lasts."""

    manager: AbstractContextManager[Any]
    span: Any


class SentryWatcher:
    """One span per call; of `schedule_many` one for all its jobs."""

    name = WATCHER_NAME

    def begins(self, call: Call) -> PublishSpan | None:
        """Starts the span, where this integration is in use, inside of a request say."""
        if sentry_sdk.get_client().get_integration(spans.IDENTIFIER) is None:
            return None
        manager = spans.publish_span(call.task or "schedule_many")
        return None if manager is None else PublishSpan(manager, manager.__enter__())

    def pack(self) -> dict[str, str] | None:
        """`sentry-trace` and `baggage`, as they go with a request."""
        if sentry_sdk.get_client().get_integration(spans.IDENTIFIER) is None:
            return None
        return dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers()) or None

    def ends(self, call: Call, begun: PublishSpan | None, error: BaseException | None) -> None:
        """Ends the span."""
        if begun is None:
            return
        queues = {plan.queue for plan in call.plans} or {call.queue}
        found: dict[str, Any] = {spans.MESSAGING_SYSTEM: spans.SYSTEM}
        if len(queues) == 1:
            found[spans.DESTINATION] = next(iter(queues))
        if call.many:
            found[spans.COUNT] = len(call.plans)
        elif call.plans:
            plan = call.plans[0]
            found |= {spans.MESSAGE_ID: ids.short(plan.job.id), spans.BODY_SIZE: len(plan.payload)}
        spans.note(begun.span, found)
        spans.conclude(begun.span, "ok" if error is None else "internal_error")
        begun.manager.__exit__(None, None, None)
