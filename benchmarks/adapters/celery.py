"""Celery, with the settings its documentation names for jobs that must not be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import celery

from benchmarks.adapters import base

app = celery.Celery("bench", broker=base.REDIS)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    imports=("benchmarks.adapters.celery",),
)
TASKS = {name: app.task(name=f"bench.{name}")(getattr(base, name)) for name in ("nothing", "late", "nap")}


class Celery(base.Adapter):
    """Its worker is a parent that talks to Redis and the processes that run tasks."""

    name = "Celery"
    version = celery.__version__
    settings = (
        "`acks_late`, `reject_on_worker_lost` (another worker gets lost jobs after an hour, the default), no results; "
        "prefork, prefetch 4 (default); threads for the column with ten threads"
    )
    at_once = 1
    waits_in = "worker memory"

    def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """apply_async."""
        TASKS[task].apply_async(args=tuple(args), **({} if due is None else {"eta": base.at(due)}))

    def worker(self, processes: int, threads: int) -> list[str]:
        """celery worker, without the chatter among workers."""
        pool = ["--pool=threads", f"--concurrency={threads}"] if threads else [f"--concurrency={processes}"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"]
        return base.python("-m", "celery", "-A", "benchmarks.adapters.celery", "worker", *pool, *quiet)


if __name__ == "__main__":
    base.main(Celery())
