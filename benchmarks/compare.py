"""Measures this checkout and another one in turn, and shows what became worse.

    python -m benchmarks.compare ../older --metrics single,noop,burst [--rounds 5] [--size 0.2] [--most 3]

The other checkout needs its own environment: run `git worktree add ../older COMMIT`, and `make .make/bench` there. Run this command
from a clone in which only `make .make/bench` was run, because redis-py uses optional packages if they are installed. Packages that
only one of the two has are listed.

Each round measures each metric once in both checkouts, in a separate `python -m benchmarks`; the order alternates. The table shows
the median of each figure, the median of the ratios of the rounds, and the 95 % interval of that median. A figure is worse if its
whole interval is more than `--most` percent worse; then the command exits with 1. On a shared machine that needs about 40 rounds.
Metrics and figures that only one of the checkouts has are omitted.
"""

from __future__ import annotations

import argparse
import json
import math
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
    """A figure of both checkouts: medians, the median ratio, and the 95 % interval of that ratio."""

    metric: str
    column: Column
    this: float
    other: float
    ratio: float
    low: float
    high: float

    def worse(self, most: float) -> bool:
        """Whether the whole interval lies beyond `most` percent on the worse side."""
        bound = 1 + most / 100
        return self.low > bound if self.column.better == "less" else self.column.better == "more" and self.high * bound < 1


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
    """The figures of a metric that both checkouts have."""
    found = []
    for figure, column in metrics.load(name).columns.items():
        # A round in which one of them had no figure says nothing; neither does a ratio to 0.
        rounds = zip(this.get(figure, ()), other.get(figure, ()), strict=False)
        pairs = [(one, another) for one, another in rounds if one is not None and another]
        if pairs:
            mine, its = (statistics.median(values) for values in zip(*pairs, strict=True))
            ratios = [one / another for one, another in pairs]
            found.append(Line(name, column, mine, its, statistics.median(ratios), *interval(ratios)))
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, by the sign test, which assumes no distribution. Fewer than 6 values: their range."""
    ordered, count = sorted(values), len(values)
    below, skipped = 0.5**count, 0  # below: P(at most `skipped` of the values are less than the median)
    while below <= 0.025:
        skipped += 1
        below += math.comb(count, skipped) * 0.5**count
    first = max(skipped - 1, 0)
    return ordered[first], ordered[-1 - first]


def table(lines: Sequence[Line], most: float) -> str:
    """In Markdown."""
    head = ["| | | this | other | ratio | 95 % | |", "|---|---|---:|---:|---:|---|---|"]
    for line in lines:
        title = line.column.title + (f", {line.column.unit}" if line.column.unit else "")
        said = f"worse by more than {most:g} %" if line.worse(most) else ""
        figures = f"{line.this:,.4g} | {line.other:,.4g} | {line.ratio:.3f} | {line.low:.3f}–{line.high:.3f}"
        head.append(f"| {line.metric} | {title} | {figures} | {said} |")
    return "\n".join(head)


if __name__ == "__main__":
    raise SystemExit(main())
