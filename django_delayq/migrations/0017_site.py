import secrets
from typing import Any

from django.db import migrations, models


def make_id(apps: Any, schema_editor: Any) -> None:
    """The id of this database. It is committed with the migration, and no publication writes it."""
    apps.get_model("delayq", "Site").objects.using(schema_editor.connection.alias).create(number=1, site=secrets.token_hex(8))


class Migration(migrations.Migration):
    """Which site a database is, and where each queue was last."""

    dependencies = [("delayq", "0016_period_key")]

    operations = [
        migrations.CreateModel(
            "Site",
            [
                ("number", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("site", models.CharField(max_length=32)),
                ("former", models.CharField(default="", max_length=32)),
            ],
            options={"db_table": "delayq_site", "default_permissions": ()},
        ),
        migrations.AddField("checkpoint", "address", models.TextField(null=True)),
        migrations.RunPython(make_id, migrations.RunPython.noop, elidable=False),
    ]
