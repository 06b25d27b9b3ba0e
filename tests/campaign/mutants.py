"""Checks that the campaign's drill, or the test named with the fault, notices each fault of the past (tests/model/mutants.py).

`python -m tests.campaign.mutants` runs the drill (tests/campaign/drill.py, up to 20 s) on a copy of the package with each fault.
First it runs on a copy without faults, where it must find nothing. Faults outside of the drill's situations (`drill=False`) are given
to their test instead, which must pass on the copy without faults. The command exits with 1 if a fault is not noticed. `--seconds 25`
adds a random campaign of that length with real workers after each drill that noticed nothing: half a minute for each. `--only claim`
selects the faults with that word in file or name. `--sample 4` selects one in four, always the same.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from django_delayq.store.connection.link import connect
from django_delayq.store.keys import Keys
from tests.campaign.witness import Witness, watch
from tests.model.copies import ROOT, copy
from tests.model.mutant import Mutant
from tests.model.mutants import ALL

# Those that make jobs change hands and replies go astray; the others of the campaign are about servers.
FAULTS = "kill worker,kill task process,pause worker,pause supervisor,pause redis,proxy swallows,proxy resets"
DRILL = 180.0  # seconds; twenty on a machine that has nothing else to do. One that does not end has noticed nothing
PYTEST = ("pytest", "-qq", "-n", "0", "-p", "no:cacheprovider", "--tb=no")
PATIENCE = 60.0  # seconds after the load; a campaign without a mutant is quiet within ten

QUEUES = ("default", "orders", "redis")  # as in tests/campaign/stage.py
MAX_CRASHES = 3
SHOWN = 110  # characters of a finding


@dataclass(frozen=True)
class Verdict:
    """The result of one campaign. `found`: its violations, or ""."""

    mutant: Mutant | None
    found: str
    seconds: float

    def line(self) -> str:
        """For the report."""
        name = f"{self.mutant.file}: {self.mutant.name}" if self.mutant else "no mutant"
        return f"{name:72} {self.seconds:4.0f} s  {self.found or 'not noticed'}"

    @property
    def well(self) -> bool:
        """Whether it is as it should be."""
        return bool(self.found) == (self.mutant is not None)


def main(words: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.mutants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0, help="of each campaign, 0: the drill alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the file or the name")
    parser.add_argument("--sample", type=int, default=1, help="one in so many")
    parser.add_argument("--at-once", type=int, default=1, help="campaigns side by side")
    given = parser.parse_args(words)
    wanted = chosen(given.only, given.sample)
    tests = [mutant.test for mutant in wanted if not mutant.drill]
    for first in (drill(None), *([tested(None, tests)] if tests else [])):
        print(first.line(), flush=True)
        if not first.well:
            return 1
    verdicts = []
    with ThreadPoolExecutor(given.at_once) as pool:
        for verdict in pool.map(lambda mutant: one(mutant, given.seconds, given.seed), wanted):
            print(verdict.line(), flush=True)
            verdicts.append(verdict)
    seen = sum(bool(verdict.found) for verdict in verdicts)
    print(f"{seen} of {len(verdicts)} noticed")
    return 1 if seen < len(verdicts) else 0


def chosen(only: str = "", sample: int = 1) -> list[Mutant]:
    """Those with that word in file or name; of them one in so many, the worker's first."""
    found = [mutant for mutant in reversed(ALL) if only in f"{mutant.file}: {mutant.name}"]
    return sorted(found, key=lambda mutant: not mutant.file.startswith("worker/"))[::sample]


def one(mutant: Mutant, seconds: float, seed: int) -> Verdict:
    """The test of what no drill notices; else the drill, and if it notices nothing, a campaign of so many seconds."""
    if not mutant.drill:
        return tested(mutant, [mutant.test])
    verdict = drill(mutant)
    if verdict.found or not seconds:
        return verdict
    return campaign(mutant, seconds, seed)


def drill(mutant: Mutant | None) -> Verdict:
    """Plays it on a copy of the package with that fault. One that broke off has noticed nothing."""
    found, seconds = _ran(mutant, "tests.campaign.drill")
    return Verdict(mutant, "" if mutant and "Traceback" in found else found[:SHOWN], seconds)


def tested(mutant: Mutant | None, tests: list[str]) -> Verdict:
    """Runs them on such a copy. A test that fails has noticed the fault, one that cannot be run or skips has noticed nothing."""
    found, seconds = _ran(mutant, *PYTEST, *tests)
    return Verdict(mutant, found.rpartition("\n")[2][:SHOWN], seconds)


def _ran(mutant: Mutant | None, *words: str) -> tuple[str, float]:
    """Runs a module on a copy of the package with that fault. An exit code of 1 means that it was noticed. Without a fault, any exit
    code but 0 is reported, too. Returns the output and the seconds.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mu-") as name:
        environment = {**os.environ, **copy(mutant, Path(name)), "TMPDIR": name}
        try:
            played = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env=environment,
                text=True,
                timeout=DRILL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "" if mutant else f"{words[0]} did not end", time.monotonic() - began
    said, code = played.stdout.strip(), played.returncode
    if code and mutant is None:
        said = said or f"{words[0]} ended with {code}"
    elif code != 1:
        said = ""
    return said, time.monotonic() - began


def campaign(mutant: Mutant | None, seconds: float, seed: int) -> Verdict:
    """Runs one on a copy of the package with that fault, with a witness beside it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mu-") as name:
        folder = Path(name)
        environment = {**os.environ, **copy(mutant, folder), "TMPDIR": name}
        command = [
            sys.executable,
            "-m",
            "tests.campaign",
            "--seconds",
            str(seconds),
            "--seed",
            str(seed),
            "--faults",
            FAULTS,
            "--slack",
            "0",
            "--workers",
            "2",
            "--webs",
            "2",
            "--jobs-rate",
            "150",
            "--fsync",
            "always",
        ]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            over = threading.Event()
            witnesses = _witnesses(folder, process)
            looking = watch(witnesses, lambda: over.is_set() or process.poll() is not None)
            try:
                said, _ = process.communicate(timeout=seconds + PATIENCE)
                told = found(process.returncode, said)
            except subprocess.TimeoutExpired:
                process.kill()  # what it has started ends with it
                process.communicate()
                told = "never quiet"
            over.set()
            looking.join()
    seen = [text for witness in witnesses for text in witness.wrong]
    if seen:
        told = "; ".join(filter(None, [told, f"witness: {seen[0]}"]))
    return Verdict(mutant, told, time.monotonic() - began)


def _witnesses(folder: Path, process: subprocess.Popen[str]) -> list[Witness]:
    """One per queue, on the server that the campaign has started in that folder."""
    deadline = time.monotonic() + 30
    while not (sockets := list(folder.glob("dq-*/r.sock"))):
        if process.poll() is not None or time.monotonic() > deadline:
            return []
        time.sleep(0.05)
    link = connect(f"unix://{sockets[0]}", name="witness")
    return [Witness(link, Keys("delayq", queue), max_crashes=MAX_CRASHES) for queue in QUEUES]


def found(code: int, said: str) -> str:
    """The violations that a campaign reports, in a line."""
    summary = re.search(r"^violations +(\d+)(?:: (.*))?$", said, re.MULTILINE)
    if summary is None:
        lines = said.strip().splitlines()
        return f"the campaign broke off with {code}: {lines[-1] if lines else ''}"
    return summary[2] or ""


if __name__ == "__main__":
    sys.exit(main())
