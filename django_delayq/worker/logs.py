"""What the worker says about jobs, and in which form. Never a payload, a result, an argument, or the text of a task's error."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from django_delayq import clock
from django_delayq.exceptions import ControlFlow
from django_delayq.logger import Logger, class_name
from django_delayq.worker.line import Taken
from django_delayq.worker.outcome import Outcome

logger = Logger("django_delayq.worker.job")
root = logging.getLogger("django_delayq")

FIELDS: Final = ("job_id", "task", "queue", "attempt", "worker", "traceback")
CONSOLE: Final = "%(asctime)s %(levelname)s [%(process)d] %(message)s"


def ended(taken: Taken, task: str, outcome: Outcome, took: float, worker: str) -> None:
    """A run has ended."""
    level = logging.INFO
    if outcome.kind == "fail":
        level = logging.ERROR
    elif outcome.reason or (outcome.kind in ("retry", "cancel") and outcome.error is not None):
        level = logging.WARNING if outcome.kind != "snooze" else logging.INFO
    if not logger.isEnabledFor(level):
        return
    error = outcome.error
    words = [f"{task} {WORDS[outcome.kind]} after {took:.3f} s (job {taken.job.id}, attempt {taken.job.attempt})"]
    if outcome.kind in ("retry", "snooze"):
        words.append(f"again in {clock.text(outcome.delay_ms / 1000)}")
    if error is None and outcome.reason:
        words.append("its result was not kept")
    if isinstance(error, ControlFlow):
        words.append(class_name(error))
    if error is not None or outcome.reason:
        words.append("the job's row says why")
    trace = error.__cause__ or error.__context__ if isinstance(error, ControlFlow) else error
    exc_info = trace if outcome.kind != "snooze" else None
    logger.log(level, "%s", "; ".join(words), exc_info=exc_info, extra=fields(taken, task, worker))


def parked(taken: Taken, reason: str, delay: float, worker: str) -> None:
    """A job waits for its task to be registered, which `reason` names."""
    logger.warning(
        "job %s is parked for %s: %s", taken.job.id, clock.text(delay), reason, extra=fields(taken, "", worker)
    )


def poison(taken: Taken, reason: str, worker: str) -> None:
    """A job was failed without having been run."""
    logger.error("job %s is set aside as poison: %s", taken.job.id, reason, extra=fields(taken, "", worker))


def fields(taken: Taken, task: str, worker: str) -> dict[str, Any]:
    """The extra fields of a record about a job."""
    job = taken.job
    return {"job_id": job.id, "task": task, "queue": job.queue, "attempt": job.attempt, "worker": worker}


WORDS: Final = {
    "ack": "succeeded", "retry": "failed and is retried", "snooze": "is snoozed", "fail": "failed", "cancel": "is cancelled",
}  # fmt: skip


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
