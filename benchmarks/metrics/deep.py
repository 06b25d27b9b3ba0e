"""The same as growth with ten million jobs: Redis needs about 3.5 GB of memory for it, and 3 GB of disk."""

from __future__ import annotations

from benchmarks.metrics import Figures, Metric
from benchmarks.metrics.growth import columns, of
from benchmarks.systems import System

BACKLOGS = (10_000_000,)


def measure(system: System, size: float) -> Figures:
    """Rate and lateness while ten million jobs wait for tomorrow."""
    return of(system, size, BACKLOGS)


METRIC = Metric(
    name="deep",
    title="Ten million waiting jobs",
    text="The same measurements with ten million waiting jobs.",
    columns=columns(BACKLOGS),
    measure=measure,
    own_only=True,
    rounds=1,
    slow=True,
)
