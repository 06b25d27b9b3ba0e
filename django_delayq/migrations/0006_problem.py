from django.db import migrations, models

import django_delayq.models.fields


class Migration(migrations.Migration):
    """What one column held as text, or for two purposes, as columns of their own. Workers of the release before do not name them."""

    dependencies = [("delayq", "0005_evicted")]

    operations = [
        migrations.AddField(model_name="checkpoint", name="way_back", field=models.CharField(max_length=64, null=True)),
        migrations.AddField(
            model_name="operation", name="problem", field=django_delayq.models.fields.ExactJSONField(null=True)
        ),
    ]
