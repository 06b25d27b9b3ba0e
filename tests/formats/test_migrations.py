"""Migrations run while processes of the release before are at work: these go on, and no big table is written anew."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.models import NOT_PROVIDED

FIRST = "0001_initial"
HARMLESS = (
    migrations.CreateModel,
    migrations.AlterModelOptions,
    migrations.AlterModelManagers,
    migrations.DeleteModel,
    migrations.SeparateDatabaseAndState,
)
# Allowed changes of an existing column: those that do not rewrite each row.
WORDS = {"verbose_name", "help_text", "choices", "default", "db_default", "blank", "editable"}


def later() -> list[migrations.Migration]:
    loader = MigrationLoader(connection)
    return [one for (app, name), one in sorted(loader.disk_migrations.items()) if app == "delayq" and name != FIRST]


def options(field: models.Field[Any, Any]) -> dict[str, Any]:
    *_, path, args, kwargs = field.deconstruct()
    return {"path": path, "args": args, **{name: value for name, value in kwargs.items() if name not in WORDS}}


def fault(operation: Operation, migration: migrations.Migration, created: set[str], before: Any) -> str:
    """The reason why that operation is not allowed, or ""."""
    table = str(getattr(operation, "model_name", getattr(operation, "name", ""))).lower()
    name = f"{migration.name}: {operation.describe()}"
    if isinstance(operation, HARMLESS):
        if isinstance(operation, migrations.SeparateDatabaseAndState) and operation.database_operations:
            return f"{name}: look at it by hand"
        return ""
    if table in created:
        return ""  # an empty table of the same migration
    if isinstance(operation, migrations.AddField):
        field = operation.field
        free = field.null or field.db_default is not NOT_PROVIDED or field.many_to_many
        return "" if free else f"{name}: INSERTs of the release before would fail; null=True, or a db_default"
    if isinstance(operation, migrations.AlterField):
        known = before.models["delayq", table].fields[operation.name]
        return "" if options(known) == options(operation.field) else f"{name}: this may write the whole table anew"
    if isinstance(operation, migrations.AddIndex):
        concurrent = "concurrently" in type(operation).__name__.lower() and not migration.atomic
        return "" if concurrent else f"{name}: the table cannot be written to meanwhile; make it CONCURRENTLY, with atomic = False"
    if isinstance(operation, migrations.RemoveIndex):
        return ""
    return f"{name}: under the release before, or on a big table, this does harm"


def faults() -> list[str]:
    loader = MigrationLoader(connection)
    found = []
    for migration in later():
        state = loader.project_state([(migration.app_label, migration.name)], at_end=False)
        created = {one.name_lower for one in migration.operations if isinstance(one, migrations.CreateModel)}
        for operation in migration.operations:
            found += [wrong] if (wrong := fault(operation, migration, created, state)) else []
            operation.state_forwards("delayq", state)
    return found


@pytest.mark.django_db
def test_no_migration_breaks_what_runs_or_writes_a_big_table_anew():
    assert faults() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("operation", "word"),
    [
        (migrations.AddField("job", "must", models.CharField(max_length=5, default="x")), "INSERTs"),
        (migrations.AlterField("job", "key", models.CharField(max_length=900)), "anew"),
        (migrations.AddIndex("job", models.Index(fields=["key"], name="k")), "CONCURRENTLY"),
        (migrations.RunSQL("SELECT 1"), "harm"),
        (migrations.RemoveField("job", "key"), "harm"),
    ],
)
def test_such_a_migration_would_be_seen(monkeypatch, operation, word):
    wrong = migrations.Migration("9999_wrong", "delayq")
    wrong.operations = [operation]
    loader = MigrationLoader(connection)
    assert word in fault(operation, wrong, set(), loader.project_state(("delayq", FIRST)))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "operation",
    [
        migrations.AddField("job", "may", models.CharField(max_length=5, null=True)),
        migrations.AddField("job", "may", models.CharField(max_length=5, db_default="x")),
        migrations.AlterField("job", "key", models.CharField("other word", max_length=200, blank=True, db_default="")),
        migrations.CreateModel("note", [("id", models.BigAutoField(primary_key=True))]),
    ],
)
def test_such_a_migration_is_none_of_these(operation):
    fine = migrations.Migration("9999_fine", "delayq")
    fine.operations = [operation]
    loader = MigrationLoader(connection)
    assert fault(operation, fine, set(), loader.project_state(("delayq", FIRST))) == ""
