"""Measures systems beside each other.

    python -m benchmarks                          own figures, all metrics
    python -m benchmarks --peers                  all systems, the metrics that all have; installs what is missing
    python -m benchmarks --peers --minutes 15     as far as it comes; again with --resume: the rest
    python -m benchmarks --systems delayq,bullmq --metrics noop,burst --rounds 5 --size 0.2
    python -m benchmarks --metrics cluster        partitions on a Cluster, beside one server
    python -m benchmarks.compare ../older         beside another checkout, in turn

In each round each system is measured in turn, with a fresh server; what counts is the median of the rounds. Each figure is kept as soon
as it is taken.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import metrics
from benchmarks.report import RESULTS
from benchmarks.run import Run
from benchmarks.servers import Redis
from benchmarks.systems import ALL, OWN, NotInstalled, System


def main() -> int:
    """Measures, writes the results, prints a table per metric."""
    given = _options().parse_args()
    run = Run(given.results, size=given.size, rounds=given.rounds, resume=given.resume, minutes=given.minutes)
    systems = _installed([ALL[name] for name in (ALL if given.peers else given.systems.split(","))])
    run.document["systems"].update(systems)
    if given.install:
        return int(any("missing" in what for what in systems.values()))
    run.document["ran_on"] = _ran_on()
    chosen = [metrics.load(name) for name in (metrics.named(given.metrics) if given.metrics else metrics.NAMES)]
    if not given.metrics:
        chosen = [one for one in chosen if not one.slow and not (given.peers and one.own_only)]
    try:
        run.take(chosen, [ALL[name] for name, what in systems.items() if "missing" not in what])
    except KeyboardInterrupt:
        print("\nStopped. What was measured is kept; --resume goes on.")
        return 130
    finally:
        run.write()
        print(f"\n{run.tables(chosen)}\n\nResults: {given.results}", flush=True)
    return 0


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--peers", action="store_true", help="all systems")
    options.add_argument("--systems", default=OWN.name, help=f"of: {', '.join(ALL)}")
    options.add_argument("--metrics", help=f"of: {', '.join(metrics.NAMES)}; {', '.join(metrics.GROUPS)}: a group of them")
    options.add_argument("--rounds", type=int, default=0, help="default: as each metric says")
    options.add_argument("--size", type=float, default=1.0, help="scales the numbers of jobs")
    options.add_argument("--minutes", type=float, default=0.0, help="begins nothing more after so long")
    options.add_argument("--resume", action="store_true", help="does not take again what the results have")
    options.add_argument("--install", action="store_true", help="installs what is missing, and measures nothing")
    options.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes; what stands there is kept")
    return options


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
