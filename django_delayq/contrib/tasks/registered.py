"""Tasks of Django as tasks of delayq: each stands in the one registry under its module and name, so that workers look it up there."""

from __future__ import annotations

import sys
from typing import Any, Final

from django_delayq.contrib.tasks.api import Task, error_class, task_classes
from django_delayq.contrib.tasks.declared import DjangoTask, altered
from django_delayq.contrib.tasks.extras import OF_FUNCTIONS, extras_of, said_by
from django_delayq.contrib.tasks.task_runs import callable_of
from django_delayq.exceptions import ConfigError
from django_delayq.producer import worker_modules
from django_delayq.producer.task import made, registry

ATTEMPTS: Final = 1  # as with Django's other backends, unless somebody says more


def register(task: Task) -> DjangoTask:
    """The task as it stands in the registry, where it is added if need be.

    Raises:
        InvalidTask: an option of it cannot work, or a task by `@delayq.task` has its name.
    """
    known = registry.find(task.module_path)
    if isinstance(known, DjangoTask) and _same(known.declared, task):
        return known
    if known is not None and not isinstance(known, DjangoTask):
        raise error_class("InvalidTask")(f"{task.module_path} is a task by @delayq.task already. Give one of the two another name.")
    try:
        fresh = made(DjangoTask, callable_of(task), where=f"@task on {task.module_path}", **_said(task))
    except ConfigError as error:
        raise error_class("InvalidTask")(str(error)) from error
    fresh.declared = altered(task, run_after=None)
    registry.add(fresh)
    return fresh


def register_found() -> None:
    """Registers the tasks of Django in the modules that workers import, whatever backend they are declared for: a web process may
    enqueue each by `.using(backend=…)`, and workers must know it.

    Raises:
        InvalidTask: as `register`.
    """
    kinds = task_classes()
    for name in worker_modules.names():
        for value in list(vars(sys.modules.get(name, object)).values()):
            if isinstance(value, kinds):
                register(value)


def _same(declared: Task, task: Task) -> bool:
    return declared.func is task.func and declared.takes_context == task.takes_context


def _said(task: Task) -> dict[str, Any]:
    own = {name: value for name, value in extras_of(task).items() if name in OF_FUNCTIONS}
    return {
        "name": task.module_path,
        "queue": task.queue_name,
        "priority": task.priority,
        "max_attempts": ATTEMPTS,
        **said_by(task.func),
        **own,
    }
