"""What a restore knows from the database and writes into it: whether it is needed, how far it is, which servers it has seen, which
generation it brings back, and what rows learn from the changes and runs that Redis has lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db.models.functions import Coalesce

from django_delayq import clock
from django_delayq.failpoints import failpoint
from django_delayq.mirror import rows
from django_delayq.mirror.unfolded import unfolded_changes
from django_delayq.models import CANCELLED_HERE, Attempt, Checkpoint, Job
from django_delayq.states import FINISHED, UNFINISHED, AttemptOutcome, EventKind, State
from django_delayq.store.queue import MOST
from django_delayq.store.recovery import Ground

SERVERS: Final = 10  # runs of servers that are remembered
WAY: Final = "way:"  # so begins what is no run of a server, beside them


@dataclass(slots=True)
class RestoreProgress:
    """How far a restore is: rows looked at, of how many about; `back`: jobs that Redis did not have."""

    done: int = 0
    total: int = 0
    back: int = 0
    began: float = 0.0


def needed(ground: Ground, checkpoint: Checkpoint) -> bool:
    """Whether Redis lacks what the database has seen in it."""
    if not checkpoint.restored and not checkpoint.generation:
        return False  # the database has seen nothing yet; the mirror notes the generation that it meets first
    return bool(ground.rolled) or ground.generation != checkpoint.restored or ground.older


def note_server(queue: str, partition: int, server: str, using: str, restores: str | None = None) -> None:
    """Before what is pending is read: a change that is told later than this, by another server, is not answered with done.
    `restores`: the generation that is being brought back from here on, "" for none; None leaves what is noted.
    """
    mine = Checkpoint.objects.using(using).filter(queue=queue, partition=partition)
    checkpoint = mine.first() or Checkpoint()
    known = [one for one in (checkpoint.servers or "").split() if not one.startswith(WAY)]
    kept = [server, *(one for one in known if one != server)][:SERVERS] if server else known
    restores = under_way(checkpoint) if restores is None else restores
    said = " ".join([*kept, *([WAY + restores] if restores else [])])
    if said != (checkpoint.servers or ""):
        failpoint("restore.note_server")
        mine.update(servers=said)
        failpoint("restore.noted_server")


def note_restored(queue: str, partition: int, generation: str, using: str) -> None:
    """It is brought back, and what is lost for good says so."""
    mine = Checkpoint.objects.using(using).filter(queue=queue, partition=partition)
    noted = mine.values_list("servers", flat=True).first() or ""
    failpoint("restore.forget_way")
    mine.filter(servers=noted).update(servers=" ".join(one for one in noted.split() if one != WAY + generation))
    failpoint("restore.forgot_way")


def under_way(checkpoint: Checkpoint) -> str:
    """The generation that a restore has begun to bring back, until what Redis has lost for good is looked for; "" for none."""
    noted = [one for one in (checkpoint.servers or "").split() if one.startswith(WAY)]
    return noted[0].removeprefix(WAY) if noted else ""


def apply_unfolded(queue: str, using: str, folded: str) -> None:
    """Changes that were answered with done, and of which no event is left: all that Redis had to tell is folded."""
    now = clock.now()
    failpoint("restore.take_in")
    for change in unfolded_changes(queue, using, folded):
        row = Job.objects.using(using).filter(pk=change.job, state__in=UNFINISHED, settled="")
        if change.kind is EventKind.CANCELLED:
            row.update(state=State.CANCELLED.value, finished_at=now, error=rows.clean(change.reason))
        elif change.run_at is not None:
            row.update(state=State.SCHEDULED.value, run_at=change.run_at)  # what was moved waited, whatever its row says
    failpoint("restore.taken_in")


def settle_rows(queue: str, using: str) -> None:
    """Cancels, and atomic runs that committed, which rows knew before Redis did; and runs that nobody will tell of any more."""
    now = clock.now()
    known = Job.objects.using(using).filter(queue=queue, state__in=UNFINISHED).exclude(settled="")
    known.filter(settled=CANCELLED_HERE).update(state=State.CANCELLED.value, finished_at=now)
    known.exclude(settled=CANCELLED_HERE).update(
        state=State.SUCCEEDED.value, finished_at=Coalesce("finished_at", now), error="", fingerprint=""
    )
    runs = Attempt.objects.using(using).filter(finished_at__isnull=True, job__queue=queue)
    over = list(runs.filter(job__state__in=FINISHED).values_list("id", "fence", "job__settled"))
    for start in range(0, len(over), MOST):
        some = over[start : start + MOST]
        for done in (True, False):
            outcome = AttemptOutcome.SUCCEEDED if done else AttemptOutcome.CRASHED
            those = [id for id, fence, settled in some if (fence == settled) is done]
            runs.filter(pk__in=those).update(
                finished_at=now, outcome=outcome.value, message="" if done else "Redis lost its contents while it ran"
            )
