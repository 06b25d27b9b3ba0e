"""Conditions for the jobs of each state, also for states that no column stores, such as `due`."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.db import models

from django_delayq import clock
from django_delayq.states import PARKED, EndingKind, State

# The derived states. No column stores them.
DERIVED: Final = ("due", "retrying", "parked", "unpublished", "far", "unresolved")
RETRYING: Final = models.Q(state=State.SCHEDULED.value, attempts__gte=1)  # after at least one attempt
PARKED_ROWS: Final = models.Q(state=State.SCHEDULED.value, fingerprint__in=sorted(PARKED))  # no worker that claimed them could run them
UNENDED: Final = (State.SCHEDULED.value, State.RUNNING.value)
# No event says how the job ended, or whether it ran before Redis lost it. A person decides. Until then the row holds its key, and is
# neither published nor restored. The first three conditions let a database find the few rows by an index.
UNRESOLVED: Final = models.Q(state__in=UNENDED, published__isnull=True, far=False, ending=EndingKind.UNKNOWN.value)
_UNCONFIRMED: Final = models.Q(state=State.SCHEDULED.value, published__isnull=True, far=False)
# Redis has not confirmed them, so the relay publishes them.
UNPUBLISHED: Final = _UNCONFIRMED & ~models.Q(ending=EndingKind.UNKNOWN.value)
# Redis does not know them.
FAR: Final = models.Q(far=True, state=State.SCHEDULED.value, published__isnull=True, last_event="")


def of_state(state: str, at: datetime | None = None) -> models.Q:
    """The rows of a state, or of a derived one. Due jobs have a date before `at`, by default now."""
    if state == "due":
        return models.Q(state=State.SCHEDULED.value, run_at__lte=at or clock.now())
    found = {"retrying": RETRYING, "parked": PARKED_ROWS, "unpublished": UNPUBLISHED, "far": FAR, "unresolved": UNRESOLVED}.get(state)
    return found or models.Q(state=state)
