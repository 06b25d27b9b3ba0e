"""Indexes of far rows, which not every database can make in the same way; and migrations that neither stop writers nor write a table
anew.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class FarIndex(models.Index):
    """An index of far rows alone. MySQL and MariaDB know no such index: there `far` stands in front."""

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        """The statement that makes it."""
        if schema_editor.connection.features.supports_partial_indexes:
            plain = models.Index(fields=self.fields, name=self.name, condition=models.Q(far=True))
        else:
            plain = models.Index(fields=["far", *self.fields], name=self.name)
        return plain.create_sql(model, schema_editor, using, **kwargs)


class KnownUniqueIndex(models.Index):
    """A unique index of one column, of the rows in which that is not NULL. An index and no constraint, since PostgreSQL can make
    only the former while others write.
    """

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        """The statement that makes it."""
        partial = schema_editor.connection.features.supports_partial_indexes
        known = models.Q(**{f"{self.fields[0]}__isnull": False}) if partial else None
        made = models.Index(fields=self.fields, name=self.name, condition=known).create_sql(model, schema_editor, using, **kwargs)
        made.template = made.template.replace("CREATE INDEX", "CREATE UNIQUE INDEX", 1)
        return made


class AddConstantField(migrations.AddField):
    """A column with a constant for all rows that are there. SQLite can add one as it is; Django would write its table anew."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Adds it."""
        if schema_editor.connection.vendor != "sqlite":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            BaseDatabaseSchemaEditor.add_field(schema_editor, model, model._meta.get_field(self.name))


class AddIndexConcurrently(migrations.AddIndex):
    """On PostgreSQL CONCURRENTLY, for which the migration must not be atomic; on other databases as Django does. Django's own operation
    of this name needs PostgreSQL's driver to be imported.
    """

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Makes it."""
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.add_index(model, self.index, concurrently=True)
