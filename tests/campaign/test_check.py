"""The judge finds every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.campaign.check import Case, judge
from tests.campaign.history import FaultSeen, History, Row
from tests.campaign.made_up import add, at, good, kinds, left, op, row, run, scheduled, wall


def test_a_good_history_gives_nothing() -> None:
    assert judge(Case(good())) == []


def an_acknowledged_job_has_no_row(history: History) -> None:
    del history.final.rows["plain"]


def a_committed_row_stays_scheduled(history: History) -> None:
    row(history, "plain", state="scheduled")


def a_row_succeeded_without_a_run(history: History) -> None:
    history.runs = [one for one in history.runs if one.job != "plain"]


def a_run_broken_off_counts_as_success(history: History) -> None:
    history.runs[0].how = ""


def a_job_is_cancelled_by_nobody(history: History) -> None:
    row(history, "plain", state="cancelled")


def a_created_job_is_merged_away(history: History) -> None:
    row(history, "keyed", state="cancelled", error="key held by another")


def a_quick_job_failed(history: History) -> None:
    row(history, "plain", state="failed", error="ValueError: no")


def a_rolled_back_job_runs(history: History) -> None:
    history.runs.append(run("never", start=1, end=2))


def a_rolled_back_job_has_a_row(history: History) -> None:
    history.final.rows["never"] = Row(id="never", op="op-never", task="quick", state="cancelled")


def a_run_before_its_date(history: History) -> None:
    history.runs[0] = run("plain", start=0.98, end=1.1)


def a_run_before_the_date_it_was_moved_to(history: History) -> None:
    add(history, op("r1", "reschedule", start=0.5, end=0.6, reply="done", given={"job": "plain", "delay": 1.0}))


def a_second_attempt_before_its_time(history: History) -> None:
    history.runs[2] = run("failing", start=0.25, end=0.5, how="error", attempt=2)


def a_run_of_a_job_that_nobody_scheduled(history: History) -> None:
    history.runs.append(run("stranger", start=1, end=2))


def two_attempts_succeeded(history: History) -> None:
    history.final.attempts.append(("plain", 1, "another", "succeeded"))


def a_job_ran_twice_though_the_copy_had_its_end(history: History) -> None:
    two_attempts_succeeded(history)
    history.runs.append(run("plain", start=20, end=21, fence="another"))
    history.faults = [FaultSeen(kind="roll back redis", at=at(10), since=at(12), until=at(12))]


def a_run_after_its_cancel(history: History) -> None:
    history.runs.append(run("stopped", start=5, end=6))


def a_run_after_a_cancel_by_key(history: History) -> None:
    add(history, op("c2", "cancel_key", start=0.02, end=0.05, reply="done", given={"key": "k", "queue": "default"}))
    history.final.acts.append(("cancelled", "keyed", "c2"))


def a_run_of_a_row_that_waited_while_its_key_was_cancelled(history: History) -> None:
    add(history, scheduled("second", created=None, key="k", policy="keep"))
    add(history, op("c2", "cancel_key", start=1, end=1.1, reply="done", given={"key": "k", "queue": "default"}))
    history.runs.append(run("second", start=2, end=3))
    history.final.rows["second"] = Row(id="second", op="op-second", task="keyed", key="k")
    history.ledger.append(("end", "second", "second-2"))


def who_asks_again_for_a_cancel_hears_that_it_had_ended(history: History) -> None:
    row(history, "stopped", error="")
    add(
        history,
        op("c3", "cancel", start=1.1, end=1.2, answer="unknown", given={"job": "stopped"}),
        op("c3r", "cancel", start=1.3, end=1.4, reply="finished", given={"job": "stopped", "repeat": True}),
    )


def a_run_before_the_date_that_a_host_with_a_wrong_clock_gave_it(history: History) -> None:
    add(history, scheduled("skewed", delay=5.0, clock=-600))
    history.ops["op-skewed"].jobs = [("skewed", True, wall(-595))]
    history.runs.append(run("skewed", start=0.5, end=0.6))


def a_requeue_before_the_cancel_excuses_nothing(history: History) -> None:
    add(history, op("q1", "requeue", start=0.5, end=0.6, reply="done", given={"job": "stopped"}))
    history.runs.append(run("stopped", start=5, end=6))


def a_cancelled_job_says_succeeded(history: History) -> None:
    row(history, "stopped", state="succeeded")


def a_cancelled_durable_job_waits_for_ever(history: History) -> None:
    row(history, "stopped", state="scheduled")
    history.faults = [FaultSeen(kind="fail over", at=at(0.5), since=at(2), until=at(2))]


def a_cancelled_job_waits_for_ever_though_redis_forgot_nothing(history: History) -> None:
    row(history, "stopped", state="scheduled", durable=False)


def a_job_ran_after_a_cancel_that_the_copy_had(history: History) -> None:
    row(history, "stopped", durable=False)
    history.faults = [FaultSeen(kind="fail over", at=at(3), since=at(4), until=at(4))]
    history.runs.append(run("stopped", start=5, end=6))


def one_attempt_too_many(history: History) -> None:
    history.runs.append(run("failing", start=2, end=3, how="error", attempt=3))


def a_failed_job_without_a_failed_row(history: History) -> None:
    row(history, "failing", state="running")


def a_last_attempt_failed_and_the_row_does_not_say_so(history: History) -> None:
    left(history).failed.clear()
    left(history).jobs.clear()
    row(history, "failing", state="succeeded")


def a_row_stays_unpublished(history: History) -> None:
    row(history, "plain", state="scheduled", published=False)


def redis_has_what_the_row_calls_finished(history: History) -> None:
    left(history).jobs.add("plain")
    left(history).lanes["plain"] = wall(9)


def redis_cancelled_what_the_row_calls_succeeded(history: History) -> None:
    left(history).finished["plain"] = True


def redis_called_succeeded_what_the_row_calls_cancelled_though_it_forgot_something(history: History) -> None:
    left(history).finished["stopped"] = False
    history.faults = [FaultSeen(kind="fail over", at=at(0.5), since=at(2), until=at(2))]


def a_cancel_by_key_long_before_excuses_nothing(history: History) -> None:
    add(history, op("c0", "cancel_key", start=-2, end=-1, reply="done", given={"key": "k", "queue": "default"}))
    history.faults = [FaultSeen(kind="fail over", at=at(0.05), since=at(0.2), until=at(0.2))]
    history.runs = [one for one in history.runs if one.job != "keyed"]
    row(history, "keyed", state="cancelled")


def events_are_left(history: History) -> None:
    left(history).events = 3


def redis_has_a_job_without_a_row(history: History) -> None:
    left(history).jobs.add("rowless")
    left(history).lanes["rowless"] = wall(9)


def an_attempt_runs_for_ever(history: History) -> None:
    history.final.attempts.append(("plain", 1, "open", "running"))


def a_key_points_to_a_finished_job(history: History) -> None:
    left(history).keys["k"] = "keyed"


def a_key_points_to_a_failed_job(history: History) -> None:
    left(history).keys["k"] = "failing"


def a_lease_of_nobody(history: History) -> None:
    left(history).leases.add("plain")


def a_record_without_date_or_lease(history: History) -> None:
    left(history).jobs.add("plain")


def an_atomic_job_with_two_effects(history: History) -> None:
    history.final.effects.append(("atomic", "g"))


def an_atomic_job_without_its_effect(history: History) -> None:
    history.final.effects.clear()


def an_effect_that_nobody_wrote_down(history: History) -> None:
    history.ledger = [line for line in history.ledger if line[0] != "effect"]


def an_effect_of_another_run_than_wrote_it_down(history: History) -> None:
    history.final.effects[0] = ("atomic", "g")


def a_committed_effect_that_the_database_lost(history: History) -> None:
    history.ledger += [("effect", "failing", "g"), ("kept", "failing", "g")]


def two_effects_that_were_committed_and_of_which_the_database_has_one(history: History) -> None:
    history.ledger += [("effect", "atomic", "g"), ("kept", "atomic", "g")]


def a_success_that_is_not_in_the_ledger(history: History) -> None:
    history.ledger.remove(("end", "plain", "plain-1.0"))


def one_fence_for_two_runs(history: History) -> None:
    history.runs.append(run("plain", start=1.05, end=1.2, fence=history.runs[0].fence))


def _one_behind_a_running_one(history: History) -> None:
    """A holder that runs for a second, and one that was scheduled behind it meanwhile."""
    add(history, scheduled("holder", key="m", policy="keep"))
    behind = scheduled("behind", key="m", policy="after")
    behind.at, behind.until = at(0.5), at(0.6)
    add(history, behind)
    history.runs += [run("holder", start=0.1, end=1.1), run("behind", start=2, end=2.1)]
    for id in ("holder", "behind"):
        history.final.rows[id] = Row(id=id, op=f"op-{id}", task="keyed", key="m")
        history.final.attempts.append((id, 1, f"{id}-f", "succeeded"))
        history.ledger.append(("end", id, f"{id}-f"))


def a_run_beside_the_one_that_it_was_to_follow(history: History) -> None:
    _one_behind_a_running_one(history)
    history.runs[-1] = run("behind", start=0.8, end=0.9)


def older_arguments_than_those_of_the_last_call(history: History) -> None:
    _one_behind_a_running_one(history)
    history.runs.pop()
    row(history, "behind", state="cancelled", error="key held by holder", holder="holder")


def it_never_comes_to_rest(history: History) -> None:
    history.final.quiet = False


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (an_acknowledged_job_has_no_row, "lost"),
        (a_committed_row_stays_scheduled, "lost"),
        (a_row_succeeded_without_a_run, "lost"),
        (a_run_broken_off_counts_as_success, "lost"),
        (a_job_is_cancelled_by_nobody, "lost"),
        (a_created_job_is_merged_away, "lost"),
        (a_quick_job_failed, "failed without cause"),
        (a_rolled_back_job_runs, "ran though rolled back"),
        (a_rolled_back_job_has_a_row, "ran though rolled back"),
        (a_run_before_its_date, "early"),
        (a_run_before_the_date_it_was_moved_to, "early"),
        (a_second_attempt_before_its_time, "early"),
        (a_run_of_a_job_that_nobody_scheduled, "early"),
        (two_attempts_succeeded, "double-settled"),
        (a_job_ran_twice_though_the_copy_had_its_end, "double-settled"),
        (a_run_after_its_cancel, "run after cancel"),
        (a_run_after_a_cancel_by_key, "run after cancel"),
        (a_run_of_a_row_that_waited_while_its_key_was_cancelled, "run after cancel"),
        (who_asks_again_for_a_cancel_hears_that_it_had_ended, "false answer"),
        (a_run_before_the_date_that_a_host_with_a_wrong_clock_gave_it, "early"),
        (a_requeue_before_the_cancel_excuses_nothing, "run after cancel"),
        (a_cancelled_job_says_succeeded, "run after cancel"),
        (a_cancelled_durable_job_waits_for_ever, "run after cancel"),
        (a_cancelled_job_waits_for_ever_though_redis_forgot_nothing, "run after cancel"),
        (a_job_ran_after_a_cancel_that_the_copy_had, "run after cancel"),
        (one_attempt_too_many, "too many attempts"),
        (a_failed_job_without_a_failed_row, "failure not recorded"),
        (a_last_attempt_failed_and_the_row_does_not_say_so, "failure not recorded"),
        (a_row_stays_unpublished, "mirror not converged"),
        (redis_has_what_the_row_calls_finished, "mirror not converged"),
        (redis_cancelled_what_the_row_calls_succeeded, "mirror not converged"),
        (
            redis_called_succeeded_what_the_row_calls_cancelled_though_it_forgot_something,
            "mirror not converged",
        ),
        (a_cancel_by_key_long_before_excuses_nothing, "lost"),
        (events_are_left, "mirror not converged"),
        (redis_has_a_job_without_a_row, "mirror not converged"),
        (an_attempt_runs_for_ever, "mirror not converged"),
        (a_key_points_to_a_finished_job, "leaked"),
        (a_key_points_to_a_failed_job, "leaked"),
        (a_lease_of_nobody, "leaked"),
        (a_record_without_date_or_lease, "leaked"),
        (an_atomic_job_with_two_effects, "doubled effect"),
        (an_atomic_job_without_its_effect, "doubled effect"),
        (an_effect_that_nobody_wrote_down, "effect of nobody"),
        (an_effect_of_another_run_than_wrote_it_down, "effect of nobody"),
        (an_effect_of_another_run_than_wrote_it_down, "lost effect"),
        (a_committed_effect_that_the_database_lost, "lost effect"),
        (two_effects_that_were_committed_and_of_which_the_database_has_one, "doubled effect"),
        (a_success_that_is_not_in_the_ledger, "lost"),
        (one_fence_for_two_runs, "same fence twice"),
        (a_run_beside_the_one_that_it_was_to_follow, "not once more"),
        (older_arguments_than_those_of_the_last_call, "not once more"),
        (it_never_comes_to_rest, "not quiet"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_kind_of_wrong_is_found(spoil: Callable[[History], None], kind: str) -> None:
    history = good()
    spoil(history)
    assert kind in kinds(history)


def once_more_behind_a_running_one(history: History) -> None:
    _one_behind_a_running_one(history)


def moved_to_an_earlier_date(history: History) -> None:
    add(history, op("r1", "run_now", start=0.4, end=0.5, reply="done", given={"job": "plain"}))
    history.runs[0] = run("plain", start=0.5, end=0.6)


def perhaps_moved_to_an_earlier_date(history: History) -> None:
    add(history, op("r1", "run_now", start=0.4, end=2.5, answer="unknown", given={"job": "plain"}))
    history.runs[0] = run("plain", start=0.5, end=0.6)


def moved_later_while_it_was_due(history: History) -> None:
    add(history, op("r1", "reschedule", start=0.9, end=1.2, reply="done", given={"job": "plain", "delay": 9.0}))


def cancelled_and_then_requeued(history: History) -> None:
    add(history, op("q1", "requeue", start=2, end=2.1, reply="done", given={"job": "stopped"}))
    history.runs.append(run("stopped", start=3, end=4))
    history.ledger.append(("end", "stopped", "stopped-3"))
    row(history, "stopped", state="succeeded")
    left(history).finished["stopped"] = False


def run_twice_after_a_crash(history: History) -> None:
    history.runs.append(run("plain", start=1.05))
    history.final.attempts.append(("plain", 1, "lost", "crashed"))


def cancelled_while_it_ran(history: History) -> None:
    add(history, op("c3", "cancel", start=1.05, end=1.06, reply="running", given={"job": "plain"}))


def merged_into_the_holder_of_its_key(history: History) -> None:
    add(history, scheduled("second", created=None, key="k", policy="keep"))
    history.final.rows["second"] = Row(id="second", op="op-second", task="keyed", key="k", state="cancelled", error="key held by keyed")
    left(history).finished["second"] = False


def a_tombstone_of_a_cancel_that_was_taken_back(history: History) -> None:
    add(history, op("q1", "requeue", start=2, end=2.1, reply="done", given={"job": "stopped"}))
    history.runs.append(run("stopped", start=3, end=4))
    history.ledger.append(("end", "stopped", "stopped-3"))
    row(history, "stopped", state="succeeded")
    history.faults = [FaultSeen(kind="roll back redis", at=at(4), since=at(5), until=at(5))]


def cancelled_by_key_by_somebody_whose_event_redis_forgot(history: History) -> None:
    add(history, op("c9", "cancel_key", start=0.05, end=0.06, reply="done", given={"key": "k", "queue": "default"}))
    history.faults = [FaultSeen(kind="fail over", at=at(0.05), since=at(0.2), until=at(0.2))]
    history.runs = [one for one in history.runs if one.job != "keyed"]
    row(history, "keyed", state="cancelled")


def merged_since_redis_forgot_it(history: History) -> None:
    row(history, "keyed", state="cancelled", error="key held by another")
    history.runs = [one for one in history.runs if one.job != "keyed"]
    history.faults = [FaultSeen(kind="fail over", at=at(0.05), since=at(0.2), until=at(0.2))]


def an_atomic_job_that_committed_before_it_was_called_poison(history: History) -> None:
    left(history).jobs.add("atomic")
    left(history).failed.add("atomic")


def killed_before_the_commit_of_its_effect(history: History) -> None:
    history.runs.append(run("atomic", start=0.05, fence="before"))
    history.ledger.insert(0, ("effect", "atomic", "before"))
    history.final.attempts.append(("atomic", 1, "before", "crashed"))


def killed_after_the_commit_of_its_effect(history: History) -> None:
    history.ledger.remove(("kept", "atomic", "f"))


def killed_between_its_end_and_its_settling(history: History) -> None:
    history.ledger.append(("end", "plain", "first"))
    history.runs.append(run("plain", start=1.0, end=1.05, fence="first"))
    history.final.attempts.append(("plain", 1, "first", "crashed"))


def cancelled_by_key_before_it_was_published(history: History) -> None:
    add(history, scheduled("second", created=None, key="k", policy="keep"))
    add(history, op("c2", "cancel_key", start=1, end=1.1, reply="done", given={"key": "k", "queue": "default"}))
    history.final.rows["second"] = Row(id="second", op="op-second", task="keyed", key="k", state="cancelled", published=False)


def cancelled_by_key_before_it_was_scheduled(history: History) -> None:
    add(history, scheduled("second", key="k", policy="keep"))
    add(history, op("c2", "cancel_key", start=0.0, end=0.005, reply="done", given={"key": "k", "queue": "default"}))
    history.runs.append(run("second", start=2, end=3))
    history.final.rows["second"] = Row(id="second", op="op-second", task="keyed", key="k")
    history.ledger.append(("end", "second", "second-2"))


def cancelled_twice_and_told_so(history: History) -> None:
    add(history, op("c3", "cancel", start=1.3, end=1.4, reply="done", given={"job": "stopped", "repeat": True}))


def told_its_date_by_a_host_with_a_wrong_clock(history: History) -> None:
    add(history, scheduled("skewed", delay=1.0, clock=600))
    history.ops["op-skewed"].jobs = [("skewed", True, wall(601))]
    history.runs.append(run("skewed", start=1.5, end=1.6))
    history.final.rows["skewed"] = Row(id="skewed", op="op-skewed", task="quick")
    history.ledger.append(("end", "skewed", "skewed-1.5"))


def not_created_since_the_key_was_held(history: History) -> None:
    add(history, op("op-held", given={"queue": "default", "key": "k"}, ids=["held"], jobs=[("keyed", False, None)]))


@pytest.mark.parametrize(
    "change",
    [
        once_more_behind_a_running_one,
        moved_to_an_earlier_date,
        perhaps_moved_to_an_earlier_date,
        moved_later_while_it_was_due,
        cancelled_and_then_requeued,
        run_twice_after_a_crash,
        cancelled_while_it_ran,
        merged_into_the_holder_of_its_key,
        merged_since_redis_forgot_it,
        a_tombstone_of_a_cancel_that_was_taken_back,
        cancelled_by_key_by_somebody_whose_event_redis_forgot,
        an_atomic_job_that_committed_before_it_was_called_poison,
        killed_before_the_commit_of_its_effect,
        killed_after_the_commit_of_its_effect,
        killed_between_its_end_and_its_settling,
        not_created_since_the_key_was_held,
        cancelled_by_key_before_it_was_scheduled,
        cancelled_twice_and_told_so,
        cancelled_by_key_before_it_was_published,
        told_its_date_by_a_host_with_a_wrong_clock,
    ],
)
def test_what_is_allowed_is_not_reported(change: Callable[[History], None]) -> None:
    history = good()
    change(history)
    history.runs.sort(key=lambda one: one.at)
    assert judge(Case(history)) == []


def test_a_redis_that_forgets_is_no_loss_for_jobs_of_redis_durability_only() -> None:
    history = good()
    add(history, scheduled("volatile", queue="redis"))
    assert "lost" in kinds(history)
    assert judge(Case(history, keeps_all=False)) == []


def test_a_job_whose_end_the_copy_did_not_have_may_run_again() -> None:
    history = good()
    a_job_ran_twice_though_the_copy_had_its_end(history)
    assert "double-settled" in kinds(history)
    [first, _] = (one for one in history.runs if one.job == "plain")
    history.final.attempts = [
        (job, number, first.fence if job == "plain" and fence != "another" else fence, outcome)
        for job, number, fence, outcome in history.final.attempts
    ]
    history.faults = [FaultSeen(kind="roll back redis", at=first.at, since=at(12), until=at(12))]
    assert "double-settled" not in kinds(history)


def test_a_cancel_that_redis_forgot_together_with_its_job_need_not_be_in_the_row() -> None:
    history = good()
    add(history, scheduled("volatile", queue="redis", delay=5.0))
    add(history, op("c9", "cancel", start=1, end=1.01, reply="done", given={"job": "volatile"}))
    history.final.rows["volatile"] = Row(
        id="volatile", op="op-volatile", task="quick", queue="redis", state="scheduled", attempts=0, durable=False
    )
    assert "run after cancel" in kinds(history)
    history.faults = [FaultSeen(kind="fail over", at=at(0.5), since=at(2), until=at(2))]
    assert judge(Case(history, keeps_all=False)) == []
    history.runs.append(run("volatile", start=5, end=6))  # nor is it forbidden to run
    assert "run after cancel" not in kinds(history)
