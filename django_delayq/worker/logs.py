"""The form of a worker's log: one line of text per record, or one JSON object."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from django_delayq import clock

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

    def format(self, record: logging.LogRecord) -> str:
        text, frames = super().format(record), getattr(record, "traceback", "")
        return text + "".join(f"\n    {line}" for line in frames.split("\n")) if frames else text


def set_up(form: str, level: int) -> None:
    """Gives the package's logger a handler on standard error, in the form "console" or "json".

    A project that configured the logger `django_delayq` itself keeps its own.
    """
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter(CONSOLE))
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
