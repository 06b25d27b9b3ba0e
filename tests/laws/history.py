"""What happened, in one shape: the model, the witness, the crash points and the campaign each fill what they were able to see.

Plain records, so that tests can make them up. Times: `at`, `until` in monotonic ns, which order what different processes did; `wall`
in ms of the clock of Redis' host, which due dates are told in. A web process that cannot reach Redis tells dates by its own clock:
`wall` of a call is the earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import cached_property
from typing import Any

from django_delayq.store.events import Entry
from tests.laws.almanac import Calendar
from tests.laws.dump import Dump
from tests.laws.story import Page

FOREVER = 1 << 62
FINISHED = ("succeeded", "failed", "cancelled")
FORGETTING = ("fail over", "roll back redis", "wipe redis")
# Tasks of tests/app that can end in nothing but a failure, and the effects that others leave.
HOPELESS = ("hopeless", "deaf")
STEPS = {"atomic": ("",), "stepwise": ("reserve", "charge")}


class Sees(Flag):
    """What somebody was able to see."""

    QUEUES = auto()  # all of a queue, at some moments
    CHANGES = auto()  # two moments, and all events between them
    STORY = auto()  # events without a gap
    SCRIPT = auto()  # which script made a change
    CALLS = auto()  # what web processes asked for, and were answered
    RUNS = auto()
    ROWS = auto()  # jobs and attempts, in the end
    REDIS = auto()  # what it holds in the end
    BELONGINGS = auto()  # rows of tables beside those of jobs
    ACTS = auto()  # by whose call each row was changed
    EFFECTS = auto()
    LEDGER = auto()
    FATES = auto()  # what must become of each job
    OPERATIONS = auto()
    CALENDAR = auto()  # schedules: what the code declares, ticks, turns, and the passes of the loops


NOTHING = Sees(0)
MODEL = Sees.QUEUES | Sees.CHANGES | Sees.STORY | Sees.SCRIPT
WITNESS = Sees.QUEUES | Sees.CHANGES | Sees.STORY
_ENDED = Sees.QUEUES | Sees.CALLS | Sees.RUNS | Sees.ROWS | Sees.REDIS | Sees.BELONGINGS | Sees.EFFECTS | Sees.LEDGER | Sees.OPERATIONS
CRASHPOINTS = _ENDED | Sees.FATES
CAMPAIGN = _ENDED | Sees.ACTS | Sees.CALENDAR


@dataclass(slots=True, kw_only=True)
class Op:
    """One call of a web process. `answer`: ok, rolled (back, on purpose), failed (surely without effect), unknown, or committed:
    nobody was told of it, and its rows are there.
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
        """What it asked for."""
        return int(self.given.get("delay", 0) * 1000)


@dataclass(slots=True, kw_only=True)
class Run:
    """One run, as its task recorded it. `how`: ok, error, snooze, broken off; "": it never ended. `due`: the date it was told; `name`,
    `turn`: the name of which only so many run at a time and its number among the holders of that, as it was told both.
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


@dataclass(slots=True, kw_only=True)
class FaultSeen:
    """One fault. Recovery counts from `since`: the kill, or the end of an outage. `queues`: it met the server of these alone."""

    kind: str
    at: int
    since: int
    until: int
    detail: str = ""
    alone: bool = False  # no other fault was about
    queues: tuple[str, ...] = ()

    def forgets(self, queue: str) -> bool:
        """Whether Redis forgets something of that queue by it; of any, where none is named."""
        return self.kind in FORGETTING and (not queue or not self.queues or queue in self.queues)


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

    @property
    def merged(self) -> bool:
        """Whether it gave way to the holder of its key."""
        return self.state == "cancelled" and self.error.startswith("key held by")


@dataclass(slots=True, kw_only=True)
class Final:
    """Where everything stands in the end. `attempts`: job, number, fence, outcome; `acts`: kind, job, actor of Event rows;
    `effects`: job, fence and step of the rows that tasks made; `operations`: stage, seen and counts; `orphans`: table and job of
    what belongs to a job that has no row; `queues`, `events`: what Redis holds of each queue, and how many events.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    attempts: list[tuple[str, int, str, str]] = field(default_factory=list)
    acts: list[tuple[str, str, str]] = field(default_factory=list)
    effects: list[tuple[str, str, str]] = field(default_factory=list)
    operations: list[tuple[str, int, dict[str, int]]] = field(default_factory=list)
    orphans: list[tuple[str, str]] = field(default_factory=list)
    queues: dict[str, Dump] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    quiet: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A queue at one moment; with `before`, the change since the last look, and all events of it.

    `script`: what made the change; `forgetting`: tidy may have run in between; `keyless`: jobs that were adopted when another job had
    their key; `crowded`: names that more jobs hold than may, since what ran came back after a loss; `noted`: those that do not run
    here, and whose cancel was asked for when nobody knew whether they run.
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
    """All of it. Its indexes are made when they are first asked for: who changes it afterwards takes a copy (`dataclasses.replace`).

    `keeps_all`: Redis keeps all that it has acknowledged, whatever happens; `unharmed`: replies are lost, and nobody dies; `fates`: the
    state that each job must end in; `asked`: for how many jobs an operation was started, None without one.
    """

    sees: Sees = NOTHING
    looks: Sequence[Look] = ()
    max_crashes: int = 0
    ops: dict[str, Op] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    ledger: list[tuple[str, str, str, str]] = field(default_factory=list)  # what, job, fence, step: see tests/app/tasks.py
    faults: list[FaultSeen] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    final: Final = field(default_factory=Final)
    keeps_all: bool = True
    unharmed: bool = False
    fates: dict[str, str] = field(default_factory=dict)
    asked: int | None = None
    calendar: Calendar = field(default_factory=Calendar)

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
        """What was asked for a job; also by way of its key, or of a job that it took in."""
        found: dict[str, list[Op]] = defaultdict(list)
        for op in self.ops.values():
            if "job" in op.given:
                found[op.given["job"]].append(op)
        for _, job, actor in self.final.acts:
            acted = self.ops.get(actor)
            followed = acted is not None and acted.what == "cancel" and acted.given["job"] != job  # it had been merged into this one
            if acted is not None and (followed or acted.what == "cancel_key"):
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

    def troubled(self, kinds: Set[str], after: int, before: int) -> bool:
        """Whether a fault of these kinds was about between these wall ms."""
        return any(fault.kind in kinds and self.real(fault.at) <= before and self.real(fault.until) >= after for fault in self.faults)

    def left(self, job: str) -> Dump | None:
        """What Redis holds of the queue of that job, in the end."""
        row, op = self.rows.get(job), self.scheduled_by.get(job)
        name = row.queue if row else op.given.get("queue", "default") if op else "default"
        return self.final.queues.get(name)

    def requeued(self, job: str, after: int, before: int = FOREVER) -> bool:
        """Whether a requeue of it may have taken effect in between."""
        again = (op for op in self.changes.get(job, ()) if op.what in ("requeue", "edit") and op.perhaps)
        return any(op.until > after and op.at < before for op in again)

    def queue(self, job: str) -> str:
        """The one that it is in; "" if nobody says."""
        row, op = self.rows.get(job), self.scheduled_by.get(job)
        return row.queue if row else str(op.given.get("queue", "")) if op else ""

    def forgot(self, after: int, job: str = "") -> bool:
        """Whether Redis forgot something since, of the queue of that job, or of any."""
        queue = self.queue(job)
        return any(fault.forgets(queue) and fault.until > after for fault in self.faults)

    def rolled_over(self, after: int, before: int, job: str) -> bool:
        """Whether a copy that may be older than `before` has taken over since `after`, of the queue of that job."""
        queue = self.queue(job)
        return any(fault.forgets(queue) and fault.at <= before and fault.until > after for fault in self.faults)

    def rolled_over_between(self, end: int, begin: int, job: str) -> bool:
        """Whether a copy that was made before this `end`, or while it happened, has taken over between it and this `begin`."""
        queue = self.queue(job)
        return any(fault.forgets(queue) and fault.at <= end <= fault.until <= begin for fault in self.faults)

    def stepped(self, after: int, before: int) -> bool:
        """Whether the clock was stepped in between."""
        return any(step.at <= before and step.until >= after for step in self.steps)
