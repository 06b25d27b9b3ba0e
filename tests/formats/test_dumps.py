"""What an older release has left goes on under this one: nothing is lost, doubled or early."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from django_delayq.store.formats import FORMAT
from tests.formats import dump
from tests.formats.stage import ROOT, Stage, eventually

DUMPS = sorted(Path(__file__).parent.glob("format*.json"))


def load(stage: Stage, path: Path) -> dict[str, Any]:
    """Puts a dump in, as if it had been made a moment ago; returns what is to become of its jobs."""
    whole = json.loads(path.read_text())
    now_ms = time.time_ns() // 1_000_000
    stage.manage(ROOT, "migrate", "-v", "0")
    stage.run(ROOT, "tests.formats.load", str(path), str(now_ms))
    dump.write_redis(stage.link, whole["redis"], made_ms=whole["made_ms"], now_ms=now_ms)
    return dict(whole["expected"])


def look(stage: Stage) -> dict[str, Any]:
    return dict(json.loads(stage.run(ROOT, "rolling.look")))


def differs(stage: Stage, expected: dict[str, Any], runs: str, ends: str) -> dict[str, str]:
    """Jobs that have not come to what is expected, with what they have come to."""
    counts, rows = stage.counts(), look(stage)
    found = {}
    for job, one in expected.items():
        state = rows[job]["state"] if job in rows else "no row"
        if (counts[job], state) != (one[runs], one[ends]):
            found[one["name"]] = f"{counts[job]} runs, {state}; not {one[runs]} runs, {one[ends]}"
    return found


def go_on(stage: Stage, expected: dict[str, Any], runs: str, ends: str, *, tree: Path = ROOT) -> None:
    """A worker of that release works until all is as expected, and nothing is left to do."""
    worker = stage.work(tree, "worker")

    def done() -> bool:
        if stage.counts().total() < sum(one[runs] for one in expected.values()):
            return False
        assert worker.poll() is None, stage.log("worker")
        return not differs(stage, expected, runs, ends)

    try:
        eventually(done, "the end of all jobs")
    except AssertionError:
        assert differs(stage, expected, runs, ends) == {}
        raise
    stage.leave(worker)
    assert differs(stage, expected, runs, ends) == {}
    assert all(run.began_ms >= run.due_ms - 1 for run in stage.runs())


@pytest.mark.slow
@pytest.mark.parametrize("upgraded", ["before the upgrade", "after it"])
@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_a_queue_of_an_older_release_goes_on(stage, path, upgraded):
    expected = load(stage, path)
    if upgraded == "after it":
        stage.manage(ROOT, "delayq", "upgrade", "--yes")
    go_on(stage, expected, "runs", "ends")
    doctor = json.loads(stage.manage(ROOT, "delayq", "doctor", "--deep", "--json"))
    assert {one["code"] for one in doctor["findings"]} & {"D008", "D009", "D010", "D021"} == set()

    # What waits for later is all there, and can be changed.
    for one in expected.values():
        waits = one["ends"] == "scheduled"
        one |= {"runs later": one["runs"] + waits, "ends later": "succeeded" if waits else one["ends"]}
    again = json.loads(stage.manage(ROOT, "delayq", "run-now", "--state", "scheduled", "--limit", "100", "--yes", "--json"))
    assert {one["change"] for one in again["jobs"]} == {"done"}
    assert len(again["jobs"]) == sum(one["ends"] == "scheduled" for one in expected.values())
    stage.manage(ROOT, "delayq", "resume", "bank")
    go_on(stage, expected, "runs later", "ends later")


def test_each_format_before_this_one_has_a_dump():
    assert [path.stem for path in DUMPS] == [f"format{number}" for number in range(FORMAT)]
