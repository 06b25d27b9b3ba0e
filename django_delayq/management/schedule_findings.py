"""What doctor says of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.utils import translation

from django_delayq.console import schedule_views
from django_delayq.findings import Finding
from django_delayq.models import Periodic

MOST: Final = 20  # of one kind


def schedule_findings(using: str) -> Iterator[Finding]:
    """Those in trouble, those that are late, those that were retired lately.

    Raises:
        DatabaseError: it cannot be asked.
    """
    which = schedule_views.wrong()
    rows = Periodic.objects.using(using).order_by("name")
    for row in rows.filter(which["trouble"])[:MOST]:
        with translation.override(None):  # what commands say is English everywhere
            why = schedule_views.problem(row)
        yield Finding("D030", f"The schedule {row.name!r} creates no jobs: {why}", _look(row))
    for row in rows.filter(which["late"])[:MOST]:
        yield Finding("D031", f"The ticks of the schedule {row.name!r} have not been written since {row.write_at:%Y-%m-%d %H:%MZ}.")
    for row in rows.filter(which["retired"])[:MOST]:
        yield Finding(
            "D032", f"The schedule {row.name!r} has been retired since {row.retired_at:%Y-%m-%d %H:%MZ}: no code declares it."
        )


def _look(row: Periodic) -> str:
    return f"For details, run manage.py delayq periodic {row.name!r}"
