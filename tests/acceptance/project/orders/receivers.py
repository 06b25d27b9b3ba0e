"""Receivers of signals: the ledger stores each end as a row, and a log gets one line per run event."""

import logging
from typing import Any

from django.dispatch import Signal, receiver

from django_delayq import Job, State, signals
from django_delayq.models import Job as JobRow
from orders.models import LedgerEntry

logger = logging.getLogger("orders.runs")


@receiver(signals.job_ended)
def enter_into_the_ledger(sender: object, job: Job, row: JobRow | None, state: State, cause: str, **more: Any) -> None:
    LedgerEntry.objects.get_or_create(
        job_id=job.id,
        finished_at=row.finished_at if row else None,
        defaults={"task": job.task, "known": sender is not None, "state": state, "cause": cause},
    )


def listen(name: str) -> None:
    def heard(sender: object, **about: Any) -> None:
        job = about.get("job")
        logger.info("%s %s", name, about.get("job_id") or (job.id if job else about.get("worker", "")))

    sent: Signal = getattr(signals, name)
    sent.connect(heard, weak=False, dispatch_uid=f"orders.{name}")


for each in (
    "job_scheduled",
    "job_started",
    "job_succeeded",
    "job_retried",
    "job_snoozed",
    "job_failed",
    "job_cancelled",
    "job_crashed",
    "worker_started",
    "worker_stopped",
    "store_unavailable",
):
    listen(each)
