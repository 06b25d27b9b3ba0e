"""`make verify` runs the checks that need hours, chance or a quiet machine, and writes their figures to verify.json.

`python -m tests.verify crashpoints drill` runs only these parts and keeps the figures of the others. `--check` warns of parts whose
figures are missing, red, or of other code than the engine's folders hold now. `--promises` prints, for each test that
proves a promise of the documentation, which command runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.promises import PROMISES

ROOT = Path(__file__).parents[1]
ENGINE = ("store", "producer", "worker", "mirror")
LOGS = ROOT / "build" / "verify"
PASSED, FAILED = r"(\d+) passed\b", r"(\d+) (?:failed|errors?)\b"


@dataclass(frozen=True)
class Part:
    """A command that ends with 0 if nothing is wrong. `cases` and `failures` find their numbers in its output; a pattern without a
    group counts its matches. `needs` are the stamps of the Makefile that the command installs into .venv.
    """

    command: tuple[str, ...]
    cases: str = PASSED
    failures: str = FAILED
    needs: tuple[str, ...] = ()
    alone: bool = False


# In the order in which they begin: the longest first, so that none of these is left over at the end.
PARTS = {
    "oldest": Part(("make", "test-oldest"), needs=(".make/redis62", ".make/oldest")),
    "newest": Part(("make", "test-newest"), needs=(".make/py313",)),
    "slow": Part(("make", "test-slow-others"), needs=(".make/postgres",)),
    "crashpoints": Part(("make", "crashpoints"), r"(\d+) cases at", r"(\d+) went wrong"),
    "model": Part(("make", "test-slow-model")),
    "browser": Part(("make", "test-browser"), needs=(".make/browser",)),
    "mutation": Part(("make", "mutation", "MUTATION=--sample 40"), r"(?m)^all +(\d+)", r"(\d+) are not as they should be"),
    "drill": Part(("make", "mutants"), r"of (\d+) noticed", r"(?m)^(?!no mutant ).*not noticed$"),
    "outage": Part(("make", "test-slow-outage"), needs=(".make/postgres",)),
    "simulation": Part(("make", "simulation"), r"(\d+) orders placed", r"WRONG +(\d+)"),
    # Its judge measures how fast jobs run again after each fault.
    "campaign": Part(
        ("make", "campaign", "SECONDS=75", "SEED=1", "CAMPAIGN=--jobs-rate 200 --slack 5"),
        r"(?m)^jobs +(\d+)",
        r"(?m)^violations +(\d+)",
        needs=(".make/postgres",),
        alone=True,
    ),
}


def engine_hash(package: Path = ROOT / "django_delayq") -> str:
    """Names the content of the engine's folders."""
    found = hashlib.sha256()
    for path in sorted(path for name in ENGINE for path in (package / name).rglob("*") if path.suffix in (".py", ".lua")):
        found.update(f"{path.relative_to(package)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


class Report:
    """The content of verify.json. It is written after each part, so that an interrupted run keeps what it has."""

    def __init__(self, path: Path = ROOT / "verify.json") -> None:
        self.path = path
        self.parts: dict[str, dict[str, Any]] = json.loads(path.read_text())["parts"] if path.exists() else {}
        self._lock = threading.Lock()

    def write(self, name: str, figures: dict[str, Any]) -> None:
        """Replaces the figures of one part."""
        with self._lock:
            self.parts[name] = figures
            content = {
                "date": figures["date"],
                "engine": figures["engine"],
                "parts": {part: self.parts[part] for part in PARTS if part in self.parts},
            }
            self.path.write_text(json.dumps(content, indent=2) + "\n")

    def warnings(self, engine: str) -> list[str]:
        """The problems of the figures, one per line."""
        return [line for name in PARTS if (line := self._warning(name, engine))]

    def _warning(self, name: str, engine: str) -> str:
        figures = self.parts.get(name)
        again = f'Run make verify PARTS="{name}".'
        if figures is None:
            return f"verify.json has no figures of {name}. {again}"
        if figures["result"] != "passed":
            return f"{name} failed on {figures['date']}. {again}"
        if figures["engine"] != engine:
            return f"{name} last ran on {figures['date']}, on engine {figures['engine']}; this is {engine}. {again}"
        return ""


def play(name: str, parts: dict[str, Part], report: Report) -> bool:
    """Runs a part, writes its figures, and returns whether it passed. Its output goes to build/verify."""
    part = parts[name]
    engine, began = engine_hash(), time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    with open(LOGS / f"{name}.log", "w+", encoding="utf-8", errors="replace") as log:
        code = subprocess.run(part.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode
        log.seek(0)
        output = log.read()
    figures = {
        "command": " ".join(f"{word!r}" if " " in word else word for word in part.command),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "engine": engine,
        "cases": count(part.cases, output),
        "failures": count(part.failures, output),
        "seconds": round(time.monotonic() - began),
        "result": "failed" if code else "passed",
    }
    report.write(name, figures)
    print(
        f"{name:12} {figures['result']:7} {figures['cases']:6} cases {figures['failures']:4} failures {figures['seconds']:6} s",
        flush=True,
    )
    if code:
        print(f"{output[-4000:]}\n{name} ended with {code}; its output is in {log.name}", flush=True)
    return not code


def count(pattern: str, output: str) -> int:
    """Adds up the numbers that the pattern finds; without a group, counts what it finds."""
    found = re.findall(pattern, output)
    return sum(map(int, found)) if re.compile(pattern).groups else len(found)


def run(names: Sequence[str], parts: dict[str, Part], report: Report, at_once: int) -> bool:
    """Runs these parts, so many at a time, and those that want a quiet machine after them. Returns whether all passed."""
    crowd = [name for name in parts if name in names and not parts[name].alone]
    with ThreadPoolExecutor(at_once) as pool:
        passed = list(pool.map(lambda name: play(name, parts, report), crowd))
    return all([*passed, *(play(name, parts, report) for name in parts if name in names and parts[name].alone)])


# Promises


class _Collected:
    """A plugin of pytest that keeps what was collected."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def promises() -> dict[str, set[str]]:
    """The command or commands that run each test of a promise; none for one that does not exist."""
    named: dict[str, set[str]] = {test: set() for promise in PROMISES.values() for test in promise.tests}
    plugin = _Collected()
    files = sorted({name.partition("::")[0] for name in named} & {str(path.relative_to(ROOT)) for path in ROOT.rglob("tests/**/*.py")})
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[plugin])
    if code:
        sys.exit(said.getvalue())
    for item in plugin.items:
        path, _, test = item.nodeid.partition("[")[0].partition("::")
        name = f"{path}::{test.rpartition('::')[2]}"  # without its class
        if name in named:
            left_out = item.get_closest_marker("slow") or item.get_closest_marker("browser")
            named[name].add("make verify" if left_out else "make test")
    return named


def main(words: Iterable[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one or more of {', '.join(PARTS)}; without one, all")
    parser.add_argument("--check", action="store_true", help="print warnings about verify.json, and end with 0")
    parser.add_argument("--promises", action="store_true", help="print which command runs each test of a promise")
    parser.add_argument("--at-once", type=int, default=2, help="parts side by side")
    given = parser.parse_args(None if words is None else list(words))
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"Unknown part {unknown[0]!r}. Choose from {', '.join(PARTS)}.")
    if given.check:
        for line in Report().warnings(engine_hash()):
            print(f"WARNING: {line}")
        return 0
    if given.promises:
        found = promises()
        for name, commands in found.items():
            print(f"{' and '.join(sorted(commands)) or 'NOTHING':26} {name}")
        return int(not all(found.values()))
    names = given.parts or list(PARTS)
    if needs := sorted({stamp for name in names for stamp in PARTS[name].needs}):
        subprocess.run(["make", *needs], cwd=ROOT, check=True)  # one after the other, since two of pip would meet in .venv
    return int(not run(names, PARTS, Report(), given.at_once))


if __name__ == "__main__":
    sys.exit(main())
