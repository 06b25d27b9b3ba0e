"""The records of a process in its own file: one line per write. They are never in the servers under test, because faults affect
those.
"""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

FORGOTTEN = "forgotten"  # a file that is touched when Redis has forgotten something
# Seconds by which the clock of this process's host is ahead. Its records use the right time nevertheless.
CLOCK = int(os.environ.get("APP_CLOCK", "0"))


def sleep_without_libfaketime() -> None:
    """Replaces `time.sleep`, which libfaketime breaks. Called before other modules bind the name."""
    time.sleep = lambda seconds: select.select([], [], [], max(0.0, seconds))  # type: ignore[assignment]


def now_ms() -> int:
    """The right time as wall clock ms."""
    return time.time_ns() // 1_000_000 - CLOCK * 1000


class Recorder:
    """Appends JSON lines. `t`: monotonic ns, which all processes of a host share; `w`: wall clock ms, which Redis' TIME shows too.

    A line is one write(2), so that a killed process leaves whole lines behind, the last one perhaps missing.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.jsonl"
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **fields: Any) -> None:
        """One line, with both clocks."""
        line = {"t": time.monotonic_ns(), "w": now_ms(), **fields}
        os.write(self._descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


_own: dict[tuple[int, str], Recorder] = {}


def own(folder: str | Path, name: str) -> Recorder:
    """The recorder of this process of that name; another one after a fork."""
    found = _own.get((os.getpid(), name))
    if found is None:
        found = _own[os.getpid(), name] = Recorder(Path(folder), f"{name}-{os.getpid()}")
    return found


def lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """All lines of the files of that pattern, by time. A line cut short is left out: its writer was killed."""
    found = []
    for path in folder.glob(pattern):
        for line in path.read_bytes().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    found.sort(key=lambda line: line["t"])
    return found
