"""The log of a worker: its format, its handler, and the line about each job.

In a task process, a thread writes the gathered lines. A line about a job never has a payload, a result or an argument. It has the text
of a task's error only with DEBUG.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections import deque
from datetime import datetime
from typing import Any, Final

from django.utils.timezone import get_default_timezone

from django_delayq import clock, conf, durations
from django_delayq.exceptions import ControlFlow, Skip
from django_delayq.logger import LOGGERS, Logger, class_name, debug_traceback, summary, traceback
from django_delayq.store.scripts.queue import Outcome
from django_delayq.text import one_line
from django_delayq.worker.current import Run
from django_delayq.worker.receivers import Receiver

root = logging.getLogger("django_delayq")

FIELDS: Final = ("job_id", "task", "queue", "attempt", "worker", "traceback")
CONSOLE: Final = "%(asctime)s %(levelname)s [%(process)d] %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: at, level, logger, message, pid, the fields of a job, and the frames of an error."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": clock.from_ms(int(record.created * 1000)).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        line |= {name: getattr(record, name) for name in FIELDS if getattr(record, name, "") != ""}
        return json.dumps(line, default=str)


class ConsoleFormatter(logging.Formatter):
    """One line of text; the frames of an error follow, indented."""

    _second = (0, "")  # the last formatted second, because formatting costs more than the rest of a line

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Formats the time as commands and pages do, with milliseconds."""
        second, text = self._second
        if second != int(record.created):
            second = int(record.created)
            text = datetime.fromtimestamp(second, get_default_timezone()).isoformat(" ")
            self._second = second, text
        return f"{text[:19]}.{int(record.msecs):03d}{text[19:]}"

    def format(self, record: logging.LogRecord) -> str:
        text, frames = super().format(record), getattr(record, "traceback", "")
        return text + "".join(f"\n    {line}" for line in frames.split("\n")) if frames else text


def set_up(form: str, level: int) -> bool:
    """Sets the level of the package's logger, unless the project has set it. If neither the project nor one of its libraries has given
    this logger or the root logger a handler, adds one that writes to standard error, in the form "console" or "json". Returns whether
    the logger has this handler.
    """
    for name in LOGGERS:  # LOGGING may have disabled them, because its disable_existing_loggers is True by default
        logging.getLogger(name).disabled = False
    if root.level == logging.NOTSET:
        root.setLevel(level)
    if not root.hasHandlers():
        handler = LogHandler()
        handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter(CONSOLE))
        root.addHandler(handler)
        root.propagate = False
    return bool(_ours())


def gather() -> None:
    """For a process that runs jobs: lines are gathered, if the handler is ours (see `LogHandler`)."""
    for handler in _ours():
        handler.gather()


def flush_within(seconds: float) -> None:
    """Before a process ends at once: writes the gathered lines, but waits no longer than this."""
    for handler in _ours():
        handler.flush_within(seconds)


def _ours() -> list[LogHandler]:
    return [handler for handler in root.handlers if isinstance(handler, LogHandler)]


GATHER: Final = 0.02  # seconds
# The number of lines after which the next writer writes them all. If the reader of the stream stops, the jobs must wait; the lines
# must not fill the memory.
MOST: Final = 2_000
# A longer write may be split on a pipe, and the processes of a worker share one.
WHOLE: Final = 4_096  # bytes


class LogHandler(logging.Handler):
    """Writes to standard error. After `gather`, a thread writes records below WARNING every 20 ms. Otherwise the threads that run
    jobs wait for one another at the handler's lock, which costs more than the jobs. A warning is written at once, after the gathered
    lines. A killed process loses the lines of 20 ms. A process that ends regularly calls `flush` first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stream = sys.stderr
        self._gathers = False
        self._gathered: deque[logging.LogRecord] = deque()
        self._filled = threading.Event()
        self._writing = threading.RLock()

    def gather(self) -> None:
        """Gathers lines in this process from now on, but not in a process that is forked from it."""
        self._gathers = True
        os.register_at_fork(after_in_child=self._become_a_fork)
        threading.Thread(target=self._work, name="delayq-log", daemon=True).start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Accepts a record, without the lock that other handlers hold while they write."""
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
        """Writes the gathered lines, in as few calls as possible, without splitting a line."""
        with self._writing:
            text, size = "", 0
            try:
                for _ in range(len(self._gathered)):  # not the lines that arrive meanwhile, or the loop might never end
                    if not self._gathered:
                        break  # formatting the line logged another one, which has written them all
                    line = self._line(self._gathered.popleft())
                    length = len(line) if line.isascii() else len(line.encode("utf-8", "replace"))
                    if size + length > WHOLE:
                        self._write(text)
                        text, size = "", 0
                    text, size = text + line, size + length
            finally:
                self._write(text)  # also when a timeout strikes this thread: the lines belong to others

    def flush_within(self, seconds: float) -> None:
        """Calls `flush` in a thread, and waits no longer than this: the reader of the stream may be gone."""
        writer = threading.Thread(target=self.flush, name="delayq-log-end", daemon=True)
        writer.start()
        writer.join(seconds)

    def close(self) -> None:
        """Writes records at once from now on."""
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
        except (OSError, ValueError):  # the reader is gone, or the stream is closed; the error cannot be reported
            pass

    def _work(self) -> None:
        while True:
            self._filled.wait()
            clock.sleep(GATHER)
            self._filled.clear()
            with contextlib.suppress(Exception):  # a line that cannot be formatted must not stop the other lines
                self.flush()

    def _become_a_fork(self) -> None:
        # The original process writes its gathered lines, and one of its threads may have held the lock.
        self._gathers = False
        self._gathered = deque()
        self._writing = threading.RLock()


logger = Logger("django_delayq.worker.job")

WORDS: Final = {
    "ack": "succeeded",
    "retry": "failed",
    "snooze": "was snoozed",
    "ask": "must poll again",
    "fail": "failed",
    "cancel": "was cancelled",
}
PUT_OFF: Final = ("snooze", "ask")  # not failures, whatever was raised


class JobLog(Receiver):
    """A receiver of runs: one line per end. Only the last attempt shows the frames of an error, since the attempts before it most
    likely had the same error. With DEBUG, each attempt shows its error in full. A job that never began is logged if somebody must act.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def ends(self, run: Run, outcome: Outcome) -> None:
        """Writes the line."""
        if run.current is not None:
            level = _level(outcome)
            if logger.logger.isEnabledFor(level):
                self._ended(run, outcome, level)
        elif run.poison:
            reason = "it cannot be read; see the job's row" if run.poison == "poison-record" else outcome.reason
            logger.error("job %s failed as poison: %s", run.job.id, reason, extra=self._fields(run, ""))
        elif outcome.kind == "park":
            delay = durations.text(outcome.delay_ms / 1000)
            logger.warning("job %s is parked for %s: %s", run.job.id, delay, outcome.reason, extra=self._fields(run, ""))

    def _ended(self, run: Run, outcome: Outcome, level: int) -> None:
        error = outcome.error
        name = one_line(run.task.name)
        took = clock.monotonic() - run.started
        fields = self._fields(run, name)
        text = f"{name} {WORDS[outcome.kind]} after {took:.3f} s (job {fields['job_id']}, attempt {run.job.attempt})"
        if outcome.kind != "ack" or outcome.reason:
            text += _further(outcome)
        shown = error.__cause__ or error.__context__ if isinstance(error, ControlFlow) else error
        if shown is not None and outcome.kind not in PUT_OFF:
            text += f"; {summary(shown)}"
            if conf.is_debug():
                fields["traceback"] = debug_traceback(shown)
            elif outcome.kind != "retry":
                fields["traceback"] = traceback(shown)
        # The record is made here and not by `log()`, which walks the frames to find the caller: that is half the cost of a line.
        log = logger.logger
        log.handle(log.makeRecord(log.name, level, __file__, 0, "%s", (text,), None, "ends", fields))

    def _fields(self, run: Run, task: str) -> dict[str, Any]:
        job = run.job
        return {"job_id": job.id, "task": task, "queue": one_line(job.queue), "attempt": job.attempt, "worker": self._worker}


def _level(outcome: Outcome) -> int:
    if (outcome.kind == "ack" and not outcome.reason) or isinstance(outcome.error, Skip):  # the usual case, or an intended end
        return logging.INFO
    if outcome.kind == "fail":
        return logging.ERROR
    notable = outcome.reason or (outcome.kind in ("retry", "cancel") and outcome.error is not None)
    return logging.WARNING if notable and outcome.kind not in PUT_OFF else logging.INFO


def _further(outcome: Outcome) -> str:
    words = [""]
    if outcome.kind in ("retry", *PUT_OFF):
        words.append(f"runs again in {durations.text(outcome.delay_ms / 1000)}")
    if outcome.error is None and outcome.reason:
        words.append("its result was not kept")
    if isinstance(outcome.error, ControlFlow):
        words.append(class_name(outcome.error))
    if outcome.error is not None or outcome.reason:
        words.append("see the job's row")
    return one_line("; ".join(words))  # the project chooses the names of classes
