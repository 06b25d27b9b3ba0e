from django.db import migrations


class Migration(migrations.Migration):
    """Who may say how a job ended of which no event tells."""

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
                    ("resolve_job", "Can say how jobs ended of which no event tells"),
                    ("edit_job", "Can change the arguments of jobs while requeueing them"),
                    ("export_job", "Can export lists of jobs"),
                    ("view_sensitive", "Can see arguments that are masked"),
                ),
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
    ]
