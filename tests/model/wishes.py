"""What the rules of the machine are drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

picks = st.integers(0, 11)
delays = st.sampled_from([0, 0, 1, 999, 1000, 5000, 60_000])
steps = st.sampled_from([1, 2, 500, 999, 1000, 5000, 14_000, 31_000, 4_000_000])
workers = st.sampled_from(["w1", "w2", "w3"])
ages = st.sampled_from([0, 1, 10_000, 3_600_000, 3_600_000])
outcomes = st.sampled_from(["ack", "retry", "snooze", "fail", "crash", "cancel"])
keys = st.sampled_from(["", "", "a", "b"])
actors = st.sampled_from(["clerk", "boss"])


@dataclass(frozen=True)
class Wish:
    """A job to schedule: a new one, or with `again` one that was scheduled before."""

    again: bool
    pick: int
    key: str
    lane: Any
    offset: int
    delayed: bool
    policy: Any
    expires: int
    most: int
    durable: bool


wishes = st.builds(
    Wish,
    again=st.sampled_from([False, False, False, False, True]),
    pick=picks,
    key=keys,
    lane=st.sampled_from(["high", "normal", "low"]),
    offset=st.sampled_from([-5000, 0, 0, 1, 1000, 5000, 60_000]),
    delayed=st.booleans(),
    policy=st.sampled_from(["keep", "replace", "earliest", "latest", "error"]),
    expires=st.sampled_from([0, 0, 0, 0, 0, 0, 1, 40_000]),
    most=st.sampled_from([1, 2, 3, 3]),
    durable=st.booleans(),
)


@dataclass(frozen=True)
class Ending:
    """How a held job is to be settled; `slip` is added to its attempt number, to name one that it is not in."""

    pick: int
    outcome: Any
    delay: int
    slip: int


endings = st.builds(Ending, pick=picks, outcome=outcomes, delay=delays, slip=st.sampled_from([0, 0, 0, 0, 0, 1, -1]))
