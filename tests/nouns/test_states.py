"""The table of transitions is consistent with itself and with the enums. Tests of the store compare it with the scripts."""

from __future__ import annotations

import pickle
from typing import get_args

import pytest

from django_delayq.states import (
    FINISHED,
    TRANSITIONS,
    UNFINISHED,
    AttemptOutcome,
    Change,
    EventKind,
    State,
    Transition,
)
from django_delayq.store.scripts.queue import Kind


def rows(verb: str) -> set[tuple[State | None, State, str]]:
    return {(row.before, row.after, row.script) for row in TRANSITIONS if row.verb == verb}


def test_every_state_is_finished_or_unfinished_and_none_is_both() -> None:
    assert set(State) == UNFINISHED | FINISHED
    assert not UNFINISHED & FINISHED


def test_states_are_their_words() -> None:
    assert [str(state) for state in State] == ["scheduled", "running", "succeeded", "failed", "cancelled"]
    assert f"{State.FAILED}" == "failed"
    assert State("running") is State.RUNNING


def test_changes_are_their_words() -> None:
    assert {str(change) for change in Change} == {"done", "running", "finished", "unknown", "conflict", "pending"}


def test_event_kinds_are_exactly_those_of_the_stream() -> None:
    assert {str(kind) for kind in EventKind} == {
        "scheduled",
        "merged",
        "rescheduled",
        "claimed",
        "crashed",
        "succeeded",
        "retried",
        "snoozed",
        "failed",
        "cancelled",
        "cancel_requested",
        "requeued",
        "expired",
        "aside",
        "restored",
        "dropped",
        "paused",
        "resumed",
        "purged",
    }


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("schedule", {(None, State.SCHEDULED, "schedule")}),
        ("claim", {(before, State.RUNNING, "claim") for before in UNFINISHED}),
        ("ack", {(State.RUNNING, State.SUCCEEDED, "settle")}),
        ("retry", {(State.RUNNING, State.SCHEDULED, "settle")}),
        ("snooze", {(State.RUNNING, State.SCHEDULED, script) for script in ("settle", "claim")}),
        ("fail", {(State.RUNNING, State.FAILED, "settle")}),
        ("evict", {(State.RUNNING, State.SCHEDULED, "settle")}),
        ("park", {(State.RUNNING, State.SCHEDULED, "settle")}),
        (
            "expire",
            {
                *((State.SCHEDULED, after, script) for after in (State.CANCELLED, State.FAILED) for script in ("claim", "schedule")),
                (State.RUNNING, State.FAILED, "claim"),
            },
        ),
        ("set aside", {(before, State.FAILED, "claim") for before in UNFINISHED}),
        ("replace", {(State.SCHEDULED, State.CANCELLED, "schedule")}),
        ("reschedule", {(State.SCHEDULED, State.SCHEDULED, script) for script in ("schedule", "reschedule")}),
        (
            "requeue",
            {(State.FAILED, State.SCHEDULED, "requeue"), (State.CANCELLED, State.SCHEDULED, "requeue")},
        ),
    ],
)
def test_a_verb_goes_where_the_lifecycle_says(verb: str, expected: set[tuple[State | None, State, str]]) -> None:
    assert rows(verb) == expected


def test_a_crash_is_seen_by_claim_which_runs_it_again_or_told_to_settle_and_too_many_fail() -> None:
    assert rows("crash") == {
        (State.RUNNING, State.RUNNING, "claim"),
        (State.RUNNING, State.SCHEDULED, "claim"),
        (State.RUNNING, State.FAILED, "claim"),
        (State.RUNNING, State.SCHEDULED, "settle"),
        (State.RUNNING, State.FAILED, "settle"),
    }


def test_no_row_stands_twice() -> None:
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)


def test_a_finished_job_moves_only_by_requeue_and_a_succeeded_one_never_unless_restore_knows_better() -> None:
    moves = [row for row in TRANSITIONS if row.before in FINISHED and row.script != "restore"]
    assert {row.verb for row in moves} == {"requeue"}
    assert not [row for row in moves if row.before is State.SUCCEEDED]


def test_every_state_can_be_reached_from_nothing() -> None:
    reached: set[State | None] = {None}
    for _ in State:
        reached |= {row.after for row in TRANSITIONS if row.before in reached}
    assert reached == {None, *State}


def test_every_settling_outcome_is_a_verb_of_the_settle_script() -> None:
    assert {row.verb for row in TRANSITIONS if row.script == "settle"} == set(get_args(Kind))


def test_every_end_of_an_attempt_has_its_event() -> None:
    ends = {str(outcome) for outcome in AttemptOutcome} - {
        "running",
        "evicted",
        "asked",
    }  # these are recorded as snoozed, with one more word
    assert ends <= {str(kind) for kind in EventKind}


def test_a_transition_is_frozen_and_pickles() -> None:
    row = TRANSITIONS[0]
    with pytest.raises(AttributeError):
        row.verb = "other"
    assert pickle.loads(pickle.dumps(row)) == row == Transition("schedule", None, State.SCHEDULED, "schedule")
