"""The handler of a worker's own log. In a task process it gathers lines and writes many at once."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import deque
from typing import Final

from django_delayq import clock

GATHER: Final = 0.02  # seconds
# Lines. Who logs the next one writes them all: a stream that nobody reads shall hold up the jobs, and not fill the memory.
MOST: Final = 2_000
# What is longer may be torn on a pipe, and the processes of a worker share one.
WHOLE: Final = 4_096  # bytes


class LogHandler(logging.Handler):
    """Writes to standard error. After `gather` it writes what is below WARNING every 20 ms, by a thread of its own: else the threads
    that run jobs wait for one another at the handler's lock, which costs more than the jobs. A warning is written at once, behind
    what was gathered before it. A process that is killed loses the lines of 20 ms; one that ends by itself calls `flush` before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stream = sys.stderr
        self._gathers = False
        self._gathered: deque[logging.LogRecord] = deque()
        self._filled = threading.Event()
        self._writing = threading.RLock()

    def gather(self) -> None:
        """From now on lines are gathered in this process, though not in one that is forked from it."""
        self._gathers = True
        os.register_at_fork(after_in_child=self._become_a_fork)
        threading.Thread(target=self._work, name="delayq-log", daemon=True).start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Takes a record, without the lock that other handlers hold while they write."""
        passed = self.filter(record)
        if passed:
            self.emit(record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the record, or keeps it for the next pass."""
        self._gathered.append(record)
        if not self._gathers or record.levelno >= logging.WARNING or len(self._gathered) > MOST:
            self.flush()
        elif not self._filled.is_set():
            self._filled.set()

    def flush(self) -> None:
        """Writes what was gathered, in as few calls as keep each line whole."""
        with self._writing:
            text, size = "", 0
            try:
                for _ in range(len(self._gathered)):  # not what comes meanwhile: others would make us write for ever
                    if not self._gathered:
                        break  # to make a line another was logged, which has written them all
                    line = self._line(self._gathered.popleft())
                    length = len(line) if line.isascii() else len(line.encode("utf-8", "replace"))
                    if size + length > WHOLE:
                        self._write(text)
                        text, size = "", 0
                    text, size = text + line, size + length
            finally:
                self._write(text)  # also when a timeout strikes this thread: the lines are those of others

    def flush_within(self, seconds: float) -> None:
        """The same by a thread that is not waited for any longer, since nobody may be reading."""
        writer = threading.Thread(target=self.flush, name="delayq-log-end", daemon=True)
        writer.start()
        writer.join(seconds)

    def close(self) -> None:
        """What is logged from now on is written at once."""
        self._gathers = False
        self.flush()
        super().close()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return f"{self.format(record)}\n"
        except Exception:
            self.handleError(record)
            return ""

    def _write(self, text: str) -> None:
        try:
            if text:
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more, or it is closed; there is nowhere to say so
            pass

    def _work(self) -> None:
        while True:
            self._filled.wait()
            clock.sleep(GATHER)
            self._filled.clear()
            with contextlib.suppress(Exception):  # a line that cannot be made must not end the lines of all others
                self.flush()

    def _become_a_fork(self) -> None:
        # What was gathered is the original's to write, and another thread of it may have held the lock.
        self._gathers = False
        self._gathered = deque()
        self._writing = threading.RLock()
