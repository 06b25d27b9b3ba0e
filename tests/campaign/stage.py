"""The environment of a campaign: the servers under test, workers, web processes and the proxy. All are ended by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django_delayq.exceptions import DelayqError
from django_delayq.worker.supervisor import lease_files
from tests.campaign import faketime, masters
from tests.campaign.nodes import Node
from tests.campaign.second_site import SecondSite
from tests.servers import MariaDBServer, PostgresServer, RedisServer
from tests.stage import MANAGE, WAIT, Actor, manage, project, spawned, sqlite
from tests.wires import FEW

PYTHON = (sys.executable, "-m")
SETTINGS = {
    "LEASE": 4,
    "MAX_ATTEMPTS": 5,
    "BACKOFF": "100ms 200ms",
    "QUEUES": {"default": {}, "orders": {"LEASE": 3}, "redis": {"DURABILITY": "redis"}},
    "SCOPE": "tests.app.tasks.scope",
}
QUEUES = {1: [("default", "orders", "redis")], 2: [("default",), ("orders", "redis")]}  # by the number of servers, those on each
ROLL = ("4", "16")  # between these numbers the partitions of all queues change
CLOCKS = (600, -600)  # seconds by which the clocks of the second and third web process are ahead


class Worker(Actor):
    """A `delayq_worker` with all roles. `notes`: what it did not do as it should."""

    def __init__(self, notes: list[str], folder: Path, name: str, command: list[str]) -> None:
        super().__init__(folder / f"{name}.log", command, {})
        self._notes = notes

    def task_children(self) -> list[int]:
        """Those that have run jobs."""
        return [pid for pid in self.children() if (self.log.parent / f"runs-{pid}.jsonl").exists()]

    @property
    def code(self) -> str:
        """The version of the code that it starts with: old or new; "" where that makes no difference."""
        return self.environment.get("APP_CALENDAR", "").partition("/")[0]

    def forget(self) -> None:
        """Takes away what would tell others of this host what it holds."""
        place = lease_files.place()
        for path in place.glob(f"{self.pid}-*") if place is not None else ():
            path.unlink(missing_ok=True)

    def terminate(self) -> None:
        """SIGTERM, and waits; SIGKILL when that takes too long."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(WAIT)
        except subprocess.TimeoutExpired:
            self._notes.append(f"{self.name} did not leave within {WAIT:.0f} s of SIGTERM and was killed")
            self.kill_tree()


class Web(Actor):
    """A web process. Each life has a number, so that its dice fall anew."""

    life = 0

    def live(self, seed: int, rate: float) -> None:
        """Starts it, for another life."""
        self.life += 1
        number = self.name.rpartition("-")[2]
        self.start(str(self.log.parent), number, str(self.life), str(seed), str(rate))


class Stage:
    """Servers and processes of one campaign.

    Args:
        folder: where everybody records.
        database: sqlite, postgres or mysql.
        fsync: of Redis' append only file: always, or everysec.
        schedules: how many the code declares, see tests/app/schedules.py.
        servers: how many Redis servers: one, or another one for some of the queues.
        horizon: of the queues of outbox durability, in seconds; 0 for none.
        partitions: of each queue. rolls: whether that changes, see tests/campaign/rolling.py; then it is the most.
        cluster: redis7 or valkey9, for a Cluster of that; splits: whose network may be split.
        sentinel: for a master with a replica and Sentinels.
        replicas: whether jobs of redis durability are on the replica before they are answered for.
        pooled: whether each process has a pool of connections to PostgreSQL.
        skews: whether workers are started on hosts whose clock is wrong.
        second_site: whether another site, with another database, comes to the same Redis.
    """

    def __init__(
        self,
        folder: Path,
        *,
        database: str,
        fsync: str,
        workers: int,
        threads: int,
        webs: int,
        schedules: int = 0,
        servers: int = 1,
        horizon: float = 0,
        partitions: int = 1,
        rolls: bool = False,
        cluster: str = "",
        splits: bool = False,
        sentinel: bool = False,
        replicas: bool = False,
        pooled: bool = False,
        skews: bool = False,
        second_site: bool = False,
    ) -> None:
        if pooled and database != "postgres":
            raise ValueError("--pooled is for PostgreSQL.")
        if replicas and not cluster and not sentinel:
            raise ValueError("--replicas is for --cluster and --sentinel: no other stage has any.")
        if splits and not cluster:
            raise ValueError("--split is for --cluster.")
        self.folder = folder
        self.horizon = horizon
        self.rolls = rolls
        self.replicas = replicas
        self.settings = ROLL[0] if rolls else str(partitions)  # of workers and web processes, as APP_PARTITIONS has it
        self.schedules = schedules
        self.notes: list[str] = []
        self.fallen: list[str] = []  # what ended without being told to
        if skews and faketime.library() is None:
            raise ValueError("--skew needs libfaketime.")
        self.skews = skews
        self.second_site = SecondSite(folder) if second_site else None
        self.kind = database
        self.pool = {"min_size": 2, "max_size": threads + 2, "timeout": 5} if pooled else None
        self.fsync = fsync
        self.masters = masters.made(cluster=cluster, splits=splits, sentinel=sentinel, partitions=partitions, fsync=fsync)
        self.clock = self._clock() if self.masters is None else None
        groups = QUEUES[servers] if self.masters is None else []
        self.nodes = [Node(folder, number, queues, self.another_redis, partitions) for number, queues in enumerate(groups)]
        self.database: Any = None
        self.sqlite = folder / "db.sqlite3"
        if database != "sqlite":
            self.database = {"postgres": PostgresServer, "mysql": MariaDBServer}[database]()
        worker = [*MANAGE, "delayq_worker", "--threads", str(threads), "--grace", "3s", "-v", "0"]
        self.workers = [Worker(self.notes, folder, f"worker-{n}", worker) for n in range(workers)]
        self.webs = [Web(folder / f"web-{n}.log", [*PYTHON, "tests.campaign.load"], {}) for n in range(webs)]
        self.load_over = False
        self.rate = 0.0
        self.seed = 0

    def _clock(self) -> faketime.RedisClock | None:
        library = faketime.library()
        program = faketime.server(library) if library is not None else None
        if library is None or program is None:
            why = "libfaketime is not installed" if library is None else "no server here runs under libfaketime"
            self.notes.append(f"the clock was not stepped: {why}")
            return None
        return faketime.RedisClock(library, program, self.folder)

    def another_redis(self) -> RedisServer:
        """A server that is not started yet."""
        made = RedisServer(port=True, appendonly="yes", appendfsync=self.fsync)
        if self.clock is not None:
            made.program, made.environment = self.clock.program, self.clock.environment
        return made

    def open(self) -> None:
        """Starts the servers and makes the tables. Leaves the addresses in this process's environment, too."""
        for place in (*self.nodes, *filter(None, [self.masters])):
            place.open()
        if self.database is not None:
            spawned(self.database.start)
        os.environ.update(project(self.folder, (self.masters or self.nodes[0]).url, self._database(here=True), SETTINGS))
        os.environ["APP_SERVERS"] = json.dumps({queue: node.url for node in self.nodes[1:] for queue in node.queues})
        os.environ["APP_PARTITIONS"] = " ".join(ROLL) if self.rolls else self.settings  # of this process, which looks at all
        if self.horizon:
            os.environ["APP_HORIZON"] = str(self.horizon)
        if self.kind == "mysql":
            subprocess.run(
                ["mariadb", "--no-defaults", "-u", "root", "-S", self.database.socket, "-e", "CREATE DATABASE delayq"],
                check=True,
            )
        if self.replicas:
            os.environ["APP_REPLICAS"] = "1"
        if self.second_site is not None:
            os.environ["APP_SITE"] = "own"
        manage("migrate", "--run-syncdb", "-v", "0", environment={})
        if self.second_site is not None:
            self.second_site.open()
        for web, seconds in zip(self.webs[1:], CLOCKS, strict=False):
            web.environment = faketime.ahead(seconds)
        for one in (*self.workers, *self.webs):
            one.environment = {**one.environment, "APP_DATABASE": json.dumps(self._database())}
        # The first of each kind goes through the proxies, so that some are cut off while others are not.
        others = {queue: node.proxied for node in self.nodes[1:] for queue in node.queues}
        for one in (self.workers[0], self.webs[0]) if self.nodes else ():
            one.environment = {"APP_REDIS": self.nodes[0].proxied, "APP_SERVERS": json.dumps(others)}
        if self.masters is not None and self.masters.wires is not None:
            for one in (self.workers[0], self.webs[0]):
                one.environment = {"APP_CALLS_FROM": FEW}
        for worker in self.workers if self.schedules else ():
            self.give(worker, "old")
        for one in (*self.workers, *self.webs):
            one.environment["APP_PARTITIONS"] = self.settings

    def give(self, worker: Worker, code: str) -> None:
        """From its next start on the worker has that version of the code."""
        worker.environment["APP_CALENDAR"] = f"{code}/{self.schedules}"

    def _database(self, *, here: bool = False) -> dict[str, Any]:
        """`here`: of this process. Its threads end without closing their connections, so a pool would run dry."""
        if self.pool is not None and not here:
            return {**self.database.database(), "OPTIONS": {"pool": self.pool}}  # a health check would hide a shared connection
        if self.database is not None:
            return {**self.database.database(), "CONN_MAX_AGE": 60}
        return sqlite(self.sqlite, timeout=10, pragmas="PRAGMA synchronous=NORMAL;", CONN_MAX_AGE=60)

    def start(self, *, seed: int, rate: float) -> None:
        """Starts workers, then the load: `rate` jobs per second in all."""
        self.seed, self.rate = seed, rate / len(self.webs)
        for worker in self.workers:
            worker.start()
        for web in self.webs:
            web.live(seed, self.rate)

    def await_schedules(self) -> None:
        """Until every worker has found those of its code: the old code comes first."""
        deadline = time.monotonic() + WAIT
        while self.schedules and len(list(self.folder.glob("passes-*.jsonl"))) < len(self.workers) and time.monotonic() < deadline:
            time.sleep(0.1)

    def mend(self) -> None:
        """Starts again what has ended without being told to, and remembers it."""
        for worker in self.workers:
            if not worker.alive:
                self.fallen.append(f"{worker.name} ended by itself with {worker.process and worker.process.returncode}")
                worker.start()
        for web in () if self.load_over else self.webs:
            if not web.alive:
                self.fallen.append(f"{web.name} ended by itself with {web.process and web.process.returncode}")
                web.live(self.seed, self.rate)

    def server(self) -> str:
        """Name and version of the server under test."""
        server = self.nodes[0].server if self.masters is None else self.masters.all[0]
        text = server.call("INFO", "server", whole=True)
        found = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
        return f"Valkey {found['valkey_version']}" if "valkey_version" in found else f"Redis {found['redis_version']}"

    def behind(self) -> int:
        """How many jobs are due and not running; many if Redis does not say."""
        try:
            return sum(place.due() for place in (*self.nodes, *filter(None, [self.masters])))
        except DelayqError:
            return 1 << 30

    def end_load(self) -> None:
        """Lets the web processes finish the operation that they are at."""
        self.load_over = True
        for web in self.webs:
            self._end(web)

    def renew(self, web: Web) -> None:
        """It finishes the operation that it is at, and another one takes its place."""
        self._end(web)
        web.live(self.seed, self.rate)

    def _end(self, web: Web) -> None:
        assert web.process is not None
        try:
            web.hang_up()
            web.process.wait(WAIT)
        except subprocess.TimeoutExpired:
            self.notes.append(f"{web.name} did not end, and was killed")
            web.kill_tree()

    def close(self) -> None:
        """Ends everything."""
        for actor in (*self.webs, *self.workers):
            actor.kill_tree()
        if self.second_site is not None:
            self.second_site.end()
        for place in (*self.nodes, *filter(None, [self.masters])):
            place.close()
        if self.database is not None:
            self.database.stop()
