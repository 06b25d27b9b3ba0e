"""Compares Django's pools of database connections (`OPTIONS["pool"]`) with the needs of worker processes and the limits of servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import DatabaseError, connections

from django_delayq.findings import Finding

THREADS: Final = 8  # of a task process, unless --threads says otherwise
RECORDS: Final = 2  # threads of a process that keeps records: one runs its loops, one calls the receivers of `job_ended`
PSYCOPG: Final = 4  # connections of a pool without a configured size
ORACLEDB: Final = 2
LIMIT: Final = "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"


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
