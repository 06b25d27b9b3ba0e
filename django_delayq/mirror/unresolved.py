"""Rows whose jobs have ended without an event of this site. That is neither a success nor a failure: a person decides."""

from __future__ import annotations

from typing import Any, Final

from django_delayq.states import EndingKind

_SAID: Final = {"cancelled": "was cancelled", "displaced": "was displaced by another job, or expired", "finished": "ended"}


def unknown_end(status: str) -> str:
    """The error text of such a row. `status`: the answer of Redis when the job is sent again."""
    return f"how it ended is not known: Redis says that it {_SAID.get(status, status)}, and no event of this site reports it"


def leave_to_a_person(jobs: Any, why: str) -> int:
    """Makes these rows unresolved, see `models.UNRESOLVED`. Returns the number of rows."""
    changed: int = jobs.update(published=None, ending=EndingKind.UNKNOWN.value, error=why)
    return changed
