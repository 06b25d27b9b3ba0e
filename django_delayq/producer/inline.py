"""`DELAYQ["INLINE"]`: jobs run where they are scheduled. The app config installs the function that runs them, which imports the
worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.db import transaction

from django_delayq.producer import commit
from django_delayq.producer.commit import Plan, Publication
from django_delayq.producer.job import Job

Runner = Callable[[Plan], object]
_installed: Runner | None = None


def install(run: Runner) -> None:
    """Sets the function that runs a job at once and raises the exceptions of its task."""
    global _installed
    _installed = run


def put(plans: Sequence[Plan]) -> list[Job]:
    """Runs the jobs at the commit, in their order, whatever their dates. Returns the `Job` objects. Without an open transaction, an
    exception stops the run and reaches the caller. At a commit, Django logs the exception, and the next hooks run: with a worker, the
    exception would not reach the commit either.
    """
    for plan in plans:
        connection = transaction.get_connection(plan.template.using)
        if commit.is_open(connection):
            connection.on_commit(Publication([plan], _run), robust=True)
        else:
            _run([plan])
    return [plan.job for plan in plans]


def _run(plans: list[Plan]) -> None:
    assert _installed is not None  # the app installs it, and settings need the app
    for plan in plans:
        plan.job.created = True
        _installed(plan)
