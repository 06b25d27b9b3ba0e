"""Files in memory (/dev/shm) for the lease tables of task processes. They survive when a whole worker is killed, so another worker of
the same machine can read which jobs it held, and which of them were running.

A file is the lease table, then a head in JSON, then the length of the head. It gets its name only when it is complete. It is removed
when Redis knows about all its jobs: by the worker of the process, or by the worker that gives its jobs back, which also removes
unfinished files. If there is no /dev/shm, or not enough room, a lease table is plain memory, and the jobs of a killed worker wait
until their leases expire.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final

from django_delayq import clock
from django_delayq.worker.lease_table import LAYOUT, LeaseTable
from django_delayq.worker.line import Line

MEMORY: Final = Path("/dev/shm")
_UNFINISHED: Final = ".new"  # the suffix of a file until it is complete; the name starts with the process id, as afterwards
_LENGTH: Final = 8  # bytes, at the end of the file
_OLD: Final = 3_600.0  # seconds after which a file that is not touched is litter, such as a file of another container


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The process that made the file. `machine`: the start of the machine, and the namespaces in which `pid` and `born` (ticks) are
    valid.
    """

    machine: str
    pid: int
    born: str

    def gone(self) -> bool:
        """Whether the process has certainly ended; False if that is unknown. Its children have ended, too: the kernel kills them
        before it shows their parent as ended.
        """
        return bool(self.machine) and self.machine == _machine() and not _lives(self.pid, self.born)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The part of the file after the lease table. `store`: prefix and address; `lines`: queue, partition, lease ms, max crashes."""

    layout: int
    worker: str
    store: str
    rows: int
    lines: Sequence[tuple[str, int, int, int]]
    origin: Origin


class LeaseFile:
    """One file. It is locked while this object exists, so only one of several workers gives its jobs back."""

    def __init__(self, path: Path, descriptor: int, head: Head, leases: LeaseTable | None) -> None:
        self.path = path
        self.head = head
        self.leases = leases
        self._descriptor = descriptor

    def remove(self) -> None:
        """Removes the file, because Redis knows about all its jobs."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leaves the file to other workers."""
        if self.leases is not None:
            self.leases.close()
            self.leases = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def origin() -> Origin:
    """The origin of this process."""
    pid = os.getpid()
    return Origin(machine=_machine(), pid=pid, born=_stat(pid)[1])


def place(memory: Path = MEMORY) -> Path | None:
    """The directory of this user's files, which is created if needed. None if the system has no such directory, or if it belongs to
    another user.
    """
    folder = memory / f"delayq-{os.geteuid()}"
    try:
        if not _machine() or not memory.is_dir():
            return None
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return folder if ours else None


def make(folder: Path | None, *, worker: str, store: str, rows: int, lines: Sequence[Line]) -> tuple[LeaseTable, Path | None]:
    """A lease table in a file of that directory. Without a directory or room, it is in plain memory and has no path."""
    path = None if folder is None else folder / f"{os.getpid()}-{os.urandom(6).hex()}"
    if path is None:
        return LeaseTable(rows, len(lines)), None
    head = Head(
        layout=LAYOUT,
        worker=worker,
        store=store,
        rows=rows,
        origin=origin(),
        lines=[(line.queue, line.partition, line.lease_ms, line.max_crashes) for line in lines],
    )
    text = json.dumps(asdict(head)).encode()
    size = LeaseTable.size(rows, len(lines))
    unfinished = path.with_suffix(_UNFINISHED)
    try:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # All memory is allocated now: a page that is not available later would kill the process that writes to it.
            os.posix_fallocate(descriptor, 0, size)
            os.pwrite(descriptor, text + len(text).to_bytes(_LENGTH, "big"), size)
            leases = LeaseTable(rows, len(lines), descriptor)
        finally:
            os.close(descriptor)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return LeaseTable(rows, len(lines)), None
    return leases, path


def left(folder: Path, store: str, seen: dict[str, Origin | None] | None = None) -> Iterator[LeaseFile]:
    """Yields files of that store whose workers have certainly ended and whose jobs no other worker is giving back. Removes litter.

    Args:
        seen: the results of earlier passes, by file name; the caller keeps it, and clears it now and then. Then a file of a living
            process costs only a check of the process, and a file of another store (None) costs nothing.
    """
    seen = {} if seen is None else seen
    for name in sorted(os.listdir(folder)):
        pid = name.partition("-")[0]
        if name.endswith(_UNFINISHED) and pid.isdigit() and not _may_live(int(pid)):
            # Its process died while it wrote the file. If the process is in another container and still alive, it continues without a
            # file.
            (folder / name).unlink(missing_ok=True)
            continue
        if name in seen and ((origin := seen[name]) is None or not origin.gone()):
            continue
        try:
            found = _open(folder / name, store, seen)
        except OSError:  # removed meanwhile
            continue
        if found is not None:
            yield found


def touch(paths: Sequence[Path]) -> None:
    """Touches these files, which shows that they are not litter."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.utime(path)


def _open(path: Path, store: str, seen: dict[str, Origin | None]) -> LeaseFile | None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    keep = False
    try:
        head = _head(descriptor)
        ours = head is not None and head.store == store
        if head is None or not ours or not head.origin.gone():
            seen[path.name] = head.origin if head is not None and ours else None
            if clock.wall_ms() / 1000 - os.fstat(descriptor).st_mtime > _OLD:
                path.unlink(missing_ok=True)
            return None
        if head.layout != LAYOUT:  # of another version: its jobs wait until their leases expire
            path.unlink(missing_ok=True)
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if not os.fstat(descriptor).st_nlink:  # another worker gave it back in the meantime
            return None
        found = LeaseFile(path, descriptor, head, LeaseTable(head.rows, len(head.lines), descriptor))
        keep = True
        return found
    finally:
        if not keep:
            os.close(descriptor)


def _head(descriptor: int) -> Head | None:
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, _LENGTH, max(0, size - _LENGTH)), "big")
    if not 0 < length < size:
        return None
    try:
        found = json.loads(os.pread(descriptor, length, size - _LENGTH - length))
        found["origin"] = Origin(**found["origin"])
        found["lines"] = [tuple(line) for line in found["lines"]]
        head = Head(**found)
        whole = LeaseTable.size(head.rows, len(head.lines)) == size - _LENGTH - length
    except (ValueError, TypeError, KeyError):
        return None
    return head if whole else None


@cache
def _machine() -> str:
    # The start of the machine, since a process id is valid only until the next start; and the namespaces, since it is not valid in
    # another container, and a time of birth is not valid under another clock.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pids, times = Path("/proc/self/ns/pid"), Path("/proc/self/ns/time")  # the latter since Linux 5.6
        return " ".join([boot, os.readlink(pids), os.readlink(times) if times.is_symlink() else "-"])
    except OSError:
        return ""


def _lives(pid: int, born: str) -> bool:
    try:
        state, start = _stat(pid)
    except OSError:
        return _may_live(pid)
    return state not in "ZX" and start == born


def _may_live(pid: int) -> bool:
    # /proc may hide processes; the result of a signal shows whether the process exists.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _stat(pid: int) -> tuple[str, str]:
    """State and time of birth."""
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)  # once a second for each worker of this machine
    try:
        words = os.read(descriptor, 4096).rpartition(b")")[2].split()
    finally:
        os.close(descriptor)
    return words[0].decode(), words[19].decode()
