from django.db import migrations, models

from django_delayq.models.indexes import AddConstantField


class Migration(migrations.Migration):
    """What `HORIZON` needs of rows: who owns them. Workers of the release before do not name these columns."""

    dependencies = [("delayq", "0008_asked")]

    operations = [
        AddConstantField("job", "far", models.BooleanField("far", default=False, db_default=False)),
        migrations.AddField("job", "far_key", models.CharField(max_length=32, null=True)),
        migrations.AddField("queuestate", "brings_in", models.DateTimeField(null=True)),
        migrations.CreateModel(
            name="UncheckedKey",
            fields=[
                ("job_id", models.UUIDField(primary_key=True, serialize=False)),
                ("queue", models.CharField(max_length=100)),
            ],
            options={
                "db_table": "delayq_unchecked_key",
                "default_permissions": (),
                "indexes": [models.Index(fields=["queue", "job_id"], name="delayq_unchecked_key_queue")],
            },
        ),
    ]
