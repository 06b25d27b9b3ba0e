"""Delayq as a backend of `django.tasks`: `TASKS = {"default": {"BACKEND": "django_delayq.contrib.tasks.DelayqBackend"}}`.

May import all below, and Django's tasks or, for Django 5.2, the package django-tasks. It starts no threads. It queries rows to find
results. It imports models only when it is called, because task modules may be imported before the models.
"""

from __future__ import annotations

from django_delayq.contrib.tasks.backend import DelayqBackend
from django_delayq.contrib.tasks.declared import DelayqTask, options, using
from django_delayq.contrib.tasks.task_errors import TaskCancelled, TaskCrashed, TaskExpired, TaskNotRun, TaskTimedOut

__all__ = [
    "DelayqBackend",
    "DelayqTask",
    "TaskCancelled",
    "TaskCrashed",
    "TaskExpired",
    "TaskNotRun",
    "TaskTimedOut",
    "options",
    "using",
]
