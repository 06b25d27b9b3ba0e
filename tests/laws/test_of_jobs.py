"""The laws of jobs find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.laws import of_jobs
from tests.laws.history import CAMPAIGN, CRASHPOINTS, LOSING, MODEL, MOVING, ROLLING, WITH_REPLICAS, WITNESS, FaultSeen, History, Row
from tests.laws.judge import judge, judged, unjudged
from tests.laws.law import LAWS
from tests.laws.made_up import CANCELLED, RECORD, SUCCEEDED, WALL, add, at, broken, good, left, op, row, run, scheduled, wall

Change = Callable[[History], None]
BREACHES: list[tuple[Change, str]] = []
ALLOWED: list[Change] = []


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


def test_a_good_history_gives_nothing() -> None:
    assert judge(good()) == []


@breaks("nothing acknowledged is lost")
def an_acknowledged_job_has_no_row(history: History) -> None:
    del history.final.rows["plain"]


@breaks("every job comes to its end")
def a_committed_row_stays_scheduled(history: History) -> None:
    row(history, "plain", state="scheduled")


@breaks("a success is a run that came to its end")
def a_row_succeeded_without_a_run(history: History) -> None:
    history.runs = [one for one in history.runs if one.job != "plain"]


@breaks("a success is a run that came to its end")
def a_run_broken_off_counts_as_success(history: History) -> None:
    history.runs[0].how = ""


@breaks("every cancel has a cause")
def a_job_is_cancelled_by_nobody(history: History) -> None:
    row(history, "plain", state="cancelled")


@breaks("every cancel has a cause")
def a_created_job_is_merged_away(history: History) -> None:
    row(history, "keyed", state="cancelled", error="key held by another")


@breaks("only the hopeless fail")
def a_quick_job_failed(history: History) -> None:
    row(history, "plain", state="failed", error="ValueError: no")


@breaks("rolled back schedules nothing")
def a_rolled_back_job_runs(history: History) -> None:
    history.runs.append(run("never", start=1, end=2))


@breaks("rolled back schedules nothing")
def a_rolled_back_job_has_a_row(history: History) -> None:
    history.final.rows["never"] = Row(id="never", op="op-never", task="quick", state="cancelled")


@breaks("never before its date")
def a_run_before_its_date(history: History) -> None:
    history.runs[0] = run("plain", start=0.98, end=1.1)


@breaks("never before its date")
def a_run_before_the_date_it_was_moved_to(history: History) -> None:
    add(history, op("r1", "reschedule", start=0.5, end=0.6, reply="done", given={"job": "plain", "delay": 1.0}))


@breaks("never before its date")
def a_second_attempt_before_its_time(history: History) -> None:
    history.runs[2] = run("failing", start=0.25, end=0.5, how="error", attempt=2)


@breaks("every run was scheduled")
def a_run_of_a_job_that_nobody_scheduled(history: History) -> None:
    history.runs.append(run("stranger", start=1, end=2))


@breaks("one attempt succeeds")
def two_attempts_succeeded(history: History) -> None:
    history.final.attempts.append(("plain", 1, "another", "succeeded"))


@breaks("one attempt succeeds")
def a_job_ran_twice_though_the_copy_had_its_end(history: History) -> None:
    two_attempts_succeeded(history)
    history.runs.append(run("plain", start=20, end=21, fence="another"))
    history.faults = [FaultSeen(kind="roll back redis", at=at(10), since=at(12), until=at(12))]


@breaks("never after a cancel")
def a_run_after_its_cancel(history: History) -> None:
    history.runs.append(run("stopped", start=5, end=6))


@breaks("never after a cancel")
def a_run_after_a_cancel_by_key(history: History) -> None:
    add(history, op("c2", "cancel_key", start=0.02, end=0.05, reply="done", given={"key": "k", "queue": "default"}))
    history.final.acts.append(("cancelled", "keyed", "c2"))


@breaks("a cancel by key means all of the key")
def a_run_of_a_row_that_waited_while_its_key_was_cancelled(history: History) -> None:
    add(history, scheduled("second", created=None, key="k", policy="keep"))
    add(history, op("c2", "cancel_key", start=1, end=1.1, reply="done", given={"key": "k", "queue": "default"}))
    history.runs.append(run("second", start=2, end=3))
    history.final.rows["second"] = Row(id="second", op="op-second", task="keyed", key="k")
    history.ledger.append(("end", "second", "second-2", ""))


@breaks("a repeated cancel returns done")
def who_asks_again_for_a_cancel_hears_that_it_had_ended(history: History) -> None:
    row(history, "stopped", error="")
    add(
        history,
        op("c3", "cancel", start=1.1, end=1.2, answer="unknown", given={"job": "stopped"}),
        op("c3r", "cancel", start=1.3, end=1.4, reply="finished", given={"job": "stopped", "repeat": True}),
    )


@breaks("never before its date")
def a_run_before_the_date_that_a_host_with_a_wrong_clock_gave_it(history: History) -> None:
    add(history, scheduled("skewed", delay=5.0, clock=-600))
    history.ops["op-skewed"].jobs = [("skewed", True, wall(-595))]
    history.runs.append(run("skewed", start=0.5, end=0.6))


@breaks("never after a cancel")
def a_requeue_before_the_cancel_excuses_nothing(history: History) -> None:
    add(history, op("q1", "requeue", start=0.5, end=0.6, reply="done", given={"job": "stopped"}))
    history.runs.append(run("stopped", start=5, end=6))


@breaks("never after a cancel")
def a_cancelled_job_says_succeeded(history: History) -> None:
    row(history, "stopped", state="succeeded")


@breaks("never after a cancel")
def a_cancelled_durable_job_waits_for_ever(history: History) -> None:
    row(history, "stopped", state="scheduled")
    history.faults = [FaultSeen(kind="fail over", at=at(0.5), since=at(2), until=at(2))]


@breaks("never after a cancel")
def a_cancelled_job_waits_for_ever_though_redis_forgot_nothing(history: History) -> None:
    row(history, "stopped", state="scheduled", durable=False)


@breaks("never after a cancel")
def a_job_ran_after_a_cancel_that_the_copy_had(history: History) -> None:
    row(history, "stopped", durable=False)
    history.faults = [FaultSeen(kind="fail over", at=at(3), since=at(4), until=at(4))]
    history.runs.append(run("stopped", start=5, end=6))


@breaks("attempts are bounded")
def one_attempt_too_many(history: History) -> None:
    history.runs.append(run("failing", start=2, end=3, how="error", attempt=3))


@breaks("every failure is in the database")
def a_failed_job_without_a_failed_row(history: History) -> None:
    row(history, "failing", state="running")


@breaks("every failure is in the database")
def a_last_attempt_failed_and_the_row_does_not_say_so(history: History) -> None:
    left(history).failed.clear()
    left(history).jobs.clear()
    row(history, "failing", state="succeeded")


@breaks("every row is published")
def a_row_stays_unpublished(history: History) -> None:
    row(history, "plain", state="scheduled", published=False)


@breaks("rows agree with redis")
def redis_has_what_the_row_calls_finished(history: History) -> None:
    left(history).jobs["plain"] = RECORD
    left(history).normal["plain"] = wall(9)


@breaks("rows agree with redis")
def redis_cancelled_what_the_row_calls_succeeded(history: History) -> None:
    left(history).finished["plain"] = CANCELLED


@breaks("rows agree with redis")
def redis_called_succeeded_what_the_row_calls_cancelled_though_it_forgot_something(history: History) -> None:
    left(history).finished["stopped"] = SUCCEEDED
    history.faults = [FaultSeen(kind="fail over", at=at(0.5), since=at(2), until=at(2))]


@breaks("every cancel has a cause")
def a_cancel_by_key_long_before_excuses_nothing(history: History) -> None:
    add(history, op("c0", "cancel_key", start=-2, end=-1, reply="done", given={"key": "k", "queue": "default"}))
    history.faults = [FaultSeen(kind="fail over", at=at(0.05), since=at(0.2), until=at(0.2))]
    history.runs = [one for one in history.runs if one.job != "keyed"]
    row(history, "keyed", state="cancelled")


@breaks("every job in redis has a row")
def events_are_left(history: History) -> None:
    history.final.events["default"] = 3


@breaks("every job in redis has a row")
def redis_has_a_job_without_a_row(history: History) -> None:
    left(history).jobs["rowless"] = RECORD
    left(history).normal["rowless"] = wall(9)


@breaks("no attempt outlives its job")
def an_attempt_runs_for_ever(history: History) -> None:
    history.final.attempts.append(("plain", 1, "open", "running"))


@breaks("a key is held by its unfinished job")
def a_key_points_to_a_finished_job(history: History) -> None:
    left(history).keys["k"] = "keyed"


@breaks("a key is held by its unfinished job")
def a_key_points_to_a_failed_job(history: History) -> None:
    left(history).keys["k"] = "failing"


@breaks("a job is in one place")
def a_lease_of_nobody(history: History) -> None:
    left(history).leases["plain"] = WALL


@breaks("a job is in one place")
def a_record_without_date_or_lease(history: History) -> None:
    left(history).jobs["plain"] = RECORD


@breaks("one effect of each step")
def an_atomic_job_with_two_effects(history: History) -> None:
    history.final.effects.append(("atomic", "g", ""))


@breaks("one effect of each step")
def an_atomic_job_without_its_effect(history: History) -> None:
    history.final.effects.clear()


@breaks("every effect is in the ledger")
def an_effect_that_nobody_wrote_down(history: History) -> None:
    history.ledger = [line for line in history.ledger if line[0] != "effect"]


@breaks("every effect is in the ledger")
@breaks("no committed effect is lost")
def an_effect_of_another_run_than_wrote_it_down(history: History) -> None:
    history.final.effects[0] = ("atomic", "g", "")


@breaks("no committed effect is lost")
def a_committed_effect_that_the_database_lost(history: History) -> None:
    history.ledger += [("effect", "failing", "g", ""), ("kept", "failing", "g", "")]


@breaks("no committed effect is lost")
def two_effects_that_were_committed_and_of_which_the_database_has_one(history: History) -> None:
    history.ledger += [("effect", "atomic", "g", ""), ("kept", "atomic", "g", "")]


@breaks("every success is in the ledger")
def a_success_that_is_not_in_the_ledger(history: History) -> None:
    history.ledger.remove(("end", "plain", "plain-1.0", ""))


@breaks("a fence belongs to one run")
def one_fence_for_two_runs(history: History) -> None:
    history.runs.append(run("plain", start=1.05, end=1.2, fence=history.runs[0].fence))


def _one_behind_a_running_one(history: History) -> None:
    """A holder that runs for a second, and a job that was scheduled after it in the meantime."""
    add(history, scheduled("holder", key="m", policy="keep"))
    behind = scheduled("behind", key="m", policy="after")
    behind.at, behind.until = at(0.5), at(0.6)
    add(history, behind)
    history.runs += [run("holder", start=0.1, end=1.1), run("behind", start=2, end=2.1)]
    for id in ("holder", "behind"):
        history.final.rows[id] = Row(id=id, op=f"op-{id}", task="keyed", key="m")
        history.final.attempts.append((id, 1, f"{id}-f", "succeeded"))
        history.ledger.append(("end", id, f"{id}-f", ""))


@breaks("after runs after the holder")
def a_run_beside_the_one_that_it_was_to_follow(history: History) -> None:
    _one_behind_a_running_one(history)
    history.runs[-1] = run("behind", start=0.8, end=0.9)


@breaks("after runs after the holder")
def older_arguments_than_those_of_the_last_call(history: History) -> None:
    _one_behind_a_running_one(history)
    history.runs.pop()
    row(history, "behind", state="cancelled", error="key held by holder", holder="holder")


@breaks("committed is never forgotten")
def a_committed_call_without_a_row(history: History) -> None:
    add(history, op("op-silent", answer="committed"))


@breaks("each job meets its fate")
def a_job_that_was_to_fail_succeeded(history: History) -> None:
    history.fates["plain"] = "failed"


@breaks("each job meets its fate")
def a_job_that_was_to_be_cancelled_ran(history: History) -> None:
    history.fates["stopped"] = "cancelled"
    history.runs.append(run("stopped", start=0.1, end=0.2))


def _merged(history: History, holder: str) -> None:
    add(history, scheduled("second", created=None, key="k", policy="keep"))
    error = f"key held by {holder}"
    history.final.rows["second"] = Row(
        id="second", op="op-second", task="keyed", key="k", state="cancelled", error=error, holder=holder
    )


@breaks("a merged job is followed")
def a_merged_job_runs(history: History) -> None:
    _merged(history, "keyed")
    history.runs.append(run("second", start=1, end=2))


@breaks("a merged job is followed")
def a_job_is_merged_into_nobody(history: History) -> None:
    _merged(history, "stranger")


@breaks("a merged job is followed")
def two_jobs_are_merged_into_each_other(history: History) -> None:
    _merged(history, "keyed")
    row(history, "keyed", state="cancelled", error="key held by second", holder="second")


@breaks("every run is of a row")
def a_run_without_a_row(history: History) -> None:
    add(history, scheduled("rowless"))
    history.runs.append(run("rowless", start=1, end=2))


@breaks("never before its date")
def a_run_before_the_date_that_it_was_told(history: History) -> None:
    history.runs[0].due = wall(1.5)


@breaks("jobs run once if no process dies")
def a_run_that_crashed_where_nobody_died(history: History) -> None:
    history.unharmed = True
    history.final.attempts.append(("plain", 1, "lost", "crashed"))


@breaks("jobs run once if no process dies")
def a_run_that_ended_twice_where_nobody_died(history: History) -> None:
    history.unharmed = True
    history.runs.append(run("plain", start=1.2, end=1.3))


@breaks("attempts are bounded")
def a_row_that_has_counted_too_many_attempts(history: History) -> None:
    row(history, "plain", attempts=6)


@breaks("every row is published")
def a_job_that_succeeded_unpublished(history: History) -> None:
    row(history, "plain", published=False)


@breaks("a queue at rest holds failures only")
def a_run_is_left_behind(history: History) -> None:
    left(history).runs["plain"] = "1:0:n:"


@breaks("a queue at rest holds failures only")
def a_job_is_left_behind(history: History) -> None:
    left(history).jobs["plain"] = RECORD


@breaks("nothing refers to a job without a row")
def an_attempt_of_no_job(history: History) -> None:
    history.final.orphans.append(("attempt", "never"))


@breaks("operations come to their end")
def an_operation_that_never_began(history: History) -> None:
    history.asked = 2


@breaks("operations come to their end")
def an_operation_that_stands_still(history: History) -> None:
    _operation(history, "running", 2, {"done": 2})


@breaks("operations come to their end")
def an_operation_that_overlooked_a_job(history: History) -> None:
    _operation(history, "finished", 1, {"done": 1})


@breaks("operations come to their end")
def an_operation_that_took_a_job_twice(history: History) -> None:
    _operation(history, "finished", 2, {"done": 3})


def _operation(history: History, stage: str, seen: int, counts: dict[str, int]) -> None:
    history.asked = 2
    history.final.operations.append((stage, seen, counts))


@breaks("one effect of each step")
def a_step_without_its_effect(history: History) -> None:
    row(history, "plain", task="stepwise")
    history.final.effects.append(("plain", "f", "reserve"))


@breaks("one effect of each step")
def an_effect_of_no_job(history: History) -> None:
    history.final.effects.append(("never", "f", ""))


def _paying(history: History, *ledger: tuple[str, str], made: str = "123") -> None:
    """A job that pays in chunks. `made`: the payments in the database."""
    effects = [("plain", "f", step) for step in made]
    history.final.effects += effects
    history.ledger += [("effect", *one) for one in effects]
    history.ledger += [(what, "plain", "f", step) for what, step in ledger]
    if made == "123":
        row(history, "plain", task="paying")


@breaks("a run continues where the last commit ended")
def a_cursor_that_is_behind_its_effects(history: History) -> None:
    _paying(history, ("found", "0"), ("kept", "1"), ("found", "0"))


@breaks("a run continues where the last commit ended")
def a_cursor_that_is_ahead_of_its_effects(history: History) -> None:
    """As one that is written outside of the transaction, which is then rolled back."""
    _paying(history, ("found", "0"), ("kept", "1"), ("found", "2"), made="1")


@allowed
def a_run_that_continues_after_the_first_payment(history: History) -> None:
    _paying(history, ("found", "0"), ("kept", "1"), ("found", "1"), ("kept", "2"), ("kept", "3"))


@breaks("one effect of each step")
def a_payment_that_was_made_twice(history: History) -> None:
    _paying(history)
    history.final.effects.append(("plain", "f", "2"))


@breaks("everything comes to rest")
def it_never_comes_to_rest(history: History) -> None:
    history.final.quiet = False


@allowed
def an_operation_that_saw_all_its_jobs(history: History) -> None:
    _operation(history, "finished", 2, {"done": 1, "finished": 1})


@allowed
def once_more_behind_a_running_one(history: History) -> None:
    _one_behind_a_running_one(history)


@allowed
def moved_to_an_earlier_date(history: History) -> None:
    add(history, op("r1", "run_now", start=0.4, end=0.5, reply="done", given={"job": "plain"}))
    history.runs[0] = run("plain", start=0.5, end=0.6)


@allowed
def perhaps_moved_to_an_earlier_date(history: History) -> None:
    add(history, op("r1", "run_now", start=0.4, end=2.5, answer="unknown", given={"job": "plain"}))
    history.runs[0] = run("plain", start=0.5, end=0.6)


@allowed
def moved_later_while_it_was_due(history: History) -> None:
    add(history, op("r1", "reschedule", start=0.9, end=1.2, reply="done", given={"job": "plain", "delay": 9.0}))


@allowed
def cancelled_and_then_requeued(history: History) -> None:
    add(history, op("q1", "requeue", start=2, end=2.1, reply="done", given={"job": "stopped"}))
    history.runs.append(run("stopped", start=3, end=4))
    history.ledger.append(("end", "stopped", "stopped-3", ""))
    row(history, "stopped", state="succeeded")
    left(history).finished["stopped"] = SUCCEEDED


@allowed
def run_twice_after_a_crash(history: History) -> None:
    history.runs.append(run("plain", start=1.05))
    history.final.attempts.append(("plain", 1, "lost", "crashed"))


@allowed
def cancelled_while_it_ran(history: History) -> None:
    add(history, op("c3", "cancel", start=1.05, end=1.06, reply="running", given={"job": "plain"}))


@allowed
def merged_into_the_holder_of_its_key(history: History) -> None:
    _merged(history, "keyed")
    left(history).finished["second"] = SUCCEEDED


@allowed
def a_tombstone_of_a_cancel_that_was_taken_back(history: History) -> None:
    add(history, op("q1", "requeue", start=2, end=2.1, reply="done", given={"job": "stopped"}))
    history.runs.append(run("stopped", start=3, end=4))
    history.ledger.append(("end", "stopped", "stopped-3", ""))
    row(history, "stopped", state="succeeded")
    history.faults = [FaultSeen(kind="roll back redis", at=at(4), since=at(5), until=at(5))]


@allowed
def cancelled_by_key_by_somebody_whose_event_redis_forgot(history: History) -> None:
    add(history, op("c9", "cancel_key", start=0.05, end=0.06, reply="done", given={"key": "k", "queue": "default"}))
    history.faults = [FaultSeen(kind="fail over", at=at(0.05), since=at(0.2), until=at(0.2))]
    history.runs = [one for one in history.runs if one.job != "keyed"]
    row(history, "keyed", state="cancelled")


@allowed
def merged_since_redis_forgot_it(history: History) -> None:
    row(history, "keyed", state="cancelled", error="key held by another")
    history.runs = [one for one in history.runs if one.job != "keyed"]
    history.faults = [FaultSeen(kind="fail over", at=at(0.05), since=at(0.2), until=at(0.2))]


@allowed
def an_atomic_job_that_committed_before_it_was_called_poison(history: History) -> None:
    left(history).jobs["atomic"] = RECORD
    left(history).failed["atomic"] = WALL


@allowed
def killed_before_the_commit_of_its_effect(history: History) -> None:
    history.runs.append(run("atomic", start=0.05, fence="before"))
    history.ledger.insert(0, ("effect", "atomic", "before", ""))
    history.final.attempts.append(("atomic", 1, "before", "crashed"))


@allowed
def killed_after_the_commit_of_its_effect(history: History) -> None:
    history.ledger.remove(("kept", "atomic", "f", ""))


@allowed
def killed_between_its_end_and_its_settling(history: History) -> None:
    history.ledger.append(("end", "plain", "first", ""))
    history.runs.append(run("plain", start=1.0, end=1.05, fence="first"))
    history.final.attempts.append(("plain", 1, "first", "crashed"))


@allowed
def cancelled_by_key_before_it_was_published(history: History) -> None:
    add(history, scheduled("second", created=None, key="k", policy="keep"))
    add(history, op("c2", "cancel_key", start=1, end=1.1, reply="done", given={"key": "k", "queue": "default"}))
    history.final.rows["second"] = Row(id="second", op="op-second", task="keyed", key="k", state="cancelled", published=False)


@allowed
def cancelled_by_key_before_it_was_scheduled(history: History) -> None:
    add(history, scheduled("second", key="k", policy="keep"))
    add(history, op("c2", "cancel_key", start=0.0, end=0.005, reply="done", given={"key": "k", "queue": "default"}))
    history.runs.append(run("second", start=2, end=3))
    history.final.rows["second"] = Row(id="second", op="op-second", task="keyed", key="k")
    history.ledger.append(("end", "second", "second-2", ""))


@allowed
def cancelled_twice_and_told_so(history: History) -> None:
    add(history, op("c3", "cancel", start=1.3, end=1.4, reply="done", given={"job": "stopped", "repeat": True}))


@allowed
def told_its_date_by_a_host_with_a_wrong_clock(history: History) -> None:
    add(history, scheduled("skewed", delay=1.0, clock=600))
    history.ops["op-skewed"].jobs = [("skewed", True, wall(601))]
    history.runs.append(run("skewed", start=1.5, end=1.6))
    history.final.rows["skewed"] = Row(id="skewed", op="op-skewed", task="quick")
    history.ledger.append(("end", "skewed", "skewed-1.5", ""))


@allowed
def not_created_since_the_key_was_held(history: History) -> None:
    add(history, op("op-held", given={"queue": "default", "key": "k"}, ids=["held"], jobs=[("keyed", False, None)]))


@pytest.mark.parametrize(("spoil", "law"), BREACHES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_kind_of_wrong_is_found(spoil: Callable[[History], None], law: str) -> None:
    history = good()
    spoil(history)
    assert law in broken(history)


@pytest.mark.parametrize("change", ALLOWED)
def test_what_is_allowed_is_not_reported(change: Callable[[History], None]) -> None:
    history = good()
    change(history)
    history.runs.sort(key=lambda one: one.at)
    assert judge(history) == []


@pytest.mark.parametrize("kind", LOSING)
def test_a_redis_that_forgets_may_lose_jobs_of_redis_durability_and_no_others(kind: str) -> None:
    history = good()
    add(history, scheduled("volatile", queue="redis"))
    assert broken(history) == {"nothing acknowledged is lost"}
    history.runs.append(run("volatile", start=5, end=6))
    assert broken(history) >= {"nothing acknowledged is lost", "every run is of a row"}
    history.faults = [FaultSeen(kind=kind, at=at(7), since=at(8), until=at(8), parts=("redis", "redis/1"))]
    assert broken(history) == set()
    history.faults[0].parts = ("redis/1",)  # another partition's
    assert broken(history) >= {"nothing acknowledged is lost", "every run is of a row"}
    history.faults[0].parts = ()
    add(history, scheduled("durable"))
    assert broken(history) == {"nothing acknowledged is lost"}


@pytest.mark.parametrize("kind", LOSING)
def test_what_replicas_had_is_lost_by_no_failover_to_them(kind: str) -> None:
    history = good()
    add(history, scheduled("volatile", queue="redis", replicas=1))
    history.faults = [FaultSeen(kind=kind, at=at(1), since=at(2), until=at(2))]
    assert broken(history) == (set() if kind in WITH_REPLICAS else {"nothing acknowledged is lost"})
    history.ops["op-volatile"].answer = "unknown"  # nobody was told that they had it
    assert broken(history) == set()


@pytest.mark.parametrize("kind", ["fail over", "kill master"])
def test_a_cancel_that_replicas_had_is_forgotten_by_no_failover_to_them(kind: str) -> None:
    history = good()
    add(history, scheduled("volatile", queue="redis", delay=5.0, replicas=1))
    add(history, op("c9", "cancel", start=1, end=1.01, reply="done", given={"job": "volatile"}))
    history.final.rows["volatile"] = Row(
        id="volatile", op="op-volatile", task="quick", queue="redis", state="succeeded", attempts=1, durable=False
    )
    history.runs.append(run("volatile", start=5, end=6))
    history.faults = [FaultSeen(kind=kind, at=at(0.5), since=at(2), until=at(2))]
    assert ("never after a cancel" in broken(history)) is (kind not in WITH_REPLICAS)


@pytest.mark.parametrize("kind", [*MOVING, "slow master", "kill replica", "restart redis", ROLLING])
def test_what_loses_nothing_excuses_nothing(kind: str) -> None:
    history = good()
    add(history, scheduled("volatile", queue="redis"))
    history.faults = [FaultSeen(kind=kind, at=at(1), since=at(2), until=at(2))]
    assert broken(history) == {"nothing acknowledged is lost"}


def test_a_job_whose_end_the_copy_did_not_have_may_run_again() -> None:
    history = good()
    a_job_ran_twice_though_the_copy_had_its_end(history)
    assert "one attempt succeeds" in broken(history)
    [first, _] = (one for one in history.runs if one.job == "plain")
    history.final.attempts = [
        (job, number, first.fence if job == "plain" and fence != "another" else fence, outcome)
        for job, number, fence, outcome in history.final.attempts
    ]
    history.faults = [FaultSeen(kind="roll back redis", at=first.at, since=at(12), until=at(12))]
    assert "one attempt succeeds" not in broken(history)


def test_a_cancel_that_redis_forgot_together_with_its_job_need_not_be_in_the_row() -> None:
    history = good()
    add(history, scheduled("volatile", queue="redis", delay=5.0))
    add(history, op("c9", "cancel", start=1, end=1.01, reply="done", given={"job": "volatile"}))
    history.final.rows["volatile"] = Row(
        id="volatile", op="op-volatile", task="quick", queue="redis", state="scheduled", attempts=0, durable=False
    )
    assert "never after a cancel" in broken(history)
    history.faults = [FaultSeen(kind="fail over", at=at(0.5), since=at(2), until=at(2))]
    assert judge(history) == []
    history.runs.append(run("volatile", start=5, end=6))  # nor is it forbidden to run
    assert "never after a cancel" not in broken(history)


@pytest.mark.parametrize("dated_by_hosts", [True, False])
def test_of_two_rows_that_two_clocks_have_dated_none_is_called_older_where_the_database_has_no_clock(dated_by_hosts: bool) -> None:
    history = good()
    older_arguments_than_those_of_the_last_call(history)
    history.ops["op-holder"].given["clock"] = 600
    history.dated_by_hosts = dated_by_hosts
    assert any(breach.text.endswith("which is older") for breach in judge(history)) is not dated_by_hosts


def test_every_law_of_jobs_is_seen_broken_here() -> None:
    assert {law for _, law in BREACHES} >= {law.name for law in LAWS if law.find.__module__ == of_jobs.__name__}


def test_every_law_is_judged_by_somebody() -> None:
    assert not [law.name for law in LAWS if not any(law in judged(sees) for sees in (MODEL, WITNESS, CRASHPOINTS, CAMPAIGN))]


def test_who_does_not_see_enough_does_not_judge() -> None:
    history = replace(good(), sees=WITNESS)
    history.final.rows.clear()
    assert judge(history) == []
    assert "nothing acknowledged is lost" in unjudged(WITNESS)


def test_every_law_says_what_must_hold() -> None:
    assert not [law.name for law in LAWS if not (law.find.__doc__ or "").endswith((".", ".\n    "))]
