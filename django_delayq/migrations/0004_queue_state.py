from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayq", "0003_set_aside")]

    operations = [
        migrations.CreateModel(
            name="QueueState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", models.CharField(max_length=100)),
                ("partition", models.PositiveIntegerField(default=0)),
                ("paused_at", models.DateTimeField(null=True)),
                ("paused_by", models.CharField(blank=True, default="", max_length=200)),
                ("paused_why", models.TextField(blank=True, default="")),
            ],
            options={
                "db_table": "delayq_queue_state",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("queue", "partition"), name="delayq_queue_state_partition")
                ],
            },
        ),
    ]
