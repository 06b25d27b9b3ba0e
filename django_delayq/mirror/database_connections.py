"""Database connections of a worker: checks them before a job, cleans up after it, and closes them before a fork. Consumer threads call
this code. System checks compare Django's pools (`OPTIONS["pool"]`) with the threads of workers and the limits of servers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.core.cache import caches
from django.db import DatabaseError, close_old_connections, connections
from django.db.backends.signals import connection_created

from django_delayq import clock
from django_delayq.findings import Finding
from django_delayq.logger import Logger
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.current import Run
from django_delayq.worker.receivers import ThreadState
from django_delayq.worker.spec import Hooks

logger = Logger("django_delayq.worker")

FRESH: Final = 1.0  # seconds after a job: if the next one starts within them, its connections need no check
THREADS: Final = 8  # of a task process, unless --threads says otherwise
RECORDS: Final = 2  # threads of a process that keeps records: one runs its loops, one calls the receivers of `job_ended`
PSYCOPG: Final = 4  # connections of a pool without a configured size
ORACLEDB: Final = 2
LIMIT: Final = "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"


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


@dataclass(frozen=True, slots=True)
class DatabasePool:
    """The pool that each process has for an alias. `largest`: the most connections of the pool. `option`: the key of that number."""

    alias: str
    largest: int
    option: str


def narrow_pools(threads: int = THREADS) -> Iterator[Finding]:
    """The pools that are too small for one process of a worker. Each thread that runs jobs needs a connection. The loops run in
    another process, which has another pool.
    """
    for pool in _pools():
        if pool.largest < max(threads, RECORDS):
            remedy = "" if pool.largest < RECORDS else f", or start workers with --threads {pool.largest} and silence this"
            yield Finding(
                "W070",
                f"The pool of the database {pool.alias!r} opens at most {pool.largest} connections, but a worker with --threads "
                f"{threads} runs {threads} jobs at the same time in each task process. Jobs wait for a connection, and fail if the "
                f"wait times out.",
                f"Set OPTIONS['pool'][{pool.option!r}] of this database to {max(threads, RECORDS)} or more{remedy}.",
            )


def wide_pools(workers: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """The pools that may open more connections than their server allows. It counts the processes of the workers that run now, or of
    one worker with its defaults if none runs. A server that does not report its limit is skipped.
    """
    counts = [_count(worker.get("processes")) + _count(worker.get("sides")) for worker in workers if not worker.get("silent")]
    processes = sum(counts) or 2
    for pool in _pools():
        limit = _limit(pool.alias)
        if limit is not None and processes * pool.largest > limit:
            yield Finding(
                "W071",
                f"The pool of the database {pool.alias!r} opens at most {pool.largest} connections in each process, so {processes} "
                f"processes of workers can open {processes * pool.largest}. The server allows {limit}, including those of web "
                f"processes.",
                f"Reduce OPTIONS['pool'][{pool.option!r}] of this database, run fewer processes, or increase max_connections on "
                f"the server.",
            )


def _pools() -> Iterator[DatabasePool]:
    for alias in connections:
        connection = connections[alias]
        given = connection.settings_dict.get("OPTIONS", {}).get("pool")
        options = given if isinstance(given, Mapping) else {}
        if given and connection.vendor == "postgresql":
            yield DatabasePool(alias, options.get("max_size") or options.get("min_size", PSYCOPG), "max_size")
        elif given and connection.vendor == "oracle":
            yield DatabasePool(alias, options.get("max", ORACLEDB), "max")


def _limit(alias: str) -> int | None:
    """How many connections the server allows to users like ours; None if it does not report this."""
    if connections[alias].vendor != "postgresql":  # Oracle shows its limit only to users with more rights
        return None
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(LIMIT)
            found: int = cursor.fetchone()[0]
            return found
    except DatabaseError:
        return None


def _count(given: object) -> int:
    """The number of processes, from a worker's beat: a number or a list of names."""
    if isinstance(given, list):
        return len(given)
    return given if isinstance(given, int) else 0
