"""Prints all rows: `python -m rolling.look`."""

import json
import sys

import django


def main() -> None:
    """Id -> what a test asks of it."""
    django.setup()
    from django_delayq.models import Attempt, Job

    rows = Job.objects.all()
    crashes: dict[str, list[str]] = {}
    for job, message in Attempt.objects.filter(outcome="crashed").order_by("id").values_list("job_id", "message"):
        crashes.setdefault(str(job), []).append(message)
    found = {
        str(row.id): {
            "state": row.state,
            "queue": row.queue,
            "published": row.published is not None,
            "attempts": row.attempts,
            "due_ms": round(row.run_at.timestamp() * 1000),
            "crashes": crashes.get(str(row.id), []),
        }
        for row in rows
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
