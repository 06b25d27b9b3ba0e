"""What a worker calls around jobs: Django's care for database connections."""

from __future__ import annotations

from django.db import close_old_connections, connections

from django_delayq.logger import Logger
from django_delayq.worker.spec import Hooks

logger = Logger("django_delayq.worker")


def hooks() -> Hooks:
    """Connections are checked before a job and tidied behind it; none crosses a fork."""
    return Hooks(
        before_job=close_old_connections,
        after_job=_close_behind,
        before_fork=connections.close_all,
        end_thread=connections.close_all,
    )


def _close_behind() -> None:
    # A soft timeout may strike while Django opens or closes a transaction, and a task may forget one. On a connection that
    # believes in a transaction nothing is committed, however many jobs come after; Django itself leaves it alone. It is
    # thrown away, and never keeps the outcome of the job that has just run from being told.
    for connection in connections.all(initialized_only=True):
        try:
            if connection.in_atomic_block:
                logger.warning(
                    "a transaction on the database %r was left open by a task; it is rolled back", connection.alias
                )
                connection.close()
                del connections[connection.alias]
            else:
                connection.close_if_unusable_or_obsolete()
        except Exception:
            logger.exception("a connection to the database %r could not be closed behind a job", connection.alias)
            del connections[connection.alias]
