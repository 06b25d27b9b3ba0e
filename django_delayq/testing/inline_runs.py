"""What runs the jobs of a project with `DELAYQ["INLINE"]`."""

from __future__ import annotations

from django_delayq import clock
from django_delayq.producer.commit import Plan
from django_delayq.producer.task import Task
from django_delayq.testing.calling_thread import run_by_hand
from django_delayq.worker.run_context import SignalReceiver


def run(plan: Plan) -> None:
    """One attempt, in this thread. Raises the error of the task, unless its result has it; always raises `KeyboardInterrupt`."""
    outcome = run_by_hand(plan, SignalReceiver(), due_ms=clock.wall_ms())
    error, task = outcome.error, plan.template.task
    raises = not isinstance(task, Task) or task.raises_inline
    if error is not None and (raises or isinstance(error, KeyboardInterrupt)):
        raise error
