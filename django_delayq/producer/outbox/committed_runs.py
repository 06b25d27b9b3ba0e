"""Rows whose atomic run has committed: its `Step` is in the database, and Redis may not know of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from django.db.models import Exists, OuterRef, Subquery
from django.db.models.functions import Coalesce

from django_delayq.failpoints import failpoint
from django_delayq.models import Step
from django_delayq.states import UNFINISHED, State

WHOLE: Final = ""  # the name of the step that is the whole run


def committed(jobs: Iterable[UUID]) -> dict[UUID, Any]:
    """Those of these jobs whose atomic run has committed, with the result. For a few hundred jobs at most."""
    steps = Step.objects.filter(job_id__in=list(jobs), name=WHOLE)
    return dict(steps.values_list("job_id", "result"))


def uncommitted(among: Any) -> Any:
    """Those of these rows without a committed atomic run."""
    return among.exclude(Exists(Step.objects.filter(job_id=OuterRef("pk"), name=WHOLE)))


def end_rows(among: Any) -> None:
    """Ends the unfinished rows among these whose atomic run has committed. Redis may have lost the outcome."""
    steps = Step.objects.filter(job_id=OuterRef("pk"), name=WHOLE)
    rows = among.filter(Exists(steps), state__in=UNFINISHED, settled="")
    failpoint("restore.end")
    rows.update(
        state=State.SUCCEEDED.value,
        settled=Subquery(steps.values("fence")),
        published=Coalesce("published", Subquery(steps.values("at"))),  # the job has run, so Redis had it
        finished_at=Subquery(steps.values("at")),
        result=Subquery(steps.values("result")),
        error="",
        fingerprint="",
        cancel_requested=False,
        ending=None,
    )
    failpoint("restore.ended")
