"""Django's care for database connections around the jobs of a worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

from django.core.cache import caches
from django.db import close_old_connections, connections
from django.db.backends.signals import connection_created

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.current import Run
from django_delayq.worker.receivers import ThreadState
from django_delayq.worker.spec import Hooks

logger = Logger("django_delayq.worker")

FRESH: Final = 1.0  # seconds after a job: if the next one starts within them, its connections need no check


def hooks() -> Hooks:
    """Connections are checked before a job and cleaned up after it. No connection crosses a fork."""
    return Hooks(receivers=(Connections(),), before_fork=close_all, end_thread=connections.close_all)


def close_all() -> dict[int, str]:
    """Closes the connections of this thread, the pools of all databases, and the caches. Returns the name of each socket that was
    open, by its inode. `connections.close_all()` alone returns a connection to its pool, which stays open.
    """
    found: dict[int, str] = {}
    for alias in connections:
        try:
            connection = connections[alias]
            for descriptor in _descriptors(connection):
                found[os.fstat(descriptor).st_ino] = f"a connection to the database {alias!r}"
            connection.close()
            if (close_pool := getattr(connection, "close_pool", None)) is not None:
                close_pool()
        except Exception:
            logger.exception("the connections to the database %r could not be closed", alias)
    try:
        caches.close_all()
        for alias in caches:
            with contextlib.suppress(AttributeError):  # this thread has not used it
                del caches[alias]  # some clients close nothing; a child makes its own
    except Exception:
        logger.exception("the caches could not be closed")
    return found


def _descriptors(connection: Any) -> Iterator[int]:
    """The sockets of this thread's connection and of those that wait in its pool."""
    waiting = getattr(getattr(connection, "pool", None), "_pool", ())
    for driver in (connection.connection, *waiting):
        for owner in (driver, getattr(driver, "_sock", None)):  # PyMySQL has it there
            if (fileno := getattr(owner, "fileno", None)) is not None:
                with contextlib.suppress(Exception):  # it is closed
                    yield fileno()


class Connections:
    """A receiver of runs. It checks only the connections that its thread has opened. Django's signal reports them. To go through all
    possible connections would cost each job more than everything else here.
    """

    def __init__(self) -> None:
        self._thread = ThreadState()
        connection_created.connect(self._opened)

    def begins(self, run: Run) -> None:
        """Closes connections that became too old or unusable while the thread was idle."""
        if run.started - self._thread.tidied > FRESH:
            close_old_connections()

    def ends(self, run: Run, outcome: Outcome) -> None:
        """Closes connections that the run leaves in a bad state."""
        if run.current is None:
            return
        opened = self._thread.opened
        if outcome.kind != "ack" or run.timeout is not None or run.interrupted:
            # A soft timeout or an abort may have interrupted the run after a connection was opened and before Django sent its signal.
            opened.update(connection.alias for connection in connections.all(initialized_only=True))
        for alias in tuple(opened):
            self._tidy(alias, run.interrupted)
        self._thread.tidied = clock.monotonic()

    def _opened(self, connection: Any, **_: Any) -> None:
        if connection.alias in connections.settings:  # otherwise Django could not find the connection again
            self._thread.opened.add(connection.alias)

    def _tidy(self, alias: str, interrupted: bool) -> None:
        # A soft timeout may interrupt Django while it opens or closes a transaction, and a task may leave one open. A connection that
        # believes it is in a transaction never commits, in this job and all later ones, and Django does not close it. So this method
        # closes and drops it. An error here never prevents the report of the outcome of the job.
        try:
            connection = connections[alias]
            if connection.in_atomic_block:
                logger.warning("a transaction on the database %r was left open by a task and is rolled back", alias)
                connection.close()
                self._drop(alias)
            elif interrupted:  # perhaps in the middle of a query whose answer is still to come
                connection.close()
            else:
                connection.close_if_unusable_or_obsolete()
        except Exception:
            logger.exception("a connection to the database %r could not be closed after a job", alias)
            self._drop(alias)

    def _drop(self, alias: str) -> None:
        self._thread.opened.discard(alias)
        del connections[alias]
