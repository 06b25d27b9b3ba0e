"""What runs the jobs of a project with `DELAYQ["INLINE"]`."""

from __future__ import annotations

from django_delayq import clock
from django_delayq.producer.commit import Plan
from django_delayq.testing.calling_thread import run_by_hand
from django_delayq.worker.run import SignalReceiver


def run(plan: Plan) -> None:
    """One attempt, in this thread. Raises what the task raises."""
    outcome = run_by_hand(plan, SignalReceiver(), due_ms=clock.wall_ms())
    if outcome.error is not None:
        raise outcome.error
