"""RQ: each job runs in a separate process, and gets three more attempts if its worker is lost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import redis
import rq

from benchmarks.adapters import base

KEPT = {"result_ttl": 0, "retry": rq.Retry(max=3)}
link = redis.Redis.from_url(base.REDIS)
queue = rq.Queue(connection=link)


class Rq(base.Adapter):
    """Jobs of a lost worker run again once a worker finds that their heartbeat is overdue."""

    name = "RQ"
    version = rq.__version__
    settings = "one fork per job (default), with scheduler, three retries (lost workers' jobs run again), no results"
    at_once = 1
    many_by = "enqueue_many, but one by one with a date"

    def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """enqueue, enqueue_at."""
        name = f"benchmarks.adapters.base.{task}"
        if due is None:
            queue.enqueue(name, args=tuple(args), **KEPT)
        else:
            queue.enqueue_at(base.at(due), name, args=tuple(args), **KEPT)

    def put_many(self, task: str, jobs: Iterable[tuple[Sequence[Any], float | None]]) -> None:
        """enqueue_many, where there is no date."""
        todo = list(jobs)
        if todo and todo[0][1] is not None:
            super().put_many(task, todo)
            return
        name = f"benchmarks.adapters.base.{task}"
        for start in range(0, len(todo), 200):
            batch = todo[start : start + 200]
            queue.enqueue_many([rq.Queue.prepare_data(name, tuple(args), **KEPT) for args, _ in batch])

    def worker(self, processes: int, threads: int) -> list[str]:
        """Its worker, or its pool of workers."""
        program = os.path.join(os.path.dirname(base.python()[0]), "rq")
        if processes == 1:
            return [program, "worker", "--with-scheduler", "--quiet", "--url", base.REDIS]
        return [program, "worker-pool", "--quiet", "--num-workers", str(processes), "--url", base.REDIS]


if __name__ == "__main__":
    base.main(Rq())
