"""By what a run has failed, as traces and error trackers are told."""

from __future__ import annotations

from django_delayq.exceptions import ControlFlow
from django_delayq.store.queue import Outcome


def failure_of(outcome: Outcome) -> BaseException | None:
    """The error of a failed attempt; None for a run that succeeded, was cancelled, or whose task said that it is to come again. Of a
    task that said so on its last attempt, or that the job fails, it is what that was said for, if anything.
    """
    error = outcome.error
    if outcome.kind not in ("retry", "fail") or error is None:
        return None
    if not isinstance(error, ControlFlow):
        return error
    if outcome.kind == "retry":
        return None
    return error.__cause__ or error.__context__ or error
