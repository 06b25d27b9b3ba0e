"""A new token with the name of an ended one is another client, which gets none of its answers."""

import django_delayq.ids
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('delayq_gateway', '0002_deliveries_and_offers'),
    ]

    operations = [
        migrations.AddField(
            model_name='token',
            name='client',
            field=models.UUIDField(default=django_delayq.ids.new, editable=False),
        ),
        migrations.AlterField(
            model_name='keptanswer',
            name='created_at',
            field=models.DateTimeField(),
        ),
    ]
