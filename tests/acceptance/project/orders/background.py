"""The names of `django.tasks`: from Django itself since 6.0, from the package django-tasks before."""

from typing import TYPE_CHECKING

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import TaskResultStatus, task
    from django.tasks.exceptions import TaskResultDoesNotExist
else:
    from django_tasks import TaskResultStatus, task
    from django_tasks.exceptions import TaskResultDoesNotExist

__all__ = ["TaskResultDoesNotExist", "TaskResultStatus", "task"]
