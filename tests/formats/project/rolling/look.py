"""Prints all rows: `python -m rolling.look`."""

import json
import sys

import django


def main() -> None:
    """Id -> what a test asks of it."""
    django.setup()
    from django_delayq.models import Job

    rows = Job.objects.all()
    found = {
        str(row.id): {
            "state": row.state,
            "queue": row.queue,
            "published": row.published is not None,
            "attempts": row.attempts,
            "due_ms": round(row.run_at.timestamp() * 1000),
        }
        for row in rows
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
