"""The log line about each job. Never a payload, a result, an argument, or the text of a task's error."""

from __future__ import annotations

import logging
from typing import Any, Final

from django_delayq import clock
from django_delayq.exceptions import ControlFlow, Skip
from django_delayq.logger import Logger, class_name, summary, traceback
from django_delayq.store.scripts.queue import Outcome
from django_delayq.text import one_line
from django_delayq.worker.run_context import Run

logger = Logger("django_delayq.worker.job")

WORDS: Final = {
    "ack": "succeeded",
    "retry": "failed",
    "snooze": "was snoozed",
    "ask": "must poll again",
    "fail": "failed",
    "cancel": "was cancelled",
}
PUT_OFF: Final = ("snooze", "ask")  # no failures, whatever was raised


class JobLog:
    """A receiver of runs: one line per end. The frames of an error come with the last attempt only, since those before it were most
    likely the same; a job that never began is told of if something is to be done about it.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def begins(self, run: Run) -> None:
        """Nothing: the end says when it was."""

    def ends(self, run: Run, outcome: Outcome) -> None:
        """Writes the line."""
        if run.current is not None:
            level = _level(outcome)
            if logger.isEnabledFor(level):
                self._ended(run, outcome, level)
        elif run.poison:
            told = "it cannot be read; see the job's row" if run.poison == "poison-record" else outcome.reason
            logger.error("job %s failed as poison: %s", run.job.id, told, extra=self._fields(run, ""))
        elif outcome.kind == "park":
            delay = clock.text(outcome.delay_ms / 1000)
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
            if outcome.kind != "retry":
                fields["traceback"] = traceback(shown)
        # Made here and not by `log()`, which walks the frames to find out who calls: that is half of what a line costs.
        log = logger.logger
        log.handle(log.makeRecord(log.name, level, __file__, 0, "%s", (text,), None, "ends", fields))

    def _fields(self, run: Run, task: str) -> dict[str, Any]:
        job = run.job
        return {
            "job_id": job.id,
            "task": task,
            "queue": one_line(job.queue),
            "attempt": job.attempt,
            "worker": self._worker,
        }


def _level(outcome: Outcome) -> int:
    if (outcome.kind == "ack" and not outcome.reason) or isinstance(outcome.error, Skip):  # mostly, or as it was meant
        return logging.INFO
    if outcome.kind == "fail":
        return logging.ERROR
    told = outcome.reason or (outcome.kind in ("retry", "cancel") and outcome.error is not None)
    return logging.WARNING if told and outcome.kind not in PUT_OFF else logging.INFO


def _further(outcome: Outcome) -> str:
    words = [""]
    if outcome.kind in ("retry", *PUT_OFF):
        words.append(f"runs again in {clock.text(outcome.delay_ms / 1000)}")
    if outcome.error is None and outcome.reason:
        words.append("its result was not kept")
    if isinstance(outcome.error, ControlFlow):
        words.append(class_name(outcome.error))
    if outcome.error is not None or outcome.reason:
        words.append("see the job's row")
    return one_line("; ".join(words))  # classes bear whatever name the project gives them
