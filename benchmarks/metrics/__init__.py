"""One file per figure: what it means, in which systems it can be taken, and how. Each has a `METRIC`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from benchmarks.systems import System

NAMES = (
    "single",
    "bulk",
    "outbox",
    "keys",
    "unique",
    "noop",
    "orm",
    "lateness",
    "burst",
    "memory",
    "idle",
    "crash",
    "mirror",
    "restore",
    "pull",
    "serial",
    "rates",
    "fair",
    "handover",
    "growth",
    "workers",
    "deep",
    "routing",
    "masters",
    "failover",
    "moves",
    "partitions",
    "near",
    "replicas",
)
GROUPS = {"cluster": ("routing", "masters", "failover", "moves", "partitions", "near", "replicas")}
SLOW = frozenset({"rq", "django-q2"})  # which get fewer jobs: a run would take minutes
Figures = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One number of a metric: how it is called and written, and which way is better."""

    title: str
    unit: str = ""
    better: Literal["more", "less", ""] = "more"  # "": it is said, and not compared
    digits: int = 0
    reach: str = ""  # what django-delayq has promised itself


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`measure(system, size)` takes it once; `size` scales the counts (1.0: as published)."""

    name: str
    title: str
    text: str
    columns: Mapping[str, Column]
    measure: Callable[[System, float], Figures]
    own_only: bool = False
    peers: tuple[str, ...] = ()  # the only other systems that can do it; (): all
    rounds: int = 3
    slow: bool = False  # only where it is named
    side_by_side: bool = False  # what is measured is memory, or mostly waiting: the others may do it at one time


def load(name: str) -> Metric:
    """The metric of that name."""
    found: Metric = import_module(f"benchmarks.metrics.{name}").METRIC
    return found


def named(text: str) -> list[str]:
    """The names in that list, with the names of each group."""
    return [name for word in text.split(",") for name in GROUPS.get(word, (word,))]


def counted(number: int, size: float, least: int = 100) -> int:
    """A count, scaled."""
    return max(least, round(number * size))
