"""The tables of the gateway."""

import django_delayq.clock
import django_delayq.ids
import django_delayq.models.database
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='KeptAnswer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('request', models.CharField(max_length=64)),
                ('job', models.UUIDField(default=django_delayq.ids.new)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('body', django_delayq.models.database.ExactJSONField(null=True)),
                ('headers', django_delayq.models.database.ExactJSONField(default=dict)),
                ('created_at', models.DateTimeField()),
                ('held_until', models.DateTimeField()),
            ],
            options={
                'db_table': 'delayq_gateway_answer',
                'default_permissions': (),
                'indexes': [models.Index(fields=['created_at'], name='delayq_gateway_answer_age')],
            },
        ),
        migrations.CreateModel(
            name='Token',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100, verbose_name='name')),
                ('client', models.UUIDField(default=django_delayq.ids.new, editable=False)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('shown', models.CharField(editable=False, max_length=12, verbose_name='begins with')),
                ('queues', django_delayq.models.database.ExactJSONField(default=list, verbose_name='queues')),
                ('verbs', django_delayq.models.database.ExactJSONField(default=list, verbose_name='verbs')),
                ('tasks', django_delayq.models.database.ExactJSONField(default=list, verbose_name='tasks')),
                ('secrets', django_delayq.models.database.ExactJSONField(blank=True, null=True, verbose_name='secrets')),
                ('only_scope', models.CharField(blank=True, db_default='', default='', max_length=63, verbose_name='only this scope')),
                ('targets', django_delayq.models.database.ExactJSONField(blank=True, null=True, verbose_name='targets')),
                ('per_minute', models.PositiveIntegerField(default=600, verbose_name='requests per minute')),
                ('created_at', models.DateTimeField(default=django_delayq.clock.now, verbose_name='created at')),
                ('created_by', models.CharField(blank=True, default='', max_length=200, verbose_name='created by')),
                ('expires_at', models.DateTimeField(blank=True, null=True, verbose_name='expires at')),
                ('revoked_at', models.DateTimeField(blank=True, null=True, verbose_name='revoked at')),
                ('last_used_at', models.DateTimeField(blank=True, null=True, verbose_name='last used')),
            ],
            options={
                'verbose_name': 'gateway token',
                'verbose_name_plural': 'gateway tokens',
                'db_table': 'delayq_gateway_token',
                'ordering': ('name', '-id'),
                'permissions': (('revoke_token', 'Can revoke gateway tokens'),),
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['name', 'id'], name='delayq_gateway_token_name')],
            },
        ),
    ]
