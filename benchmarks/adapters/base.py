"""The common code of the Python adapters: the marks that jobs leave, and the verbs.

A job writes one number of 8 bytes to memory that its process shares with a file. This takes about a fifth of a microsecond for every
system, without a round trip. The benchmark reads the files.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import itertools
import json
import mmap
import os
import shlex
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

REDIS = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")
MARKS = os.environ.get("BENCH_MARKS", "/tmp")
PROCESSES = int(os.environ.get("BENCH_PROCESSES", "1"))
THREADS = int(os.environ.get("BENCH_THREADS", "0"))  # 0: what suits the system best
CELLS = 1 << 21


class Marks:
    """The numbers that jobs of this process leave, in the order of their runs."""

    def __init__(self) -> None:
        self._open: Callable[[float], None] | None = None
        os.register_at_fork(after_in_child=self._close)

    def _close(self) -> None:
        self._open = None

    def add(self, number: float) -> None:
        """Leaves a number that is not zero."""
        (self._open or self._opened())(number)

    def _opened(self) -> Callable[[float], None]:
        path = os.path.join(MARKS, f"{os.getpid()}-{uuid.uuid4().hex[:8]}.mark")
        with open(path, "w+b") as file:
            file.truncate(CELLS * 8)
            cells = memoryview(mmap.mmap(file.fileno(), CELLS * 8)).cast("d")
        turn = itertools.count().__next__  # one step of C code: threads do not meet in a cell

        def add(number: float) -> None:
            cells[turn()] = number

        self._open = add
        return add


marks = Marks()


def nothing(text: str = "") -> None:
    """The job that does nothing, with an argument of some length."""
    marks.add(time.time())


def late(due: float) -> None:
    """The job that notes how late it starts; never exactly zero."""
    marks.add((time.time() - due) or 1e-9)


def nap(number: int, seconds: float) -> None:
    """The job that takes a while: notes its number when it starts, and again, negative, when it has ended."""
    marks.add(float(number))
    time.sleep(seconds)
    marks.add(-float(number))


async def async_nap(number: int, seconds: float) -> None:
    """The same where tasks are coroutines."""
    marks.add(float(number))
    await asyncio.sleep(seconds)
    marks.add(-float(number))


class Adapter(ABC):
    """A system. `open`, `put` and `put_many` are all plain functions or all coroutines; `args` are JSON."""

    name = ""
    version = ""
    settings = ""  # in words, for the table
    waits_in = "Redis"  # where jobs with a date wait
    at_least_once = True  # with these settings
    can_cancel = True  # by id
    at_once = 8  # jobs that its worker runs at the same time by default
    many_by = "one by one"
    unique = ""  # what its name for a key is, if it has one
    keyed = False  # whether each job gets a different key
    verbs: Mapping[str, Callable[[int], float]] = {}  # verbs that it has alone: a count in, seconds out

    def open(self) -> Any:
        """Connects, if this is a separate step."""
        return None

    def __init__(self) -> None:
        self._keys = itertools.count()

    def key(self) -> str | None:
        """The key of the next job; None if jobs have none."""
        return f"{os.getpid()}:{next(self._keys)}" if self.keyed else None

    @abstractmethod
    def put(self, task: str, args: Sequence[Any], due: float | None) -> Any:
        """One job; `due` in seconds since 1970, None: now."""

    def put_many(self, task: str, jobs: Iterable[tuple[Sequence[Any], float | None]]) -> Any:
        """Many jobs, by the way that the system offers for that."""
        for args, due in jobs:
            self.put(task, args, due)

    @abstractmethod
    def worker(self, processes: int, threads: int) -> list[str]:
        """The command line of its worker; `threads` 0: what suits best."""


def python(*words: str) -> list[str]:
    """A command line for this interpreter."""
    return [sys.executable, *words]


def at(due: float) -> datetime:
    """A date as the libraries want it: aware, in UTC."""
    return datetime.fromtimestamp(due, UTC)


def several(command: list[str], count: int) -> list[str]:
    """A command line that runs the command so often, side by side: for workers of one process."""
    if count == 1:
        return command
    return both(*[command] * count)


def both(*commands: list[str]) -> list[str]:
    """A command line that runs all of them side by side."""
    return ["sh", "-c", f"{' & '.join(map(shlex.join, commands))} & trap 'kill $(jobs -p)' TERM; wait; wait"]


def main(adapter: Adapter) -> None:
    """The verbs."""
    options = argparse.ArgumentParser()
    options.add_argument("verb", choices=("facts", "put", "worker", *adapter.verbs))
    options.add_argument("--task", default="nothing")
    options.add_argument("--count", type=int, default=1)
    options.add_argument("--first", type=int, default=0, help="number of the first job")
    options.add_argument("--many", action="store_true")
    options.add_argument("--keyed", action="store_true", help="each job has a key of its own")
    options.add_argument("--due", type=float, help="seconds since 1970; nothing: now")
    options.add_argument("--spread", type=float, default=0.0, help="seconds over which the dates lie")
    options.add_argument("--seconds", type=float, default=0.0, help="of a nap")
    given = options.parse_args()
    adapter.keyed = given.keyed
    if given.verb == "facts":
        names = ("name", "version", "settings", "waits_in", "at_least_once", "can_cancel", "at_once", "many_by", "unique")
        print(json.dumps({name: getattr(adapter, name) for name in names}))
    elif given.verb in adapter.verbs:
        print(json.dumps({"seconds": adapter.verbs[given.verb](given.count)}))
    elif given.verb == "worker":
        command = adapter.worker(PROCESSES, THREADS)
        os.execvp(command[0], command)
    else:
        jobs = [(_args(given, number), _due(given, number)) for number in range(given.count)]
        coroutines = any(inspect.iscoroutinefunction(getattr(adapter, name)) for name in ("open", "put", "put_many"))
        seconds = asyncio.run(_async_put(adapter, given, jobs)) if coroutines else _put(adapter, given, jobs)
        print(json.dumps({"seconds": seconds}))


Jobs = list[tuple[list[Any], float | None]]


def _put(adapter: Adapter, given: Any, jobs: Jobs) -> float:
    adapter.open()
    began = time.perf_counter()
    if given.many:
        adapter.put_many(given.task, jobs)
    else:
        for args, due in jobs:
            adapter.put(given.task, args, due)
    return time.perf_counter() - began


async def _async_put(adapter: Adapter, given: Any, jobs: Jobs) -> float:
    await adapter.open()
    began = time.perf_counter()
    if given.many:
        await adapter.put_many(given.task, jobs)
    else:
        for args, due in jobs:
            await adapter.put(given.task, args, due)
    return time.perf_counter() - began


def _due(given: Any, number: int) -> float | None:
    if given.due is None:
        return None
    return float(given.due + given.spread * number / given.count)


def _args(given: Any, number: int) -> list[Any]:
    if given.task == "nothing":
        return [f"{given.first + number:0100d}"]
    if given.task == "late":
        return [_due(given, number)]
    if given.task == "update":
        return [number % 100 + 1]
    return [given.first + number + 1, given.seconds]
