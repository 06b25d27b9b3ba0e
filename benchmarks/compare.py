"""Measures this checkout beside another one, in turn: what has become worse?

    python -m benchmarks.compare ../older --metrics single,noop,burst [--rounds 5] [--size 0.2] [--most 3]

The other one is a checkout with an environment of its own (`git worktree add ../older COMMIT`, there `make .make/bench`). Measure from
a clone with `make .make/bench` alone, too, not from where the tests run: redis-py loads what it finds installed beside it. Packages
that only one of them has are named.

Each round measures each metric once in both, each by its own `python -m benchmarks`; who begins changes with the round. What is told is
the median of each figure, and, since both of a round were measured one after the other, the median of the ratios of the rounds. Returns
1 when one is worse by more than `--most` percent. Metrics and figures that only one of them has are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import metrics
from benchmarks.metrics import Column
from benchmarks.systems import OWN, ROOT

Rounds = Mapping[str, Sequence[float | None]]  # of one metric: by figure


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of both: medians, and by how many times this one is more."""

    metric: str
    column: Column
    this: float
    other: float
    ratio: float

    def worse(self, most: float) -> bool:
        """Whether this one is worse, by more than so many percent."""
        bound = 1 + most / 100
        return self.ratio > bound if self.column.better == "less" else self.column.better == "more" and self.ratio * bound < 1


def main() -> int:
    """Measures, prints."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("other", type=Path, help="the other checkout")
    options.add_argument("--metrics", default="single,bulk,noop,lateness,burst", help=f"of: {', '.join(metrics.NAMES)}")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--size", type=float, default=1.0, help="scales the numbers of jobs")
    options.add_argument("--most", type=float, default=3.0, help="percent that a figure may be worse")
    given = options.parse_args()
    names, other = metrics.named(given.metrics), given.other.resolve()
    uneven = installed(ROOT) ^ installed(other)
    if uneven:
        print(f"Only one of them has these packages, which weigh: {', '.join(sorted(uneven))}", file=sys.stderr)
    taken: dict[str, tuple[dict[str, list[float | None]], dict[str, list[float | None]]]] = {name: ({}, {}) for name in names}
    for number in range(given.rounds):
        for name in names:
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                figures = measured((ROOT, other)[which], name, given.size)
                for figure, value in figures.items():
                    taken[name][which].setdefault(figure, []).append(value)
                print(f"round {number + 1}, {name}, {('this', 'other')[which]}: {figures}", file=sys.stderr, flush=True)
    lines = [line for name in names for line in lines_of(name, *taken[name])]
    print(table(lines, given.most))
    return int(any(line.worse(given.most) for line in lines))


def installed(checkout: Path) -> set[str]:
    """The packages of its environment, each with its version."""
    found = 'import importlib.metadata as m; print(*{f"{one.name}-{one.version}" for one in m.distributions()})'
    return set(subprocess.run([program_of(checkout), "-c", found], capture_output=True, text=True, check=True).stdout.split())


def program_of(checkout: Path) -> Path:
    """The Python of its environment."""
    return checkout / ".venv" / "bin" / "python"


def measured(checkout: Path, name: str, size: float) -> dict[str, float | None]:
    """One round of the metric there; {} if it has none of that name, or could not do it."""
    with tempfile.TemporaryDirectory(prefix="delayq-compare-") as folder:
        results = Path(folder) / "results.json"
        words = ["--metrics", name, "--rounds", "1", "--size", str(size), "--results", str(results)]
        done = subprocess.run(
            [program_of(checkout), "-m", "benchmarks", *words], cwd=checkout, capture_output=True, text=True, check=False
        )
        document = json.loads(results.read_text()) if results.exists() else {}
    row = document.get("metrics", {}).get(name, {}).get(OWN.name, {})
    if "median" not in row:
        print(f"{checkout.name}, {name}: {row.get('failed') or done.stderr.strip()[-300:]}", file=sys.stderr)
    return dict(row.get("median", {}))


def lines_of(name: str, this: Rounds, other: Rounds) -> list[Line]:
    """What both have of a metric."""
    found = []
    for figure, column in metrics.load(name).columns.items():
        # A round in which one of them had no figure says nothing; neither does a ratio to 0.
        rounds = zip(this.get(figure, ()), other.get(figure, ()), strict=False)
        pairs = [(one, another) for one, another in rounds if one is not None and another]
        if pairs:
            mine, its = (statistics.median(values) for values in zip(*pairs, strict=True))
            found.append(Line(name, column, mine, its, statistics.median(one / another for one, another in pairs)))
    return found


def table(lines: Sequence[Line], most: float) -> str:
    """In Markdown."""
    head = ["| | | this | other | ratio | |", "|---|---|---:|---:|---:|---|"]
    for line in lines:
        title = line.column.title + (f", {line.column.unit}" if line.column.unit else "")
        said = f"worse by more than {most:g} %" if line.worse(most) else ""
        head.append(f"| {line.metric} | {title} | {line.this:,.4g} | {line.other:,.4g} | {line.ratio:.3f} | {said} |")
    return "\n".join(head)


if __name__ == "__main__":
    raise SystemExit(main())
