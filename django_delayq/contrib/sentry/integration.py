"""The integration that a project names in `sentry_sdk.init`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sentry_sdk
from django.dispatch import Signal
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor

from django_delayq import signals
from django_delayq.contrib.sentry import run_transactions, sentry_spans
from django_delayq.contrib.sentry.publish_spans import SentryWatcher
from django_delayq.contrib.sentry.withheld import withhold
from django_delayq.producer import watchers
from django_delayq.worker.run_context import ENDS

FLUSH: Final = 2.0  # seconds; the supervisor waits no longer for a process that must end


class DelayqIntegration(Integration):
    """Reports what a job fails by, once; makes a span of each schedule and a transaction of each run, in one trace.

    Args:
        report_retried: also failed attempts behind which another one comes, as warnings.
        report_fail: also jobs that their task has ended by raising `Fail`.
        monitor_periodic: a cron monitor for each schedule, to which the runs of its ticks check in.
    """

    identifier = sentry_spans.IDENTIFIER
    origin = sentry_spans.ORIGIN

    def __init__(self, *, report_retried: bool = False, report_fail: bool = False, monitor_periodic: bool = False) -> None:
        self.report_retried = report_retried
        self.report_fail = report_fail
        self.monitor_periodic = monitor_periodic

    @staticmethod
    def setup_once() -> None:
        """Begins to listen. The SDK calls it once in a process, however often it is set up."""
        watchers.add(SentryWatcher())
        add_global_event_processor(withhold)
        for told, receiver in RECEIVERS:
            told.connect(receiver)


def flush(**_: Any) -> None:
    """Receiver of `process_stopped`: sends what is left, since the process ends without Python's own end."""
    if sentry_sdk.get_client().get_integration(sentry_spans.IDENTIFIER) is not None:
        sentry_sdk.flush(FLUSH)


def close_idle(**_: Any) -> None:
    """Receiver of `before_fork`: closes the connections to Sentry that wait for the next event. A child would send by the same ones."""
    pool = getattr(sentry_sdk.get_client().transport, "_pool", None)
    if (clear := getattr(pool, "clear", None)) is not None:  # of urllib3
        clear()


RECEIVERS: Final[tuple[tuple[Signal, Callable[..., None]], ...]] = (
    (signals.job_started, run_transactions.started),
    *((end, run_transactions.ended) for end in ENDS.values()),
    (signals.before_fork, close_idle),
    (signals.process_stopped, flush),
)
