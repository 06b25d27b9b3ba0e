"""System checks of what the code says of its schedules. What is wrong in itself is refused where it is written; here is what only the
whole project, or this host, shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage

from django_delayq import clock, conf
from django_delayq.exceptions import ConfigError, DelayqError
from django_delayq.findings import check_message
from django_delayq.periodic import dates
from django_delayq.periodic.declarations import Declaration, declarations
from django_delayq.periodic.tick_writer import check_jobs
from django_delayq.producer.task import registry


def check_declarations(**_: Any) -> list[CheckMessage]:
    """The declared schedules, one by one."""
    found = [message for one in declarations.all() for message in _of_dates(one)]
    if not conf.problems():
        found += [message for one in declarations.all() for message in _of_jobs(one)]
    return found


def _of_dates(one: Declaration) -> Iterator[CheckMessage]:
    where = f"The schedule {one.name} ({one.place})"
    if one.dates.cron and not dates.installed():
        yield check_message(
            "E034",
            f"{where} has the cron {one.dates.cron!r}, and the package cronsim is not installed, so the schedule would never run.",
        )
        return
    try:
        if one.dates.first_after(clock.now()) is None:
            yield check_message(
                "E033",
                f"{where} has the cron {one.dates.cron!r}, which never fires: no such day exists, or the clock skips that time on it.",
            )
    except ConfigError as error:  # it was declared where nothing could read it
        yield check_message("E033", f"{where}: {error}", error.fields.get("hint", ""))


def _of_jobs(one: Declaration) -> Iterator[CheckMessage]:
    task = registry.find(one.task)
    if task is None or task.queue not in conf.get().queues:
        return  # told by E005, by E004
    try:
        check_jobs(one)
    except DelayqError as error:
        yield check_message("E035", f"The schedule {one.name} ({one.place}): none of its jobs could be scheduled: {error}")
