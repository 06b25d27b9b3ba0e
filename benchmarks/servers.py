"""The servers that are measured on: those of the tests, with the settings that a queue and its database have in production."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, Self

from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.connection.error_replies import SLOTS
from django_delayq.store.keys import tag
from tests.servers import MariaDBServer, PostgresServer, RedisServer, ServerMissing, bound, folder
from tests.topologies import ClusterServers, valkey_program

__all__ = [
    "DATABASES", "Database", "MariaDB", "Masters", "Postgres", "Redis", "SQLite", "ServerMissing", "ask", "bound", "folder", "info",
    "monitored", "slot", "valkey_program",
]  # fmt: skip
QUEUE = "default"


def ask(port: int, *words: str | int) -> str:
    """Sends one command to the server on that port of the loopback, on a new connection. Returns the whole answer as text, or the
    first line of a list.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=120) as line:
        parts = [str(word).encode() for word in words]
        line.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        file = line.makefile("rb")
        first = file.readline().rstrip()
        if first[:1] == b"$" and first != b"$-1":
            return file.read(int(first[1:])).decode()
        return first[1:].decode()


def info(port: int, section: str = "everything") -> dict[str, str]:
    """INFO as a dictionary."""
    lines = ask(port, "INFO", section).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def cpu_of(port: int) -> float:
    """Seconds of CPU that the server has used."""
    seen = info(port, "cpu")
    return float(seen["used_cpu_user"]) + float(seen["used_cpu_sys"])


def monitored(port: int, seconds: float) -> list[bytes]:
    """The output of MONITOR during this time."""
    found, until = b"", time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as line:
        line.sendall(b"MONITOR\r\n")
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                found += line.recv(1 << 20)
    return found.split(b"\r\n")[1:-1]


def slot(partition: int) -> int:
    """The slot of that partition of the queue that is measured."""
    return slot_of(f"{{{tag(QUEUE, partition)}}}")


class Database(Protocol):
    """A server for Django's tables; a context."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def database(self) -> dict[str, object]:
        """As DATABASES wants it."""


class Redis(RedisServer):
    """Redis or Valkey on a port of the loopback, with an append-only file written every second, as a queue wants it.
    BENCH_SERVER may name its program.
    """

    SETTINGS = {"save": "", "appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}

    def __init__(self) -> None:
        super().__init__(port=True, **self.SETTINGS)
        self.program = os.environ.get("BENCH_SERVER") or self.program

    @property
    def url(self) -> str:
        """The address for all systems, since not all of them support unix sockets."""
        return f"{self.tcp_url}/0"

    def users(self) -> list[str]:
        """None: other systems use commands that ours does not need."""
        return []

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return self.ask("PING") == "PONG"
        except OSError:
            return False

    def ask(self, *words: str | int) -> str:
        """See `ask`."""
        return ask(self.port, *words)

    def info(self, section: str = "everything") -> dict[str, str]:
        """INFO as a dictionary."""
        return info(self.port, section)

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        return cpu_of(self.port)

    def each_cpu(self) -> list[float]:
        """The same, as `Masters` has it."""
        return [self.cpu()]

    def memory(self) -> int:
        """Bytes that its data takes."""
        return int(self.info("memory")["used_memory"])

    def commands(self) -> int:
        """Commands since its start."""
        return int(self.info("stats")["total_commands_processed"])

    def requests(self, seconds: float) -> float:
        """Requests per second that clients send, for so long: what scripts call is not among them."""
        return sum(b" lua] " not in seen for seen in monitored(self.port, seconds)) / seconds

    def calls(self, sha: str, seconds: float) -> float:
        """Calls per second of that script."""
        return sum(sha.encode() in seen for seen in monitored(self.port, seconds)) / seconds

    def field(self, key: str, name: str) -> str:
        """That field of a hash."""
        return self.ask("HGET", key, name)

    def empty(self, key: str) -> None:
        """Takes all entries off that stream."""
        self.ask("XTRIM", key, "MAXLEN", 0)

    def version(self) -> str:
        """Its name and version."""
        seen = self.info("server")
        return f"Valkey {seen['valkey_version']}" if "valkey_version" in seen else f"Redis {seen['redis_version']}"


class Masters(ClusterServers):
    """Three masters of a Cluster, set up like `Redis`. The slots of the first so many partitions are dealt to them in turn, as somebody
    does it who evens them out; all others by their number.

    Args:
        program: of the servers; by default as `Redis` has it.
    """

    def __init__(self, partitions: int = 0, *, replicas: bool = False, program: str = "") -> None:
        settings: dict[str, Any] = {**Redis.SETTINGS, "cluster-require-full-coverage": "no"}
        program = program or os.environ.get("BENCH_SERVER", "")
        super().__init__(masters=3, replicas=replicas, program=program, **settings)
        owners = [len(self.masters) * number // SLOTS for number in range(SLOTS)]
        for partition in range(partitions):
            owners[slot(partition)] = partition % len(self.masters)
        runs = [(owner, list(numbers)) for owner, numbers in groupby(range(SLOTS), owners.__getitem__)]
        self.parts = [" ".join(f"{some[0]}-{some[-1]}" for owner, some in runs if owner == one) for one in range(len(self.masters))]

    @property
    def url(self) -> str:
        """A user with all permissions, as on one server."""
        return self.root_url

    @property
    def ports(self) -> list[int]:
        """The masters, as they were at the start."""
        return [node.port for node in self.masters]

    def ready(self) -> bool:
        """Whether all masters answer."""
        try:
            return all(ask(port, "PING") == "PONG" for port in self.ports)
        except OSError:
            return False

    def each_cpu(self) -> list[float]:
        """Seconds of CPU that each master has used."""
        return [cpu_of(port) for port in self.ports]

    def cpu(self) -> float:
        """Seconds of CPU that all masters have used."""
        return sum(self.each_cpu())

    def memory(self) -> int:
        """Bytes that the data of all masters takes."""
        return sum(int(info(port, "memory")["used_memory"]) for port in self.ports)

    def calls(self, sha: str, seconds: float) -> float:
        """Calls per second of that script, on all masters."""
        with ThreadPoolExecutor(len(self.ports)) as pool:
            seen = pool.map(partial(monitored, seconds=seconds), self.ports)
            return sum(sha.encode() in line for lines in seen for line in lines) / seconds

    def field(self, key: str, name: str) -> str:
        """See `Redis`."""
        return ask(self.serving(slot_of(key)).port, "HGET", key, name)

    def empty(self, key: str) -> None:
        """See `Redis`."""
        ask(self.serving(slot_of(key)).port, "XTRIM", key, "MAXLEN", 0)


class Postgres(PostgresServer):
    """PostgreSQL with its defaults: every commit is on the disk."""

    options = ()


class MariaDB(MariaDBServer):
    """MariaDB with its defaults, and an empty database."""

    options = ()

    def command(self) -> list[str]:
        """The program and its arguments."""
        first = self.directory / "first.sql"
        first.write_text("CREATE DATABASE IF NOT EXISTS delayq CHARACTER SET utf8mb4;\n")
        return [*super().command(), f"--init-file={first}"]


class SQLite:
    """A file, in the way Django's documentation recommends for production."""

    def __init__(self) -> None:
        self.directory: Path = folder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def database(self) -> dict[str, object]:
        """As DATABASES wants it."""
        options = {
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        }
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.directory / "db"), "OPTIONS": options}


DATABASES: Mapping[str, Callable[[], Database]] = {"postgres": Postgres, "mariadb": MariaDB, "sqlite": SQLite}
