"""Attempts that were put off: of many in a row the last ones are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from django_delayq.mirror.rows import RunRow
from django_delayq.models import Attempt
from django_delayq.states import AttemptOutcome

KEPT: Final = 10  # in a row, of one job
PUT_OFF: Final = frozenset({AttemptOutcome.SNOOZED.value, AttemptOutcome.EVICTED.value})
CHUNK: Final = 500  # ids per query


def forget(runs: Iterable[RunRow], using: str) -> None:
    """Keeps the last ten runs in a row of those jobs of which some of these were put off: they bear one number, as they did not count.
    A task that looks every few seconds whether something is there would else leave thousands of rows a day.
    """
    wanted = list({run.job_id for run in runs if run.outcome in PUT_OFF})
    for start in range(0, len(wanted), CHUNK):
        found = Attempt.objects.using(using).filter(job_id__in=wanted[start : start + CHUNK], outcome__in=PUT_OFF)
        seen, gone = Counter[tuple[UUID, int]](), []
        for id, job, number in found.order_by("-id").values_list("id", "job_id", "number"):
            seen[job, number] += 1
            if seen[job, number] > KEPT:
                gone.append(id)
        for first in range(0, len(gone), CHUNK):
            Attempt.objects.using(using).filter(pk__in=gone[first : first + CHUNK]).delete()
