"""Updates rows after a restore, for changes and runs that Redis has lost."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models.functions import Coalesce

from django_delayq.failpoints import failpoint
from django_delayq.mirror.unfolded import unfolded_changes
from django_delayq.models import Attempt, Job, database
from django_delayq.producer.outbox import rows
from django_delayq.states import FINISHED, UNFINISHED, AttemptOutcome, EventKind, State
from django_delayq.store.scripts.queue import MOST


@dataclass(slots=True)
class RestoreProgress:
    """The progress of a restore. `done` of about `total` rows are processed; `back`: jobs that Redis did not have."""

    done: int = 0
    total: int = 0
    back: int = 0
    began: float = 0.0


def apply_unfolded(queue: str, partition: int, folded: str) -> None:
    """Applies changes that were answered with "done" and whose events are lost. All events of Redis are folded before."""
    now = database.ago()
    failpoint("restore.take_in")
    for change in unfolded_changes(queue, partition, folded):
        row = Job.objects.filter(pk=change.job, state__in=UNFINISHED, settled="")
        if change.kind is EventKind.CANCELLED:
            row.update(state=State.CANCELLED.value, finished_at=now, error=rows.clean(change.reason))
        elif change.run_at is not None:
            row.update(state=State.SCHEDULED.value, run_at=change.run_at)  # the job was waiting then, whatever its row says
    failpoint("restore.taken_in")


def settle_rows(queue: str, partition: int) -> None:
    """Ends jobs whose atomic run has committed, and runs that no event will end."""
    now = database.ago()
    known = Job.objects.filter(queue=queue, partition=partition, state__in=UNFINISHED).exclude(settled="")
    known.update(state=State.SUCCEEDED.value, finished_at=Coalesce("finished_at", now), error="", fingerprint="")
    runs = Attempt.objects.filter(finished_at__isnull=True, job__queue=queue, job__partition=partition)
    over = list(runs.filter(job__state__in=FINISHED).values_list("id", "fence", "job__settled"))
    for start in range(0, len(over), MOST):
        some = over[start : start + MOST]
        for done in (True, False):
            outcome = AttemptOutcome.SUCCEEDED if done else AttemptOutcome.CRASHED
            those = [id for id, fence, settled in some if (fence == settled) is done]
            runs.filter(pk__in=those).update(
                finished_at=now, outcome=outcome.value, message="" if done else "Redis lost its contents while it ran"
            )
