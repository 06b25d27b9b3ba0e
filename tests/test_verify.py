"""`make verify`: what it writes, which figures it keeps, and which tests it leaves to `make test`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import verify
from tests.verify import PARTS, ROOT, Part, Report, count, engine_hash, run

MAKEFILE = (ROOT / "Makefile").read_text()


def printing(text: str, code: int = 0) -> Part:
    return Part((sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"))


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr(verify, "LOGS", tmp_path)
    return Report(tmp_path / "verify.json")


def read(report: Report) -> dict[str, dict[str, object]]:
    return json.loads(report.path.read_text())["parts"]


def test_a_part_that_runs_alone_keeps_the_figures_of_the_others(report: Report):
    drill = {"command": "make mutants", "date": "2026-01-01", "engine": "old", "result": "passed"}
    report.write("drill", drill)
    assert run(["model"], {"drill": printing("0 passed"), "model": printing("==== 12 passed in 3.10s ====")}, report, at_once=2)
    parts = read(Report(report.path))
    assert parts["drill"] == drill
    assert {name: parts["model"][name] for name in ("engine", "cases", "failures", "result")} == {
        "engine": engine_hash(),
        "cases": 12,
        "failures": 0,
        "result": "passed",
    }


def test_a_part_that_fails_is_recorded_and_the_others_run(report: Report):
    parts = {"model": printing("1 failed, 4 passed, 1 error in 9s", 1), "drill": Part(printing("3 of 3 noticed").command, alone=True)}
    assert not run(list(parts), parts, report, at_once=1)
    written = read(report)
    assert (written["model"]["result"], written["model"]["cases"], written["model"]["failures"]) == ("failed", 4, 2)
    assert written["drill"]["result"] == "passed"


@pytest.mark.parametrize(
    ("name", "output", "found"),
    [
        ("slow", "FAILED tests/a.py::test_b\n2 failed, 151 passed, 3 skipped, 7 warnings, 42 subtests passed in 1100s", (151, 2)),
        ("crashpoints", "2964 cases at 41 failpoints in 600 s: 1 went wrong. Slowest: a 9 s", (2964, 1)),
        (
            "mutation",
            "file  mutants caught\nall            102        99         1         2       300\n1 are not as they should be; 9 s",
            (102, 1),
        ),
        (
            "drill",
            "no mutant    3 s  not noticed\nclaim.lua: a    12 s  the job ran twice\nclaim.lua: b    12 s  not noticed\n1 of 2 noticed",
            (2, 1),
        ),
        ("simulation", "1000 orders placed in 2.0 s\n  ok           0  closed early\n  WRONG        3  closed twice", (1000, 3)),
        ("campaign", "operations  900: x\njobs        812: 800 succeeded\nviolations  2: lost 2", (812, 2)),
    ],
)
def test_the_figures_of_a_part_are_read_from_its_output(name: str, output: str, found: tuple[int, int]):
    assert (count(PARTS[name].cases, output), count(PARTS[name].failures, output)) == found


def test_it_warns_of_parts_that_are_missing_or_red_or_ran_on_another_engine(report: Report):
    for name in PARTS:
        report.write(name, {"date": "2026-01-01", "engine": "this", "result": "passed"})
    assert report.warnings("this") == []
    report.write("drill", {"date": "2026-01-02", "engine": "this", "result": "failed"})
    report.write("model", {"date": "2026-01-03", "engine": "other", "result": "passed"})
    del report.parts["campaign"]
    assert report.warnings("this") == [
        'model last ran on 2026-01-03, on engine other; this is this. Run make verify PARTS="model".',
        'drill failed on 2026-01-02. Run make verify PARTS="drill".',
        'verify.json has no figures of campaign. Run make verify PARTS="campaign".',
    ]


def test_only_the_folders_of_the_engine_change_its_hash(tmp_path: Path):
    for name in ("store/claim.lua", "worker/process/mover.py", "admin/views.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("1")
    before = engine_hash(tmp_path)
    (tmp_path / "admin/views.py").write_text("2")
    (tmp_path / "worker/left.pyc").write_text("2")
    assert engine_hash(tmp_path) == before
    (tmp_path / "worker/process/mover.py").write_text("2")
    assert engine_hash(tmp_path) != before


def test_an_unknown_part_is_refused_with_the_parts_that_there_are(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        verify.main(["crashpoint"])
    assert "Unknown part 'crashpoint'. Choose from " in capsys.readouterr().err


def test_each_part_has_a_target_of_the_makefile():
    targets = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())
    assert {part.command[1] for part in PARTS.values()} <= targets


def test_together_both_commands_run_every_test():
    """`make test` leaves out what is slow or of the browser, and some part of `make verify` has each of these."""

    targets = ("test", "test-slow-others", "test-slow-model", "test-browser")
    done = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=True)
    test, others, model, browser = (line.partition(" -m pytest ")[2] for line in done.stdout.splitlines() if " -m pytest " in line)
    slow = '-m "slow and not browser"'
    assert test.endswith('-m "not slow and not browser" tests')
    assert others.endswith(f"{slow} --ignore tests/model tests")
    assert model == f"{slow} tests/model"
    assert browser.endswith("-m browser tests/browser")
    outside = [path for path in ROOT.glob("tests/**/*.py") if "mark.browser" in path.read_text() and path.parent.name != "browser"]
    assert outside == [Path(__file__)], "the browser's tests are in tests/browser, where make verify looks for them"


def test_each_test_of_a_promise_is_run_by_one_of_the_two():
    done = subprocess.run([sys.executable, "-m", "tests.verify", "--promises"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "NOTHING" in line) + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 350
    assert {line.partition("tests/")[0].strip() for line in lines} <= {"make test", "make verify", "make test and make verify"}
