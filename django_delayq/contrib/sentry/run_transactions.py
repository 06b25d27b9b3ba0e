"""The transactions of runs, and the errors by which they fail."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import sentry_sdk
from sentry_sdk.utils import capture_internal_exceptions, event_from_exception

from django_delayq.contrib.run_failures import failure_of
from django_delayq.contrib.sentry import check_ins
from django_delayq.contrib.sentry import sentry_spans as spans
from django_delayq.contrib.sentry.publish_spans import WATCHER_NAME
from django_delayq.contrib.sentry.run_events import processor_of
from django_delayq.exceptions import Fail
from django_delayq.store.queue import Outcome
from django_delayq.worker.current import CurrentJob

# But of errors.
STATUS: Final = {"ack": "ok", "retry": "aborted", "snooze": "aborted", "ask": "aborted", "fail": "aborted", "cancel": "cancelled"}


class OpenRun(NamedTuple):
    """What is open while a run lasts. `fence`: of the run; `outer`: the run inside of which it was scheduled, where jobs run inline."""

    fence: str
    stack: ExitStack
    span: Any
    outer: OpenRun | None


OPEN: Final[ContextVar[OpenRun | None]] = ContextVar("django_delayq.contrib.sentry.open", default=None)


def started(sender: Any, job: CurrentJob, **_: Any) -> None:
    """Receiver of `job_started`: gives the run a scope of its own, which the coroutine of an async task has, too, and a transaction."""
    if sentry_sdk.get_client().get_integration(spans.IDENTIFIER) is None:
        return
    with capture_internal_exceptions(), ExitStack() as stack:
        scope = stack.enter_context(sentry_sdk.isolation_scope())
        scope.clear_breadcrumbs()
        scope.add_event_processor(processor_of(job))
        sampling = {"delayq": {"task": job.task, "queue": job.queue, "attempt": job.attempt}}
        span = stack.enter_context(spans.process_span(job.task, _headers(job), sampling))
        spans.note(
            span,
            {
                spans.MESSAGING_SYSTEM: spans.SYSTEM,
                spans.DESTINATION: job.queue,
                spans.MESSAGE_ID: job.short_id,
                spans.LATENCY: job.lateness.total_seconds() * 1000,
                spans.RETRIES: job.attempt - 1,
            },
        )
        OPEN.set(OpenRun(job.fence, stack.pop_all(), span, OPEN.get()))
        if _wants("monitor_periodic"):
            check_ins.begins(job)


def ended(sender: Any, job: CurrentJob, outcome: Outcome, **_: Any) -> None:
    """Receiver of the signals about ends: reports the error, and sends the transaction."""
    opened = OPEN.get()
    if opened is None or opened.fence != job.fence:
        return  # it began before the SDK did
    OPEN.set(opened.outer)
    with capture_internal_exceptions(), opened.stack:
        error = failure_of(outcome)
        spans.conclude(opened.span, STATUS[outcome.kind] if error is None else "internal_error")
        spans.make_current(opened.span)
        if error is not None and _is_reported(outcome):
            _report(error, outcome)
        if _wants("monitor_periodic"):
            check_ins.ends(job, outcome)


def _is_reported(outcome: Outcome) -> bool:
    if isinstance(outcome.error, Fail):
        return _wants("report_fail")
    return outcome.kind == "fail" or _wants("report_retried")


def _wants(option: str) -> bool:
    """Whether an option of the integration is on."""
    return bool(getattr(sentry_sdk.get_client().get_integration(spans.IDENTIFIER), option, False))


def _report(error: BaseException, outcome: Outcome) -> None:
    final = outcome.kind == "fail"
    event, hint = event_from_exception(
        (type(error), error, error.__traceback__),
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": spans.IDENTIFIER, "handled": not final},
    )
    event["level"] = "error" if final else "warning"
    sentry_sdk.capture_event(event, hint=hint)


def _headers(job: CurrentJob) -> dict[str, str]:
    """Nothing that stands in Redis is believed to be what was written there."""
    found = job.propagated_context(WATCHER_NAME)
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, Mapping) else {}
