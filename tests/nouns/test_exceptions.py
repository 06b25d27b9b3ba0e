"""The exceptions: one tree of errors, separate control flow, and pickling for all of them."""

from __future__ import annotations

import pickle
from datetime import timedelta
from uuid import UUID

import pytest

from django_delayq import durations, exceptions
from django_delayq.exceptions import (
    Cancelled,
    ConfigError,
    ControlFlow,
    DelayqError,
    Fail,
    GaveUp,
    JobFailed,
    KeyTaken,
    LeaseLost,
    LockTaken,
    NotFinished,
    NotYet,
    PayloadError,
    PayloadTooLarge,
    QueueUnknown,
    ResultGone,
    Retry,
    Skip,
    Snooze,
    SoftTimeout,
    StoreUnavailable,
    TargetRefused,
    UnknownTask,
)

HOLDER = UUID("01980000-0000-7000-8000-000000000001")


def test_every_exception_is_an_error_or_control_flow_or_interrupts_a_task() -> None:
    every = {thing for thing in vars(exceptions).values() if isinstance(thing, type) and issubclass(thing, BaseException)}
    errors = {thing for thing in every if issubclass(thing, DelayqError)}
    flow = {thing for thing in every if issubclass(thing, ControlFlow)}
    assert errors == {
        DelayqError,
        ConfigError,
        UnknownTask,
        PayloadError,
        PayloadTooLarge,
        KeyTaken,
        StoreUnavailable,
        LeaseLost,
        LockTaken,
        QueueUnknown,
        JobFailed,
        NotFinished,
        ResultGone,
        TargetRefused,
        GaveUp,
        TargetRefused,
    }
    assert flow == {ControlFlow, Retry, Skip, Snooze, NotYet, Fail}
    assert every - errors - flow == {SoftTimeout, Cancelled}
    assert not issubclass(Cancelled, Exception)
    assert issubclass(PayloadTooLarge, PayloadError)


def test_key_taken_names_the_holder() -> None:
    error = KeyTaken(holder=HOLDER)
    assert error.holder == HOLDER
    assert str(HOLDER) in str(error)
    assert "on_conflict" in str(error)
    assert str(KeyTaken("order 7 is taken", holder=HOLDER)) == "order 7 is taken"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": "failed", "error": "ValueError: no"}, "Job 7 has failed: ValueError: no"),
        ({"state": "failed"}, "Job 7 has failed."),
        ({"state": "cancelled", "error": "Expired"}, "Job 7 was cancelled: Expired"),
        ({"state": "cancelled"}, "Job 7 was cancelled."),
    ],
)
def test_job_failed_says_how_it_ended_and_by_what_if_there_was_anything(fields: dict[str, str], said: str) -> None:
    error = JobFailed(job="7", **fields)
    assert str(error) == said
    assert (error.code, error.fields) == ("job_failed", {"job": "7", "error": "", **fields})


def test_gave_up_says_how_long_it_asked_and_what_it_heard_last() -> None:
    error = GaveUp(steps=9, reason="the bank has not booked it")
    assert str(error) == "The task still raised NotYet after its last poll delay (number 9). the bank has not booked it"
    assert (error.code, error.fields) == ("gave_up", {"steps": 9, "reason": "the bank has not booked it"})
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.fields) == (GaveUp, str(error), error.fields)


@pytest.mark.parametrize("delay", [90, 90.0, "1m30s", timedelta(seconds=90)])
def test_a_delay_is_kept_as_seconds(delay: durations.Delay) -> None:
    assert Retry(delay).delay == Snooze(delay).delay == 90.0


def test_retry_leaves_the_delay_to_the_ladder_by_default() -> None:
    assert Retry().delay is None
    assert Retry(0).delay == 0.0


@pytest.mark.parametrize("delay", [-1, "soon", True, float("nan")])
def test_a_delay_that_is_none_is_refused_where_it_is_raised(delay: durations.Delay) -> None:
    with pytest.raises(ValueError, match=r"is negative|is not a duration"):
        Retry(delay)
    with pytest.raises(ValueError, match=r"is negative|is not a duration"):
        Snooze(delay)


def test_the_reason_is_the_text() -> None:
    assert (str(Retry(reason="busy")), str(Snooze(5, "busy")), str(Fail("gone"))) == ("busy", "busy", "gone")
    assert (Retry(reason="busy").reason, Snooze(5, "busy").reason, Fail("gone").reason) == ("busy", "busy", "gone")
    assert all(str(bare) for bare in (Retry(), Snooze(1), Fail()))


@pytest.mark.parametrize(
    "error",
    [
        JobFailed(job="7", state="cancelled"),
        JobFailed("the bank is closed"),
        KeyTaken(holder=HOLDER),
        KeyTaken("taken", holder=HOLDER),
        Retry("90s", "busy"),
        Retry(),
        Snooze(5, "busy"),
        Fail("gone"),
        SoftTimeout("30 s"),
        PayloadTooLarge("big"),
        UnknownTask(code="task_unknown", name="shop.renamed"),
        ConfigError("It is none.", hint="Write one."),
        StoreUnavailable("away", jobs=(HOLDER,)),
        StoreUnavailable(code="redis_away", where="here", cause="gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_pickle(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


class Strange(DelayqError):
    """A project's own error, whose constructor takes other arguments."""

    def __init__(self, number: int, *, colour: str) -> None:
        super().__init__(f"{number} {colour}", code="", number=number)
        self.colour = colour


def test_an_error_of_a_subclass_pickles_whatever_its_constructor_takes() -> None:
    again = pickle.loads(pickle.dumps(Strange(7, colour="red")))
    assert (str(again), again.colour, again.code, again.fields) == ("7 red", "red", "error", {"number": 7})


def test_an_error_says_by_code_and_fields_what_its_text_says() -> None:
    error = UnknownTask(code="task_unknown", name="shop.renamed")
    assert (error.code, error.fields) == ("task_unknown", {"name": "shop.renamed"})
    assert str(error).startswith("No task named 'shop.renamed' is registered in this process.")


def test_an_error_without_a_code_has_that_of_its_class_and_no_fields() -> None:
    errors = (thing for thing in vars(exceptions).values() if isinstance(thing, type) and issubclass(thing, DelayqError))
    codes = {kind.__name__: kind.code for kind in errors}
    assert len(set(codes.values())) == len(codes)
    assert (PayloadError("no").code, dict(PayloadError("no").fields)) == ("payload", {})


def test_a_mistake_in_the_settings_has_its_hint_apart() -> None:
    error = ConfigError("It is none.", hint="Write one.")
    assert (str(error), error.fields) == ("It is none. Write one.", {"message": "It is none.", "hint": "Write one."})


def test_a_task_may_catch_its_soft_timeout_as_an_ordinary_exception() -> None:
    assert issubclass(SoftTimeout, Exception)
    assert not issubclass(SoftTimeout, DelayqError | ControlFlow)
