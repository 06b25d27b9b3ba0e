"""The exceptions: one tree of errors, control flow beside it, and all of them survive a pickle."""

from __future__ import annotations

import pickle
from datetime import timedelta
from uuid import UUID

import pytest

from django_delayq import clock, exceptions
from django_delayq.exceptions import (
    ConfigError,
    ControlFlow,
    DelayqError,
    Fail,
    KeyTaken,
    LeaseLost,
    PayloadError,
    PayloadTooLarge,
    QueueUnknown,
    Retry,
    Snooze,
    SoftTimeout,
    StoreUnavailable,
    UnknownTask,
)

HOLDER = UUID("01980000-0000-7000-8000-000000000001")


def test_every_exception_is_an_error_or_control_flow_or_the_soft_timeout() -> None:
    every = {thing for thing in vars(exceptions).values() if isinstance(thing, type) and issubclass(thing, Exception)}
    errors = {thing for thing in every if issubclass(thing, DelayqError)}
    flow = {thing for thing in every if issubclass(thing, ControlFlow)}
    assert errors == {
        DelayqError, ConfigError, UnknownTask, PayloadError, PayloadTooLarge, KeyTaken, StoreUnavailable, LeaseLost,
        QueueUnknown,
    }  # fmt: skip
    assert flow == {ControlFlow, Retry, Snooze, Fail}
    assert every - errors - flow == {SoftTimeout}
    assert issubclass(PayloadTooLarge, PayloadError)


def test_key_taken_names_the_holder() -> None:
    error = KeyTaken(holder=HOLDER)
    assert error.holder == HOLDER
    assert str(HOLDER) in str(error)
    assert "on_conflict" in str(error)
    assert str(KeyTaken("order 7 is taken", holder=HOLDER)) == "order 7 is taken"


@pytest.mark.parametrize("delay", [90, 90.0, "1m30s", timedelta(seconds=90)])
def test_a_delay_is_kept_as_seconds(delay: clock.Delay) -> None:
    assert Retry(delay).delay == Snooze(delay).delay == 90.0


def test_retry_leaves_the_delay_to_the_ladder_by_default() -> None:
    assert Retry().delay is None
    assert Retry(0).delay == 0.0


@pytest.mark.parametrize("delay", [-1, "soon", True, float("nan")])
def test_a_delay_that_is_none_is_refused_where_it_is_raised(delay: clock.Delay) -> None:
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
    [KeyTaken(holder=HOLDER), KeyTaken("taken", holder=HOLDER), Retry("90s", "busy"), Retry(), Snooze(5, "busy"),
     Fail("gone"), SoftTimeout("30 s"), PayloadTooLarge("big")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_exceptions_pickle(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_task_may_catch_its_soft_timeout_as_an_ordinary_exception() -> None:
    assert issubclass(SoftTimeout, Exception)
    assert not issubclass(SoftTimeout, DelayqError | ControlFlow)
