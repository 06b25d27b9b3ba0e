from django.db import migrations

from django_delayq.models.indexes import AddIndexConcurrently, FarIndex, KnownUniqueIndex


class Migration(migrations.Migration):
    """CONCURRENTLY on PostgreSQL: the table is written to meanwhile."""

    atomic = False
    dependencies = [("delayq", "0009_far")]

    operations = [
        AddIndexConcurrently("job", FarIndex(fields=["queue", "run_at", "id"], name="delayq_job_far")),
        AddIndexConcurrently("job", KnownUniqueIndex(fields=["far_key"], name="delayq_job_far_key")),
    ]
