"""What everybody recorded, put together: operations, runs, faults, and the final state. Plain records, so that tests can make them up.

Times: `at`, `until` in monotonic ns, which order what different processes did; `wall` in ms of the clock of Redis' host, which due
dates are told in. A web process that cannot reach Redis tells dates by its own clock: `wall` of an operation is the earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.record import lines

FOREVER = 1 << 62
FORGETTING = ("fail over", "roll back redis", "wipe redis")


@dataclass(slots=True, kw_only=True)
class Op:
    """One operation of a web process. `answer`: ok, rolled (back, on purpose), failed (surely without effect), or unknown."""

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


@dataclass(slots=True, kw_only=True)
class Run:
    """One run, as its task recorded it. `how`: ok, error, snooze, broken off; "": it never ended."""

    job: str
    fence: str
    op: str
    task: str
    attempt: int
    at: int
    wall: int
    until: int = FOREVER
    wall_until: int = FOREVER
    how: str = ""


@dataclass(slots=True, kw_only=True)
class FaultSeen:
    """One fault. Recovery counts from `since`: the kill, or the end of an outage."""

    kind: str
    at: int
    since: int
    until: int
    detail: str = ""
    alone: bool = False  # no other fault was about


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


@dataclass(slots=True, kw_only=True)
class QueueLeft:
    """What Redis still holds of one queue: ids, and maps from id or key."""

    jobs: set[str] = field(default_factory=set)
    lanes: dict[str, int] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    cancels: set[str] = field(default_factory=set)
    progress: set[str] = field(default_factory=set)
    keys: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    finished: dict[str, bool] = field(default_factory=dict)  # id -> whether it was cancelled
    events: int = 0


@dataclass(slots=True, kw_only=True)
class Final:
    """Where everything stands in the end. `attempts`: job, number, fence, outcome; `acts`: kind, job, actor of Event rows;
    `effects`: job and fence of the rows that atomic jobs made.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    attempts: list[tuple[str, int, str, str]] = field(default_factory=list)
    acts: list[tuple[str, str, str]] = field(default_factory=list)
    effects: list[tuple[str, str]] = field(default_factory=list)
    queues: dict[str, QueueLeft] = field(default_factory=dict)
    quiet: bool = True


@dataclass(slots=True, kw_only=True)
class History:
    """All of it."""

    ops: dict[str, Op] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    ledger: list[tuple[str, str, str]] = field(default_factory=list)  # what, job, fence: see tests/campaign/app/tasks.py
    faults: list[FaultSeen] = field(default_factory=list)
    final: Final = field(default_factory=Final)
    steps: list[Step] = field(default_factory=list)

    def forgot(self, after: int) -> bool:
        """Whether Redis forgot something since."""
        return any(fault.kind in FORGETTING and fault.until > after for fault in self.faults)

    def rolled_over(self, after: int, before: int) -> bool:
        """Whether a copy that may be older than `before` has taken over since `after`."""
        return any(fault.kind in FORGETTING and fault.at <= before and fault.until > after for fault in self.faults)

    def rolled_over_between(self, end: int, begin: int) -> bool:
        """Whether a copy that was made before this `end`, or while it happened, has taken over between it and this `begin`."""
        return any(fault.kind in FORGETTING and fault.at <= end <= fault.until <= begin for fault in self.faults)

    def stepped(self, after: int, before: int) -> bool:
        """Whether the clock was stepped in between."""
        return any(step.at <= before and step.until >= after for step in self.steps)


def read(folder: Path, final: Final) -> History:
    """The history in a campaign's folder."""
    history = History(final=final)
    for line in lines(folder, "web-*.jsonl"):
        _op(history.ops, line)
    open_runs: dict[tuple[str, str, int], Run] = {}
    for path in folder.glob("runs-*.jsonl"):
        for line in lines(folder, path.name):
            _run(history.runs, open_runs, path.name, line)
    history.runs.sort(key=lambda run: run.at)
    history.ledger = [(line["what"], line["job"], line["fence"]) for line in lines(folder, "ledger-*.jsonl")]
    history.faults = [
        FaultSeen(**{name: line[name] for name in ("kind", "at", "since", "until", "detail", "alone")})
        for line in lines(folder, "faults.jsonl")
    ]
    history.steps = [Step(at=line["before"], until=line["t"], offset=line["offset"]) for line in lines(folder, "clock.jsonl")]
    _by_redis_clock(history)
    return history


def _by_redis_clock(history: History) -> None:
    for op in history.ops.values():
        op.wall += min(0, _offset(history.steps, op.at))
    for run in history.runs:
        run.wall += _offset(history.steps, run.at)
        run.wall_until += _offset(history.steps, run.until)


def _offset(steps: list[Step], at: int) -> int:
    return next((step.offset for step in reversed(steps) if step.until <= at), 0)


def _op(ops: dict[str, Op], line: dict[str, Any]) -> None:
    id, say = line["op"], line["say"]
    if say == "invoked":
        given = {name: value for name, value in line.items() if name not in ("t", "w", "op", "say", "what")}
        ops[id] = Op(id=id, what=line["what"], at=line["t"], wall=line["w"], given=given)
        return
    op = ops[id]
    if say == "ids":
        op.ids = line["ids"]
        return
    op.until, op.answer, op.reply = line["t"], say, line.get("reply", "")
    op.jobs = [(job, created, due) for job, created, due in line.get("jobs", [])]
    if not op.ids:
        op.ids = [job for job, created, _ in op.jobs if created is not False]


def _run(runs: list[Run], still: dict[Any, Run], file: str, line: dict[str, Any]) -> None:
    place = (line["job"], line["fence"], file)
    if line["run"] == "began":
        run = Run(
            job=line["job"],
            fence=line["fence"],
            op=line["op"],
            task=line["task"],
            attempt=line["attempt"],
            at=line["t"],
            wall=line["w"],
        )
        still[place] = run
        runs.append(run)
    elif (run := still.pop(place, None)) is not None:
        run.until, run.wall_until, run.how = line["t"], line["w"], line["how"]
