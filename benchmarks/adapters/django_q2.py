"""django-q2 on Redis. Jobs with a date wait in the database, here SQLite."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from django.conf import settings

from benchmarks.adapters import base

FOLDER = Path(base.MARKS)


def configure() -> None:
    """The settings of a project with nothing but this queue."""
    first = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
    settings.configure(
        SECRET_KEY="only for benchmarks",
        USE_TZ=True,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(FOLDER / "q2.sqlite3"),
                "OPTIONS": {"init_command": first, "transaction_mode": "IMMEDIATE", "timeout": 20},
            }
        },
        INSTALLED_APPS=["django.contrib.contenttypes", "django_q"],
        Q_CLUSTER={
            "name": "bench",
            "redis": base.REDIS,
            "workers": base.PROCESSES,
            "queue_limit": 100,
            "save_limit": -1,
            "timeout": 60,
            "retry": 90,
        },
    )


configure()
import django

django.setup()

from django.core.management import call_command
from django_q.models import Schedule
from django_q.tasks import async_task


class DjangoQ2(base.Adapter):
    """A job is taken off before it runs."""

    name = "django-q2"
    version = version("django-q2")
    settings = (
        "defaults (polls for due jobs every 30 seconds; a job is removed before it runs), `queue_limit` 100 (tuned), "
        "stores only results of failures"
    )
    at_once = 1
    waits_in = "database"
    at_least_once = False

    def open(self) -> None:
        """Makes the tables: one program does, the others wait for it."""
        with open(FOLDER / "migrating", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (FOLDER / "migrated").exists():
                call_command("migrate", verbosity=0)
                (FOLDER / "migrated").touch()

    def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """async_task, or a row of Schedule."""
        name = f"benchmarks.adapters.base.{task}"
        if due is None:
            async_task(name, *args)
        else:
            Schedule.objects.create(func=name, args=repr(tuple(args)), schedule_type=Schedule.ONCE, next_run=base.at(due), repeats=-1)

    def worker(self, processes: int, threads: int) -> list[str]:
        """Its cluster."""
        self.open()
        code = "import benchmarks.adapters.django_q2, sys; from django.core.management import call_command; call_command('qcluster')"
        return base.python("-c", code)


if __name__ == "__main__":
    base.main(DjangoQ2())
