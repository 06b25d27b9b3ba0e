"""What happened, in one data model that the model, the witness, the crash points and the campaign fill with what they could observe.
The classes are plain records, so that tests can create them. `at` and `until` are monotonic ns, which order events across processes.
`wall` is ms of the clock of Redis's host, which due dates use. A web process that cannot reach Redis uses its own clock: then `wall` is
the earlier of the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import cached_property
from typing import Any
from uuid import UUID

from django_delayq import ids
from django_delayq.job_meta import Quota
from django_delayq.store.keys import tag
from django_delayq.store.scripts.events import Entry
from tests.laws.almanac import Calendar
from tests.laws.dump import Dump
from tests.laws.story import Page

FOREVER = 1 << 62
FINISHED = ("succeeded", "failed", "cancelled")
ROLLING = "roll partitions"  # producers know different numbers of partitions
FORGETTING = (
    *("fail over", "roll back redis", "wipe redis"),
    *("kill master", "kill master ahead", "pause master", "pause master ahead", "pause all others", "split network"),
    "fail over by sentinel",
)
WITH_REPLICAS = ("fail over", "roll back redis", "wipe redis")  # also of what replicas had: a copy that is older takes over, or none
LOSING = (*FORGETTING, "kill redis")  # a killed server forgets what it has not written to its disk
VOLATILE = "redis"  # the queue of redis durability: what is lost of it has no row to come back from
MOVING = ("fail over by hand", "move slot", "half a move", "move slot at once")  # to another server, with all that Redis has
# Tasks of tests/app that can end in nothing but a failure, and the effects that others leave.
HOPELESS = ("hopeless", "deaf")
NEXT = ">"  # ends the operation of a follow-up; before it is that of its job, or of the members of its batch
STEPS = {"atomic": ("",), "stepwise": ("reserve", "charge")}


class Sees(Flag):
    """The observations that an observer could make."""

    QUEUES = auto()  # all of a queue, at some moments
    CHANGES = auto()  # two moments, and all events between them
    STORY = auto()  # events without a gap
    SCRIPT = auto()  # which script made a change
    CALLS = auto()  # the calls of web processes and their answers
    RUNS = auto()
    ROWS = auto()  # jobs and attempts, in the end
    REDIS = auto()  # what it holds in the end
    BELONGINGS = auto()  # rows of tables beside those of jobs
    ACTS = auto()  # by whose call each row was changed
    EFFECTS = auto()
    LEDGER = auto()
    FATES = auto()  # what must become of each job
    OPERATIONS = auto()
    SITES = auto()  # what another site tried on the same Redis, and the owner of each queue
    DATES = auto()  # the earliest and the latest moments in the tables
    ANSWERS = auto()  # the queries of tasks, and the database's answers
    CLAIMS = auto()  # every claim of a job with a rate
    BATCHES = auto()  # the batches and follow-ups of the tables
    CALENDAR = auto()  # schedules: what the code declares, ticks, turns, and the passes of the loops


NOTHING = Sees(0)
MODEL = Sees.QUEUES | Sees.CHANGES | Sees.STORY | Sees.SCRIPT
WITNESS = Sees.QUEUES | Sees.CHANGES | Sees.STORY | Sees.CLAIMS
_LEFT = Sees.QUEUES | Sees.ROWS | Sees.REDIS | Sees.BELONGINGS | Sees.EFFECTS | Sees.OPERATIONS | Sees.BATCHES
_ENDED = _LEFT | Sees.CALLS | Sees.RUNS | Sees.LEDGER | Sees.ANSWERS
CRASHPOINTS = _ENDED | Sees.FATES
CAMPAIGN = _ENDED | Sees.ACTS | Sees.CALENDAR | Sees.DATES | Sees.SITES


@dataclass(slots=True, kw_only=True)
class Op:
    """One call of a web process. `answer`: ok; rolled (deliberately rolled back); failed (certainly without effect); unknown; or
    committed (the caller got no answer, and the rows exist).
    """

    id: str
    what: str
    at: int
    wall: int
    until: int = FOREVER
    answer: str = "unknown"
    reply: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)  # of the jobs it made, as far as they are known
    jobs: list[tuple[str, bool | None, int | None]] = field(default_factory=list)  # answered: id, created, due ms

    @property
    def done(self) -> bool:
        """A change that was answered with done."""
        return self.answer == "ok" and self.reply == "done"

    @property
    def perhaps(self) -> bool:
        """A change that took effect, or may have."""
        return self.done or self.answer == "unknown"

    @property
    def delay_ms(self) -> int:
        """The requested delay."""
        return int(self.given.get("delay", 0) * 1000)


@dataclass(slots=True, kw_only=True)
class Run:
    """One run, as its task recorded it. `how`: ok, error, snooze, broken off; "": it never ended. `due`: the date it was given; `name`,
    `turn`: the concurrency name and the number among its holders that it was given.
    """

    job: str
    fence: str
    op: str
    task: str
    attempt: int
    at: int
    wall: int
    due: int = 0
    until: int = FOREVER
    wall_until: int = FOREVER
    how: str = ""
    pid: int = 0
    real: int = 0  # as `wall`, by a clock that is never stepped
    tick: tuple[str, int] | None = None  # schedule and moment, as it was told
    name: str = ""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class RatedClaim:
    """A claim of a job with a rate, with the pace that was valid. `epoch`: another one after a loss of Redis."""

    job: str
    rate: str
    pace: Quota
    at_ms: int
    epoch: str = ""


@dataclass(slots=True, kw_only=True)
class FaultSeen:
    """One fault. Recovery counts from `since`: the kill, or the end of an outage. `parts`: it met
    the server of these partitions alone, called by their tags."""

    kind: str
    at: int
    since: int
    until: int
    detail: str = ""
    alone: bool = False  # no other fault was about
    parts: tuple[str, ...] = ()

    def forgets(self, part: str, kinds: Collection[str] = FORGETTING) -> bool:
        """Whether Redis forgets something of that partition by it; of any, where none is named."""
        return self.kind in kinds and (not part or not self.parts or part in self.parts)


@dataclass(slots=True, kw_only=True)
class Step:
    """A step of the clock of Redis' host. `offset`: against all other clocks from then on, in ms."""

    at: int
    until: int
    offset: int


@dataclass(slots=True, kw_only=True)
class Row:
    """A row of Job."""

    id: str
    op: str
    task: str
    queue: str = "default"
    key: str = ""
    state: str = "succeeded"
    attempts: int = 1
    max_attempts: int = 5
    crashes: int = 0
    published: bool = True
    durable: bool = True
    error: str = ""
    holder: str = ""  # the job that it was merged into, or replaced by
    batch: str = ""
    follow_up: str = ""  # the stored job, and then its id

    @property
    def merged(self) -> bool:
        """Whether it gave way to the holder of its key."""
        return self.state == "cancelled" and self.error.startswith("key held by")


@dataclass(slots=True, kw_only=True)
class BatchLeft:
    """A batch. `key`: the operation of its members; `counts`: succeeded, failed, cancelled."""

    id: str
    key: str
    waits_for: str
    over: bool
    cancelled: bool = False
    next_job: str = ""
    counts: tuple[int, int, int] = (0, 0, 0)


@dataclass(slots=True, kw_only=True)
class Final:
    """What is left at the end. `attempts`: job, number, fence, outcome; `acts`: kind, job and actor of Event rows; `effects`: job,
    fence and step of the rows that tasks created; `operations`: stage, seen and counts; `orphans`: table and job of rows that belong to
    a job without a row; `queues`, `events`: by tag, the content of each partition in Redis and its number of events; `dates`: the
    earliest and latest time of each column, in ms; `site`, `sites`: the ID of the database, and by tag the IDs of the partitions in
    Redis.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    attempts: list[tuple[str, int, str, str]] = field(default_factory=list)
    acts: list[tuple[str, str, str]] = field(default_factory=list)
    effects: list[tuple[str, str, str]] = field(default_factory=list)
    operations: list[tuple[str, int, dict[str, int]]] = field(default_factory=list)
    batches: list[BatchLeft] = field(default_factory=list)
    orphans: list[tuple[str, str]] = field(default_factory=list)
    queues: dict[str, Dump] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    dates: dict[str, tuple[int, int]] = field(default_factory=dict)
    site: str = ""
    sites: dict[str, str] = field(default_factory=dict)
    quiet: bool = True


@dataclass(slots=True, kw_only=True)
class Rivalry:
    """Another site on the same Redis. `attempts`: what it tried, and the answer; `runs`: job and fence; `rows`: the ID and state of
    each of its jobs, and whether Redis accepted it.
    """

    attempts: list[tuple[str, str]] = field(default_factory=list)
    runs: list[tuple[str, str]] = field(default_factory=list)
    rows: list[tuple[str, str, bool]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A queue at one moment. If `before` is set, also the change since then and all events of it. `script`: the script that made the
    change; `forgetting`: tidy may have run in between; `keyless`: jobs that were adopted while another job had their key; `crowded`:
    names with more holders than allowed, because running jobs were restored after a loss; `noted`: jobs that do not run here, and whose
    cancel was requested when it was unknown whether they run.
    """

    after: Dump
    before: Dump | None = None
    entries: Sequence[Entry] = ()
    pages: Sequence[Page] = ()
    script: str = ""
    forgetting: bool = False
    keyless: Set[str] = frozenset()
    crowded: Set[str] = frozenset()
    noted: Set[str] = frozenset()


@dataclass(kw_only=True)
class History:
    """All observations. Its indexes are built on first use, so make changes on a copy (`dataclasses.replace`). `dated_by_hosts`: the
    database has no clock; `unharmed`: replies are lost, but no process dies; `fates`: the state that each job must reach; `asked`: the
    number of jobs that an operation was started for, or None.
    """

    sees: Sees = NOTHING
    looks: Sequence[Look] = ()
    max_crashes: int = 0
    ops: dict[str, Op] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    claims: Sequence[RatedClaim] = ()
    ledger: list[tuple[str, str, str, str]] = field(default_factory=list)  # what, job, fence, step: see tests/app/tasks.py
    answers: list[tuple[str, str, str]] = field(default_factory=list)  # job, what its run asked the database for, and the answer
    faults: list[FaultSeen] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    final: Final = field(default_factory=Final)
    dated_by_hosts: bool = False
    unharmed: bool = False
    fates: dict[str, str] = field(default_factory=dict)
    asked: int | None = None
    calendar: Calendar = field(default_factory=Calendar)
    rivalry: Rivalry | None = None

    @property
    def rows(self) -> dict[str, Row]:
        return self.final.rows

    @cached_property
    def moments(self) -> list[Look]:
        """Every queue that was looked at, also in the end."""
        return [*self.looks, *(Look(after=dump) for dump in self.final.queues.values())]

    @cached_property
    def runs_of(self) -> dict[str, list[Run]]:
        """By job, in order."""
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.job, []).append(run)
        return found

    @cached_property
    def scheduled_by(self) -> dict[str, Op]:
        """The call that made a job, by what it was told, by the row, or by the run."""
        found = {id: op for op in self.ops.values() for id in op.ids}
        found |= {row.id: self.ops[row.op] for row in self.rows.values() if row.op in self.ops}
        return found | {run.job: self.ops[run.op] for run in self.runs if run.op in self.ops}

    @cached_property
    def changes(self) -> dict[str, list[Op]]:
        """The changes requested for a job: by its ID, by its key, or for a job that was merged into it."""
        found: dict[str, list[Op]] = defaultdict(list)
        for op in self.ops.values():
            if "job" in op.given:
                found[op.given["job"]].append(op)
        for _, job, actor in self.final.acts:
            acted = self.ops.get(actor)
            followed = acted is not None and acted.what == "cancel" and acted.given["job"] != job  # it had been merged into this one
            if acted is not None and (followed or acted.what in ("cancel_key", "cancel_batch")):
                found[job].append(acted)
        return found

    @cached_property
    def by_key(self) -> dict[tuple[str, str], list[Op]]:
        """Every call that names a key, by queue and key."""
        found: dict[tuple[str, str], list[Op]] = defaultdict(list)
        for op in self.ops.values():
            if op.given.get("key"):
                found[op.given.get("queue", "default"), op.given["key"]].append(op)
        return found

    def real(self, at: int) -> int:
        """A moment in ns as wall ms, by a clock that is never stepped."""
        return next((run.real - (run.at - at) // 1_000_000 for run in self.runs if run.real), 0)

    def ahead(self, at: int) -> bool:
        """Whether the clock of Redis is ahead of all others at that wall ms."""
        before = [step.offset for step in self.steps if self.real(step.until) <= at]
        return bool(before) and before[-1] > 0

    def troubled(self, kinds: Set[str], after: int, before: int) -> bool:
        """Whether a fault of these kinds was about between these wall ms."""
        return any(fault.kind in kinds and self.real(fault.at) <= before and self.real(fault.until) >= after for fault in self.faults)

    def left(self, job: str) -> Dump | None:
        """The final content of the job's partition in Redis."""
        return self.final.queues.get(self.part(job) or tag("default", partition(job)))

    def requeued(self, job: str, after: int, before: int = FOREVER) -> bool:
        """Whether a requeue of it may have taken effect in between."""
        again = (op for op in self.changes.get(job, ()) if op.what in ("requeue", "edit") and op.perhaps)
        return any(op.until > after and op.at < before for op in again)

    def part(self, job: str) -> str:
        """The tag of the job's partition; "" if its queue is unknown."""
        row, op = self.rows.get(job), self.scheduled_by.get(job)
        queue = row.queue if row else str(op.given.get("queue", "")) if op else ""
        return tag(queue, partition(job)) if queue else ""

    def forgot(self, after: int, job: str = "") -> bool:
        """Whether Redis forgot something since, of the partition of that job, or of any."""
        part = self.part(job)
        return any(fault.forgets(part) and fault.until > after for fault in self.faults)

    def kept(self, job: str) -> bool:
        """Whether it must be there: it is a row's, or no server that had it may have forgotten what it had acknowledged."""
        row, op = self.rows.get(job), self.scheduled_by.get(job)
        durable = row.durable if row else op is not None and op.given.get("queue") != VOLATILE
        since, part = op.at if op else 0, self.part(job)
        losing = WITH_REPLICAS if self.replicated(job) else LOSING
        return durable or not any(fault.forgets(part, losing) and fault.until >= since for fault in self.faults)

    def replicated(self, job: str) -> bool:
        """Whether replicas had it when it was acknowledged, and have what is answered of it."""
        op = self.scheduled_by.get(job)
        return op is not None and op.answer == "ok" and bool(op.given.get("replicas"))

    def rolled_over(self, after: int, before: int, job: str, kinds: Collection[str] = FORGETTING) -> bool:
        """Whether a copy that may be older than `before` has taken over since `after`, of the partition of that job."""
        part = self.part(job)
        return any(fault.forgets(part, kinds) and fault.at <= before and fault.until > after for fault in self.faults)

    def forgot_runs(self, job: str) -> bool:
        """Whether a copy without the runs of this job has taken over before the database heard of them; also if there were none."""
        heard = {fence for id, _, fence, _ in self.final.attempts if id == job}
        runs = self.runs_of.get(job, ())
        return all(run.fence.partition("/")[0] not in heard and self.rolled_over(run.at, run.at, job) for run in runs)

    def rolled_over_between(self, end: int, begin: int, job: str) -> bool:
        """Whether a copy that was made before this `end`, or while it happened, has taken over between it and this `begin`."""
        part = self.part(job)
        return any(fault.forgets(part) and fault.at <= end <= fault.until <= begin for fault in self.faults)

    def rolled(self, after: int, before: int) -> bool:
        """Whether producers of different settings were about in between."""
        return any(fault.kind == ROLLING and fault.at <= before and fault.until >= after for fault in self.faults)

    def stepped(self, after: int, before: int) -> bool:
        """Whether the clock was stepped in between."""
        return any(step.at <= before and step.until >= after for step in self.steps)


def partition(job: str) -> int:
    """In which its id puts it; a made-up one in the first."""
    try:
        return ids.partition(UUID(hex=job))
    except ValueError:
        return 0
