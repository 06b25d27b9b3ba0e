"""Delayq as a backend of `django.tasks`: `TASKS = {"default": {"BACKEND": "django_delayq.contrib.tasks.DelayqBackend"}}`.

May import all below, and Django's tasks or, for Django 5.2, the package django-tasks. No threads; queries where results are looked up.
A module of tasks may be imported before the models are, so nothing here imports models until it is called.
"""

from __future__ import annotations

from django_delayq.contrib.tasks.backend import DelayqBackend
from django_delayq.contrib.tasks.extras import DelayqTask, options, using
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
