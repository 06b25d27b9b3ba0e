"""The laws of ticks find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.laws import of_ticks
from tests.laws.almanac import CREATED, DECLARED, OFF, RETIRED, Calendar, Limits, Pass, Plan, TickSeen, Turn
from tests.laws.history import FaultSeen, History, Row, Run, Step
from tests.laws.judge import judge
from tests.laws.law import LAWS
from tests.laws.made_up import WALL, at, broken, run, wall
from tests.laws.made_up import good as good_jobs

Change = Callable[[History], None]
BREACHES: list[tuple[Change, str]] = []
ALLOWED: list[Change] = []
OLD, NEW = "every 10s", "every 20s"


def breaks(law: str) -> Callable[[Change], Change]:
    """Asserts that a change to a valid history breaks this law."""
    assert law in {one.name for one in LAWS}

    def note(spoil: Change) -> Change:
        BREACHES.append((spoil, law))
        return spoil

    return note


def allowed(change: Change) -> Change:
    """Asserts that a change to a valid history breaks no law."""
    ALLOWED.append(change)
    return change


def plan(name: str, dates: str = OLD, **fields: object) -> Plan:
    return Plan(name=name, period={OLD: 10_000, NEW: 20_000}[dates], dates=dates, mark=f"{name} {dates}", **fields)


def add(history: History, name: str, second: float, *, late: float = 0.0, lasts: float = 0.5, **fields: object) -> TickSeen:
    """A tick with its job and a run, `late` seconds after its time."""
    made = {"run_at": wall(second), "written": wall(second - 3), "job": f"{name}-{second:g}", **fields}
    tick = TickSeen(name=name, at=wall(second), **made)
    history.calendar.ticks.append(tick)
    if not tick.job:
        return tick
    history.calendar.jobs[tick.job] = name, tick.at
    state = "cancelled" if tick.fate in ("cancelled", "skipped") else "succeeded"
    history.final.rows[tick.job] = Row(id=tick.job, op=f"calendar/{name}", task="calendar_work", state=state)
    if state == "succeeded":
        begins(history, tick, second + late, second + late + lasts)
    return tick


def begins(history: History, tick: TickSeen, start: float, end: float | None = None, fence: str = "") -> Run:
    made = run(tick.job, start=start, end=end, fence=fence)
    made.tick = tick.name, tick.at
    history.runs.append(made)
    if end is not None:
        history.ledger.append(("end", tick.job, made.fence, ""))
        history.final.attempts.append((tick.job, 1, made.fence, "succeeded"))
    return made


def passes(history: History, version: str, since: float, until: float, every: float = 1.0) -> None:
    """Passes and looks of one process."""
    second = since
    while second < until:
        for what in ("pass", "look", "looking"):
            history.calendar.passes.append(
                Pass(who=f"passes-{version}", version=version, what=what, at=wall(second), until=wall(second + 0.1))
            )
        second += every


def turn(name: str, kind: str, second: float, dates: str = "", reason: str = "") -> Turn:
    return Turn(name=name, kind=kind, at=wall(second), dates=dates, reason=reason)


def tick_of(history: History, job: str) -> TickSeen:
    return next(tick for tick in history.calendar.ticks if tick.job == job)


def change(history: History, job: str, **fields: object) -> None:
    """The tick of this job."""
    history.calendar.ticks = [replace(tick, **fields) if tick.job == job else tick for tick in history.calendar.ticks]


def forget(history: History, job: str) -> None:
    """The tick with its job is not there."""
    history.calendar.ticks = [tick for tick in history.calendar.ticks if tick.job != job]
    history.calendar.jobs.pop(job)
    history.final.rows.pop(job)
    history.runs = [run for run in history.runs if run.job != job]


def miss(history: History, job: str, written: float) -> None:
    """The tick has no job, as it was written then."""
    tick = tick_of(history, job)
    forget(history, job)
    history.calendar.ticks.append(replace(tick, job="", fate="missed", written=wall(written)))


def good() -> History:
    """Old code for 100 s, then new code: `same` stays, `other` gets other dates, `gone` is retired, and `late` is new. `alone` must not
    overlap, and skips a tick.
    """
    history = good_jobs()
    history.calendar = calendar = Calendar(limits=Limits(alive=4_000, retired=12_000, look=1_000, near=3_000, late=5_000))
    same, alone = plan("same"), plan("alone", overlap="skip")
    calendar.plans = {
        "old": {"same": same, "alone": alone, "other": plan("other"), "gone": plan("gone")},
        "new": {"same": same, "alone": alone, "other": plan("other", NEW), "late": plan("late")},
    }
    calendar.turns = [turn(name, CREATED, 1) for name in ("same", "alone", "other", "gone")]
    calendar.turns += [turn("late", CREATED, 101), turn("other", DECLARED, 101, NEW), turn("gone", RETIRED, 113)]
    passes(history, "old", 0, 100)
    passes(history, "new", 100.5, 205)
    for second in range(10, 201, 10):
        add(history, "same", second, job=f"same-{second}")
        skipped = {"fate": "skipped", "ended": wall(61)} if second == 60 else {}
        add(history, "alone", second, lasts=12.0 if second == 50 else 1.0, job=f"alone-{second}", **skipped)
        if second <= 100 or second % 20 == 0:
            add(history, "other", second, job=f"other-{second}")
        if second <= 110:
            add(history, "gone", second, job=f"gone-{second}")
        if second > 101:
            add(history, "late", second, job=f"late-{second}")
    add(history, "gone", 120, job="gone-120", fate="cancelled")
    return history


assert WALL % 20_000 == 0


def test_a_good_history_gives_nothing() -> None:
    assert judge(good()) == []


@breaks("schedules tick")
def nothing_ticks(history: History) -> None:
    history.calendar.ticks, history.calendar.jobs = [], {}
    history.runs = [run for run in history.runs if run.tick is None]


@breaks("a tick has one job")
def two_rows_of_one_tick(history: History) -> None:
    history.calendar.ticks.append(replace(tick_of(history, "same-50"), job="second"))
    history.final.rows["second"] = Row(id="second", op="", task="calendar_work")


@breaks("a tick has one job")
def two_jobs_of_one_tick(history: History) -> None:
    history.calendar.jobs["second"] = "same", wall(50)
    history.final.rows["second"] = Row(id="second", op="", task="calendar_work")


@breaks("a tick has one job")
def a_run_of_a_tick_which_there_is_not(history: History) -> None:
    history.calendar.ticks.remove(tick_of(history, "same-50"))


@breaks("a tick has one job")
def the_former_job_of_a_tick_ran(history: History) -> None:
    begins(history, replace(tick_of(history, "same-50"), job="former"), 50, 51)
    history.final.rows["former"] = Row(id="former", op="", task="calendar_work", state="cancelled")


@breaks("every run was scheduled")
def a_run_that_says_of_which_tick_it_is_though_the_tick_has_another(history: History) -> None:
    the_former_job_of_a_tick_ran(history)


def former_job(history: History, *, ran: float, heard: bool = False) -> None:
    """A job whose tick has another one. It ran before it was cancelled, at a failover from 49 s to 51 s."""
    history.calendar.jobs["former"] = "same", wall(50)
    history.final.rows["former"] = Row(id="former", op="", task="calendar_work", state="cancelled", attempts=0)
    made = begins(history, replace(tick_of(history, "same-50"), job="former"), ran)
    made.until, made.how = at(ran + 0.2), "ok"
    if heard:
        history.final.attempts.append(("former", 1, made.fence, "succeeded"))
    history.faults = [FaultSeen(kind="fail over", at=at(49), since=at(51), until=at(51))]


@allowed
def the_former_job_of_a_tick_ran_and_the_failover_forgot_that(history: History) -> None:
    former_job(history, ran=50)


@breaks("a tick has one job")
@breaks("every run was scheduled")
def the_former_job_of_a_tick_ran_at_a_failover_and_the_database_knew(history: History) -> None:
    former_job(history, ran=50, heard=True)


@breaks("a tick has one job")
@breaks("every run was scheduled")
def the_former_job_of_a_tick_ran_after_a_failover(history: History) -> None:
    former_job(history, ran=52)


@breaks("a tick has one job")
@breaks("every run was scheduled")
def the_former_job_of_a_tick_ran_before_a_failover(history: History) -> None:
    former_job(history, ran=48)


@breaks("a tick has one job")
@breaks("every run was scheduled")
def the_former_job_of_a_tick_ran_without_a_failover(history: History) -> None:
    former_job(history, ran=50)
    history.faults = []


@breaks("a tick and its job are written together")
def a_tick_without_its_job(history: History) -> None:
    del history.final.rows["same-50"]


@breaks("a tick and its job are written together")
def a_tick_whose_job_was_cancelled_behind_its_back(history: History) -> None:
    history.final.rows["same-50"] = replace(history.final.rows["same-50"], state="cancelled")


@breaks("a tick and its job are written together")
def a_tick_whose_job_does_not_end(history: History) -> None:
    history.final.rows["same-50"] = replace(history.final.rows["same-50"], state="scheduled")


@breaks("a tick and its job are written together")
def a_tick_that_says_scheduled_and_has_no_job(history: History) -> None:
    history.calendar.ticks.append(TickSeen(name="gone", at=wall(130), run_at=wall(130), written=wall(129)))


@breaks("no tick runs early")
def a_run_before_its_date(history: History) -> None:
    history.runs = [one for one in history.runs if one.job != "same-50"]
    begins(history, tick_of(history, "same-50"), 49, 51)


@breaks("no tick runs early")
def a_run_before_its_jitter_is_over(history: History) -> None:
    change(history, "same-50", run_at=wall(50.5))


@breaks("ticks match the calendar")
def a_tick_that_is_no_date(history: History) -> None:
    add(history, "same", 55, job="same-55")


@breaks("no tick is left out")
def a_tick_without_a_word(history: History) -> None:
    forget(history, "same-50")


@breaks("no tick is left out")
def a_tick_that_was_withdrawn_and_not_written_again(history: History) -> None:
    history.runs = [one for one in history.runs if one.job != "same-50"]
    history.final.rows["same-50"] = replace(history.final.rows["same-50"], state="cancelled")
    change(history, "same-50", fate="cancelled")


def retired_before_its_tick_began(history: History, ended: float) -> None:
    """It was due, and waited; its job was cancelled then."""
    forget(history, "gone-110")
    add(history, "gone", 110, job="waited", fate="cancelled", ended=wall(ended))


@allowed
def retired_while_a_tick_waited_for_a_thread(history: History) -> None:
    retired_before_its_tick_began(history, ended=113.5)


@allowed
def turned_off_while_a_tick_waited_and_retired_then(history: History) -> None:
    history.calendar.turns.append(turn("gone", OFF, 112))
    forget(history, "gone-120")  # withdrawn in time
    retired_before_its_tick_began(history, ended=113.5)


@breaks("no tick is left out")
def turned_off_with_a_tick_that_waited(history: History) -> None:
    history.calendar.turns.append(turn("gone", OFF, 112))
    forget(history, "gone-120")
    retired_before_its_tick_began(history, ended=112.5)


@allowed
def retired_when_redis_had_forgotten_that_its_tick_began(history: History) -> None:
    retired_while_a_tick_waited_for_a_thread(history)
    begins(history, tick_of(history, "waited"), 110.5)
    history.faults = [FaultSeen(kind="wipe redis", at=at(111), since=at(111), until=at(111))]


@breaks("no tick is left out")
def retired_with_a_tick_of_whose_run_the_database_had_heard(history: History) -> None:
    retired_when_redis_had_forgotten_that_its_tick_began(history)
    (run,) = (one for one in history.runs if one.job == "waited")
    history.final.attempts.append(("waited", 1, run.fence, "crashed"))


@breaks("no tick is left out")
def a_tick_that_was_withdrawn_long_before_its_schedule_was_retired(history: History) -> None:
    retired_before_its_tick_began(history, ended=111)


@breaks("no tick is left out")
def a_tick_that_had_begun_goes_with_its_schedule(history: History) -> None:
    retired_while_a_tick_waited_for_a_thread(history)
    begins(history, tick_of(history, "waited"), 110.5)


@breaks("no tick is missed while loops run")
def a_tick_is_missed_though_loops_looked(history: History) -> None:
    miss(history, "same-50", 56)


@breaks("no tick is missed while loops run")
def the_last_ticks_are_not_written(history: History) -> None:
    for second in (180, 190, 200):
        forget(history, f"same-{second}")


def nobody_looked(history: History, since: float, until: float) -> None:
    """No pass was made in between."""
    history.calendar.passes = [one for one in history.calendar.passes if not wall(since) < one.until < wall(until)]


@allowed
def nobody_looked_and_the_newest_of_what_was_missed_has_its_job(history: History) -> None:
    nobody_looked(history, 24, 57)
    miss(history, "same-30", 57)
    miss(history, "same-40", 57)
    change(history, "same-50", written=wall(57))


@breaks("the policy of missed holds")
def none_of_what_was_missed_has_its_job(history: History) -> None:
    nobody_looked_and_the_newest_of_what_was_missed_has_its_job(history)
    miss(history, "same-50", 57)


@breaks("the policy of missed holds")
def all_of_what_was_missed_has_its_job(history: History) -> None:
    nobody_looked(history, 24, 57)
    for second in (30, 40, 50):
        change(history, f"same-{second}", written=wall(57))


@breaks("the policy of missed holds")
def missed_in_time(history: History) -> None:
    nobody_looked(history, 24, 57)
    miss(history, "same-50", 51)


@breaks("only schedules in force run")
def a_tick_of_a_retired_schedule(history: History) -> None:
    add(history, "gone", 140, job="gone-140")


@breaks("only schedules in force run")
def a_tick_of_the_dates_before(history: History) -> None:
    add(history, "other", 130, job="other-130")


@breaks("only schedules in force run")
def a_tick_of_a_schedule_that_is_off(history: History) -> None:
    history.calendar.turns.append(turn("same", OFF, 185))


@breaks("only schedules in force run")
def a_tick_of_a_schedule_that_is_off_though_the_code_declares_other_dates(history: History) -> None:
    history.calendar.turns.append(turn("other", OFF, 100))


def redis_was_wiped_before_the_tick_of_the_dates_before(history: History, second: float) -> None:
    a_tick_of_the_dates_before(history)
    history.faults = [FaultSeen(kind="wipe redis", at=at(second), since=at(second), until=at(second))]


@allowed
def behind_a_wipe_the_tick_of_the_dates_before_may_be_running_and_is_not_cancelled(history: History) -> None:
    redis_was_wiped_before_the_tick_of_the_dates_before(history, 99)


def redis_stood_still(history: History, second: float, until: float = 100.9, kind: str = "pause redis") -> None:
    history.faults.append(FaultSeen(kind=kind, at=at(second), since=at(until), until=at(until)))


@allowed
def behind_a_wipe_nobody_came_to_tell_while_redis_stood_still(history: History) -> None:
    redis_was_wiped_before_the_tick_of_the_dates_before(history, 90)
    redis_stood_still(history, 91)


@allowed
def nobody_came_to_tell_while_redis_stood_still_twice(history: History) -> None:
    redis_was_wiped_before_the_tick_of_the_dates_before(history, 80)
    redis_stood_still(history, 81, 93)
    redis_stood_still(history, 95)


@breaks("only schedules in force run")
def behind_a_wipe_there_was_time_to_tell_before_redis_stood_still(history: History) -> None:
    redis_was_wiped_before_the_tick_of_the_dates_before(history, 80)
    redis_stood_still(history, 91)


@breaks("only schedules in force run")
def behind_a_wipe_there_was_time_to_tell_while_redis_was_slow(history: History) -> None:
    redis_was_wiped_before_the_tick_of_the_dates_before(history, 80)
    redis_stood_still(history, 81, kind="proxy delays")


@breaks("only schedules in force run")
def long_behind_a_wipe_a_tick_of_the_dates_before(history: History) -> None:
    redis_was_wiped_before_the_tick_of_the_dates_before(history, 90)


@breaks("the only running version is in force")
def the_new_code_does_not_take_over(history: History) -> None:
    history.calendar.turns = [one for one in history.calendar.turns if one.name != "other" or one.kind != DECLARED]


@breaks("the only running version is in force")
def what_nobody_declares_is_not_retired(history: History) -> None:
    history.calendar.turns = [one for one in history.calendar.turns if one.kind != RETIRED]


@breaks("no declared schedule is retired")
def retired_too_soon(history: History) -> None:
    history.calendar.turns = [replace(one, at=wall(105)) if one.kind == RETIRED else one for one in history.calendar.turns]


@breaks("versions do not take turns")
def two_versions_take_turns(history: History) -> None:
    history.calendar.turns += [turn("other", DECLARED, 103, OLD), turn("other", DECLARED, 104, NEW)]
    passes(history, "old", 95, 110)


@allowed
def the_old_code_takes_over_when_the_new_one_is_away(history: History) -> None:
    history.calendar.turns = [replace(one, at=wall(119.5)) if one.kind == RETIRED else one for one in history.calendar.turns]
    history.calendar.turns += [turn("other", DECLARED, 103, OLD), turn("other", DECLARED, 108, NEW)]
    passes(history, "old", 95, 107)
    history.calendar.passes = [
        one for one in history.calendar.passes if one.version == "old" or not wall(100.9) < one.until < wall(107.5)
    ]


@breaks("runs of a schedule do not overlap")
def two_runs_at_once(history: History) -> None:
    begins(history, tick_of(history, "alone-80"), 80.5, 82, fence="again")


@allowed
def two_runs_at_once_of_which_one_had_lost_its_lease(history: History) -> None:
    two_runs_at_once(history)
    first = next(one.fence for one in history.runs if one.job == "alone-80")
    history.final.attempts = [(job, 1, fence, "crashed" if fence == first else how) for job, _, fence, how in history.final.attempts]
    history.faults = [FaultSeen(kind="pause worker", at=at(79), since=at(84), until=at(84))]


@breaks("a skipped tick met another run")
def skipped_while_nobody_ran(history: History) -> None:
    history.runs = [replace(one, until=at(51)) if one.job == "alone-50" else one for one in history.runs]


@allowed
def skipped_while_redis_had_not_heard_of_the_end_of_another(history: History) -> None:
    skipped_while_nobody_ran(history)
    change(history, "alone-50", ended=wall(60.5))


@breaks("a skipped tick met another run")
def skipped_where_all_may_run(history: History) -> None:
    history.runs = [one for one in history.runs if one.job != "same-50"]
    history.final.rows["same-50"] = replace(history.final.rows["same-50"], state="cancelled")
    change(history, "same-50", fate="skipped")


@allowed
def retaken_when_its_former_job_was_cancelled(history: History) -> None:
    history.calendar.jobs["former"] = "same", wall(50)
    history.final.rows["former"] = Row(id="former", op="", task="calendar_work", state="cancelled", attempts=0)


@allowed
def left_out_when_other_dates_came_before_anybody_looked(history: History) -> None:
    nobody_looked(history, 70, 100.5)
    forget(history, "other-80")
    forget(history, "other-90")
    change(history, "other-100", written=wall(0.5))


@allowed
def came_too_late_to_be_cancelled_since_redis_was_away(history: History) -> None:
    add(history, "other", 110, job="other-110")
    history.faults = [FaultSeen(kind="kill redis", at=at(100), since=at(111), until=at(111))]


@pytest.mark.parametrize(("spoil", "law"), BREACHES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_kind_of_wrong_is_found(spoil: Change, law: str) -> None:
    history = good()
    spoil(history)
    assert law in broken(history)


@pytest.mark.parametrize("change", ALLOWED)
def test_what_is_allowed_is_not_reported(change: Change) -> None:
    history = good()
    change(history)
    history.runs.sort(key=lambda one: one.at)
    assert judge(history) == []


def test_every_law_of_ticks_is_seen_broken_here() -> None:
    assert {law for _, law in BREACHES} >= {law.name for law in LAWS if law.find.__module__ == of_ticks.__name__}


@pytest.mark.parametrize(("ms", "wrong"), [(10_000, False), (-10_000, True)])
def test_where_the_clock_is_ahead_a_tick_is_due_when_it_is_written(ms: int, wrong: bool) -> None:
    history = good()
    add(history, "other", 105, job="other-105", written=wall(100))  # of the dates before 101
    history.steps = [Step(at=at(90), until=at(91), offset=ms)]
    assert ("only schedules in force run" in {breach.law for breach in judge(history)}) is wrong
