"""Commit hooks under Django's TestCase, which never commits. The hooks of delayq run at the end of the block that the test's code has
opened; without such a block, they run at once. Other commit hooks are left to `captureOnCommitCallbacks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from inspect import unwrap
from typing import Any, Final

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq.logger import Logger

logger = Logger("django_delayq.producer")
OURS: Final = "django_delayq.producer."
_exit = transaction.Atomic.__exit__
_on_commit = BaseDatabaseWrapper.on_commit


def is_open(connection: Any) -> bool:
    """Whether the project's code, or the test's, has opened a transaction. The transactions of TestCase do not count."""
    return connection.in_atomic_block and not (
        connection.atomic_blocks and all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    )


def leave(block: Any, kind: Any, error: Any, trace: Any) -> None:
    """Replaces `Atomic.__exit__`."""
    _exit(block, kind, error, trace)
    _happen(transaction.get_connection(block.using))


def on_commit(connection: Any, func: Any, robust: bool = False) -> None:
    """Replaces `BaseDatabaseWrapper.on_commit`."""
    _on_commit(connection, func, robust)
    _happen(connection)


def catch_up() -> list[tuple[Any, list[Any]]]:
    """Runs the hooks that were added before the test began, such as those of `setUpTestData`. Returns them, by connection."""
    happened = []
    for connection in connections.all(initialized_only=True):
        before = connection.run_on_commit
        _happen(connection)
        happened.append((connection, [hook for hook in before if all(hook is not other for other in connection.run_on_commit)]))
    return happened


def give_back(happened: Iterable[tuple[Any, list[Any]]]) -> None:
    """Adds the hooks again, because the next test of the class starts with them, too."""
    for connection, hooks in happened:
        if connection.in_atomic_block:
            connection.run_on_commit = [*hooks, *connection.run_on_commit]


def _happen(connection: Any) -> None:
    """Runs our hooks, in their order, if no block is open."""
    while connection.in_atomic_block and not connection.needs_rollback and not is_open(connection):
        hook = next((hook for hook in connection.run_on_commit if _is_ours(hook[1])), None)
        if hook is None:
            return
        connection.run_on_commit = [other for other in connection.run_on_commit if other is not hook]
        _, func, robust = hook
        try:
            func()
        except Exception as error:
            if not robust:
                raise
            logger.error("Error calling %s in on_commit() (%s).", func.__qualname__, error, exc_info=True)


def _is_ours(func: Any) -> bool:
    plain = unwrap(func)
    if isinstance(plain, partial):
        plain = plain.func
    return str(getattr(plain, "__module__", "")).startswith(OURS)
