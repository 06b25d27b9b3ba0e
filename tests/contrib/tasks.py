"""Tasks that the app finds. A worker knows them only by their import, whichever backend they are declared for. The signals about them
are written to a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings

from tests.contrib.mail import fail, look, send

try:
    from django.tasks import signals, task
except ImportError:  # Django 5.2
    from django_tasks import signals, task

__all__ = ["fail", "later", "look", "send"]


@task
async def later(number: int) -> int:
    return number + 1


def note(signal: Any = None, task_result: Any = None, **_: Any) -> None:
    name = next(name for name in ("task_started", "task_finished") if getattr(signals, name) is signal)
    with (Path(settings.APP_FOLDER) / "told.txt").open("a") as file:
        file.write(f"{task_result.id} {name} {task_result.status}\n")


if hasattr(settings, "APP_FOLDER"):
    signals.task_started.connect(note)
    signals.task_finished.connect(note)
