"""Faults that meet the servers: Redis, the proxy before it, the database."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

from tests.campaign.faults import LONGER_THAN_LEASE, Fault, NodeFault
from tests.campaign.stage import Stage
from tests.stage import spawned


class KillRedis(NodeFault):
    """SIGKILL of Redis, and a start from its append only file."""

    kind = "kill redis"
    lasts = (0.0, 6.0)

    def begin(self) -> None:
        self.node.server.kill()

    def end(self) -> None:
        spawned(self.node.server.start)


class RestartRedis(KillRedis):
    """Redis leaves in order and comes back."""

    kind = "restart redis"
    lasts = (0.0, 2.0)

    def begin(self) -> None:
        self.node.server.terminate()


class PauseRedis(NodeFault):
    """SIGSTOP of Redis for longer than the lease: connections stay open, but no replies arrive."""

    kind = "pause redis"
    lasts = LONGER_THAN_LEASE

    def begin(self) -> None:
        self.node.server.pause()

    def end(self) -> None:
        self.node.server.resume()


class FullRedis(NodeFault):
    """Redis has no memory left."""

    kind = "redis full"
    lasts = (2.0, 5.0)

    def begin(self) -> None:
        used = self.node.used_memory()
        self.node.server.call("CONFIG", "SET", "maxmemory", str(used + 200_000))

    def end(self) -> None:
        self.node.server.call("CONFIG", "SET", "maxmemory", "0")


class FlushScripts(NodeFault):
    """Redis forgets the scripts."""

    kind = "flush scripts"

    def begin(self) -> None:
        self.node.server.call("SCRIPT", "FLUSH")


class KillClients(NodeFault):
    """Redis closes all connections, several times."""

    kind = "kill connections"
    lasts = (0.5, 1.5)

    def begin(self) -> None:
        self.node.server.call("CLIENT", "KILL", "TYPE", "normal")

    def end(self) -> None:
        self.node.server.call("CLIENT", "KILL", "TYPE", "normal")


class ProxyResets(NodeFault):
    """Some connections are reset in the middle of a reply."""

    meets = "proxy"
    kind = "proxy resets"
    lasts = (2.0, 5.0)
    order = "reset 0.3"

    def begin(self) -> None:
        self.node.proxy.tell(self.order)

    def end(self) -> None:
        self.node.proxy.tell("pass")


class ProxySwallows(ProxyResets):
    """Some replies never come."""

    kind = "proxy swallows"
    lasts = (3.0, 6.0)
    order = "swallow 0.3"


class ProxyDelays(ProxyResets):
    """Every reply comes two seconds late."""

    kind = "proxy delays"
    lasts = (4.0, 6.0)
    order = "delay 2"


class PauseDatabase(Fault):
    """SIGSTOP of the database server, all of it."""

    meets = "database"
    kind = "pause database"
    lasts = (3.0, 6.0)

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.database is not None

    def begin(self) -> None:
        os.killpg(self.stage.database.process.pid, signal.SIGSTOP)

    def end(self) -> None:
        os.killpg(self.stage.database.process.pid, signal.SIGCONT)


class RestartDatabase(Fault):
    """The database leaves, cutting everybody off, and comes back."""

    meets = "database"
    kind = "restart database"
    lasts = (1.0, 4.0)

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.database is not None

    def begin(self) -> None:
        process = self.stage.database.process
        process.send_signal(signal.SIGINT if self.stage.kind == "postgres" else signal.SIGTERM)
        process.wait(30)

    def end(self) -> None:
        spawned(self.stage.database.start)


class KillDatabase(RestartDatabase):
    """The database ends without closing anything, and recovers from its log."""

    kind = "kill database"

    def begin(self) -> None:
        process = self.stage.database.process
        process.send_signal(signal.SIGQUIT if self.stage.kind == "postgres" else signal.SIGKILL)
        process.wait(30)


class DatabaseAway(KillDatabase):
    """The same, for longer than most schedules have ticks ahead, and than they may be late."""

    kind = "database away"
    lasts = (9.0, 12.0)
    weight = 1

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.schedules > 0 and super().possible(stage)


class LockTables(Fault):
    """Another session locks the table of jobs, so that no process can read or write it."""

    kind = "lock tables"
    meets = "database"
    lasts = (2.0, 6.0)

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.kind == "postgres"

    def begin(self) -> None:
        self.connection = patient(self.stage)
        self.connection.autocommit = False
        self.connection.execute("LOCK TABLE delayq_job IN ACCESS EXCLUSIVE MODE")

    def end(self) -> None:
        self.connection.rollback()
        self.connection.close()


class StatementTimeouts(LockTables):
    """The database ends every statement that lasts longer than a moment; and somebody holds the table of jobs for several."""

    kind = "statement timeouts"
    setting = "statement_timeout"

    def begin(self) -> None:
        with patient(self.stage) as connection:
            connection.execute(f"ALTER ROLE delayq SET {self.setting} = '150ms'")
            cut_off_all(connection)  # this rule applies to new connections
        super().begin()

    def end(self) -> None:
        super().end()
        with patient(self.stage) as connection:
            connection.execute(f"ALTER ROLE delayq RESET {self.setting}")
            cut_off_all(connection)


class LockTimeouts(StatementTimeouts):
    """The database ends statements that wait for a lock."""

    kind = "lock timeouts"
    setting = "lock_timeout"


class CrowdedDatabase(Fault):
    """The database has no connection left for those who have none yet, and those who have one lose it."""

    kind = "database crowded"
    meets = "database"
    lasts = (2.0, 5.0)

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.kind == "postgres"

    def begin(self) -> None:
        self.crowd = crowd(self.stage.database.directory)

    def end(self) -> None:
        for connection in self.crowd:
            connection.close()


class LockDatabase(Fault):
    """Somebody holds SQLite's write lock."""

    meets = "database"
    kind = "lock database"
    lasts = (2.0, 12.0)

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.kind == "sqlite"

    def begin(self) -> None:
        self.connection = sqlite3.connect(self.stage.sqlite, timeout=20, isolation_level=None)
        self.connection.execute("BEGIN EXCLUSIVE")

    def end(self) -> None:
        self.connection.rollback()
        self.connection.close()


def crowd(directory: Path) -> list[Any]:
    """Connections to that PostgreSQL until it has no more, after those of everybody else were ended."""
    import psycopg

    found: list[Any] = []
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            found.append(psycopg.connect(f"host={directory} user=delayq dbname=postgres", autocommit=True))
            if len(found) == 1:
                cut_off_all(found[0])
    return found


def patient(stage: Stage) -> Any:
    """A connection to the stage's PostgreSQL to which no limit of time applies; each statement commits itself."""
    import psycopg

    limits = "-c statement_timeout=0 -c lock_timeout=0"
    where = f"host={stage.database.directory} user=delayq dbname=postgres"
    return psycopg.connect(where, options=limits, autocommit=True)


def cut_off_all(connection: Any) -> None:
    """Ends all connections to that PostgreSQL but this one."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
