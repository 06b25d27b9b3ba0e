"""Deletes the rows that a test with real transactions leaves. Django's own way ends with the signal `post_migrate`, which recreates
all content types and permissions and takes a sixth of the whole run. This keeps those two tables.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

KEPT = {"django_content_type", "auth_permission"}


def begin() -> None:
    """From now on, for the whole run."""
    TransactionTestCase._fixture_teardown = _emptied  # type: ignore[method-assign]  # it has no hook for that


def _emptied(case: Any) -> None:
    for name in case._databases_names(include_mirrors=False):
        connection = connections[name]
        # In one transaction, at whose end foreign keys are looked at (by MySQL not at all): the order of the tables is free.
        with connection.constraint_checks_disabled(), transaction.atomic(using=name), connection.cursor() as cursor:
            for table in _tables(name):
                cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


@cache
def _tables(name: str) -> list[str]:
    connection: BaseDatabaseWrapper = connections[name]
    return sorted(set(connection.introspection.django_table_names(only_existing=True, include_views=False)) - KEPT)
