"""The benchmarks' own rules: what is documented is there, and a run that was stopped goes on where it stood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import compare, metrics, report, sightings
from benchmarks.metrics import Column, Figures, Metric
from benchmarks.run import Run
from benchmarks.servers import Masters, slot, valkey_program
from benchmarks.sightings import Watch
from benchmarks.systems import ALL, OWN, ROOT, System
from django_delayq.store.connection.error_replies import SLOTS
from tests.conftest import missing

PAGE = (ROOT / "docs" / "topics" / "benchmarks.md").read_text()
CELERY = ALL["celery"]


@pytest.mark.parametrize("name", metrics.NAMES)
def test_every_metric_is_documented_and_bears_the_name_of_its_file(name: str) -> None:
    assert metrics.load(name).name == name
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("system", ALL.values(), ids=ALL)
def test_every_system_has_an_adapter(system: System) -> None:
    *_, adapter, verb = system.command("facts")
    assert verb == "facts"
    path = Path(adapter) if "/" in adapter else ROOT / f"{adapter.replace('.', '/')}.py"
    assert path.exists()


class Meter:
    """A metric that counts what it is asked for; `breaks`: the system that cannot do it."""

    def __init__(self, breaks: str = "") -> None:
        self.asked: list[str] = []
        self.breaks = breaks
        columns = {"rate": Column(title="jobs per second")}
        self.metric = Metric(name="single", title="Made up", text="Nothing.", columns=columns, measure=self.measure, rounds=2)

    def measure(self, system: System, size: float) -> Figures:
        self.asked.append(system.name)
        if system.name == self.breaks:
            raise ZeroDivisionError("it broke")
        return {"rate": 10.0 * len(self.asked) * size}


def run(path: Path, *, size: float = 1.0, resume: bool = False, minutes: float = 0.0) -> Run:
    return Run(path, size=size, rounds=0, resume=resume, minutes=minutes)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    return tmp_path / "results.json"


def test_systems_take_turns_and_the_median_of_the_rounds_counts(path: Path) -> None:
    meter = Meter()
    assert run(path).take([meter.metric], [OWN, CELERY])
    assert meter.asked == ["delayq", "celery", "delayq", "celery"]
    rows = json.loads(path.read_text())["metrics"]["single"]
    assert rows["delayq"]["rounds"] == {"rate": [10.0, 30.0]}
    assert rows["delayq"]["median"] == {"rate": 20.0}


def test_a_run_that_is_gone_on_with_takes_only_what_is_missing(path: Path) -> None:
    first = Meter()
    Run(path, size=1.0, rounds=1, resume=False, minutes=0).take([first.metric], [OWN, CELERY])
    more = Meter()
    run(path, resume=True).take([more.metric], [OWN, CELERY])
    assert more.asked == ["delayq", "celery"]
    run(path, resume=True).take([more.metric], [OWN, CELERY])
    assert more.asked == ["delayq", "celery"]


def test_figures_of_another_size_are_not_gone_on_with(path: Path) -> None:
    run(path, size=0.5).take([Meter().metric], [OWN])
    meter = Meter()
    run(path, resume=True).take([meter.metric], [OWN])
    assert meter.asked == ["delayq", "delayq"]
    assert json.loads(path.read_text())["metrics"]["single"]["delayq"]["rounds"] == {"rate": [10.0, 20.0]}


def test_a_system_that_breaks_is_named_and_does_not_stop_the_others(path: Path) -> None:
    meter, mine = Meter(breaks="celery"), run(path)
    assert mine.take([meter.metric], [OWN, CELERY])
    assert meter.asked == ["delayq", "celery", "delayq"]
    table = report.table(meter.metric, mine.document)
    assert "| celery | not supported |" in table
    assert "- celery: it broke" in table


def test_when_the_time_is_up_nothing_more_is_begun(path: Path) -> None:
    meter = Meter()
    assert not run(path, minutes=-1).take([meter.metric], [OWN])
    assert meter.asked == []


def test_a_table_says_that_there_were_fewer_jobs_and_how_many_times_ours_is_better(path: Path) -> None:
    meter, mine = Meter(), run(path, size=0.25)
    mine.take([meter.metric], [OWN, CELERY])
    table = report.table(meter.metric, mine.document)
    assert "| delayq | **5** |" in table
    assert "| celery | 8 (0.7×) |" in table
    assert "Measured with a fraction of the number of jobs above: 0.25 (all)." in table


def test_a_group_stands_for_its_metrics() -> None:
    assert metrics.named("noop,cluster,burst") == ["noop", *metrics.GROUPS["cluster"], "burst"]
    assert {name for group in metrics.GROUPS.values() for name in group} <= set(metrics.NAMES)


def test_the_partitions_of_a_benchmark_are_dealt_to_the_masters_in_turn_and_all_slots_are_served() -> None:
    slots: list[set[int]] = [set(), set(), set()]
    for number, parts in enumerate(Masters(5).parts):
        for part in parts.split(" "):
            first, last = map(int, part.split("-"))
            slots[number] |= set(range(first, last + 1))
    assert [[slot(partition) in some for some in slots].index(True) for partition in range(5)] == [0, 1, 2, 0, 1]
    assert sorted(number for some in slots for number in some) == list(range(SLOTS))


MOMENT = 1_790_000_123.25


@pytest.mark.parametrize("moment", [MOMENT, MOMENT + 700, MOMENT + 899], ids=str)
@pytest.mark.parametrize(("number", "partition"), [(1, 0), (100_700, 511)])
def test_a_mark_tells_which_job_ran_where_and_when(number: int, partition: int, moment: float) -> None:
    [found] = sightings.read([sightings.mark(number, partition, moment)], since=MOMENT)
    assert (found.number, found.partition) == (number, partition)
    assert found.moment == pytest.approx(moment, abs=1e-4)


def watched(*runs: tuple[int, int, float]) -> Watch:
    """Runs with that number, partition and lateness; all were due after `MOMENT`."""
    due = [(number, partition, MOMENT + number * sightings.EVERY + late) for number, partition, late in runs]
    return Watch([sightings.mark(*one) for one in due], MOMENT)


def test_the_latest_job_says_how_long_its_partition_stood_still() -> None:
    watch = watched((1, 0, 0.001), (2, 1, 0.002), (100, 0, 3.0), (101, 1, 0.1))
    assert watch.lateness([0]) == pytest.approx([0.001, 3.0], abs=1e-4)
    assert watch.lateness([1], since=MOMENT + 0.25) == pytest.approx([0.1], abs=1e-4)
    assert watch.lateness(until=MOMENT + 0.25) == pytest.approx([0.001, 0.002], abs=1e-4)


def test_a_partition_runs_again_when_it_runs_what_was_due_later() -> None:
    killed = MOMENT + 1.0
    watch = watched((100, 0, 1.0), (300, 0, 2.0), (301, 1, 0.0))  # the first was due before the kill, and runs after it
    assert watch.again([0], killed) == pytest.approx(2.5, abs=1e-4)
    assert watch.again([1], killed) == pytest.approx(0.505, abs=1e-4)
    assert watch.again([0, 2], killed) == float("inf")


def test_what_runs_twice_is_counted_once() -> None:
    watch = watched((1, 0, 0.0), (1, 0, 1.0), (2, 0, 0.0))
    assert (watch.distinct(), watch.twice()) == (2, 1)


def test_ratios_of_two_checkouts_are_those_of_their_rounds() -> None:
    this: compare.Rounds = {"one": [100, 50, 300], "life_us": [20, None, 22]}
    other: compare.Rounds = {"one": [200, 50, 310], "life_us": [20, 20, 20]}
    rate, cpu = compare.lines_of("noop", this, other)
    assert (rate.this, rate.other, rate.ratio) == (100, 200, pytest.approx(300 / 310))
    assert (cpu.this, cpu.other, cpu.ratio) == (21, 20, pytest.approx(1.05))
    assert "| noop | one process, jobs/s | 100 | 200 | 0.968 | 0.500–1.000 |  |" in compare.table([rate], 3)


def test_a_figure_is_worse_only_when_the_whole_interval_is() -> None:
    slower = compare.lines_of("noop", {"one": [90.0] * 6, "life_us": [22.0] * 6}, {"one": [100.0] * 6, "life_us": [20.0] * 6})
    assert [[line.worse(most) for most in (3, 12)] for line in slower] == [[True, False], [True, False]]
    assert "| 0.900–0.900 | worse by more than 3 % |" in compare.table(slower, 3)
    noisy = compare.lines_of("noop", {"one": [90.0] * 5 + [99.0]}, {"one": [100.0] * 6})
    assert not noisy[0].worse(3)


def test_the_interval_of_a_median_leaves_out_what_chance_allows() -> None:
    # From the table of the sign test: 6 values omit none, 40 omit 13 at each end (P = 0.019).
    assert compare.interval(range(3)) == (0, 2)
    assert compare.interval(range(6)) == (0, 5)
    assert compare.interval(range(40)) == (13, 26)


def test_a_figure_that_one_checkout_lacks_is_left_out() -> None:
    assert compare.lines_of("noop", {"one": [1.0]}, {}) == []
    assert compare.lines_of("noop", {"one": [1.0]}, {"one": [None]}) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", metrics.GROUPS["cluster"])
def test_each_metric_of_the_cluster_gives_all_its_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "benchmarks.settings")  # for the programs that it starts
    monkeypatch.setenv("BENCH_ROOM", "6")  # beside other work
    metric = metrics.load(name)
    found = metric.measure(OWN, 0.02) or missing("no PostgreSQL, or no driver for it")
    wanted = {figure for figure in metric.columns if not figure.startswith("whole_") or valkey_program()}
    assert {figure for figure, value in found.items() if value is not None} >= wanted
    assert all(found.get(figure, 0) == 0 for figure in ("lost", "keys_lost", "whole_lost", "keys_twice", "whole_twice"))
