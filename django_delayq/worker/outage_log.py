"""Logs that Redis is away: at most one warning in two seconds for a whole worker, with the number of failed attempts. Otherwise each
loop of each process would log its own failures.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.text import one_line

logger = Logger("django_delayq.worker")

EVERY: Final = 2.0  # seconds between two lines
STALE: Final = 30.0  # seconds without a report after which a loop no longer counts as failing: its process has died
IDLE: Final = 60.0  # seconds


class OutageLog:
    """1. A loop reports each failed attempt, and the first one that succeeds again.
    2. A child process sends its reports to the supervisor through a pipe. If the pipe is full, a report is lost.
    3. The supervisor logs what has been reported since the last line. A process without a supervisor logs its own reports.
    """

    def __init__(self) -> None:
        self.descriptor = -1  # in the supervisor: readable if a child has reported
        self._write = -1
        self._is_child = False
        self._unread = b""
        self._lock = threading.Lock()
        self._failing: dict[str, float] = {}  # the loops, each with the time of its last failure
        self._error = ""
        self._began = self._heard = self._next_line = 0.0
        self._attempts = self._total = 0  # since the last line, and since the outage began

    def open(self) -> None:
        """In the supervisor: accepts reports of children."""
        self.descriptor, self._write = os.pipe()
        for descriptor in (self.descriptor, self._write):
            os.set_blocking(descriptor, False)

    def become_child(self) -> None:
        """In a child: sends all reports to the supervisor from now on."""
        os.close(self.descriptor)
        self._is_child = True

    def close(self) -> None:
        """In the supervisor, at its end."""
        os.close(self.descriptor)
        os.close(self._write)
        self.descriptor = self._write = -1

    def failed(self, loop: object, error: StoreUnavailable) -> None:
        """Reports a failed attempt."""
        # An error during the cooldown has no cause. It is only shown if no other error is known.
        self._report("?" if error.code == "redis_cooldown" else "!", loop, one_line(str(error)))

    def worked(self, loop: object) -> None:
        """Reports that the loop works again."""
        self._report("+", loop, "")

    def poll(self) -> float:
        """In the supervisor: reads the reports of children, and logs a line if it is time. Returns the seconds until the next pass."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                while read := os.read(self.descriptor, 65_536):
                    *lines, self._unread = (self._unread + read).split(b"\n")
                    for line in lines:
                        self._take(line)
            self._log()
            return EVERY / 4 if self._total else IDLE

    def _report(self, kind: str, loop: object, text: str) -> None:
        # The system does not mix writes of this length with those of other processes.
        line = f"{kind}{os.getpid()}.{id(loop)} {text}".encode("utf-8", "replace")[: select.PIPE_BUF - 1]
        if self._is_child:
            with contextlib.suppress(OSError):
                os.write(self._write, line + b"\n")
            return
        with self._lock:
            self._take(line)
            self._log()

    def _take(self, line: bytes) -> None:
        head, _, text = line.decode("utf-8", "replace").partition(" ")
        kind, loop, now = head[:1], head[1:], clock.monotonic()
        if kind == "+":
            if self._failing.pop(loop, None) is not None:
                self._heard = now
            return
        if not self._total:
            self._began = now
        self._failing[loop] = self._heard = now
        self._attempts += 1
        self._total += 1
        if kind == "!" or not self._error:
            self._error = text

    def _log(self) -> None:
        now = clock.monotonic()
        self._failing = {loop: at for loop, at in self._failing.items() if now - at < STALE}
        if not self._total or now < self._next_line:
            return
        if not self._failing:
            logger.warning("Redis works again after %.1f s. Failed attempts: %d", self._heard - self._began, self._total)
            self._attempts, self._total, self._error = 0, 0, ""
        elif self._attempts:
            logger.warning(
                "%s The worker tries again until it succeeds. Failed attempts since the last line: %d. Failing loops: %d",
                self._error,
                self._attempts,
                len(self._failing),
            )
            self._attempts = 0
        else:
            return
        self._next_line = now + EVERY


outages: Final = OutageLog()  # of this process
