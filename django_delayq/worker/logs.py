"""The form of a worker's log: one line of text per record, or one JSON object."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from django_delayq import clock
from django_delayq.worker.log_handler import LogHandler

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

    _second = (0, "")  # the last one that was written out, which costs more than the rest of a line

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """As logging does."""
        second, text = self._second
        if second != int(record.created):
            second, text = int(record.created), super().formatTime(record, self.default_time_format)
            self._second = second, text
        return f"{text},{int(record.msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        text, frames = super().format(record), getattr(record, "traceback", "")
        return text + "".join(f"\n    {line}" for line in frames.split("\n")) if frames else text


def set_up(form: str, level: int) -> bool:
    """Gives the package's logger a handler on standard error, in the form "console" or "json".

    A project that configured the logger `django_delayq` itself keeps its own; whether it did not is returned.
    """
    if root.handlers:
        return bool(_ours())
    handler = LogHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter(CONSOLE))
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
    return True


def gather() -> None:
    """In a process that runs jobs: its lines are gathered, if the handler is ours (see `LogHandler`)."""
    for handler in _ours():
        handler.gather()


def flush_within(seconds: float) -> None:
    """Before a process ends at once: writes what was gathered, if that takes no longer."""
    for handler in _ours():
        handler.flush_within(seconds)


def _ours() -> list[LogHandler]:
    return [handler for handler in root.handlers if isinstance(handler, LogHandler)]
