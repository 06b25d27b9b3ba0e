"""Check-ins of periodic tasks: a cron monitor of Sentry for each schedule, made and kept by its dates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from django.db import Error
from sentry_sdk.crons import capture_checkin
from sentry_sdk.crons.consts import MonitorStatus

from django_delayq import conf
from django_delayq.exceptions import Skip
from django_delayq.periodic.dates import Dates
from django_delayq.states import PERIODIC
from django_delayq.store.queue import Outcome
from django_delayq.worker.current import CurrentJob

LONGEST: Final = 50  # characters of a slug
PLAIN: Final = re.compile(r"(?!\d+$)[a-z0-9_]+(\.[a-z0-9_]+)*")  # no two of these have one slug
MINUTE_MS: Final = 60_000
UNITS: Final = (("day", 1440), ("hour", 60), ("minute", 1))
ENDS: Final = {"ack": MonitorStatus.OK, "fail": MonitorStatus.ERROR, "cancel": MonitorStatus.ERROR}  # others come again


def begins(job: CurrentJob) -> None:
    """Tells that the tick of a schedule is under way. All attempts of it are one check-in."""
    name = _schedule_of(job)
    if name is None:
        return
    dates = _dates_of(name)
    config = None if dates is None else config_of(dates)
    if dates is None or config is not None:  # a period that Sentry cannot express has no monitor
        told: Any = config  # which the SDK types by literals
        capture_checkin(monitor_slug=slug(name), check_in_id=job.id.hex, status=MonitorStatus.IN_PROGRESS, monitor_config=told)


def ends(job: CurrentJob, outcome: Outcome) -> None:
    """Tells how it has ended, unless it comes again."""
    name = _schedule_of(job)
    status = MonitorStatus.OK if isinstance(outcome.error, Skip) else ENDS.get(outcome.kind)
    if name is None or status is None:
        return
    dates = _dates_of(name)
    if dates is None or config_of(dates) is not None:
        seconds = max(0.0, (job.now - job.started_at).total_seconds())
        capture_checkin(monitor_slug=slug(name), check_in_id=job.id.hex, status=status, duration=seconds)


def slug(name: str) -> str:
    """What Sentry calls the monitor of a schedule: "shop-tasks-nightly" of "shop.tasks.nightly". Of any other name than words of small
    letters, digits and underscores with dots between, something is left out: a hash behind it keeps such names apart.
    """
    found = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    if not found or found.isdigit():
        found = f"schedule-{found}".rstrip("-")
    if len(found) <= LONGEST and PLAIN.fullmatch(name):
        return found
    told = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{found[: LONGEST - 9]}-{told}"


def config_of(dates: Dates) -> dict[str, Any] | None:
    """What Sentry is told of the dates of a schedule; None for a period that is not made of whole minutes. The jitter is time in which
    the tick is not missed yet.
    """
    margin = {"checkin_margin": 1 - -dates.jitter_ms // MINUTE_MS}
    if dates.cron:
        return {"schedule": {"type": "crontab", "value": dates.cron}, "timezone": dates.timezone, **margin}
    minutes, rest = divmod(dates.every_ms, MINUTE_MS)
    if rest or not minutes:
        return None
    unit, size = next((unit, size) for unit, size in UNITS if minutes % size == 0)
    return {"schedule": {"type": "interval", "value": minutes // size, "unit": unit}, **margin}


def _schedule_of(job: CurrentJob) -> str | None:
    """The schedule whose tick this job is; None for others, and for a run that a person has asked for."""
    tick = job.meta.get(PERIODIC)
    if not isinstance(tick, Mapping) or tick.get("by_hand") or not isinstance(tick.get("name"), str):
        return None
    return str(tick["name"])


def _dates_of(name: str) -> Dates | None:
    """The dates that hold, of the code or of people; None if that cannot be known now."""
    from django_delayq.models import Periodic  # settings import this before there are models
    from django_delayq.periodic.schedule_rows import dates_of

    try:
        row = Periodic.objects.using(conf.get().database).filter(name=name).first()
    except Error:
        return None
    return None if row is None else dates_of(row)
