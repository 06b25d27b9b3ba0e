"""Jobs in the form in which they go to and from Redis: the record (a header line that Lua reads, and a payload that it does not), the
items and replies of schedule, cancel and reschedule, and the claimed job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

from django_delayq import clock, ids, signing
from django_delayq.exceptions import PayloadError
from django_delayq.job_meta import ONLY_MARK, allowed_tasks, told_of
from django_delayq.states import NO_LIMIT, Change
from django_delayq.store.scripts import decode
from django_delayq.text import cut

Band = Literal["high", "normal", "low"]
BANDS: Final[tuple[Band, ...]] = get_args(Band)
LETTERS: Final[dict[str, str]] = {band: band[0] for band in BANDS}
BY_LETTER: Final[dict[str, Band]] = {band[0]: band for band in BANDS}
MAX_KEY: Final = 200  # characters; as wide as its column
MAX_TASK: Final = 200
MAX_ATTEMPTS: Final = NO_LIMIT  # the largest number in the header
USUAL_ATTEMPTS: Final = 10  # a record leaves out this number

# Control characters (a line end would end the header), the other line separators, and halves of surrogate pairs.
_FORBIDDEN: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
_KEY: Final = re.compile(f"[^{_FORBIDDEN}]{{0,{MAX_KEY}}}")
_TASK: Final = re.compile(rf"[^\s{_FORBIDDEN}]{{1,{MAX_TASK}}}")
# Usual values are always left out, so each record has exactly one encoding.
_HEADER: Final = re.compile(rb"1([hnl])([or])(?:(?!10 )([1-9][0-9]{0,8})(?::([1-9][0-9]{0,14}))?)? ([^ \n]+)(?: ([^\n]+))?")
_PAST: Final = re.compile(r"(?:e(\d+))?(?:u(\d+))?(?:a(\d+))?(?:t(\d+))?(p)?(?:x(\w+))?")
_NOBODY: Final = UUID(int=0)
_OTHER_VERSION: Final = re.compile(rb"(?!1[a-z])[0-9]{1,3}[a-z]")


def band_of(priority: int) -> Band:
    """The band of a priority: above 0 high, 0 normal, below 0 low."""
    if priority > 0:
        return "high"
    return "low" if priority < 0 else "normal"


@dataclass(slots=True, kw_only=True, unsafe_hash=True)  # not frozen: one is made for each job, and a frozen one takes twice as long
class JobRecord:
    """The parts of a job that do not change while it lives. Scripts store its state, date and attempts in other keys, where they
    change them.

    `expires_ms` 0: never. `key` "": none. `durable`: its row is in the database (outbox). Raises PayloadError for a field that the
    record cannot hold.
    """

    id: UUID
    task: str
    band: Band = "normal"
    durable: bool = True
    max_attempts: int = USUAL_ATTEMPTS
    expires_ms: int = 0
    key: str = ""
    payload: bytes
    _line: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._line = line(self.task, self.band, self.durable, self.max_attempts, self.expires_ms)
        if self.key != "":
            validate_key(self.key)
        if type(self.payload) is not bytes:
            raise PayloadError(f"the payload of {self.task} is not bytes; pass the result of codec.encode_payload")

    def may_know(self, task: str) -> bool:
        """Whether the sender of this job may know of jobs of that task, and displace them. In Redis schedule.lua applies the same
        rule.
        """
        tasks = allowed_tasks(self.payload)
        return tasks is None or task in tasks

    def revived(self, now_ms: int) -> JobRecord:
        """The record for putting the job back. An expiry that has passed is removed, or the job would expire again at once. If the
        job then has no limit at all, it gets the usual number of attempts.
        """
        if not 0 < self.expires_ms <= now_ms:
            return self
        most = USUAL_ATTEMPTS if self.max_attempts == NO_LIMIT else self.max_attempts
        return replace(self, expires_ms=0, max_attempts=most)

    def encode(self) -> bytes:
        """The bytes for Redis: `1<band><o|r>[<max_attempts>[:<expires_ms>]] <task>[ <key>]`, a line end, the payload.

        The numbers are left out for 10 attempts and no expiry. The key comes last because it may contain spaces.
        """
        if self.key:
            return b"%b %b\n%b" % (self._line, self.key.encode(), self.payload)
        return self._line + b"\n" + self.payload

    @classmethod
    def decode(cls, id: UUID, record: bytes) -> JobRecord:
        """Reads the bytes of `encode`, signed or not; PayloadError for any other bytes. It checks neither payload nor signature."""
        try:
            header, payload = read(record)
        except PayloadError as error:
            raise PayloadError(f"the record of job {ids.short(id)} cannot be read: {error}") from None
        return cls(id=id, payload=payload, **header._asdict())


class Header(NamedTuple):
    """The header line of a record; the fields are those of `JobRecord`."""

    task: str
    band: Band
    durable: bool
    max_attempts: int
    expires_ms: int
    key: str


def read(record: bytes) -> tuple[Header, bytes]:
    """Header and payload of the bytes of `JobRecord.encode`, signed or not; PayloadError for any other bytes. It serves a worker
    without making a record. Jobs of one task without keys have the same header, which is parsed once.
    """
    if signing.MARK in record:  # otherwise it is not signed
        record, _ = signing.split(record)
    line, end, payload = record.partition(b"\n")
    if not end:
        raise PayloadError(_diagnosis(record))
    return _header(line), payload


def says_durable(record: bytes) -> bool:
    """Whether the record, which may be no record at all, says that its job's row is in the database."""
    return record[2:3] == b"o"  # see _HEADER


@lru_cache(maxsize=1024, typed=True)  # True equals 1, and must be refused
def line(task: str, band: str, durable: bool, max_attempts: int, expires_ms: int) -> bytes:
    """A header up to its key. Jobs of one task share it, so it is checked and written once. Raises PayloadError for a field that it
    cannot hold.
    """
    if not isinstance(task, str) or not _TASK.fullmatch(task):
        raise PayloadError(
            f"the task name {cut(ascii(task))} cannot be stored; use 1 to {MAX_TASK} characters without spaces, such as "
            '"orders.close_order"'
        )
    if band not in LETTERS:
        raise PayloadError(f"{cut(ascii(band))} is not a band; use high, normal or low")
    if type(max_attempts) is not int or not 1 <= max_attempts <= MAX_ATTEMPTS:
        raise PayloadError(f"max_attempts={cut(ascii(max_attempts))} of {task}: use a whole number of at least 1")
    if type(expires_ms) is not int or not 0 <= expires_ms <= clock.LAST_MS:
        raise PayloadError(f"expires_ms={cut(ascii(expires_ms))} of {task}: use milliseconds since 1970, or 0 for never")
    numbers = f"{max_attempts}:{expires_ms}" if expires_ms else str(max_attempts)
    if numbers == str(USUAL_ATTEMPTS):
        numbers = ""
    return f"1{LETTERS[band]}{'o' if durable else 'r'}{numbers} {task}".encode()


@lru_cache(maxsize=1024)
def _header(line: bytes) -> Header:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise PayloadError(_diagnosis(line))
    band, durable, max_attempts, expires_ms, task, key = found.groups()
    try:
        header = Header(
            task.decode(),
            BY_LETTER[band.decode()],
            durable == b"o",
            int(max_attempts or USUAL_ATTEMPTS),
            int(expires_ms or 0),
            (key or b"").decode(),
        )
    except UnicodeDecodeError:
        raise PayloadError("its task or key is not UTF-8") from None
    JobRecord(id=_NOBODY, payload=b"", **header._asdict())  # the checks of the other way
    return header


class ClaimedJob(NamedTuple):
    """A job that this worker holds under a lease. `id` is short. `record` is not decoded yet, since that may fail.

    `attempt`: the number of this run, from 1. `crashes`: the earlier runs whose worker vanished. `fence`: the proof of the claim for
    extend and settle. `due_ms`: the date for which it was scheduled. `epoch`: the epoch at the claim. `evictions`: how many runs
    directly before it ended because their process was killed for another job. `unknown_ms`: how long ago the job was first parked, 0
    for never. `asks`: how often the job has raised NotYet before. `turn`: the number of this holder of the job's name, 0 without a
    name. `held`: a pause has made it late. `lost`: the job is not claimed; the lease of the consumer with this `fence` ran out.
    """

    id: str
    attempt: int
    crashes: int
    due_ms: int
    record: bytes
    fence: str
    queue: str
    epoch: str = ""
    evictions: int = 0
    unknown_ms: int = 0
    asks: int = 0
    turn: int = 0
    held: bool = False
    lost: bool = False


def common_turn(pasts: bytes) -> int:
    """The common turn of all jobs in a claim if they have a name and no other past, which is the usual case; else 0."""
    return int(pasts[3:]) if pasts[:3] == b"*=t" and pasts[3:].isdigit() else 0


def with_past(jobs: Sequence[ClaimedJob], pasts: bytes, now_ms: int) -> list[ClaimedJob]:
    """The jobs with their pasts: evictions, parking because of an unknown task, and the number of NotYet. `pasts`: "id=past …", or
    "*=past" for all jobs.
    """
    words = pasts.decode().replace("=", " ").split()
    told = dict(zip(words[::2], words[1::2], strict=True))
    every = told.get("*", "")
    return [_with_one(job, past, now_ms) if (past := told.get(job.id, every)) else job for job in jobs]


def _with_one(job: ClaimedJob, text: str, now_ms: int) -> ClaimedJob:
    past = _PAST.fullmatch(text)
    if past is None:
        return job
    return job._replace(
        evictions=int(past[1] or 0),
        unknown_ms=max(0, now_ms - int(past[2])) if past[2] else 0,
        asks=int(past[3] or 0),
        turn=int(past[4] or 0),
        held=bool(past[5]),
        fence=past[6] or job.fence,
        lost=bool(past[6]),
    )


def validate_key(key: str) -> str:
    """Returns the business key unchanged if a record can hold it ("": no key); PayloadError otherwise."""
    if not isinstance(key, str):
        raise PayloadError(f"the key {cut(ascii(key))} is not text; pass a str, such as f'close-order:{{order.pk}}'")
    if not _KEY.fullmatch(key):
        what = f"has {len(key)} characters" if len(key) > MAX_KEY else "holds a control character or half a surrogate pair"
        raise PayloadError(f"the key {cut(ascii(key))} {what}; pass at most {MAX_KEY} printable characters")
    return key


def _diagnosis(line: bytes) -> str:
    if _OTHER_VERSION.match(line):
        return "its version is unknown here, so a newer django-delayq wrote it; upgrade this worker"
    return "its header line is malformed; it was not written by django-delayq, or was damaged"


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


class DebouncePolicy(NamedTuple):
    """The policy "latest" with `at_most`, in the form of the scripts and of the column: "latest+<most_ms>", then "/<first_ms>" if
    the first date is known, see first_date.lua. In the column this is the first date of a job that it has replaced.
    """

    most_ms: int
    first_ms: int = 0

    @classmethod
    def read(cls, on_conflict: str) -> DebouncePolicy | None:
        """None for any other policy."""
        policy, plus, rest = on_conflict.partition("+")
        if not plus or policy != "latest":
            return None
        most_ms, _, first_ms = rest.partition("@")[0].partition("/")
        return cls(int(most_ms), int(first_ms or 0))

    def __str__(self) -> str:
        return f"latest+{self.most_ms}/{self.first_ms}" if self.first_ms else f"latest+{self.most_ms}"

    def on(self, on_conflict: str, created_at: datetime) -> DebouncePolicy:
        """The same with the first date of a row that has this policy and was created at that time."""
        own = DebouncePolicy.read(on_conflict)
        return self._replace(first_ms=(own and own.first_ms) or clock.to_ms(created_at))

    @property
    def last_ms(self) -> int:
        """The latest date to which this policy moves a job, if its first date is known."""
        return self.first_ms + self.most_ms


def first_ms(on_conflict: str, created_at: datetime) -> int | Literal[""]:
    """The first date of a row with `at_most`, in the form of restore.lua."""
    debounce = DebouncePolicy.read(on_conflict)
    return debounce.on(on_conflict, created_at).first_ms if debounce else ""


def policy_word(on_conflict: str) -> str:
    """The policy without what follows it."""
    return on_conflict.partition("@")[0].partition("+")[0]


@dataclass(slots=True, kw_only=True, eq=False)
class ScheduleItem(JobRecord):
    """A record to schedule. Give exactly one of `due_ms` (a date) and `delay_ms` (from Redis' now). `on_conflict`: a policy. A late
    publication adds "@" and, if there is one, the holder on which it may act. Or "replaced@" and an id, see schedule.lua. With
    `at_most`, it is a `DebouncePolicy`. `queue` and `priority` are not in the record but in the row; in the row a delay counts from the
    database's now. `then`: the job that is scheduled when this one succeeds. `batch`: its batch. Both are also only in the row.
    """

    due_ms: int | None = None
    delay_ms: int | None = None
    on_conflict: str = "keep"
    queue: str = ""
    priority: int = 0
    then: ScheduleItem | None = None
    batch: UUID | None = None

    __eq__ = object.__eq__  # each item is compared by identity; records are compared by their fields
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
        """Makes an item from an existing record."""
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
        """The delay at the time when the job is sent, `now` (monotonic)."""
        return self.delay_ms

    def told_name(self) -> str:
        """The concurrency name in the form of the scripts' arguments; "" without one."""
        return told_of(self.payload)

    def told_policy(self) -> str:
        """The policy of a job with a key in the form that schedule.lua takes. If its sender is limited, the tasks that it may know of
        follow.
        """
        if ONLY_MARK not in self.payload or self.on_conflict.startswith("replaced@"):  # the usual case
            return self.on_conflict
        tasks = allowed_tasks(self.payload)
        if tasks is None:
            return self.on_conflict
        return " ".join((self.on_conflict, *tasks)) if tasks else f"{self.on_conflict} "


class ScheduleReply(NamedTuple):
    """The result of scheduling. `id`: the job itself, or the one that holds its key. `due_ms`: the date of the job that was to be
    scheduled; 0 if the job was in Redis already and has begun to run or has ended, because Redis does not keep its date.

    created, replaced: the job is scheduled. again: it was in Redis already (a re-send). failed, succeeded, cancelled, displaced
    (merged, replaced or expired), finished: it has ended already. kept, moved, taken, running: another job holds the key, and this
    one was not created. forbidden: the sender may not know of the job that holds the key; `id` is NOBODY. free, contested, behind,
    asked: nothing has been done, see schedule.lua.
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
CREATED: Final = frozenset({"created", "again", "replaced", *ENDS} - {"displaced"})  # a displaced job never was scheduled
REFUSED: Final = frozenset({"taken", "running", "forbidden"})  # an error for the caller
REPEATS: Final = frozenset({"again", *ENDS})  # the answers for a job that is sent once more
DECIDED: Final = CREATED | ENDS  # no further question or report is needed


def schedule_replies(
    items: Sequence[ScheduleItem], told: list[Any], reply: list[bytes], stride: int
) -> tuple[str, list[ScheduleReply]]:
    """Reads the reply of schedule.lua for these items: the epoch, and a reply to each. `told`: the arguments of the call from `most
    jobs behind` on, `stride` to a job.
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
    """The replies to items that were sent several times. If a repeat finds an item there, or displaced, the reply of an earlier call
    counts.
    """
    epoch, replies = answers[-1]
    for _, before in reversed(answers[:-1]):
        replies = [earlier if reply.status in REPEATS else reply for earlier, reply in zip(before, replies, strict=True)]
    return epoch, replies


_made: Final[Callable[[tuple[ScheduleStatus, UUID, int]], ScheduleReply]] = partial(tuple.__new__, ScheduleReply)  # without Python


class Changed(NamedTuple):
    """The result of cancelling or rescheduling one job. `id`: the job, perhaps found by its key. `epoch`: the epoch in which that
    happened, see `Claim.epoch`. `event`: the stream id of its event, "" if nothing has changed; `item`: its place in that event.
    `due_ms`: the date after a reschedule.
    """

    change: Change
    id: UUID | None
    epoch: str
    event: str = ""
    due_ms: int = 0
    item: int = 0

    @classmethod
    def read(cls, replies: Sequence[Sequence[Any]]) -> Changed:
        """Reads the last of these replies of cancel.lua or reschedule.lua for one job."""
        reply = replies[-1]
        epoch, event, status, id, due, item = [*reply, *_UNKNOWN[len(reply) :]]
        return cls(
            Change(status.decode()),
            decode.job_id(id),
            decode.text(epoch),
            decode.text(event) if item >= 0 else "",
            int(due),
            max(item, 0),
        )


_UNKNOWN: Final[list[Any]] = [b"", b"", b"unknown", b"", 0, 0]  # the rest of a reply that has the epoch alone


def moved(replies: Sequence[Sequence[Any]]) -> Changed:
    """The result of a change of date that was sent several times. If the job has begun since a call that moved it, it was moved.
    Nothing is known of a call in another epoch.
    """
    answers = [Changed.read([reply]) for reply in replies]
    last = answers[-1]
    begun = last.change in (Change.RUNNING, Change.FINISHED)
    done = (answer for answer in answers if begun and answer.change is Change.DONE and answer.epoch == last.epoch)
    return next(done, last)
