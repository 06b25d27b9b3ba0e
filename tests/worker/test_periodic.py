"""Schedules kept by real workers."""

from __future__ import annotations

import json
import signal
from datetime import datetime, timedelta

import pytest

from tests.worker.conftest import eventually

ALL = ("--roles", "move,mirror,relay", "--threads", "4")


@pytest.fixture
def declares(durable):
    """Has the project declare these schedules."""

    def declare(*said: dict[str, object]) -> None:
        durable.environment["APP_SCHEDULES"] = json.dumps(said)

    return declare


def runs(shop, what: str = "began") -> list[tuple[str, str, float]]:
    """(tick, job, moment) of what has begun, or ended."""
    lines = [line.split() for line in shop.ran()]
    return [(tick, job, float(moment)) for said, _, tick, job, moment in lines if said == what]


@pytest.mark.slow
def test_each_tick_runs_as_one_job_while_workers_are_killed(durable, declares):
    declares({"every": "1s", "name": "second", "args": ["x"]})
    durable.work(*ALL)
    durable.work(*ALL)
    eventually(lambda: len(runs(durable)) >= 3, "the first ticks")
    durable.workers[0].signal_tree(signal.SIGKILL)
    before = len(runs(durable))
    eventually(lambda: len(runs(durable)) >= before + 3, "ticks of the other worker")
    durable.work(*ALL)
    durable.workers[1].signal_tree(signal.SIGKILL)
    before = len(runs(durable))
    eventually(lambda: len(runs(durable)) >= before + 8, "ticks of the third worker")
    found: dict[datetime, set[str]] = {}
    for tick, job, _ in runs(durable):
        found.setdefault(datetime.fromisoformat(tick), set()).add(job)
    assert all(len(jobs) == 1 for jobs in found.values()), "a tick is one job, however often that is run"
    first, last = min(found), max(found) - timedelta(seconds=2)  # the last ones may be under way
    wanted = {first + timedelta(seconds=n) for n in range(int((last - first).total_seconds()) + 1)}
    eventually(
        lambda: wanted <= {datetime.fromisoformat(tick) for tick, *_ in runs(durable)}, "every tick, those of killed workers too"
    )


@pytest.mark.slow
def test_runs_that_wait_for_each_other_do_not_overlap(durable, declares):
    declares({"every": "1s", "name": "second", "args": ["x", 0.7], "overlap": "wait"})
    durable.work(*ALL, "--processes", "2")
    durable.work(*ALL)
    eventually(lambda: len(runs(durable, "ended")) >= 6, "some runs")
    began, ended = sorted(moment for *_, moment in runs(durable)), sorted(moment for *_, moment in runs(durable, "ended"))
    assert all(end <= begin for end, begin in zip(ended, began[1:], strict=False))


def test_a_worker_without_schedules_does_as_before(durable):
    durable.work(*ALL)
    durable.put("count", 1)
    eventually(lambda: durable.counts() == {1: 1}, "the job")
