"""Laws of schedules: each tick happens once and not early, only while its schedule is in force, whatever fails in between."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, takewhile

from django_delayq.states import PUT_OFF
from tests.laws.almanac import AGAIN, CREATED, DECLARED, ENDLESS, OFF, RETIRED, Calendar, Pass, Plan, Stretch, TickSeen
from tests.laws.history import FINISHED, FOREVER, FORGETTING, MOVING, History, Run, Sees
from tests.laws.law import Findings, law
from tests.laws.of_jobs import TOLERANCE

GONE = ("withdrawn", "cancelled")  # fates of ticks whose job is to be no more
PASSES = 3  # of one process: what it had to do it has done, though another one had it in hand once or twice
CLAIMED = 10_000_000_000  # ns between claim and begin of a run, at most
# Faults in which somebody holds rows and does not go on, or the database is not there.
HOLDING = frozenset(
    {
        "pause worker",
        *("pause database", "restart database", "kill database", "database away", "database crowded", "lock database"),
        *("lock tables", "statement timeouts", "lock timeouts", "migrate table", "missing column"),
    }
)
# Faults in which a cancel may come too late.
REDIS_AWAY = frozenset(
    {
        *("kill redis", "restart redis", "pause redis", "redis full", "kill connections", "clock forward", "clock back"),
        *("proxy resets", "proxy swallows", "proxy delays", *FORGETTING),
        *("slow master", "kill replica", *MOVING),
    }
)
# After these faults, a due job may be running although Redis does not know, so it is not cancelled. Usually this lasts UNCONFIRMED ms.
# While Redis is unavailable, no worker can report its runs.
UNPROVEN = frozenset({"kill redis", "restart redis", *FORGETTING, *MOVING})
UNCONFIRMED = 5_000
SILENT = frozenset({"kill redis", "restart redis", "pause redis", "proxy resets", "proxy swallows", *MOVING})
# Faults in which a lease may end while its run goes on.
FREEZING = REDIS_AWAY | {"pause worker", "pause supervisor", "pause task process"}


@law(Sees.CALENDAR)
def schedules_tick(history: History) -> Findings:
    """If code declares schedules and loops run, there are ticks."""
    calendar = history.calendar
    if calendar.plans and not calendar.ticks:
        yield "", f"{len(calendar.passes)} passes, and no tick"


@law(Sees.CALENDAR | Sees.ROWS | Sees.RUNS)
def a_tick_has_one_job(history: History) -> Findings:
    """Each tick has one job. Exception: jobs that were cancelled before they ran, as far as is known, after which the tick got another
    job.
    """
    calendar = history.calendar
    dates: dict[tuple[str, int], list[TickSeen]] = defaultdict(list)
    for one in calendar.ticks:
        dates[one.name, one.at].append(one)
    yield from (("", f"{len(found)} ticks of {name} at {at}") for (name, at), found in dates.items() if len(found) > 1)
    jobs = dict(calendar.jobs) | {run.job: run.tick for run in history.runs if run.tick is not None}
    for job, (name, at) in jobs.items():
        tick, row = calendar.of_date.get((name, at)), history.rows.get(job)
        if tick is None:
            yield job, f"says that it is of the tick {at} of {name}, which does not exist"
        elif tick.job != job and (not history.forgot_runs(job) or row is None or row.state != "cancelled"):
            yield job, f"is another job of the tick {at} of {name}, which has {tick.job}: {row}"


@law(Sees.CALENDAR | Sees.ROWS)
def a_tick_and_its_job_are_written_together(history: History) -> Findings:
    """A tick with a job has the row of that job. The job succeeded, or was cancelled if the tick allows it."""
    for tick in history.calendar.ticks:
        row = history.rows.get(tick.job)
        if not tick.job:
            if tick.fate != "missed":
                yield "", f"the tick {tick.at} of {tick.name} has no job, and is {tick.fate}"
        elif row is None:
            yield tick.job, f"the tick {tick.at} of {tick.name} has a job without a row"
        elif row.state not in FINISHED:
            yield tick.job, f"the tick {tick.at} of {tick.name} has a job which is {row.state}"
        elif (row.state == "cancelled") != (tick.fate in ("cancelled", "skipped")):
            yield tick.job, f"the tick {tick.at} of {tick.name} is {tick.fate}, and its job {row.state}"


@law(Sees.CALENDAR | Sees.RUNS)
def no_tick_runs_early(history: History) -> Findings:
    """No run of a tick begins before the moment of the tick, with its jitter, by the clock of Redis."""
    for job, runs in history.runs_of.items():
        tick = history.calendar.of_job.get(job)
        if tick is None:
            continue
        for run in runs:
            if run.wall + TOLERANCE < tick.run_at and not history.stepped(run.at - CLAIMED, run.at):
                yield job, f"the tick {tick.at} of {tick.name} began {tick.run_at - run.wall} ms early"


@law(Sees.CALENDAR)
def ticks_match_the_calendar(history: History) -> Findings:
    """Every tick is one of the dates that its schedule had then, and its jitter is below what is declared."""
    for tick in history.calendar.ticks:
        plans = [one.plan for one in history.calendar.stretches.get(tick.name, ()) if one.plan is not None]
        if not any(tick.at % plan.period == 0 and 0 <= tick.run_at - tick.at <= plan.jitter for plan in plans):
            yield tick.job, f"{tick} is of none of {plans}"


def _in_force(history: History) -> Iterator[tuple[Stretch, list[TickSeen]]]:
    """Each stretch in which a schedule had ticks, with those that were written of it."""
    for name, stretches in history.calendar.stretches.items():
        found = history.calendar.by_name.get(name, [])
        moments = [tick.at for tick in found]
        for one in stretches:
            if one.plan is not None:
                here = found[bisect_left(moments, one.since + 1) : bisect_left(moments, one.until + 1)]
                yield one, [tick for tick in here if one.has(tick.at)]


@law(Sees.CALENDAR | Sees.RUNS | Sees.ROWS)
def no_tick_is_left_out(history: History) -> Findings:
    """Between the first and the last tick of a schedule that was in force all the time, each has a job, or a row that says why not.
    When it is retired, jobs that are late and have not begun, as far as is known, are cancelled with it. A date that is withdrawn when
    other dates come, and comes again under these, is decided anew only when its former job is cancelled; still others may come before.
    """
    begun = _begun(history)
    for stretch, ticks in _in_force(history):
        assert stretch.plan is not None
        decided = max((tick.at for tick in ticks if tick.written >= stretch.since), default=0)  # others it has from the dates before
        for tick, following in pairwise(tick for tick in ticks if tick.at <= decided):
            if following.at - tick.at != stretch.plan.period:
                yield "", f"no tick of {tick.name} between {tick.at} and {following.at}, every {stretch.plan.period} ms"
        for tick in ticks:
            if (
                tick.at <= decided
                and tick.fate in GONE
                and tick.run_at <= stretch.until
                and not _retired_with(history, stretch, tick, begun)
            ):
                yield tick.job, f"the tick {tick.at} of {tick.name} was withdrawn, and got no other job; in force until {stretch.until}"


def _begun(history: History) -> set[str]:
    """Jobs of which a run has begun that counts, unless Redis has forgotten it before the database heard of it."""
    outcomes = {(job, fence): outcome for job, _, fence, outcome in history.final.attempts}
    found = [(run, outcomes.get((run.job, run.fence.partition("/")[0]))) for run in history.runs]
    return {run.job for run, how in found if (not history.forgot(run.at, run.job) if how is None else how not in PUT_OFF)}


def _retired_with(history: History, stretch: Stretch, tick: TickSeen, begun: set[str]) -> bool:
    """Whether its job was waiting when the schedule was retired, even if the schedule had been turned off before. If Redis's clock was
    stepped, the job's end does not show when it happened.
    """
    off = (one for one in history.calendar.stretches[tick.name] if one.since >= stretch.until)
    following = [stretch, *takewhile(lambda one: one.plan is None, off)]
    ends = next((one.until for one in following if one.retired), None)
    return ends is not None and tick.job not in begun and (bool(history.steps) or tick.ended >= ends)


@law(Sees.CALENDAR)
def no_tick_is_missed_while_loops_run(history: History) -> Findings:
    """A tick has its job if processes with this declaration made passes in time. Only ticks that no process could write are missed."""
    calendar, limits = history.calendar, history.calendar.limits
    for stretch, ticks in _in_force(history):
        plan, written = stretch.plan, {tick.at: tick for tick in ticks}
        assert plan is not None
        last = max((one.until for one in calendar.passes), default=0)
        for at in range(stretch.since // plan.period * plan.period + plan.period, min(stretch.until, last), plan.period):
            since, until = max(at - limits.near, stretch.since), min(at + limits.late, stretch.until)
            tick = written.get(at)
            if tick is not None and tick.fate != "missed":
                continue
            if _looked(calendar, plan, since, until) and not history.troubled(HOLDING, since, until):
                yield "", f"the tick {at} of {plan.name} is {tick or 'not written'}, with passes from {since} to {until}"


def _looked(calendar: Calendar, plan: Plan, since: int, until: int) -> bool:
    """Whether each version that declares these dates made passes enough: which of them is in force, the dates do not tell."""
    by = calendar.passes_between(since, until).values()
    versions = defaultdict(set)
    for version, plans in calendar.plans.items():
        if plan.name in plans and plans[plan.name].dates == plan.dates:
            versions[plans[plan.name].mark].add(version)
    return all(any(len(found) >= PASSES and found[0].version in wanted for found in by) for wanted in versions.values())


@law(Sees.CALENDAR)
def the_policy_of_missed_holds(history: History) -> Findings:
    """If several ticks were missed at the same time, all get a job with "all", the newest with "once", and none with "skip". The newest
    may have had its job before, because its date was also one of the earlier dates.
    """
    late = history.calendar.limits.late
    for stretch, ticks in _in_force(history):
        assert stretch.plan is not None
        over: dict[int, list[TickSeen]] = defaultdict(list)
        for tick in ticks:
            if tick.run_at < tick.written - late:
                over[tick.written].append(tick)
            elif tick.fate == "missed":
                yield "", f"{tick} was not late, and is missed"
        for moment, found in over.items():
            behind = (tick for tick in ticks if tick.at > found[-1].at and tick.written < moment)
            newest = [] if any(tick.run_at < moment - late for tick in behind) else found[-1:]
            kept = [tick for tick in found if tick.fate != "missed"]
            wanted = {"skip": [], "once": newest, "all": found}[stretch.plan.missed]
            if kept != wanted:
                yield "", f"{stretch.plan.name}: {len(kept)} of {len(found)} that were missed got a job, under {stretch.plan.missed}"


@law(Sees.CALENDAR | Sees.RUNS)
def only_schedules_in_force_run(history: History) -> Findings:
    """No tick runs if its schedule does not have it: the schedule is retired, off, or declared differently, and a loop had time to
    cancel the tick.

    If Redis's clock is ahead, a tick is due when it is written, and may already be running.
    """
    calendar = history.calendar
    for job, runs in history.runs_of.items():
        tick, began = calendar.of_job.get(job), runs[0].real
        if tick is None or runs[0].attempt > 1:
            continue
        stretch = calendar.stretch(tick.name, tick.at)
        if stretch.has(tick.at):
            continue
        hindered = history.troubled(HOLDING | REDIS_AWAY, stretch.since, began)
        unsure = history.troubled(UNPROVEN, _confirmed_since(history, stretch.since), began)
        unsure = unsure or (tick.written < stretch.since and history.ahead(stretch.since))
        if not hindered and not unsure and _time_enough(calendar, stretch.since, began):
            yield job, f"the tick {tick.at} of {tick.name} ran, which was not in force since {stretch.since}: {stretch.plan}"


def _confirmed_since(history: History, moment: int) -> int:
    """The moment whose events in Redis are confirmed at `moment`. While Redis does not respond, nothing is confirmed."""
    after, left = moment, UNCONFIRMED
    outages = ((history.real(fault.until), history.real(fault.at)) for fault in history.faults if fault.kind in SILENT)
    for until, began in sorted(outages, reverse=True):
        if began < after and until > after - left:
            left -= max(0, after - until)
            after = began
    return after - left


def _time_enough(calendar: Calendar, since: int, until: int) -> bool:
    return any(len(found) >= PASSES for found in calendar.passes_between(since, until).values())


@law(Sees.CALENDAR)
def the_only_running_version_is_in_force(history: History) -> Findings:
    """While only one version of the code runs its loops, its declarations are in force, and schedules that it does not declare are
    retired.
    """
    calendar, limits = history.calendar, history.calendar.limits
    told: set[tuple[str, str]] = set()
    for look in calendar.looks:
        window = limits.alive + 3 * limits.look
        alone = _alone(calendar, look, window)
        long_alone = alone and _alone(calendar, look, limits.retired + window)
        for name in calendar.stretches if alone else ():
            stretch = calendar.stretch(name, look.at)
            plan, now = calendar.plans[look.version].get(name), stretch.plan
            if stretch.since > look.at - window:
                continue  # the process that declared it was running, and could not record it
            off = now is None and any(turn.name == name and turn.kind == OFF and turn.at < look.at for turn in calendar.turns)
            if off or (name, look.version) in told:
                continue
            if (plan is not None and (now is None or now.dates != plan.dates)) or (plan is None and now is not None and long_alone):
                told.add((name, look.version))
                yield "", f"{name}: {look.version} is alone and says {plan}; in force at {look.at} is {now}"


def _alone(calendar: Calendar, look: Pass, ms: int) -> bool:
    """Whether only that version has run its loop during this time, without a pause."""
    found = [one for one in calendar.looks if look.at - ms <= one.until <= look.at]
    others = (one for one in calendar.passes if one.what == "looking" and look.at - ms <= one.until <= look.until)
    if len(found) < 2 * PASSES or any(one.version != look.version for one in others):
        return False
    ends = [look.at - ms, *(one.until for one in found), look.at]
    return all(following - one < calendar.limits.alive // 2 for one, following in pairwise(ends))


@law(Sees.CALENDAR)
def no_declared_schedule_is_retired(history: History) -> Findings:
    """A schedule is retired only after no code has declared it for the configured time."""
    calendar, limits = history.calendar, history.calendar.limits
    for turn in calendar.turns:
        since = turn.at - limits.retired + 2 * limits.look  # what was noted, need not be noted again at once
        for look in calendar.looks if turn.kind == RETIRED else ():
            if since < look.at and look.until < turn.at and turn.name in calendar.plans[look.version]:
                yield "", f"{turn.name} was retired at {turn.at}, and {look.version} declared it at {look.at}"
                break


@law(Sees.CALENDAR)
def versions_do_not_take_turns(history: History) -> Findings:
    """If two versions run side by side, the declarations of the version that started last stay in force."""
    calendar, alive = history.calendar, history.calendar.limits.alive
    turns: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for turn in sorted(calendar.turns, key=lambda turn: turn.at):
        versions = [version for version, plans in calendar.plans.items() if turn.name in plans and turn.reason != AGAIN]
        known = [one for one in versions if calendar.plans[one][turn.name].dates == turn.dates]
        if turn.kind in (CREATED, DECLARED) and len(versions) == 2 and len(known) == 1:
            turns[turn.name].append((turn.at, known[0]))
    for name, found in turns.items():
        for (came, other), (at, version) in pairwise(found):
            mine = [look.until for look in calendar.looks if look.version == version and came - alive < look.until < at]
            stayed = all(following - one < alive // 2 for one, following in pairwise([came - alive, *mine, at]))
            rivals = (look for look in calendar.looks if look.version == other and at - alive // 2 < look.at)
            if stayed and any(look.until < at for look in rivals):
                yield "", f"{name}: {version} took over at {at}, though {other} came later, at {came}, and is there"


@law(Sees.CALENDAR | Sees.RUNS | Sees.ROWS)
def runs_of_a_schedule_do_not_overlap(history: History) -> Findings:
    """With "skip" and "wait", no run starts while another run of the schedule is in progress. Exception: a run that may have lost its
    lease.
    """
    policies = {name: plan.overlap for plans in history.calendar.plans.values() for name, plan in plans.items()}
    well = {(job, fence) for job, _, fence, outcome in history.final.attempts if outcome != "crashed"}
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        tick = history.calendar.of_job.get(run.job)
        if tick is not None and policies.get(tick.name, "allow") != "allow" and run.until < FOREVER:
            runs[tick.name].append(run)
    for name, found in runs.items():
        for number, run in enumerate(found):
            for other in found[number + 1 :]:
                if other.at >= run.until:
                    break
                kept = (run.job, run.fence.partition("/")[0]) in well
                since, until = run.real, other.real
                if kept and not history.troubled(FREEZING, since - 1000, until):
                    yield other.job, f"{name}: it began {(run.until - other.at) / 1e6:.0f} ms before the end of {run.job}"


@law(Sees.CALENDAR | Sees.RUNS | Sees.ROWS)
def a_skipped_tick_met_another_run(history: History) -> Findings:
    """A tick is skipped only with "skip", before its first run, and while another run of its schedule is, or seems to be, in progress.
    If Redis's clock was stepped, a tick can start as soon as it is written. If Redis lost a run before the mirror recorded it, that run
    is unknown. A run seems to be in progress until Redis has recorded its end.
    """
    calendar, begun = history.calendar, _begun(history)
    policies = {name: plan.overlap for plans in calendar.plans.values() for name, plan in plans.items()}
    crashed = {job for job, _, _, outcome in history.final.attempts if outcome == "crashed"}
    for name, ticks in calendar.by_name.items():
        others = {tick.job for tick in ticks if tick.job}
        for tick in (tick for tick in ticks if tick.fate == "skipped"):
            if policies.get(name) != "skip" or tick.job in begun:
                yield tick.job, f"the tick {tick.at} of {name} was skipped, under {policies.get(name)}: {history.runs_of.get(tick.job)}"
            ended = ENDLESS if history.steps else tick.ended + 1000
            runs = [run for job in others - {tick.job} for run in history.runs_of.get(job, ()) if run.real < ended]
            began = min(tick.run_at, tick.written) if history.steps else tick.run_at
            heard = any(began <= calendar.of_job[run.job].ended < ENDLESS for run in runs)
            if not any(run.until == FOREVER or history.real(run.until) >= began for run in runs) and not heard and not others & crashed:
                yield tick.job, f"the tick {tick.at} of {name} was skipped, and no other one ran"
