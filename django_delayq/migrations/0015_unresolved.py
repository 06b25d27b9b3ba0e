from django.db import migrations, models


class Migration(migrations.Migration):
    """The permission to end unresolved jobs, and the table of changes that transactions carry out when they commit."""

    dependencies = [("delayq", "0014_passed_over")]

    operations = [
        migrations.AlterModelOptions(
            name="job",
            options={
                "default_permissions": ("view",),
                "ordering": ("-id",),
                "permissions": (
                    ("cancel_job", "Can cancel jobs"),
                    ("requeue_job", "Can requeue jobs"),
                    ("run_now_job", "Can run jobs now"),
                    ("reschedule_job", "Can reschedule jobs"),
                    ("resolve_job", "Can mark unresolved jobs as succeeded or failed"),
                    ("edit_job", "Can change the arguments of jobs while requeueing them"),
                    ("export_job", "Can export lists of jobs"),
                    ("view_sensitive", "Can see arguments that are masked"),
                ),
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.CreateModel(
            name="CommitRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_id", models.UUIDField(null=True)),
                ("queue", models.CharField(blank=True, default="", max_length=100)),
                ("key", models.CharField(blank=True, default="", max_length=200)),
                ("verb", models.CharField(max_length=20)),
                ("abort", models.BooleanField(default=False)),
                ("delay_ms", models.BigIntegerField(null=True)),
                ("due_ms", models.BigIntegerField(default=0)),
                ("actor", models.CharField(blank=True, default="", max_length=200)),
                ("reason", models.TextField(blank=True, default="")),
                ("at", models.DateTimeField()),
                ("seen", models.BigIntegerField(default=0)),
            ],
            options={"db_table": "delayq_commit_request", "default_permissions": ()},
        ),
    ]
