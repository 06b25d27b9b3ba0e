"""Faults, and those that meet workers and web processes. Each is begun, lasts, and is ended; the campaign goes on meanwhile. All dice
are rolled before it begins.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from typing import ClassVar

from tests.campaign.stage import Stage, Worker

LEASE = 4.0  # as in the settings
LONGER_THAN_LEASE = (LEASE + 1.0, LEASE + 3.0)


class Fault:
    """One fault. `lasts`: the range of seconds between begin and end; `kills`: recovery counts from the begin, not from the end.

    Args:
        dice: of this fault alone; everything random is drawn here.
    """

    kind: ClassVar[str]
    lasts: ClassVar[tuple[float, float]] = (0.0, 0.0)
    kills: ClassVar[bool] = False
    meets: ClassVar[str] = "worker"  # faults that meet the same do not come at once
    weight: ClassVar[int] = 2

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        self.stage = stage
        self.seconds = dice.uniform(*self.lasts)
        self.place = dice.random()
        self.detail = f"{self.seconds:.1f} s"

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        """Whether this stage has what it takes."""
        return True

    @property
    def parts(self) -> tuple[str, ...]:
        """For a fault of one of several Redis servers, the tags of the partitions on it; else empty."""
        return ()

    def begin(self) -> None:
        """Does the harm."""

    def end(self) -> None:
        """Mends it."""

    def confine(self, place: float) -> None:
        """To one worker, since others are harmed at the same time."""
        self.place = place

    def worker(self) -> Worker:
        """The worker that it meets."""
        return self.stage.workers[int(self.place * len(self.stage.workers))]


class NodeFault(Fault):
    """Meets one of the Redis servers, or the proxy before it."""

    meets = "redis"

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return bool(stage.nodes)

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        super().__init__(stage, dice)
        self.node = dice.choice(stage.nodes)
        self.detail += self.where

    @property
    def parts(self) -> tuple[str, ...]:
        return self.node.parts if len(self.stage.nodes) > 1 else ()

    @property
    def where(self) -> str:
        """Which server, for the report; nothing where there is only one."""
        return f", server of {' and '.join(self.node.queues)}" if self.parts else ""


class KillWorker(Fault):
    """SIGKILL of a whole worker tree; another one starts on the same host. Recovery counts from that start."""

    kind = "kill worker"
    lasts = (0.0, 2.0)
    weight = 3

    def begin(self) -> None:
        self.worker().kill_tree()

    def end(self) -> None:
        self.worker().start()


class LoseHost(KillWorker):
    """The same, with all that the host knew of it. Nobody comes before its leases have ended."""

    kind = "lose host"
    lasts = (LEASE + 1.5, LEASE + 2.0)
    kills = True
    weight = 2

    def begin(self) -> None:
        worker = self.worker()
        worker.signal_tree(signal.SIGSTOP)
        worker.forget()
        worker.kill_tree()


class KillTaskProcess(Fault):
    """SIGKILL of one task process; its supervisor starts another."""

    kind = "kill task process"
    kills = True
    weight = 3

    def begin(self) -> None:
        _kill(self.worker().task_children())


class KillSideProcess(Fault):
    """SIGKILL of the process of mirror and relay."""

    kind = "kill mirror and relay"
    kills = True

    def begin(self) -> None:
        worker = self.worker()
        _kill(sorted(set(worker.children()) - set(worker.task_children())))


class KillSupervisor(Fault):
    """SIGKILL of the supervisor alone: its processes must end with it."""

    kind = "kill supervisor"
    lasts = (0.5, 2.0)

    def begin(self) -> None:
        _kill([self.worker().pid])

    def end(self) -> None:
        self.worker().kill_tree()
        self.worker().start()


class StopWorker(Fault):
    """SIGSTOP of a worker beyond its leases, then SIGCONT: it wakes up and does not know."""

    kind = "pause worker"
    lasts = LONGER_THAN_LEASE

    def begin(self) -> None:
        self.worker().signal_tree(signal.SIGSTOP)

    def end(self) -> None:
        self.worker().signal_tree(signal.SIGCONT)


class StopTaskProcess(Fault):
    """SIGSTOP of a task process; its supervisor goes on and keeps the leases."""

    kind = "pause task process"
    lasts = LONGER_THAN_LEASE

    def begin(self) -> None:
        self.pids = self.worker().task_children()[:1]
        _send(self.pids, signal.SIGSTOP)

    def end(self) -> None:
        _send(self.pids, signal.SIGCONT)


class StopSupervisor(Fault):
    """SIGSTOP of the supervisor: leases are not extended, and the task processes continue."""

    kind = "pause supervisor"
    lasts = LONGER_THAN_LEASE

    def begin(self) -> None:
        _send([self.worker().pid], signal.SIGSTOP)

    def end(self) -> None:
        _send([self.worker().pid], signal.SIGCONT)


class RestartWorker(Fault):
    """A deploy: SIGTERM, and a new one."""

    kind = "restart worker"
    kills = True

    def begin(self) -> None:
        self.worker().terminate()
        self.worker().start()


class Deploy(Fault):
    """Workers leave and come back one by one with the other version of the code: the new one, or the old one again. Side by side with
    other faults it meets one worker, so that both versions are there for a while.
    """

    kind = "deploy"
    kills = True
    weight = 3

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        super().__init__(stage, dice)
        self.whole = True

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.schedules > 0

    def confine(self, place: float) -> None:
        super().confine(place)
        self.whole = False

    def begin(self) -> None:
        code = {"old": "new", "new": "old"}[self.worker().code]
        self.detail = f"{code} code, {'all workers' if self.whole else self.worker().name}"
        for worker in self.stage.workers if self.whole else [self.worker()]:
            self.stage.give(worker, code)
            worker.terminate()
            worker.start()


class KillWeb(Fault):
    """SIGKILL of a web process in the middle of a request."""

    meets = "web"
    kind = "kill web process"
    kills = True

    def begin(self) -> None:
        web = self.stage.webs[int(self.place * len(self.stage.webs))]
        web.kill_tree()
        web.live(self.stage.seed, self.stage.rate)


class StopWeb(Fault):
    """SIGSTOP of a web process in the middle of a request: what it holds in the database, it keeps."""

    meets = "web"
    kind = "pause web process"
    lasts = (1.0, 4.0)

    def begin(self) -> None:
        self.stage.webs[int(self.place * len(self.stage.webs))].signal_tree(signal.SIGSTOP)

    def end(self) -> None:
        self.stage.webs[int(self.place * len(self.stage.webs))].signal_tree(signal.SIGCONT)


class TaskMissing(Fault):
    """A worker of a version that lacks a task, later one that has it."""

    kind = "task missing"
    lasts = (4.0, 8.0)
    kills = False

    def begin(self) -> None:
        self.worker().terminate()
        self.worker().start(APP_WITHOUT="snoozer")

    def end(self) -> None:
        self.worker().terminate()
        self.worker().start()


class AnotherSite(Fault):
    """A worker and a web process of another site come to the same Redis, and go."""

    meets = "site"
    kind = "another site"
    lasts = (5.0, 9.0)
    weight = 3

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.second_site is not None

    def begin(self) -> None:
        assert self.stage.second_site is not None
        self.stage.second_site.begin()

    def end(self) -> None:
        assert self.stage.second_site is not None
        self.stage.second_site.end()


def _kill(pids: list[int]) -> None:
    _send(pids[:1], signal.SIGKILL)


def _send(pids: list[int], sign: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)
