"""The servers that are measured on: those of the tests, with the settings that a queue and its database have in production."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, Self

from tests.servers import MariaDBServer, PostgresServer, RedisServer, ServerMissing, bound, folder

__all__ = ["DATABASES", "Database", "MariaDB", "Postgres", "Redis", "SQLite", "ServerMissing", "bound", "folder"]


class Database(Protocol):
    """What Django can keep its tables in; a context."""

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
        """Where all systems find it: not each of them knows unix sockets."""
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
        """One command on a connection of its own; the whole answer as text."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as line:
            parts = [str(word).encode() for word in words]
            line.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            file = line.makefile("rb")
            first = file.readline().rstrip()
            if first[:1] == b"$" and first != b"$-1":
                return file.read(int(first[1:])).decode()
            return first[1:].decode()

    def info(self, section: str = "everything") -> dict[str, str]:
        """INFO as a dictionary."""
        lines = self.ask("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        seen = self.info("cpu")
        return float(seen["used_cpu_user"]) + float(seen["used_cpu_sys"])

    def memory(self) -> int:
        """Bytes that its data takes."""
        return int(self.info("memory")["used_memory"])

    def commands(self) -> int:
        """Commands since its start."""
        return int(self.info("stats")["total_commands_processed"])

    def requests(self, seconds: float) -> float:
        """Requests per second that clients send, for so long: what scripts call is not among them."""
        found, until = b"", time.monotonic() + seconds
        with socket.create_connection(("127.0.0.1", self.port), timeout=0.2) as line:
            line.sendall(b"MONITOR\r\n")
            while time.monotonic() < until:
                with contextlib.suppress(TimeoutError):
                    found += line.recv(1 << 20)
        lines = found.split(b"\r\n")[1:-1]
        return sum(b" lua] " not in seen for seen in lines) / seconds

    def version(self) -> str:
        """Its name and version."""
        seen = self.info("server")
        return f"Valkey {seen['valkey_version']}" if "valkey_version" in seen else f"Redis {seen['redis_version']}"


class Postgres(PostgresServer):
    """PostgreSQL with its defaults: every commit is on the disk."""

    options = ()


class MariaDB(MariaDBServer):
    """MariaDB with its defaults, and an empty database."""

    options = ()

    def command(self) -> list[str]:
        """What to start."""
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
