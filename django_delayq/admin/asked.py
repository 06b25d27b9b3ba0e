"""What pages say of a job that asks and hears "not yet"."""

from __future__ import annotations

from django.utils.translation import gettext as now
from django.utils.translation import ngettext

from django_delayq import clock
from django_delayq.admin.show import duration
from django_delayq.console import asks
from django_delayq.models import Job
from django_delayq.states import State
from django_delayq.store.inspector import JobView


def shortly(job: Job, view: JobView | None = None) -> str:
    """ "asked 3 of 9"; "" of a job that has never asked."""
    found = asks.of(job, view)
    if found is None:
        return ""
    if found.most is None:
        return ngettext("asked once", "asked %(times)d times", found.times) % {"times": found.times}
    return now("asked %(times)d of %(most)d") % {"times": found.times, "most": found.most}


def fully(job: Job, view: JobView | None) -> str:
    """The same, with ", next in 10m" of a job that waits for its next run."""
    text = shortly(job, view)
    waits = job.state == State.SCHEDULED if view is None else view.state == "scheduled"
    if not text or not waits:
        return text
    wait = (job.run_at - clock.now()).total_seconds() if view is None else (view.date_ms - view.now_ms) / 1000
    if wait <= 0:
        return text
    return now("%(asked)s, next in %(duration)s") % {"asked": text, "duration": duration(wait)}
