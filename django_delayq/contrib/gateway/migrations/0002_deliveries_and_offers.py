"""Which secrets deliveries of a token may name, and to which targets it may offer; NULL: none."""

import django_delayq.models.fields
from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('delayq_gateway', '0001_tokens_and_answers'),
    ]

    operations = [
        migrations.AddField(
            model_name='token',
            name='secrets',
            field=django_delayq.models.fields.ExactJSONField(blank=True, null=True, verbose_name='secrets'),
        ),
        migrations.AddField(
            model_name='token',
            name='targets',
            field=django_delayq.models.fields.ExactJSONField(blank=True, null=True, verbose_name='targets'),
        ),
    ]
