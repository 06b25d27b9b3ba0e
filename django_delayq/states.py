"""The states of a job and the words for what happens to it; `TRANSITIONS` is the table of every move.

Nothing here acts: the moves are Lua scripts of `store/`, and tests hold the table, the scripts and the docs together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """The state of a job in the database. "due", "retrying", "parked", "unpublished", "far" and "unresolved" are derived from other
    fields.
    """

    SCHEDULED = "scheduled"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


NO_LIMIT: Final = 999_999_999  # as `max_attempts` of a record or a row: no number of attempts ends the job, but its expiry does
MESSAGE: Final = "django_delayq.message"  # what stands for the task of a message, which has none: a consumer pulls it
SCHEDULED_BY: Final = "scheduled_by"  # in `meta`: who has put it in, of those who do not do so in code of the project, for the record
SCHEDULED_WHY: Final = "scheduled_why"  # likewise, why
FAIL_CLASS: Final = "django_delayq.exceptions.Fail"  # of an attempt that its task has failed: what it says is a reason, and no error
COPY_OF: Final = "copy_of"  # likewise, of which job it is a copy that a person has asked for
DELIVERY: Final = "django_delayq.deliver"  # the tasks of the package's own, by which jobs that wait are called: they stay
OFFER: Final = "django_delayq.offer"
# In `fingerprint` of the row of a parked job: its task is not registered in the worker, or takes other arguments there.
PARKED_TASK: Final = "parked-task"
PARKED_VERSION: Final = "parked-version"
PARKED_ARGUMENTS: Final = "parked-arguments"
PARKED_CARRIERS: Final = "parked-carriers"
PARKED_SIGNATURE: Final = "parked-signature"
PARKED: Final = frozenset({PARKED_TASK, PARKED_VERSION, PARKED_ARGUMENTS, PARKED_CARRIERS, PARKED_SIGNATURE})
UNFINISHED: Final = frozenset({State.SCHEDULED, State.RUNNING})
FINISHED: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Change(StrEnum):
    """The result of a function that changes a job, such as `cancel`."""

    DONE = "done"
    RUNNING = "running"  # it runs; a cancel has been noted as a request
    FINISHED = "finished"  # too late
    UNKNOWN = "unknown"  # no such job
    CONFLICT = "conflict"  # the move is not allowed from here, or the key is held by another job
    PENDING = "pending"  # it is part of the open transaction, and is carried out at its commit (`at_commit=True`)


class AttemptOutcome(StrEnum):
    """How one run ended, as its row in the database says it; `RUNNING` until it has ended."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    ASKED = "asked"  # and heard "not yet"; told as snoozed, with how often
    EVICTED = "evicted"  # its process was killed for a neighbour's sake; told as snoozed
    FAILED = "failed"
    CRASHED = "crashed"
    CANCELLED = "cancelled"


PUT_OFF: Final = frozenset({AttemptOutcome.SNOOZED, AttemptOutcome.ASKED, AttemptOutcome.EVICTED})  # attempts that do not count


class EndingKind(StrEnum):
    """How a cancelled job came to its end without a cancel. UNKNOWN: of an unfinished row. No event says how
    the job ended, or whether it ran before Redis lost it.
    """

    MERGED = "merged"  # into the job that held its key
    REPLACED = "replaced"  # by another of its key
    EXPIRED = "expired"
    UNKNOWN = "unknown"


class EventKind(StrEnum):
    """The kinds of items in the event stream. A script writes them, the mirror folds them."""

    SCHEDULED = "scheduled"
    MERGED = "merged"
    RESCHEDULED = "rescheduled"
    CLAIMED = "claimed"
    CRASHED = "crashed"
    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CANCEL_REQUESTED = "cancel_requested"
    REQUEUED = "requeued"
    EXPIRED = "expired"
    ASIDE = "aside"
    RESTORED = "restored"
    DROPPED = "dropped"
    PAUSED = "paused"
    RESUMED = "resumed"
    PURGED = "purged"


class EndCause(StrEnum):
    """Why a job has ended, as `job_ended` tells it. "failed": its task did, or has no attempt left; "poison": it could not be run at
    all; "crashed": its worker vanished too often; "timeout": its process had to be ended; "replaced": by another job of its key.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    POISON = "poison"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REPLACED = "replaced"


class Transition(NamedTuple):
    """One arrow: `verb` takes a job from `before` (None: it did not exist) to `after`, inside `script`."""

    verb: str
    before: State | None
    after: State
    script: str


# In the order of a job's life. Each row is the state of a job before and after one call of the script. A verb can have several rows:
# - A crash is found by claim (the lease expired, and the job runs again at once) or reported to settle (the supervisor saw the process
#   die). A job that crashed too often fails immediately.
# - A cancel of a running job is a request. Its settlement carries it out, or the claim that finds its expired lease. A cancel of an
#   unpublished job leaves a tombstone.
# - A job that expires fails if it has run or polled before. Otherwise it is cancelled.
# Jobs that sweep removes from Redis keep the state of their row, and have no entry here.
TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition("schedule", None, State.SCHEDULED, "schedule"),
    Transition("merge", None, State.CANCELLED, "schedule"),
    Transition("replace", State.SCHEDULED, State.CANCELLED, "schedule"),
    Transition("reschedule", State.SCHEDULED, State.SCHEDULED, "schedule"),
    Transition("reschedule", State.SCHEDULED, State.SCHEDULED, "reschedule"),
    Transition("claim", State.SCHEDULED, State.RUNNING, "claim"),
    Transition("claim", State.RUNNING, State.RUNNING, "claim"),
    Transition("expire", State.SCHEDULED, State.CANCELLED, "claim"),
    Transition("expire", State.SCHEDULED, State.FAILED, "claim"),
    Transition("expire", State.RUNNING, State.FAILED, "claim"),
    Transition("expire", State.SCHEDULED, State.CANCELLED, "schedule"),
    Transition("expire", State.SCHEDULED, State.FAILED, "schedule"),
    Transition("set aside", State.SCHEDULED, State.FAILED, "claim"),
    Transition("set aside", State.RUNNING, State.FAILED, "claim"),
    Transition("extend", State.RUNNING, State.RUNNING, "extend"),
    Transition("ack", State.RUNNING, State.SUCCEEDED, "settle"),
    Transition("retry", State.RUNNING, State.SCHEDULED, "settle"),
    Transition("snooze", State.RUNNING, State.SCHEDULED, "settle"),
    Transition("ask", State.RUNNING, State.SCHEDULED, "settle"),
    Transition("evict", State.RUNNING, State.SCHEDULED, "settle"),
    Transition("park", State.RUNNING, State.SCHEDULED, "settle"),
    Transition("fail", State.RUNNING, State.FAILED, "settle"),
    Transition("crash", State.RUNNING, State.RUNNING, "claim"),
    Transition("crash", State.RUNNING, State.SCHEDULED, "claim"),
    Transition("snooze", State.RUNNING, State.SCHEDULED, "claim"),
    Transition("crash", State.RUNNING, State.SCHEDULED, "settle"),
    Transition("crash", State.RUNNING, State.FAILED, "claim"),
    Transition("crash", State.RUNNING, State.FAILED, "settle"),
    Transition("cancel", None, State.CANCELLED, "cancel"),
    Transition("cancel", State.SCHEDULED, State.CANCELLED, "cancel"),
    Transition("cancel", State.RUNNING, State.CANCELLED, "settle"),
    Transition("cancel", State.RUNNING, State.CANCELLED, "claim"),
    Transition("requeue", State.FAILED, State.SCHEDULED, "requeue"),
    Transition("requeue", State.CANCELLED, State.SCHEDULED, "requeue"),
    Transition("purge", State.SCHEDULED, State.CANCELLED, "purge"),
    Transition("restore", None, State.SCHEDULED, "restore"),
    Transition("restore", None, State.RUNNING, "restore"),
    Transition("merge", None, State.CANCELLED, "restore"),
    Transition("adopt", None, State.RUNNING, "restore"),
    Transition("adopt", State.SCHEDULED, State.RUNNING, "restore"),
    Transition("adopt", State.RUNNING, State.RUNNING, "restore"),
)
REQUEUEABLE: Final = frozenset(move.before for move in TRANSITIONS if move.verb == "requeue" and move.before is not None)

# The key of a job's meta that holds the propagated context, by the name of the carrier.
CARRIED: Final = "delayq.carried"
# The key of a job's meta, or the name of a carrier, that holds the customer whose job it is.
CUSTOMER: Final = "customer"
# The key under which the job of a tick says of which: `name` of the schedule, `tick` as ISO date in UTC, and `overlap` unless that is
# allowed; `by_hand` of one that a person has asked for.
PERIODIC: Final = "delayq.periodic"
