"""The lateness of many jobs that are due at the same moment."""

from __future__ import annotations

import socket
import threading
import time

from benchmarks.metrics import SLOW, Column, Figures, Metric, counted
from benchmarks.servers import Redis
from benchmarks.stage import Stage
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """20,000 jobs for one instant, then (own) 100,000; Redis is asked for a PONG all along."""
    found = dict(_burst(system, counted(1000 if system.name in SLOW else 20_000, size, 300)))
    if system.source == "own":
        large = _burst(system, counted(100_000, size, 500))
        found |= {"last_100k": large["last"], "ping_99": large["ping_99"]}
        keyed = _burst(system, counted(20_000, size, 300), keyed=True)
        found |= {"keyed_last": keyed["last"], "keyed_life_us": keyed["life_us"]}
    return found


def _burst(system: System, count: int, *, keyed: bool = False) -> Figures:
    with Stage(system) as stage:
        if keyed:
            stage.put(20, due=time.time() + 7200)
            stage.run("confirm")
        worker = stage.worker()
        stage.warm(worker)
        seconds = stage.put(500, task="nothing", many=True, keyed=keyed, due=time.time() + 7200)
        before = stage.redis.cpu()
        due = time.time() + 4.0 + count * seconds / 500 * 1.5
        stage.put(count, task="late", due=due, many=True, keyed=keyed)
        if time.time() > due:
            due = time.time()
        with _Asker(stage.redis, due) as asker:
            late = sorted(number for number in stage.wait_marks(count, due - time.time() + 120.0, worker) if number < 1e8)
        return {
            "p50": late[len(late) // 2] * 1000,
            "p99": late[int(len(late) * 0.99)] * 1000,
            "last": late[-1] * 1000,
            "life_us": (stage.redis.cpu() - before) / count * 1e6,
            "ping_99": asker.p99(),
        }


class _Asker:
    """Sends PING every 5 ms from a date on, and notes how long it takes."""

    def __init__(self, redis: Redis, begin: float) -> None:
        self._redis, self._begin = redis, begin
        self._took: list[float] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> _Asker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10)

    def p99(self) -> float:
        took = sorted(self._took)
        return took[int(len(took) * 0.99)] * 1000 if took else 0.0

    def _ask(self) -> None:
        with socket.create_connection(("127.0.0.1", self._redis.port)) as line:
            while not self._end.wait(0.005):
                if time.time() >= self._begin:
                    began = time.perf_counter()
                    line.sendall(b"PING\r\n")
                    line.recv(100)
                    self._took.append(time.perf_counter() - began)


METRIC = Metric(
    name="burst",
    title="Many jobs due at one instant",
    text=(
        "20,000 jobs are due at the same moment (1,000 for RQ and django-q2) and run on one worker with default options. "
        "django-delayq also runs 100,000 jobs, while another connection sends a PING every 5 ms, and "
        "20,000 jobs with a key each."
    ),
    columns={
        "p50": Column(title="p50", unit="ms", better="less"),
        "p99": Column(title="p99", unit="ms", better="less", reach="≤ 900"),
        "last": Column(title="last", unit="ms", better="less"),
        "life_us": Column(title="Redis CPU per job life", unit="µs", better="less", digits=1, reach="≤ 20"),
        "last_100k": Column(title="last of 100,000", unit="ms", better="less"),
        "keyed_last": Column(title="last of 20,000 with keys", unit="ms", better="less"),
        "keyed_life_us": Column(title="Redis CPU per job life with a key", unit="µs", better="less", digits=1),
        "ping_99": Column(title="p99 of other requests", unit="ms", better="less", digits=1, reach="≤ 10"),
    },
    measure=measure,
    rounds=2,
)
