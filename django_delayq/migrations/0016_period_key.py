from django.db import migrations, models


class Migration(migrations.Migration):
    """For which job a key is taken, and until when. Workers of the release before do not know this table."""

    dependencies = [("delayq", "0015_unresolved")]

    operations = [
        migrations.CreateModel(
            name="PeriodKey",
            fields=[
                ("digest", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("job", models.UUIDField()),
                ("until", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "delayq_period_key",
                "default_permissions": (),
                "indexes": [models.Index(fields=["until"], name="delayq_period_key_until")],
            },
        ),
    ]
