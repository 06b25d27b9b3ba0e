"""The judgement of queues on a healthy server while another server has a fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.campaign.isolation import elsewhere, lines, waited
from tests.laws.almanac import Plan, TickSeen
from tests.laws.dump import Dump
from tests.laws.history import FaultSeen, History, Row
from tests.laws.judge import judge
from tests.laws.made_up import add, at, good, op, row, run, wall
from tests.store.board import job_id


def harmed(**fault: object) -> History:
    """A history in which the server of `orders` hangs from 2 to 4 s; `plain` is on the other one."""
    history = good()
    values = {"kind": "pause redis", "at": at(2), "since": at(4), "until": at(4), "alone": True, "parts": ("orders",), **fault}
    history.faults = [FaultSeen(**values)]
    return history


def late(history: History, *, queue: str = "default", start: float = 3.5) -> History:
    add(history, op("op-late", given={"delay": 0.5, "queue": queue}, ids=["late"], jobs=[("late", True, None)], start=1.7, end=1.71))
    history.runs.append(run("late", start=start, end=start + 0.1))
    return replace(history)


def laws(history: History, slack: float = 1.0) -> list[str]:
    return [breach.law for breach in waited(replace(history), slack)]


def test_a_job_that_is_late_while_another_server_hangs_has_waited_for_it() -> None:
    history = late(harmed())
    assert laws(history) == ["waited for another server"]
    assert laws(history, 2.0) == []
    assert [round(seconds, 3) for one in elsewhere(history) for seconds, _ in one.late] == [1.3]
    assert any("pause redis" in line and "1.300" in line for line in lines(history))


def test_a_tick_that_is_late_while_another_server_hangs_has_waited_for_it() -> None:
    history = harmed()
    history.calendar.plans = {"old": {"hourly": Plan(name="hourly", period=1000, dates="")}}
    history.final.rows["tick"] = Row(id="tick", op="", task="calendar_work")
    history.runs.append(run("tick", start=3.5, end=3.6))
    seen = TickSeen(name="hourly", at=wall(2.2), run_at=wall(2.2), written=wall(2.0), fate="scheduled", job="tick")
    history.calendar.ticks = [seen]
    assert laws(history) == ["waited for another server"]
    history.calendar = replace(history.calendar, ticks=[replace(seen, run_at=wall(3.4))])
    assert laws(history) == []


def test_a_job_of_the_server_that_hangs_waits_for_its_own() -> None:
    assert laws(late(harmed(), queue="orders")) == []


@pytest.mark.parametrize("given", [{"key": "k"}, {"name": "n", "most": 1}, {"delay": 3.0}])
def test_a_job_that_waits_for_another_one_or_for_its_date_does_not_wait_for_a_server(given: dict[str, Any]) -> None:
    history = late(harmed())
    history.ops["op-late"].given |= given
    assert laws(history) == []


@pytest.mark.parametrize(("given", "broken"), [({"key": "k"}, False), ({"job": "a" * 32}, True)])
def test_in_a_queue_of_several_partitions_a_key_does_not_say_which_one_is_asked(given: dict[str, Any], broken: bool) -> None:
    history = harmed()
    add(history, op("c9", "cancel", reply="done", given={"queue": "default", **given}, start=2.1, end=3.4))
    history.final.queues["default/1"] = Dump()
    assert bool(laws(history)) is broken
    history.faults[0].parts = ("default", "default/1")
    assert laws(history) == []


def test_a_job_of_another_partition_of_the_queue_waits_for_no_server_of_its_own() -> None:
    history = harmed(parts=("default/1",))
    job = job_id(7, partition=1).hex
    add(history, op("c9", "cancel", reply="done", given={"queue": "default", "job": job}, start=2.1, end=3.4))
    assert laws(history) == []
    history.faults[0].parts = ("default/2",)
    assert laws(history) == ["waited for another server"]


def test_a_job_that_was_as_late_before_is_not_late_because_of_it() -> None:
    history = harmed()
    add(history, op("op-before", given={"delay": 0.0, "queue": "default"}, ids=["before"], jobs=[("before", True, None)], start=0.1))
    history.runs.append(run("before", start=1.9, end=1.95))
    assert laws(late(history)) == []


def test_a_call_about_another_server_is_answered_in_time() -> None:
    history = harmed()
    add(history, op("c9", "cancel", reply="done", given={"queue": "default", "job": "plain"}, start=2.1, end=3.4))
    assert laws(history) == ["waited for another server"]
    history.ops["c9"].given["queue"] = "orders"
    assert laws(history) == []


def test_a_run_that_is_taken_for_dead_has_lost_its_lease_to_another_server() -> None:
    history = harmed()
    history.runs = [run("plain", start=1.8, end=3.0, fence="f1/2"), run("plain", start=2.9, end=3.2)]
    history.final.attempts.append(("plain", 1, "f1", "crashed"))
    assert laws(history) == ["lost its lease to another server"]
    history.runs[1].at = at(8.1)  # of something that came later
    assert laws(history) == []
    history.runs[1].at, history.runs[0].until = at(2.9), at(1.9)  # it was over
    assert laws(history) == []


def test_nothing_is_said_of_faults_in_a_storm_nor_of_a_server_that_is_the_only_one() -> None:
    assert laws(late(harmed(alone=False))) == laws(late(harmed(parts=()))) == []
    assert lines(harmed(parts=())) == []


def test_what_one_server_forgets_excuses_nothing_on_another() -> None:
    history = good()
    add(
        history,
        op("op-keyless", answer="ok", given={"delay": 0, "queue": "default", "key": "m"}, ids=["gone"], jobs=[("gone", True, None)]),
    )
    history.final.rows["gone"] = replace(history.final.rows["stopped"], id="gone", op="op-keyless", key="m")
    row(history, "gone", error="key held by another", holder="keyed")
    wipe = FaultSeen(kind="wipe redis", at=at(1), since=at(1), until=at(1))
    history.faults = [wipe]
    assert judge(history) == []
    history.faults = [replace(wipe, parts=("orders",))]
    assert {breach.law for breach in judge(history)} == {"every cancel has a cause"}
    history.faults = [replace(wipe, parts=("default", "redis"))]
    assert judge(history) == []
