from django.db import migrations, models

from django_delayq.models.indexes import AddConstantField


class Migration(migrations.Migration):
    """What `PARTITIONS` needs of rows. Workers of the release before do not name this column."""

    dependencies = [("delayq", "0012_export_permission")]

    operations = [
        AddConstantField("job", "partition", models.SmallIntegerField(default=0, db_default=0)),
    ]
