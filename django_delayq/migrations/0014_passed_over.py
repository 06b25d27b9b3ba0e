from django.db import migrations

import django_delayq.models.fields


class Migration(migrations.Migration):
    """What an operation leaves for later, since its server is away. Workers of the release before do not name this column."""

    dependencies = [("delayq", "0013_partition")]

    operations = [
        migrations.AddField("operation", "passed_over", django_delayq.models.fields.ExactJSONField(null=True)),
    ]
