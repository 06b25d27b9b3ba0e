"""`DELAYQ["INLINE"]`: jobs run where they are scheduled. What runs them knows workers, so the app installs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.db import transaction

from django_delayq.producer import commit
from django_delayq.producer.commit import Plan, Publication
from django_delayq.producer.job import Job

Runner = Callable[[Plan], object]
_installed: Runner | None = None


def install(run: Runner) -> None:
    """Says what runs a job at once, and raises what its task raises."""
    global _installed
    _installed = run


def put(plans: Sequence[Plan]) -> list[Job]:
    """Runs them at the commit, in their order, whatever their dates. Returns the handles.

    Without an open transaction an error ends it, and reaches the caller. At a commit Django logs the error, and the hooks that follow
    run: a worker would not have raised it there either.
    """
    for plan in plans:
        connection = transaction.get_connection(plan.template.using)
        if commit.is_open(connection):
            connection.on_commit(Publication([plan], _run), robust=True)
        else:
            _run([plan])
    return [plan.job for plan in plans]


def _run(plans: list[Plan]) -> None:
    assert _installed is not None  # by the app, without which there are no settings either
    for plan in plans:
        plan.job.created = True
        _installed(plan)
