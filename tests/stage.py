"""The environment of the sample project: its settings and its processes, each in a separate process group."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tests.servers import bound

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
WAIT = 30.0
MANAGE = (sys.executable, "-m", "django")
_spawner = ThreadPoolExecutor(1, "spawner")


def spawned(start: Callable[[], T]) -> T:
    """Starts processes from one thread that lasts: they end with the thread that has started them."""
    return _spawner.submit(start).result()


def eventually(check: Callable[[], T], what: str | Callable[[], str] = "it", patience: float = 2 * WAIT) -> T:
    """Polls until `check` returns something true, and returns that. `what`: what did not happen otherwise."""
    deadline = time.monotonic() + patience
    while not (found := check()):
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"Not within {patience} s: {said}. The last look gave {found!r}")
        time.sleep(0.02)
    return found


def sqlite(name: Path | str, *, timeout: float = 20, pragmas: str = "", **more: Any) -> dict[str, Any]:
    """An entry of DATABASES."""
    options = {
        "timeout": timeout,
        "transaction_mode": "IMMEDIATE",
        "init_command": f"PRAGMA journal_mode=WAL;{pragmas}",
    }
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(name), "OPTIONS": options, **more}


def project(folder: Path, redis: str, database: Mapping[str, Any], delayq: Mapping[str, Any]) -> dict[str, str]:
    """The environment of the sample project's processes, beside our own; see tests/app/settings.py."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.app.settings",
        "APP_REDIS": redis,
        "APP_DATABASE": json.dumps(database),
        "APP_DELAYQ": json.dumps(delayq),
        "APP_FOLDER": str(folder),
    }


def manage(*words: str, environment: Mapping[str, str], codes: Collection[int] = (0,)) -> str:
    """Runs a command of the project; returns what it printed. `codes`: with which it may end."""
    done = subprocess.run([*MANAGE, *words], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout.strip()


class Actor:
    """A subprocess in a separate process group. It ends with this process, and its output is in a file."""

    def __init__(self, log: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.log = log
        self.name = log.stem
        self.environment = dict(environment)
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, **environment: str) -> None:
        """Starts it; `more` is added to its command, `environment` overrides its environment."""
        self.process = spawned(lambda: self._spawn(more, environment))

    def _spawn(self, more: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                bound([*self._command, *more]),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def children(self) -> list[int]:
        """The pids of its processes."""
        with contextlib.suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")

    def tell(self, line: str) -> None:
        """Writes a line to its input."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, sign: int) -> None:
        """To it alone."""
        os.kill(self.pid, sign)

    def signal_tree(self, sign: int) -> None:
        """To all of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, sign)

    def wait(self, seconds: float = WAIT) -> int:
        """Its exit code. One that does not end says where it is."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGQUIT)
            time.sleep(1)
            raise AssertionError(f"{self.name} did not end:\n{self.text()}") from None

    def kill_tree(self) -> None:
        """SIGKILL to all of it, if it was started."""
        if self.process is not None:
            self.signal_tree(signal.SIGKILL)
            self.process.wait(WAIT)
            self.hang_up()

    def hang_up(self) -> None:
        """Closes its input, which ends those that read it."""
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


@contextlib.contextmanager
def many_open_files() -> Iterator[None]:
    """So many that the next descriptor is above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files: list[int] = []
    try:
        while len(files) < 1100:
            files.append(os.dup(2))
        yield
    finally:
        for one in files:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
