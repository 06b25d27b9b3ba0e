"""Records can be read again, recovery is measured, the report shows it, and the same seed gives the same campaign."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.app.record import Recorder, lines
from tests.app.seen import history as read
from tests.campaign import failovers, slot_moves
from tests.campaign.faults import NodeFault
from tests.campaign.masters import ClusterMasters, Masters, SentinelMasters
from tests.campaign.recovery import by_kind, recoveries
from tests.campaign.report import details, page, too_slow
from tests.campaign.rolling import DropFormer, Roll
from tests.campaign.script import ALL, Script
from tests.campaign.stage import ROLL, SETTINGS
from tests.laws.history import CAMPAIGN, ROLLING, FaultSeen, Final
from tests.laws.judge import judge
from tests.laws.made_up import add, at, good, op, run
from tests.stage import ROOT, project, sqlite
from tests.wires import Wires


def test_recovery_lasts_until_every_job_has_run_again() -> None:
    history = good()
    history.runs.append(run("plain", start=1.2))  # cut off by the kill at 1.5 s
    history.runs.append(run("plain", start=4.0, end=4.5))
    history.runs.sort(key=lambda one: one.at)
    history.faults = [
        FaultSeen(kind="kill worker", at=at(1.5), since=at(1.5), until=at(2), alone=True),
        FaultSeen(kind="in a storm", at=at(1.5), since=at(1.5), until=at(2)),
        FaultSeen(kind="harmless", at=at(6), since=at(6), until=at(6), alone=True),
    ]
    found = by_kind(recoveries(replace(history)))
    assert {kind: [one.seconds for one in ones] for kind, ones in found.items()} == {
        "kill worker": [2.5],
        "harmless": [0.0],
    }
    assert [breach.law for breach in too_slow(replace(history), 1.0)] == ["slow to recover"]
    assert too_slow(replace(history), 2.0) == too_slow(replace(history), 0.0) == []


def test_a_run_that_goes_on_through_a_fault_is_not_harmed() -> None:
    history = good()
    history.runs.append(run("plain", start=1.2, end=9.0))
    history.faults = [FaultSeen(kind="kill worker", at=at(1.5), since=at(1.5), until=at(2), alone=True)]
    assert [one.seconds for one in recoveries(replace(history))] == [0.0]


def test_a_run_that_had_broken_off_before_a_fault_is_not_harmed_by_it() -> None:
    history = good()
    history.runs.append(run("plain", start=1.2, end=1.3, how="broken off"))
    history.runs.append(run("plain", start=4.0, end=4.5))
    history.runs.sort(key=lambda one: one.at)
    history.faults = [FaultSeen(kind="kill worker", at=at(1.5), since=at(1.5), until=at(2), alone=True)]
    assert [one.seconds for one in recoveries(replace(history))] == [0.0]
    history.faults = [FaultSeen(kind="kill worker", at=at(1.25), since=at(1.25), until=at(2), alone=True)]
    assert [one.seconds for one in recoveries(replace(history))] == [2.75]


def test_a_job_that_was_cancelled_and_requeued_ran_when_it_was_told_to() -> None:
    history = good()
    history.runs.append(run("plain", start=1.2))  # cut off
    history.runs.append(run("plain", start=4.0, end=4.5))
    history.runs.sort(key=lambda one: one.at)
    history.faults = [FaultSeen(kind="kill worker", at=at(1.5), since=at(1.5), until=at(2), alone=True)]
    add(
        history,
        op("op-again", what="requeue", reply="done", given={"queue": "default", "job": "plain"}, start=3.9, end=3.91),
    )
    assert [one.seconds for one in recoveries(replace(history))] == [0.0]


def test_a_job_on_its_last_chance_waits_for_its_neighbours() -> None:
    history = good()
    history.runs += [run("plain", start=start) for start in (1.1, 1.2, 1.4)]  # all cut off
    history.runs.append(run("plain", start=9.0, end=9.5))
    history.runs.sort(key=lambda one: one.at)
    history.faults = [FaultSeen(kind="kill worker", at=at(1.5), since=at(1.5), until=at(2), alone=True)]
    assert [one.seconds for one in recoveries(replace(history))] == [0.0]


def test_what_was_late_before_a_fault_is_not_late_because_of_it() -> None:
    history = good()
    for name, delay in (("waiting", 0.0), ("due", 1.8)):
        add(history, op(f"op-{name}", given={"delay": delay, "queue": "default"}, ids=[name], jobs=[(name, True, None)]))
    history.runs.append(run("waiting", start=7, end=7.1))
    history.faults = [FaultSeen(kind="kill worker", at=at(2), since=at(2), until=at(2), alone=True)]
    assert [one.seconds for one in recoveries(replace(history))] == [0.0]
    history.runs.append(run("due", start=3.0, end=3.1))
    assert [one.seconds for one in recoveries(replace(history))] == [1.0]


def test_a_job_that_redis_did_not_have_counts_apart() -> None:
    history = good()
    add(history, op("op-row", given={"delay": 0.0, "queue": "default"}, ids=["row"], jobs=[("row", None, None)]))
    history.runs.append(run("row", start=3.0, end=3.1))
    history.faults = [FaultSeen(kind="kill redis", at=at(0.5), since=at(0.9), until=at(0.9), alone=True)]
    (found,) = recoveries(replace(history))
    assert (found.seconds, round(found.rows, 3)) == (0.0, 2.1)


def test_a_queue_with_few_jobs_that_waits_for_another_one_is_starved() -> None:
    history = good()
    add(history, op("op-probe", given={"delay": 0, "queue": "orders", "probe": True}, ids=["probe"], start=1.0, end=1.1))
    history.faults = [FaultSeen(kind="flood", at=at(0.9), since=at(3), until=at(3), alone=True)]
    history.runs.append(run("probe", start=2.0, end=2.1))
    assert too_slow(replace(history), 1.0) == []
    history.runs[-1].at = at(2.2)
    assert [breach.law for breach in too_slow(replace(history), 1.0)] == ["starved"]


def test_what_a_host_with_a_wrong_clock_records_is_told_by_the_right_one(tmp_path: Path, monkeypatch) -> None:
    right = Recorder(tmp_path, "right")
    right.write()
    monkeypatch.setattr("tests.app.record.CLOCK", 600)
    monkeypatch.setattr("tests.app.record.time.time_ns", lambda real=time.time_ns: real() + 600 * 10**9)
    wrong = Recorder(tmp_path, "wrong")
    wrong.write()
    (first,), (second,) = lines(tmp_path, "right.jsonl"), lines(tmp_path, "wrong.jsonl")
    assert 0 <= second["w"] - first["w"] < 300_000


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    web, runs, faults = (Recorder(tmp_path, name) for name in ("web-0.1", "runs-7", "faults"))
    web.write(op="0.1:1", say="invoked", what="schedule", delay=0, queue="default")
    web.write(op="0.1:1", say="ids", ids=["a"])
    web.write(op="0.1:1", say="ok", jobs=[["a", True, 5]])
    web.write(op="0.1:2", say="invoked", what="cancel", job="a")
    runs.write(run="began", job="a", fence="f", op="0.1:1", task="quick", attempt=1, due=0, pid=7, name="order:1", turn=3)
    runs.write(run="ended", job="a", fence="f", how="ok")
    faults.write(kind="kill worker", at=1, since=2, until=3, detail="", alone=False, parts=["orders"])
    with open(runs.path, "a") as file:
        file.write('{"run": "beg')  # the writer was killed
    history = read(tmp_path, Final(), CAMPAIGN)
    assert (history.ops["0.1:1"].answer, history.ops["0.1:2"].answer) == ("ok", "unknown")
    assert history.ops["0.1:1"].ids == ["a"]
    assert [(one.job, one.how, one.name, one.turn) for one in history.runs] == [("a", "ok", "order:1", 3)]
    assert history.faults == [FaultSeen(kind="kill worker", at=1, since=2, until=3, parts=("orders",))]
    assert len(json.loads(web.path.read_text().splitlines()[0])["op"]) == 5


def test_the_report_tells_the_story_of_a_violation() -> None:
    history = good()
    history.runs.append(run("stopped", start=5, end=6))
    history.faults = [FaultSeen(kind="kill worker", at=at(1), since=at(1), until=at(2))]
    breaches = judge(history)
    assert "never after a cancel 1" in page(history, breaches, ["a note"], "campaign")
    assert "c1 answered ok done" in details(history, breaches)


class Empty:
    """A stage without processes."""

    database = object()
    kind = "postgres"
    workers = (1, 2, 3)
    schedules = 1
    clock: Any = object()
    nodes: tuple[Any, ...] = (object(),)
    masters: Any = None
    rolls = False
    skews = True
    second_site: Any = None
    settings = ""


class OnMasters(Empty):
    """The same with masters that have replicas."""

    clock, nodes = None, ()

    def __init__(self, masters: type[Masters], *, splits: bool = False) -> None:
        self.masters = masters.__new__(masters)  # not made: it would have servers
        self.masters.atomic = True
        self.masters.wires = Wires() if splits else None


def sequence(seed: int, stage: Any = None) -> list[Any]:
    script = Script(stage or Empty(), f"faults/{seed}")
    return [
        (
            scene.calm,
            [[(pause, fault.kind, fault.detail, fault.place) for pause, fault in band] for band in scene.bands],
        )
        for scene in islice(script.scenes(), 12)
    ]


def test_the_same_seed_gives_the_same_faults() -> None:
    assert sequence(7) == sequence(7) != sequence(8)
    bands = [bands for calm, bands in sequence(7) if not calm]
    assert list({len(band) for band in bands}) == [7]  # three workers, web, Redis, proxy, database
    assert all(len(bands) == 1 for calm, bands in sequence(7) if calm)


def rehearsed(tmp_path: Path, *words: str, hashes: str = "1") -> list[dict[str, Any]]:
    """The output of a web process. It runs in another process, as in a campaign, because it is another project."""
    environment = {**project(tmp_path, "unix:///nowhere", sqlite(":memory:"), SETTINGS), "PYTHONHASHSEED": hashes}
    said = subprocess.run(
        [sys.executable, "-m", "tests.campaign.rehearsal", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in said.stdout.splitlines()]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_operations(tmp_path: Path) -> None:
    first = rehearsed(tmp_path, "7", "150")
    assert {line["what"] for line in first if line["say"] == "invoked"} == {
        "schedule",
        "cancel",
        "cancel_key",
        "reschedule",
        "run_now",
        "requeue",
        "pause",
    }
    assert rehearsed(tmp_path, "7", "150", hashes="2") == first
    assert rehearsed(tmp_path, "8", "150") != first

    def independent(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The calls, whether or not there is a job to change."""
        return [
            line for line in said if line["say"] == "invoked" and line["what"] in ("schedule", "cancel_key") and "repeat" not in line
        ]

    down = rehearsed(tmp_path, "7", "150", "down")
    assert not [line for line in down if line["say"] == "ok"]
    assert independent(down) == independent(first)  # whatever is answered


def kinds(stage: Any = None) -> set[str]:
    return {kind for _, bands in sequence(7, stage) for band in bands for _, kind, *_ in band}


OF_MASTERS = {kind.kind for kind in (*failovers.ALL, *slot_moves.ALL)}
OF_NODES = {kind.kind for kind in ALL if issubclass(kind, NodeFault)} | {"clock forward", "clock back"}


def test_every_kind_of_fault_comes() -> None:
    everywhere = (
        {kind.kind for kind in ALL} - OF_MASTERS - OF_NODES - {"lock database", "another site"}
    )  # for SQLite, and for two sites
    assert kinds() == everywhere | OF_NODES
    of_clusters = OF_MASTERS - {"fail over by sentinel"}
    assert kinds(OnMasters(ClusterMasters)) == everywhere | of_clusters - {"split network"}
    assert kinds(OnMasters(ClusterMasters, splits=True)) == everywhere | of_clusters
    of_sentinel = {kind.kind for kind in failovers.ALL} - {"fail over by hand", "split network"}
    assert kinds(OnMasters(SentinelMasters)) == everywhere | of_sentinel


def test_beside_another_site_redis_is_never_empty() -> None:
    """An empty Redis belongs to the first site that comes."""
    stage = Empty()
    stage.second_site = object()
    assert kinds(stage) == (kinds() | {"another site"}) - {"wipe redis"}


def test_in_a_roll_each_scene_of_single_faults_begins_with_one() -> None:
    stage = Empty()
    stage.rolls, stage.settings = True, ROLL[0]
    scenes = sequence(7, stage)
    assert all(bands[0][0][1] == ROLLING for calm, bands in scenes if calm)
    assert not any(kind == ROLLING for calm, bands in scenes if not calm for band in bands for _, kind, *_ in band)


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        ("D028", ["4 16", "16 4", "4 16", "16 4"]),  # the former number is needed for ever
        ("D027", ["4 16", "16 4", "16", "16 4", "4 16", "4", "4 16", "16 4", "16"]),
    ],
)
def test_a_roll_takes_a_deploy_for_looking_and_one_for_putting_and_one_more_when_doctor_says_so(
    told: str, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.campaign.rolling.PATIENCE", 0.1)
    monkeypatch.setattr(DropFormer, "_doctor", lambda fault: {told, "D004"})
    actor = SimpleNamespace(environment={}, terminate=lambda: None, start=lambda: None)
    deployed: list[str] = []
    stage = SimpleNamespace(
        settings=ROLL[0], workers=[actor], webs=[actor], renew=lambda web: deployed.append(web.environment["APP_PARTITIONS"])
    )
    for _ in range(3):
        for kind in (Roll, DropFormer):
            kind(stage, random.Random(1)).begin()
    assert deployed == seen


def test_what_is_recorded_is_told_by_the_clock_of_redis(tmp_path: Path) -> None:
    web, runs, clock = (Recorder(tmp_path, name) for name in ("web-0.1", "runs-7", "clock"))
    runs.write(run="began", job="a", fence="e", op="0.1:1", task="quick", attempt=1, due=0, pid=7)
    clock.write(before=1, offset=3_600_000)
    runs.write(run="began", job="a", fence="f", op="0.1:1", task="quick", attempt=1, due=0, pid=7)
    web.write(op="0.1:1", say="invoked", what="schedule", delay=0, queue="default")
    clock.write(before=1, offset=-3_600_000)
    web.write(op="0.1:2", say="invoked", what="schedule", delay=0, queue="default")
    history = read(tmp_path, Final(), CAMPAIGN)
    first, second = history.runs
    assert 3_600_000 <= second.wall - first.wall < 3_700_000
    assert -3_600_000 <= history.ops["0.1:2"].wall - history.ops["0.1:1"].wall < -3_500_000
    assert history.stepped(first.at, second.at)
    assert not history.stepped(second.at + 10**12, second.at + 10**13)
