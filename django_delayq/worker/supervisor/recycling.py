"""Replaces a task process after `--max-jobs` jobs, above `--max-memory`, or at its own request. `--reload` restarts the worker when a
file of the project changes. Runs in the supervisor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from django_delayq.logger import Logger
from django_delayq.worker.spec import WorkerSpec
from django_delayq.worker.supervisor.fork import Child

logger = Logger("django_delayq.worker")

RELOAD_PASS = 1.0


class Recycler:
    """Looks at each task process once a second. Replaces those that have run `max_jobs` jobs, use more than `max_memory`, or ask
    for it. The old process finishes its running jobs.
    """

    def __init__(self, spec: WorkerSpec, children: Callable[[], list[Child]], replace: Callable[[Child], None]) -> None:
        self._spec = spec
        self._children = children
        self._replace = replace

    def poll(self) -> float:
        for child in self._children():
            if reason := next(self._reasons(child), ""):
                logger.info("%s (pid %d) is replaced: %s", child.name, child.pid, reason)
                self._replace(child)
        return 1.0

    def _reasons(self, child: Child) -> Iterator[str]:
        if self._spec.max_jobs and child.leases is not None and child.leases.counts()[0] >= self._spec.max_jobs:
            yield f"it has run {child.leases.counts()[0]} of {self._spec.max_jobs} jobs (--max-jobs)"
        if child.leases is not None and child.leases.retires():
            yield "it holds a job that must run alone after a crash"
        if self._spec.max_memory and (memory := resident_memory(child.pid)) > self._spec.max_memory:
            yield f"it has {memory // 1_048_576} MB of memory"


def resident_memory(pid: int) -> int:
    """The memory of a process in bytes; 0 if the system does not report it."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class Reloader:
    """Checks every second the modification times of all loaded modules, and calls `changed` when a file has been written. If a file
    does not compile, it waits: a worker that restarted with it would only end.
    """

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._times = {path: _modified(path) for path in _paths()}  # a change before the first pass counts

    def poll(self) -> float:
        """Does one pass."""
        for path in _paths():
            written = _modified(path)
            before = self._times.setdefault(path, written)
            if written != before and written:
                self._times[path] = written
                if _compiles(path):
                    self._changed(path)
        return RELOAD_PASS


def _paths() -> list[str]:
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return [path for path in paths if isinstance(path, str) and path.endswith(".py")]


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _compiles(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec")
    except (OSError, SyntaxError, ValueError) as error:
        logger.warning("%s has changed but cannot be loaded, so the worker keeps running the old code: %s", path, error)
        return False
    return True
