"""What was observed of schedules: the declarations of each version of the code, their ticks and turns, and the passes of the loops.
`wall` times are ms of the database's clock, which is the host's clock. Only Redis's clock is ever stepped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

ENDLESS = 1 << 62
OFF, ON, CREATED, DECLARED, RETIRED = (f"periodic_{word}" for word in ("off", "on", "created", "declared", "retired"))
AGAIN = "declared again"  # the reason of a turn by which a retired schedule lives again


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule as a version declares it. Its ticks are the multiples of its period since 1970. `mark`: the same where all is."""

    name: str
    period: int  # ms
    dates: str  # in words
    mark: str = ""
    jitter: int = 0  # ms
    missed: str = "once"
    overlap: str = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickSeen:
    """A row of a tick, in the end. `at`, `run_at`, `written`: wall ms; `job`: "" for none; `ended`: its end, by Redis' clock."""

    name: str
    at: int
    run_at: int
    written: int
    fate: str = "scheduled"
    job: str = ""
    ended: int = ENDLESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A moment from which on a schedule has other dates, or none. `dates`: in words, of a declaration."""

    name: str
    kind: str
    at: int
    dates: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of a loop that came to its end. `what`: pass, or look, which is at who declares what; or
    looking, when such a one begins, though it may break off. `at`, `until`: wall ms."""

    who: str
    version: str
    what: str
    at: int
    until: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period during which a schedule did not change. `plan`: None while it had no ticks; `until`: its last moment; `retired`: whether
    it ended because the schedule was retired.
    """

    plan: Plan | None
    since: int
    until: int
    retired: bool = False

    def has(self, tick: int) -> bool:
        """Whether that is one of its ticks."""
        return self.plan is not None and self.since < tick <= self.until and tick % self.plan.period == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The package's limits as the sample project configures them, in ms. `look`: between passes; `near`: before a tick; `late`: after
    it.
    """

    look: int = 1_000
    alive: int = 4_000
    retired: int = 12_000
    near: int = 3_000
    late: int = 5_000


@dataclass(kw_only=True)
class Calendar:
    """All observations of schedules. `plans`: by version, starting with the first, and name; `jobs`: the tick (name and time) of each
    job.
    """

    plans: dict[str, dict[str, Plan]] = field(default_factory=dict)
    ticks: list[TickSeen] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    jobs: dict[str, tuple[str, int]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    @cached_property
    def of_job(self) -> dict[str, TickSeen]:
        """The tick that has this job."""
        return {tick.job: tick for tick in self.ticks if tick.job}

    @cached_property
    def of_date(self) -> dict[tuple[str, int], TickSeen]:
        return {(tick.name, tick.at): tick for tick in self.ticks}

    @cached_property
    def by_name(self) -> dict[str, list[TickSeen]]:
        """In order."""
        found: dict[str, list[TickSeen]] = defaultdict(list)
        for tick in sorted(self.ticks, key=lambda tick: tick.at):
            found[tick.name].append(tick)
        return dict(found)

    @cached_property
    def looks(self) -> list[Pass]:
        """The passes that read declarations, ordered by their end."""
        return sorted((one for one in self.passes if one.what == "look"), key=lambda one: one.until)

    @cached_property
    def stretches(self) -> dict[str, list[Stretch]]:
        """The periods of each schedule. A new declaration with the same dates does not start a new period."""
        turns: dict[str, list[Turn]] = defaultdict(list)
        for turn in sorted(self.turns, key=lambda turn: turn.at):
            turns[turn.name].append(turn)
        return {name: list(self._stretches(found)) for name, found in turns.items()}

    def _stretches(self, turns: list[Turn]) -> Iterator[Stretch]:
        plan: Plan | None = None
        declared: Plan | None = None
        since = 0
        off = False  # turned off by a user: no ticks until it is turned on again, whatever is declared
        for turn in turns:
            if turn.kind in (CREATED, DECLARED):
                declared = self._declared(turn)
            elif turn.kind in (OFF, ON):
                off = turn.kind == OFF
            following = None if off or turn.kind == RETIRED else declared
            same = plan is not None and following is not None and plan.dates == following.dates and turn.reason != AGAIN
            if not same:
                yield Stretch(plan, since, turn.at, turn.kind == RETIRED)
                since = turn.at
            plan = following
        yield Stretch(plan, since, ENDLESS)

    def _declared(self, turn: Turn) -> Plan | None:
        found = [plans[turn.name] for plans in self.plans.values() if turn.name in plans]
        return next((plan for plan in found if plan.dates == turn.dates or not turn.dates), None)

    def stretch(self, name: str, at: int) -> Stretch:
        """The one that this moment belongs to."""
        found = (one for one in self.stretches.get(name, ()) if one.since < at <= one.until)
        return next(found, Stretch(None, 0, ENDLESS))

    def passes_between(self, since: int, until: int) -> dict[str, list[Pass]]:
        """Complete passes by the process that made them."""
        found: dict[str, list[Pass]] = defaultdict(list)
        for one in self.passes:
            if one.what == "pass" and since <= one.at and one.until <= until:
                found[one.who].append(one)
        return found
