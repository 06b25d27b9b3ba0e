"""Takes measurements in turn and writes each down as soon as it is taken: a run may be stopped, and gone on with."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.metrics import Figures, Metric
from benchmarks.systems import OWN, ROOT, System

Task = tuple[int, Metric, list[System]]


class Run:
    """A document of results, and the measurements that are still missing.

    Args:
        rounds: 0: the default of each metric.
        resume: results in the document are kept, except failures.
        minutes: after so many, nothing more is begun; 0: no limit.
    """

    def __init__(self, path: Path, *, size: float, rounds: int, resume: bool, minutes: float) -> None:
        self.path = path
        self.size = size
        self.rounds = rounds
        self.document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.document.setdefault("systems", {})
        self.document.setdefault("metrics", {})
        self._resume = resume
        self._until = time.monotonic() + minutes * 60 if minutes else float("inf")
        self._begun: set[tuple[str, str]] = set()

    def take(self, metrics: Sequence[Metric], systems: Sequence[System]) -> bool:
        """All rounds of all metrics, the first round of each first. Returns whether all of it was done."""
        for number, metric, group in self._tasks(metrics, systems):
            todo = [system for system in group if not self._has(metric, system, number)]
            if not todo:
                continue
            if time.monotonic() > self._until:
                print("\nThe time is up: what is missing comes with --resume.")
                return False
            print(f"{metric.title}, round {number + 1}: {', '.join(one.name for one in todo)}", file=sys.stderr)
            with ThreadPoolExecutor(len(todo)) as pool:  # one, but where they are measured side by side
                for system, found in zip(todo, pool.map(partial(self._measured, metric), todo), strict=True):
                    self._note(metric, system, found)
            self.write()
        return True

    def tables(self, metrics: Sequence[Metric]) -> str:
        """The document's tables of these metrics."""
        parts = (
            f"## {metric.title}\n\n{metric.text}\n\n{report.table(metric, self.document)}"
            for metric in metrics
            if metric.name in self.document["metrics"]
        )
        return "\n\n".join(parts)

    def write(self) -> None:
        """Keeps what there is: all of it, or what stood there before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.document, indent=1) + "\n")
        new.replace(self.path)

    def _tasks(self, metrics: Sequence[Metric], systems: Sequence[System]) -> Iterator[Task]:
        for number in range(self.rounds or max((metric.rounds for metric in metrics), default=0)):
            for metric in metrics:
                if number >= (self.rounds or metric.rounds):
                    continue
                some = [one for one in systems if _takes_part(one, metric)]
                for group in _groups(metric, some):
                    yield number, metric, group

    def _row(self, metric: Metric, system: System) -> dict[str, Any]:
        """The document's figures from this run, or from the run that is resumed."""
        rows: dict[str, dict[str, Any]] = self.document["metrics"].setdefault(metric.name, {})
        known = rows.get(system.name, {})
        kept = (metric.name, system.name) in self._begun or (self._resume and known.get("size") == self.size)
        return known if kept else {}

    def _has(self, metric: Metric, system: System, number: int) -> bool:
        row = self._row(metric, system)
        if "failed" in row:  # in this run: it is not asked to do it again
            return (metric.name, system.name) in self._begun
        return any(len(values) > number for values in row.get("rounds", {}).values())

    def _measured(self, metric: Metric, system: System) -> Figures | str:
        began = time.monotonic()
        try:
            figures = metric.measure(system, self.size)
        except Exception as error:  # whatever a system does wrong must not end the measurement of the others
            found = " ".join(str(error).split()).replace(f"{ROOT}/", "") or type(error).__name__
            print(f"  {system.name}: {found}", file=sys.stderr, flush=True)
            return found
        shown = ", ".join(f"{name} {_short(value)}" for name, value in figures.items())
        print(f"  {system.name} ({time.monotonic() - began:.0f} s): {shown}", file=sys.stderr, flush=True)
        return figures

    def _note(self, metric: Metric, system: System, found: Figures | str) -> None:
        row = self._row(metric, system)
        self._begun.add((metric.name, system.name))
        if isinstance(found, str):
            row = {"failed": found, "size": self.size}
        else:
            rounds = row.get("rounds", {})
            for name, value in found.items():
                rounds.setdefault(name, []).append(value)
            median = {name: _median(values) for name, values in rounds.items()}
            row = {"median": median, "rounds": rounds, "size": self.size}
        self.document["metrics"].setdefault(metric.name, {})[system.name] = row


def _takes_part(system: System, metric: Metric) -> bool:
    if system.source == "own":
        return True
    named = not metric.peers or system.name in metric.peers
    return named and not metric.own_only and (not system.metrics or metric.name in system.metrics)


def _groups(metric: Metric, systems: Sequence[System]) -> list[list[System]]:
    """The systems to measure at one time: one system, or all except ours if they mostly wait."""
    if not metric.side_by_side:
        return [[system] for system in systems]
    own = [system for system in systems if system is OWN]
    others = [system for system in systems if system is not OWN]
    return [group for group in (own, others) if group]


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
