"""Jobs that do what most jobs do: one statement through the ORM."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.projects import project
from benchmarks.stage import Stage
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """5,000 updates on PostgreSQL; without the mirror, and with it writing every job into the same server."""
    found: dict[str, float | None] = {}
    for name, roles in (("plain", "move"), ("mirrored", "move,mirror,relay")):
        with servers.Postgres() as database, Stage(system, project(database, ROLES=roles)) as stage:
            stage.run("users", "--count=100")
            count = counted(5000, size, 500)
            stage.put(count, task="update", many=True)
            worker = stage.worker()
            moments = sorted(stage.wait_marks(count, 180.0, worker))
            found[name] = count * 0.9 / (moments[-count // 20] - moments[count // 20])
    return found


METRIC = Metric(
    name="orm",
    title="Jobs with one ORM update",
    text="One worker process with default options and PostgreSQL on the same machine. Each update is a transaction.",
    columns={
        "plain": Column(title="jobs per second"),
        "mirrored": Column(title="with the full audit mirror"),
    },
    measure=measure,
    own_only=True,
    rounds=1,
)
