"""The situations of the drill that need a real worker: replies lost while it claims and settles, a task process killed, a freeze
past the lease, a cancel request while a task runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from django_delayq import codec, ids
from tests import servers
from tests.app import record
from tests.campaign.drill import Line, Scene
from tests.campaign.stage import SETTINGS
from tests.stage import MANAGE, Actor, project

LEASE = 2  # s; replies are lost for less
LIMIT = 6.0  # s for anything that is waited for
THREADS = 2
MANY = 150


class WorkerScene(Scene):
    """A queue that a worker serves, through a line that can cut replies off."""

    def __init__(self, server: servers.RedisServer, folder: Path) -> None:
        super().__init__(server, "default")
        self.folder = folder
        self.line = Line(server.socket)
        self.jobs: list[str] = []
        environment = project(
            folder,
            f"redis://127.0.0.1:{self.line.port}",
            {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db")},
            {**SETTINGS, "LEASE": LEASE, "QUEUES": {"default": {}}},
        )
        command = [*MANAGE, "delayq_worker", "--roles", "move", "--queues", "default"]
        self.worker = Actor(folder / "log", [*command, "--threads", str(THREADS), "--grace", "1s", "-v", "0"], environment)
        self.worker.start()

    limit = LIMIT

    def call(self, name: str, *arguments: object, times: int = 1) -> list[str]:
        """Schedules a task of the sample project. Returns the short ids."""
        task = f"tests.app.tasks.{name}"
        payload = codec.encode_payload(("drill", *arguments), {}, None, limit=1000, task=task)
        items = [self.item(task=task, payload=payload, durable=False, max_attempts=5) for _ in range(times)]
        self.store.schedule(items)
        return [ids.short(item.id) for item in items]

    def done(self, jobs: list[str]) -> bool:
        dump = self.dump()
        return not any(job in dump.jobs for job in jobs)

    def crashes(self) -> int:
        return len(self.told("crashed"))


def play(server: servers.RedisServer) -> Iterator[tuple[str, Callable[[], None]]]:
    """All of them, one after the other: names, and what plays them."""
    folder = Path(tempfile.mkdtemp(prefix="drill-"))
    scene = WorkerScene(server, folder)
    try:
        for work in ALL:
            yield work.__name__, partial(work, scene)
    finally:
        scene.worker.kill_tree()
        shutil.rmtree(folder, ignore_errors=True)


def rows_are_freed(scene: WorkerScene) -> None:
    """Many more jobs than a process can hold."""
    jobs = scene.call("quick", times=MANY)
    jobs += scene.call("quick", times=MANY)
    scene.until(lambda: scene.done(jobs), "all quick jobs are done")


def replies_lost(scene: WorkerScene) -> None:
    """While it claims and settles: everything is done, and nothing counts as a crash."""
    crashes = scene.crashes()
    for _ in range(6):
        jobs = scene.call("quick", times=MANY)
        scene.line.proxy.amount, scene.line.proxy.rule = 1.0, "reset"
        jobs += scene.call("quick", times=MANY)
        time.sleep(0.3)
        scene.line.proxy.rule = "pass"
        scene.until(lambda all=jobs: scene.done(all), "all jobs are done after lost replies")
    scene.same(scene.crashes(), crashes, "crashes after lost replies")


def asked_to_stop(scene: WorkerScene) -> None:
    """Progress is passed on; a task that is asked to stop learns of it."""
    (job,) = scene.call("patient", 30)
    scene.until(lambda: job in scene.dump().progress, "progress is passed on")
    scene.store.cancel(ids.full(job))
    scene.until(lambda: scene.done([job]), "a task that is asked to stop learns of it")


def process_killed(scene: WorkerScene) -> None:
    """Jobs that were running in it get one crash more, and run again."""
    (job,) = scene.call("patient", 1)
    scene.until(lambda: job in scene.dump().progress, "it runs")
    before = scene.crashes()
    for pid in _runners(scene):
        os.kill(pid, signal.SIGKILL)
    scene.until(lambda: scene.done([job]), "a job whose process was killed is done")
    scene.same(scene.crashes(), before + 1, "crashes after a kill")


def frozen(scene: WorkerScene) -> None:
    """Past its lease: another takes the job over, and the task learns of it when it thaws."""
    (job,) = scene.call("patient", 30)
    scene.until(lambda: job in scene.dump().progress, "it runs")
    scene.worker.signal_tree(signal.SIGSTOP)
    try:
        (mine,) = scene.until(lambda: scene.claim("other", lease_ms=60_000), "a frozen worker's job is taken over")
    finally:
        scene.worker.signal_tree(signal.SIGCONT)
    scene.until(lambda: record.lines(scene.folder, "lost-*.jsonl"), "a task whose lease was lost learns of it")
    scene.same(scene.settle(mine), "done", "the settle of who has taken it over")


def killed_while_claiming(scene: WorkerScene) -> None:
    """Jobs named in a lost reply are requested again and returned: they have not run, so this is no crash."""
    jobs = scene.call("quick", times=4)
    scene.until(lambda: scene.done(jobs), "quick jobs are done")
    before = scene.crashes()
    scene.line.proxy.amount, scene.line.proxy.rule = 1.0, "swallow"
    jobs = scene.call("quick", times=4)
    scene.until(lambda: scene.dump().leases, "they are claimed")
    for pid in _runners(scene):
        os.kill(pid, signal.SIGKILL)
    scene.line.proxy.rule = "pass"
    scene.until(lambda: scene.done(jobs), "what a killed process had claimed is done")
    scene.same(scene.crashes(), before, "crashes of what never ran")


def _runners(scene: WorkerScene) -> list[int]:
    """Living task processes that have run jobs."""
    return [pid for pid in scene.worker.children() if (scene.folder / f"runs-{pid}.jsonl").exists()]


def not_too_many(scene: WorkerScene) -> None:
    """No more is claimed than threads can run, and a little ahead."""
    jobs = scene.call("long", 0.4, times=4 * THREADS)
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, len(scene.dump().leases))
        return scene.done(jobs)

    scene.until(done, "all long jobs are done")
    scene.expect(most <= 2 * THREADS, f"{most} jobs are held by {THREADS} threads")


ALL = (rows_are_freed, asked_to_stop, process_killed, frozen, replies_lost, killed_while_claiming, not_too_many)
