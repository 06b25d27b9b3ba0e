"""Django's care for database connections around the jobs of a worker."""

from __future__ import annotations

from typing import Any, Final

from django.db import close_old_connections, connections
from django.db.backends.signals import connection_created

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.store.queue import Outcome
from django_delayq.worker.run import Run, ThreadState
from django_delayq.worker.spec import Hooks

logger = Logger("django_delayq.worker")

FRESH: Final = 1.0  # seconds behind a job in which the next one's connections need no check: what lies between is one gap


def hooks() -> Hooks:
    """Connections are checked before a job and tidied behind it; none crosses a fork."""
    return Hooks(receivers=(Connections(),), before_fork=connections.close_all, end_thread=connections.close_all)


class Connections:
    """A receiver of runs. It looks at the connections that its thread has opened, of which it hears from Django: to go through all
    that there might be costs each job more than all else here.
    """

    def __init__(self) -> None:
        self._thread = ThreadState()
        connection_created.connect(self._opened)

    def begins(self, run: Run) -> None:
        """Closes what has become too old or unusable while the thread had nothing to do."""
        if run.started - self._thread.tidied > FRESH:
            close_old_connections()

    def ends(self, run: Run, outcome: Outcome) -> None:
        """Closes what the run leaves behind in a bad state."""
        if run.current is None:
            return
        opened = self._thread.opened
        if outcome.kind != "ack" or run.timeout is not None or run.interrupted:
            # A soft timeout, or an abort, may have struck when a connection was open already, and Django had not said so yet.
            opened.update(connection.alias for connection in connections.all(initialized_only=True))
        for alias in tuple(opened):
            self._tidy(alias, run.interrupted)
        self._thread.tidied = clock.monotonic()

    def _opened(self, connection: Any, **_: Any) -> None:
        if connection.alias in connections.settings:  # else it is nobody's whom Django would find again
            self._thread.opened.add(connection.alias)

    def _tidy(self, alias: str, interrupted: bool) -> None:
        # A soft timeout may strike while Django opens or closes a transaction, and a task may forget one. On a connection that
        # believes in a transaction nothing is committed, however many jobs come after; Django itself leaves it alone. It is
        # thrown away, and never keeps the outcome of the job that has just run from being told.
        try:
            connection = connections[alias]
            if connection.in_atomic_block:
                logger.warning("a transaction on the database %r was left open by a task; it is rolled back", alias)
                connection.close()
                self._drop(alias)
            elif interrupted:  # perhaps in the middle of a query, whose answer is still to come
                connection.close()
            else:
                connection.close_if_unusable_or_obsolete()
        except Exception:
            logger.exception("a connection to the database %r could not be closed behind a job", alias)
            self._drop(alias)

    def _drop(self, alias: str) -> None:
        self._thread.opened.discard(alias)
        del connections[alias]
