"""How far a job is that asks and hears "not yet": how often it has asked, and how long its poll ladder is."""

from __future__ import annotations

from typing import NamedTuple

from django_delayq.ladder import POLL, Ladder
from django_delayq.models import Job
from django_delayq.producer.task import registry
from django_delayq.store.inspector import JobView


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
