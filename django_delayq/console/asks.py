"""How far a job is that asks and hears "not yet": how often it has asked, how long its poll ladder is, and the words for it."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext as now
from django.utils.translation import ngettext

from django_delayq import clock
from django_delayq.console.shown_times import duration
from django_delayq.ladder import POLL, Ladder
from django_delayq.models import Job
from django_delayq.producer.task import registry
from django_delayq.states import State
from django_delayq.store.reads.inspector import JobView


class Asks(NamedTuple):
    """`times`: how often it has asked; `ladder`: its task's, None where no task of that name is registered here."""

    times: int
    ladder: Ladder | None

    @property
    def most(self) -> int | None:
        """How often it may."""
        return None if self.ladder is None else len(self.ladder)

    @property
    def next_wait(self) -> float | None:
        """Seconds that it waits if it asks once more and hears the same; None: it gives up then."""
        if self.ladder is None or self.times >= len(self.ladder):
            return None
        try:
            return self.ladder.steps(self.times + 1)[-1]
        except ValueError:  # a formula of the project, which errs
            return None


def of(job: Job, view: JobView | None = None) -> Asks | None:
    """By Redis' word, where there is one of a job that has not ended; None of a job that has never asked."""
    times = view.asks if view is not None and view.state in ("scheduled", "running") else job.asked
    if not times:
        return None
    task = registry.find(job.task)
    return Asks(times, None if task is None else task.poll or POLL)


def shortly(job: Job, view: JobView | None = None) -> str:
    """ "asked 3 of 9"; "" of a job that has never asked."""
    found = of(job, view)
    return "" if found is None else worded(found.times, found.most)


def worded(times: int, most: int | None) -> str:
    """The words for so many times, of at most so many; None: nobody knows."""
    if most is None:
        return ngettext("polled once", "polled %(times)d times", times) % {"times": times}
    return now("polled %(times)d of %(most)d") % {"times": times, "most": most}


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
