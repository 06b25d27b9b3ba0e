"""The strategies from which the machine's rules draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from django_delayq.job_meta import Quota

picks = st.integers(0, 11)
delays = st.sampled_from([0, 0, 1, 999, 1000, 5000, 60_000])
steps = st.sampled_from([1, 2, 500, 999, 1000, 5000, 14_000, 31_000, 4_000_000])
workers = st.sampled_from(["w1", "w2", "w3"])
ages = st.sampled_from([0, 1, 10_000, 3_600_000, 3_600_000])
modes = st.sampled_from(["", "", "told", "ask", "ask told"])
epochs = st.sampled_from(["", "known", "known", "another:server"])
lackings = st.sampled_from(["", "scheduled", "running", 0, 60_000])  # or a date, so many ms from now
outcomes = st.sampled_from(["ack", "retry", "snooze", "ask", "ask", "evict", "park", "fail", "crash", "cancel"])
keys = st.sampled_from(["", "", "a", "b"])
scopes = st.sampled_from(["", "", "", "a", "b"])
SHARED = ("", "s", "c", "c")  # of the third and the fourth as many may run
PACES = {"p": Quota(2, 1000, 1), "q": Quota(3, 1000, 2)}
rate_changes = st.one_of(
    st.tuples(st.sampled_from(["p", "q"]), st.sampled_from(["", "1:1000:1", "10:1000:3", "7:100:2"])),
    st.tuples(st.just("\1shop.close"), st.sampled_from(["", "none", "5:1000:1"])),
)
words = st.sampled_from(["task:shop.close", "scope:a", "name:s", "name:c", "name:c"])
actors = st.sampled_from(["clerk", "boss"])


@dataclass(frozen=True)
class Wish:
    """A job to schedule: a new one, or with `again` one that was scheduled before."""

    again: bool
    pick: int
    key: str
    band: Any
    offset: int
    delayed: bool
    policy: Any
    expires: int
    most: int
    durable: bool
    name: int = 0  # its entry in SHARED
    late: str = ""  # it is published late, and may act on no holder, on the one that there is, or on another; or never
    scope: str = ""  # of its key and of its serial name
    fair: str = ""  # its fair word
    rate: str = ""  # its rate, one of PACES


wishes = st.builds(
    Wish,
    again=st.sampled_from([False, False, False, False, True]),
    pick=picks,
    key=keys,
    band=st.sampled_from(["high", "normal", "low"]),
    offset=st.sampled_from([-5000, 0, 0, 1, 1000, 5000, 60_000]),
    delayed=st.booleans(),
    policy=st.sampled_from(["keep", "replace", "earliest", "latest", "latest+5000", "latest+40000/", "after", "error"]),
    expires=st.sampled_from([0, 0, 0, 0, 0, 0, 1, 40_000]),
    most=st.sampled_from([1, 2, 3, 3]),
    durable=st.booleans(),
    name=st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3]),
    late=st.sampled_from(["", "", "", "", "none", "holder", "another", "replaced"]),
    scope=scopes,
    fair=st.sampled_from(["", "", "", "x", "x", "y"]),
    rate=st.sampled_from(["", "", "", "p", "q"]),
)


@dataclass(frozen=True)
class Ending:
    """How a held job is to be settled; `slip` is added to its attempt number, to name one that it is not in."""

    pick: int
    outcome: Any
    delay: int
    slip: int


endings = st.builds(Ending, pick=picks, outcome=outcomes, delay=delays, slip=st.sampled_from([0, 0, 0, 0, 0, 1, -1]))
