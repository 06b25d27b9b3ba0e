"""What schedule, cancel and reschedule are told of jobs, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

from django_delayq import ids, token_limits
from django_delayq.shared_name import told_of
from django_delayq.states import Change
from django_delayq.store.scripts import decode
from django_delayq.store.scripts.record import JobRecord

OnConflict = Literal["keep", "replace", "earliest", "latest", "after", "error"]
ScheduleStatus = Literal[
    "created",
    "again",
    "failed",
    "succeeded",
    "cancelled",
    "displaced",
    "finished",
    "kept",
    "moved",
    "replaced",
    "taken",
    "running",
    "forbidden",
    "free",
    "contested",
    "behind",
    "asked",
]
ScheduleMode = Literal["", "ask", "told", "ask told"]
STATUSES: Final[dict[bytes, ScheduleStatus]] = {status.encode(): status for status in get_args(ScheduleStatus)}


@dataclass(slots=True, kw_only=True, eq=False)
class ScheduleItem(JobRecord):
    """A record to put in. Exactly one of `due_ms` (a date) and `delay_ms` (from Redis' now) is given. `on_conflict`: a policy; of a
    late publication with "@" behind it, and the holder on which it may act, if any; or "replaced@" and an id: see schedule.lua. Beside
    the record its row shows `queue` and `priority`; there a delay counts from the database's now.
    """

    due_ms: int | None = None
    delay_ms: int | None = None
    on_conflict: str = "keep"
    queue: str = ""
    priority: int = 0

    __eq__ = object.__eq__  # what is on its way is one thing; records are equal by their parts
    __hash__ = object.__hash__

    @classmethod
    def of(
        cls,
        record: JobRecord,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        on_conflict: str = "keep",
        queue: str = "",
        priority: int = 0,
    ) -> ScheduleItem:
        """A record that is there already, to be put in."""
        return cls(
            id=record.id,
            task=record.task,
            band=record.band,
            durable=record.durable,
            max_attempts=record.max_attempts,
            expires_ms=record.expires_ms,
            key=record.key,
            payload=record.payload,
            due_ms=due_ms,
            delay_ms=delay_ms,
            on_conflict=on_conflict,
            queue=queue,
            priority=priority,
        )

    def left_ms(self, now: float) -> int | None:
        """The delay as it is when the job is sent, `now` (monotonic)."""
        return self.delay_ms

    def told_name(self) -> str:
        """The name that it shares with others, as scripts are told; "" without one."""
        return told_of(self.payload)

    def told_policy(self) -> str:
        """The policy of a job with a key as schedule.lua takes it: with the tasks of whose jobs its sender may know, if limited."""
        tasks = token_limits.in_payload(self.payload)
        if tasks is None or self.on_conflict.startswith("replaced@"):
            return self.on_conflict
        return " ".join((self.on_conflict, *tasks)) if tasks else f"{self.on_conflict} "


class ScheduleReply(NamedTuple):
    """What became of it. `id` is the job itself or the one that holds its key; `due_ms` the date of what was asked for;
    0 where it was in already, and has begun to run or has ended: what its date was, Redis does not keep.

    created, replaced: it is in. again: it was in already (a re-send). failed, succeeded, cancelled, displaced (merged, replaced or
    expired), finished: it has ended already. kept, moved, taken, running: another job holds the key, and this one was not created.
    forbidden: a job holds the key of which the sender may not know; `id` is NOBODY.
    free, contested, behind, asked: nothing has been done, see schedule.lua.
    """

    status: ScheduleStatus
    id: UUID
    due_ms: int

    @property
    def created(self) -> bool:
        """Whether the job itself is in the queue, or was."""
        return self.status in CREATED

    @property
    def ended(self) -> bool:
        """Whether the job had ended before."""
        return self.status in ENDS


NOBODY: Final = UUID(int=0)
FORBIDDEN: Final = ScheduleReply("forbidden", NOBODY, 0)
# Statuses of a job that has ended before.
ENDS: Final = frozenset({"succeeded", "failed", "finished", "cancelled", "displaced"})
CREATED: Final = frozenset({"created", "again", "replaced", *ENDS} - {"displaced"})  # what was displaced never was in
REFUSED: Final = frozenset({"taken", "running", "forbidden"})  # an error for the caller
REPEATS: Final = frozenset({"again", *ENDS})  # what a job answers that is sent once more
DECIDED: Final = CREATED | ENDS  # nothing is to be asked or told beside


def schedule_replies(
    items: Sequence[ScheduleItem], told: list[Any], reply: list[bytes], stride: int
) -> tuple[str, list[ScheduleReply]]:
    """What schedule.lua has said of these items: the epoch, and a reply to each. `told`: the arguments of the call, from `most jobs
    behind` on, `stride` to a job.
    """
    epoch = decode.text(reply[0])
    if len(reply) == 2:  # usually: every job was created as requested, or every key is free
        now_ms = int(reply[1])
        status: ScheduleStatus = "free" if "ask" in told[2] else "created"
        dates = zip(items, told[6::stride], strict=True)
        return epoch, [_made((status, item.id, now_ms + int(date) if type(date) is str else date)) for item, date in dates]
    answers = zip(items, told[3::stride], reply[1::3], reply[2::3], reply[3::3], strict=False)  # none in another epoch
    return epoch, [
        FORBIDDEN
        if status == b"forbidden"
        else ScheduleReply(STATUSES[status], item.id if holder in (b"", short.encode()) else ids.full(holder.decode()), int(due))
        for item, short, status, holder, due in answers
    ]


def repeated(answers: Sequence[tuple[str, list[ScheduleReply]]]) -> tuple[str, list[ScheduleReply]]:
    """What became of items that were sent several times: a repeat that finds them in, or as displaced, tells of the call before it."""
    epoch, replies = answers[-1]
    for _, before in reversed(answers[:-1]):
        replies = [earlier if reply.status in REPEATS else reply for earlier, reply in zip(before, replies, strict=True)]
    return epoch, replies


_made: Final[Callable[[tuple[ScheduleStatus, UUID, int]], ScheduleReply]] = partial(tuple.__new__, ScheduleReply)  # without Python


class Changed(NamedTuple):
    """What became of one job that was to be cancelled or rescheduled. `id`: the job found, by its key perhaps; `epoch`: where it
    happened, see `Claim.epoch`; `event`: the stream id of what tells of it, "" where nothing has happened; `due_ms`: of reschedule.
    """

    change: Change
    id: UUID | None
    epoch: str
    event: str = ""
    due_ms: int = 0

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Changed:
        """From what cancel.lua or reschedule.lua says of one job."""
        epoch, event, status, id, due = [*reply, *_UNKNOWN[len(reply) :]]
        return cls(Change(status.decode()), decode.job_id(id), decode.text(epoch), decode.text(event), int(due))


_UNKNOWN: Final[list[Any]] = [b"", b"", b"unknown", b"", 0]  # what a reply of the epoch alone leaves out


def moved(replies: Sequence[Sequence[Any]]) -> Changed:
    """What became of a job whose change of date was sent so many times: one that has begun since the call that moved it was moved. On
    another epoch nothing is known of that call.
    """
    answers = [Changed.read(reply) for reply in replies]
    last = answers[-1]
    begun = last.change in (Change.RUNNING, Change.FINISHED)
    done = (answer for answer in answers if begun and answer.change is Change.DONE and answer.epoch == last.epoch)
    return next(done, last)
