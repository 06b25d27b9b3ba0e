"""The settings of one worker, as the command or a test passes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_delayq.store.connection.places import Places
from django_delayq.worker.current import AnyTask
from django_delayq.worker.line import Line
from django_delayq.worker.loop import LoopProcess
from django_delayq.worker.receivers import Missing, Receiver, Wrap
from django_delayq.worker.tally import LatestText, WorkerFigures


def nothing() -> None:
    """A hook that does nothing."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The functions that the worker calls around jobs. With them, the worker does not depend on the database.

    `receivers`: receivers of runs. `before_fork` and `end_thread` are called before a process is forked, and at the end of a thread
    that runs jobs; both must not raise. `before_fork` closes connections, and returns the name of each socket that it has closed, by
    its inode. `missing`: returns the carriers that a job needs and this worker lacks, from the meta of the job; None: there are no
    carriers. `wrap`: returns the function of a task for one run, from the function, the meta of the job, and whether it is a
    coroutine function; None: the function itself. `check_tick`: checks, as the current job, whether a tick of a schedule may run now;
    it gets the tick of the meta. `metrics`: makes the response of `GET /metrics`; None: the worker counts nothing for it, and
    `no_metrics` has the reason. `watch_circuits`: in a task process, it gets a function that takes the open circuits as JSON; None:
    there are no circuits.
    """

    receivers: Sequence[Receiver] = ()
    before_fork: Callable[[], Mapping[int, str]] = dict
    end_thread: Callable[[], None] = nothing
    missing: Missing | None = None
    wrap: Wrap | None = None
    check_tick: Callable[[Any], None] | None = None
    metrics: Callable[[WorkerFigures], bytes] | None = None
    no_metrics: str = ""
    watch_circuits: Callable[[Callable[[bytes], object]], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Everything a worker needs. Durations in seconds, memory in bytes; 0 or None: no limit.

    Args:
        worker: its id, "host:pid:random".
        connect: makes links to the servers under a client name; called once per process.
        lines: what is served; see `served`.
        tasks: names of all registered tasks, in an order that is the same in every process of this worker.
        find_task: looks a name up; raises UnknownTask.
        processes: task processes; 0 for a worker that runs only `loop_processes`.
        loop_processes: further processes, such as the mirror's.
        tidy: whether to drop what has had its time in Redis; the mirror does that too, and knows more.
        wary: a mirror is at work here: nothing is claimed from a store that it has not confirmed.
        health_port: where GET /health is answered; None: nowhere. health_host: on which address, "" for all.
        version: of the package, for the beat.
        brings_in: the queues whose far rows it brings in; their names in the beat also say that it knows such rows.
        targets: names of the targets of offers that its settings list, for the beat.
        reports: where each process that keeps records says what it has done, for the metrics.
    """

    worker: str
    prefix: str
    connect: Callable[[str], Places]
    lines: Sequence[Line]
    tasks: Sequence[str]
    find_task: Callable[[str], AnyTask]
    processes: int = 1
    threads: int = 8
    burst: bool = False
    grace: float = 30.0
    max_jobs: int = 0
    max_memory: int = 0
    reload: bool = False
    health_port: int | None = None
    health_host: str = ""
    hooks: Hooks = field(default_factory=Hooks)
    loop_processes: Sequence[LoopProcess] = ()
    records: Sequence[str] = ()
    brings_in: Sequence[str] = ()
    tidy: bool = True
    wary: bool = False
    version: str = ""
    targets: Sequence[str] = ()
    reports: Sequence[LatestText] = ()

    @property
    def health_address(self) -> str:
        """The address of the probes, as other processes see it: "*:8080" on all addresses, "" for none."""
        return "" if self.health_port is None else f"{self.health_host or '*'}:{self.health_port}"

    @property
    def measured(self) -> bool:
        """Whether anything may read the counts of its processes."""
        return self.health_port is not None and self.hooks.metrics is not None

    def served(self, places: Places) -> list[Line]:
        """The lines with their stores, on these servers. Call it once per process."""
        return [line.on(places, self.prefix) for line in self.lines]
