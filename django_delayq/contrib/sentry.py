"""Jobs in Sentry: `sentry_sdk.init(dsn=…, integrations=[DelayqIntegration()])`.

It reports errors of jobs, spans of calls that schedule jobs, transactions of runs, and check-ins of schedules. The settings of a
project
import it before the apps are loaded, so it does not import models. It starts no threads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import sentry_sdk
from django.db import Error
from django.dispatch import Signal
from sentry_sdk.crons import capture_checkin
from sentry_sdk.crons.consts import MonitorStatus
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor, should_send_default_pii
from sentry_sdk.utils import capture_internal_exceptions, event_from_exception, iter_event_frames

from django_delayq import ids, signals
from django_delayq.console import masking
from django_delayq.contrib.run_receivers import OpenRun, RunReceiver
from django_delayq.exceptions import Fail, Skip
from django_delayq.periodic.dates import Dates
from django_delayq.producer import carriers
from django_delayq.producer.carriers import Call
from django_delayq.states import PERIODIC
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.current import CurrentJob

try:
    from sentry_sdk import traces
    from sentry_sdk.tracing_utils import has_span_streaming_enabled
except ImportError:  # an SDK without streamed spans
    traces = None  # type: ignore[assignment]  # a module otherwise

__all__ = ["DelayqIntegration"]

IDENTIFIER: Final = "delayq"
ORIGIN: Final = f"auto.queue.{IDENTIFIER}"
SYSTEM: Final = "delayq"
WATCHER_NAME: Final = "django_delayq.sentry"  # the name of the trace context in a job
FLUSH: Final = 2.0  # seconds; the supervisor waits no longer for a process that must end
LOG: Final = "django_delayq.worker.job"  # logs the end of each run, which is reported as an error if the project wants that
FILTERED: Final = "[Filtered]"  # Sentry's own text
PACKAGE: Final = "django_delayq"
TABLES: Final = "delayq_"  # the prefix of our tables
STATUS: Final = {"ack": "ok", "retry": "aborted", "snooze": "aborted", "ask": "aborted", "fail": "aborted", "cancel": "cancelled"}

# The attributes that Sentry's page about queues shows.
MESSAGING_SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"

# Check-ins.
LONGEST_SLUG: Final = 50  # characters of a slug
PLAIN_NAME: Final = re.compile(r"(?!\d+$)[a-z0-9_]+(\.[a-z0-9_]+)*")  # the slugs of two such names differ
MINUTE_MS: Final = 60_000
UNITS: Final = (("day", 1440), ("hour", 60), ("minute", 1))
CHECK_IN_STATUS: Final = {
    "ack": MonitorStatus.OK,
    "fail": MonitorStatus.ERROR,
    "cancel": MonitorStatus.ERROR,
}  # after other outcomes, the job runs again


class DelayqIntegration(Integration):
    """Reports each failed job once. Creates a span for each call that schedules jobs, and a transaction for each run, in the same
    trace.

    Args:
        report_retried: Also report failed attempts that will be retried, as warnings.
        report_fail: Also report jobs whose task raised `Fail`.
        monitor_periodic: Create a cron monitor for each schedule, with a check-in for each run.
    """

    identifier = IDENTIFIER
    origin = ORIGIN

    def __init__(self, *, report_retried: bool = False, report_fail: bool = False, monitor_periodic: bool = False) -> None:
        self.report_retried = report_retried
        self.report_fail = report_fail
        self.monitor_periodic = monitor_periodic

    @staticmethod
    def setup_once() -> None:
        """Connects the receivers. The SDK calls this method once per process."""
        carriers.add_watcher(PublishSpans())
        add_global_event_processor(withhold)
        RUNS.connect()


def _integration() -> Integration | None:
    return sentry_sdk.get_client().get_integration(IDENTIFIER)


def _wants(option: str) -> bool:
    return bool(getattr(_integration(), option, False))


class SentrySpan(NamedTuple):
    """The span of a call that schedules jobs, or of a run, and what ends it."""

    manager: AbstractContextManager[Any]
    span: Any


class PublishSpans:
    """A watcher that creates a span for each call that schedules jobs."""

    name = WATCHER_NAME

    def begins(self, call: Call) -> SentrySpan | None:
        """Starts the span, if there is a current one, such as that of a request."""
        if _integration() is None:
            return None
        manager = publish_span(call.task or "schedule_many")
        return None if manager is None else SentrySpan(manager, manager.__enter__())

    def pack(self) -> dict[str, str] | None:
        """`sentry-trace` and `baggage`, the headers of a request."""
        if _integration() is None:
            return None
        return dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers()) or None

    def ends(self, call: Call, begun: SentrySpan | None, error: BaseException | None) -> None:
        """Ends the span."""
        if begun is None:
            return
        queues = {plan.queue for plan in call.plans} or {call.queue}
        found: dict[str, Any] = {MESSAGING_SYSTEM: SYSTEM}
        if len(queues) == 1:
            found[DESTINATION] = next(iter(queues))
        if call.many:
            found["messaging.batch.message_count"] = len(call.plans)
        elif call.plans:
            plan = call.plans[0]
            found |= {MESSAGE_ID: ids.short(plan.job.id), "messaging.message.body.size": len(plan.payload)}
        set_attributes(begun.span, found)
        set_status(begun.span, "ok" if error is None else "internal_error")
        begun.manager.__exit__(None, None, None)


class RunTransactions(RunReceiver[SentrySpan]):
    """Creates a transaction for each run, and reports its error."""

    name = WATCHER_NAME
    runs: ContextVar[OpenRun | None] = ContextVar("django_delayq.contrib.sentry.runs", default=None)

    def receivers(self) -> list[tuple[Signal, Callable[..., None]]]:
        """Also `before_fork`."""
        return [*super().receivers(), (signals.before_fork, close_idle)]

    def started(self, job: CurrentJob) -> SentrySpan | None:
        """Gives the run its own scope, and starts the transaction."""
        state = None
        if _integration() is not None:
            with capture_internal_exceptions(), ExitStack() as stack:
                scope = stack.enter_context(sentry_sdk.isolation_scope())
                scope.clear_breadcrumbs()
                scope.add_event_processor(processor_of(job))
                sampling = {"delayq": {"task": job.task, "queue": job.queue, "attempt": job.attempt}}
                span = stack.enter_context(process_span(job.task, self.context_of(job), sampling))
                found = {
                    MESSAGING_SYSTEM: SYSTEM,
                    DESTINATION: job.queue,
                    MESSAGE_ID: job.short_id,
                    "messaging.message.receive.latency": job.lateness.total_seconds() * 1000,
                    "messaging.message.retry.count": job.attempt - 1,
                }
                set_attributes(span, found)
                state = SentrySpan(stack.pop_all(), span)
                if _wants("monitor_periodic"):
                    check_in(job)
        return state

    def ended(self, job: CurrentJob, state: SentrySpan, outcome: Outcome, error: BaseException | None) -> None:
        """Reports the error, and sends the transaction."""
        with capture_internal_exceptions(), state.manager:
            set_status(state.span, STATUS[outcome.kind] if error is None else "internal_error")
            # Makes it the current span. Otherwise, errors would belong to the span that Sentry opens for each receiver of a signal.
            current = "streamed_span" if hasattr(state.span, "set_attribute") else "span"
            setattr(sentry_sdk.get_current_scope(), current, state.span)
            if error is not None and _is_reported(outcome):
                _report(error, outcome)
            if _wants("monitor_periodic"):
                check_in(job, outcome)

    def flush(self, **_: Any) -> None:
        """Sends what is left. The process ends without `atexit`."""
        if _integration() is not None:
            sentry_sdk.flush(FLUSH)


RUNS: Final = RunTransactions()


def close_idle(**_: Any) -> None:
    """Closes the idle connections to Sentry before a fork. Otherwise a child would use the same connections."""
    pool = getattr(sentry_sdk.get_client().transport, "_pool", None)
    if (clear := getattr(pool, "clear", None)) is not None:  # of urllib3
        clear()


def _is_reported(outcome: Outcome) -> bool:
    if isinstance(outcome.error, Fail):
        return _wants("report_fail")
    return outcome.kind == "fail" or _wants("report_retried")


def _report(error: BaseException, outcome: Outcome) -> None:
    final = outcome.kind == "fail"
    event, hint = event_from_exception(
        (type(error), error, error.__traceback__),
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": IDENTIFIER, "handled": not final},
    )
    event["level"] = "error" if final else "warning"
    sentry_sdk.capture_event(event, hint=hint)


# Spans. The SDK gathers them into a transaction or, with `trace_lifecycle="stream"`, sends them one by one.


def publish_span(name: str) -> AbstractContextManager[Any] | None:
    """A child of the current span. None if there is no current span; the context is sent with the jobs nevertheless."""
    streams = _streams()
    if (traces.get_current_span() if streams else sentry_sdk.get_current_span()) is None:
        return None
    if not streams:
        return sentry_sdk.start_span(op="queue.publish", name=name, origin=ORIGIN)
    attributes: dict[str, Any] = {"sentry.op": "queue.publish", "sentry.origin": ORIGIN}
    return traces.start_span(name=name, attributes=attributes)


def process_span(name: str, headers: Mapping[str, str], sampling: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """A transaction, or the first span of a tree. It continues the trace in `headers`. `sampling`: the context for a sampler."""
    if not _streams():
        transaction = sentry_sdk.continue_trace(dict(headers), op="queue.process", name=name, source="task", origin=ORIGIN)
        return sentry_sdk.start_transaction(transaction, custom_sampling_context=dict(sampling))
    traces.continue_trace(dict(headers))
    sentry_sdk.get_current_scope().set_custom_sampling_context(dict(sampling))
    attributes: dict[str, Any] = {"sentry.op": "queue.process", "sentry.origin": ORIGIN, "sentry.segment.name.source": "task"}
    return traces.start_span(name=name, attributes=attributes, parent_span=None)


def set_attributes(span: Any, values: Mapping[str, Any]) -> None:
    """Sets attributes of a span of either kind."""
    write = span.set_attribute if hasattr(span, "set_attribute") else span.set_data
    for name, value in values.items():
        write(name, value)


def set_status(span: Any, status: str) -> None:
    """Sets the status, one of those of transactions. Streamed spans know only ok and error."""
    if hasattr(span, "set_attribute"):
        span.status = "error" if status == "internal_error" else "ok"
    else:
        span.set_status(status)


def _streams() -> bool:
    return traces is not None and has_span_streaming_enabled(sentry_sdk.get_client().options)


# The data of an event.


def processor_of(job: CurrentJob) -> Callable[[Any, Any], Any]:
    """An event processor for the scope of one run."""

    def process(event: Any, hint: Any) -> Any:
        if event.get("logger") == LOG:
            return None
        if event.get("type") == "check_in":  # has no tags
            return event
        event.setdefault("tags", {}).update({"delayq.task": job.task, "delayq.queue": job.queue, "delayq.job": job.short_id})
        if event.get("type") is None:  # an error or a message
            try:
                event.setdefault("contexts", {})["delayq"] = _job_context(job)
                _hide(event, job)
            except Exception:  # send less rather than sensitive values
                for frame in iter_event_frames(event):
                    frame.pop("vars", None)
        return event

    return process


def _job_context(job: CurrentJob) -> dict[str, Any]:
    args: Any = FILTERED
    kwargs: Any = FILTERED
    collected = sentry_sdk.get_client().options.get("data_collection")  # new SDKs have it instead of `send_default_pii`
    if bool(collected["queues"]) if isinstance(collected, Mapping) else should_send_default_pii():
        args, kwargs = masking.arguments(job.task, job.args, job.kwargs, version=masking.UPGRADED)
    fields = ("task", "queue", "attempt", "max_attempts", "crashes", "worker")
    return {"type": "delayq", "job": job.short_id, **{name: getattr(job, name) for name in fields}, "args": args, "kwargs": kwargs}


def _hide(event: Any, job: CurrentJob) -> None:
    """Masks sensitive local variables, by name and by value. `withhold` removes those of this package."""
    names = masking.names_of(job.task)
    shown = masking.arguments(job.task, job.args, job.kwargs, version=masking.UPGRADED)
    hidden = set(_differing([job.args, job.kwargs], shown)) if names else set()
    for frame in iter_event_frames(event):
        if names and "vars" in frame and not is_ours(frame):
            frame["vars"] = _masked(frame["vars"], names, hidden)


def _masked(given: Any, names: frozenset[str], hidden: set[str]) -> Any:
    if isinstance(given, dict):
        return {name: FILTERED if name.strip("'\"") in names else _masked(value, names, hidden) for name, value in given.items()}
    if isinstance(given, list):
        return [_masked(value, names, hidden) for value in given]
    return FILTERED if given in hidden else given


def _differing(given: Any, shown: Any) -> Iterator[str]:
    """The masked values, in the form in which Sentry sends local variables."""
    if isinstance(given, dict | list):
        for place, value in given.items() if isinstance(given, dict) else enumerate(given):
            yield from _differing(value, shown if shown == masking.MASK else shown[place])
    elif shown == masking.MASK and given not in (None, True, False, ""):
        yield repr(given)


def withhold(event: Any, hint: Any) -> Any:
    """An event processor for the process. Removes the local variables of this package, which contain arguments of jobs, and the
    values in statements about its tables. If a project has removed the integration, it does nothing.
    """
    if _integration() is not None:
        for frame in iter_event_frames(event):
            if is_ours(frame):
                frame.pop("vars", None)
        crumbs = event.get("breadcrumbs")
        _strip_values(crumbs.get("values") if isinstance(crumbs, dict) else crumbs, "message")
        _strip_values(event.get("spans"), "description")
    return event


def is_ours(frame: Any) -> bool:
    """Whether a frame belongs to this package."""
    return str(frame.get("module") or "").partition(".")[0] == PACKAGE


def _strip_values(found: Any, statement: str) -> None:
    for one in found if isinstance(found, Iterable) else ():
        if isinstance(one, dict) and isinstance(one.get("data"), dict) and TABLES in str(one.get(statement)):
            one["data"].pop("db.params", None)


# Check-ins: each schedule has a cron monitor.


def check_in(job: CurrentJob, outcome: Outcome | None = None) -> None:
    """Reports that a tick of a schedule has started, or how it has ended unless the job runs again. All attempts of the job are one
    check-in.
    """
    name = _schedule_of(job)
    status: str | None = MonitorStatus.IN_PROGRESS
    if outcome is not None:
        status = MonitorStatus.OK if isinstance(outcome.error, Skip) else CHECK_IN_STATUS.get(outcome.kind)
    if name is None or status is None:
        return
    dates = _dates_of(name)
    config: Any = None if dates is None else config_of(dates)  # the SDK types it by literals
    if dates is not None and config is None:  # Sentry cannot express all periods
        return
    seconds = max(0.0, (job.now - job.started_at).total_seconds())
    more = {"monitor_config": config} if outcome is None else {"duration": seconds}
    capture_checkin(monitor_slug=slug(name), check_in_id=job.id.hex, status=status, **more)


def slug(name: str) -> str:
    """The slug of a schedule in Sentry: "shop-tasks-nightly" for "shop.tasks.nightly". If the name contains more than lower-case
    letters, digits, underscores and single dots, or is too long, a hash at the end keeps different names apart.
    """
    found = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    if not found or found.isdigit():
        found = f"schedule-{found}".rstrip("-")
    if len(found) <= LONGEST_SLUG and PLAIN_NAME.fullmatch(name):
        return found
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{found[: LONGEST_SLUG - 9]}-{digest}"


def config_of(dates: Dates) -> dict[str, Any] | None:
    """The configuration of a monitor. None if the period is not in whole minutes. A tick is late only after the jitter."""
    margin = {"checkin_margin": 1 - -dates.jitter_ms // MINUTE_MS}
    if dates.cron:
        return {"schedule": {"type": "crontab", "value": dates.cron}, "timezone": dates.timezone, **margin}
    minutes, rest = divmod(dates.every_ms, MINUTE_MS)
    if rest or not minutes:
        return None
    unit, size = next((unit, size) for unit, size in UNITS if minutes % size == 0)
    return {"schedule": {"type": "interval", "value": minutes // size, "unit": unit}, **margin}


def _schedule_of(job: CurrentJob) -> str | None:
    """The schedule of a tick. None for other jobs, and for a tick that a person has started."""
    tick = job.meta.get(PERIODIC)
    if not isinstance(tick, Mapping) or tick.get("by_hand") or not isinstance(tick.get("name"), str):
        return None
    return str(tick["name"])


def _dates_of(name: str) -> Dates | None:
    """The current dates of a schedule, or None if they cannot be read."""
    from django_delayq.models import Periodic  # settings import this module before the models are loaded
    from django_delayq.periodic.schedule_rows import dates_of

    try:
        row = Periodic.objects.filter(name=name).first()
    except Error:
        return None
    return None if row is None else dates_of(row)
