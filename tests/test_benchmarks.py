"""The benchmarks' own rules: what is documented is there, and a run that was stopped goes on where it stood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import metrics, report
from benchmarks.metrics import Column, Figures, Metric
from benchmarks.run import Run
from benchmarks.systems import ALL, OWN, ROOT, System

PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
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
    assert "| celery | did not do it |" in table
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
    assert "Numbers of jobs are 0.25 of what is said above: all." in table
