"""Measures systems beside each other.

    python -m benchmarks                                     own figures, about five minutes
    python -m benchmarks --peers                             all systems; installs what is missing
    python -m benchmarks --systems delayq,bullmq --metrics noop,burst --rounds 5 --size 0.2

In each round each system is measured in turn, with a fresh server; what counts is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import metrics, report
from benchmarks.metrics import Metric
from benchmarks.servers import Redis, ServerMissing
from benchmarks.stage import Failed
from benchmarks.systems import ALL, OWN, ROOT, NotInstalled, System

RESULTS = ROOT / ".bench" / "results.json"


def main() -> int:
    """Measures, prints a table per metric, writes the results."""
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    options.add_argument("--peers", action="store_true", help="all systems")
    options.add_argument("--systems", default=OWN.name, help=f"of: {', '.join(ALL)}")
    options.add_argument("--metrics", help=f"of: {', '.join(metrics.NAMES)}")
    options.add_argument("--rounds", type=int, default=0, help="default: as each metric says")
    options.add_argument("--size", type=float, default=1.0, help="scales the numbers of jobs")
    options.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes; what stands there is kept")
    given = options.parse_args()
    systems = _installed([ALL[name] for name in (ALL if given.peers else given.systems.split(","))])
    chosen = [metrics.load(name) for name in (given.metrics.split(",") if given.metrics else metrics.NAMES)]
    if not given.peers and not given.metrics:
        chosen = [metric for metric in chosen if not metric.slow]
    document = _read(given.results)
    document["ran_on"] = _ran_on()
    document["size"] = given.size
    document.setdefault("systems", {}).update(systems)
    present = [ALL[name] for name, what in systems.items() if "missing" not in what]
    for metric in chosen:
        print(f"\n## {metric.title}\n\n{metric.text}\n", flush=True)
        taken = _measure(metric, present, given.rounds or metric.rounds, given.size)
        document.setdefault("metrics", {}).setdefault(metric.name, {}).update(taken)
        print(report.table(metric, document), flush=True)
        given.results.parent.mkdir(parents=True, exist_ok=True)
        given.results.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nResults: {given.results}")
    return 0


def _installed(systems: Sequence[System]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for system in systems:
        print(f"{system.name} ", end="", flush=True)
        try:
            system.install()
            found[system.name] = dict(system.facts)
            print(f"{found[system.name]['version']}: {found[system.name]['settings']}", flush=True)
        except NotInstalled as error:
            found[system.name] = {"missing": str(error)}
            print(f"cannot be measured here: {error}", flush=True)
    return found


def _measure(metric: Metric, systems: Sequence[System], rounds: int, size: float) -> dict[str, Any]:
    takes = [one for one in systems if not metric.own_only or one.source == "own" or one.name in metric.also]
    rows: dict[str, dict[str, list[float | None]]] = {system.name: {} for system in takes}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for system in takes:
            if system.name in failed:
                continue
            began = time.monotonic()
            try:
                figures = metric.measure(system, size)
            except (Failed, ServerMissing) as error:
                failed[system.name] = " ".join(str(error).split())
                print(f"  {system.name}: {failed[system.name]}", file=sys.stderr, flush=True)
                continue
            for name, value in figures.items():
                rows[system.name].setdefault(name, []).append(value)
            shown = ", ".join(f"{name} {_short(value)}" for name, value in figures.items())
            print(
                f"  round {number + 1}, {system.name} ({time.monotonic() - began:.0f} s): {shown}",
                file=sys.stderr,
                flush=True,
            )
    return {
        name: {"failed": failed[name]}
        if name in failed
        else {"median": {column: _median(values) for column, values in taken.items()}, "rounds": taken}
        for name, taken in rows.items()
    }


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}  # type: ignore[no-any-return]


def _ran_on() -> dict[str, Any]:
    with Redis() as redis:
        server = redis.version()
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "server": server,
        "settings": {name: value or "off" for name, value in Redis.SETTINGS.items()},
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    raise SystemExit(main())
