"""Which tasks a worker finds. Workers import the `tasks` modules of installed apps and the modules in `TASK_MODULES`, with all that
these import. No module is ever imported because a job names it.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterable, Iterator
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from django.apps import apps

from django_delayq import conf
from django_delayq.exceptions import ConfigError
from django_delayq.logger import Logger
from django_delayq.text import nearest

logger = Logger("django_delayq.producer")

SETTING: Final = 'DELAYQ["TASK_MODULES"]'
_warned: set[str] = set()  # names of tasks


def load() -> None:
    """Imports the modules of the setting. One that does not exist is left to the system check."""
    for path in _given():
        try:
            import_module(path)
        except ModuleNotFoundError as error:
            if not f"{path}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports what is not


def names() -> list[str]:
    """The modules that workers import for their tasks."""
    return [*(f"{app.name}.tasks" for app in apps.get_app_configs()), *_given()]


def missing(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The modules that do not exist, each with the nearest name of one that does, "" for none."""
    for path in paths:
        try:
            found = find_spec(path) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            yield path, _near(path)


def check(task: Any) -> None:
    """Whether a worker finds that task. It does if the task was registered while Django was set up: a worker sets Django up in the
    same way. A task that was registered later, such as one of a module that only views import, may be unknown to workers. A warning
    is logged once if workers do not import its module, or if the task was made by a function.

    Raises:
        ConfigError: the same, where DEBUG is on.
    """
    if not task.late or task.own:
        return
    module, name = task.fn.__module__, task.fn.__qualname__
    where = f"A worker would not find the task {task.name}"
    if module not in names():
        message = f"{where}: its module {module} is neither the tasks module of an installed app nor in {SETTING}."
        hint = f"Add {module!r} to {SETTING}, or import it in a tasks module."
        if module == "__main__":
            hint = "Move it into the tasks module of an installed app."
    elif not _is_task(reduce(lambda value, part: getattr(value, part, None), name.split("."), sys.modules.get(module))):
        message = f"{where}: it was made by a function, and {module}.{name} is not a task."
        hint = "Make the task when its module is imported: write @task above the function."
    else:
        return
    if conf.is_debug():
        raise ConfigError(message, hint=hint)
    if task.name not in _warned:
        _warned.add(task.name)
        logger.warning("%s %s", message, hint)


def _given() -> list[str]:
    """As it is written: it is read before anybody has checked the settings."""
    given = conf.given("TASK_MODULES")
    return [path for path in given if isinstance(path, str)] if isinstance(given, list | tuple) else []


def _is_task(value: Any) -> bool:
    return hasattr(value, "fn") or hasattr(value, "module_path")  # ours, or one of Django's


def _near(path: str) -> str:
    parent, _, last = path.rpartition(".")
    if not parent:
        return nearest(last, {app.name.partition(".")[0] for app in apps.get_app_configs()})
    try:
        found = import_module(parent)
    except ImportError:
        near = _near(parent)
        return f"{near}.{last}" if near else ""
    near = nearest(last, [one.name for one in pkgutil.iter_modules(getattr(found, "__path__", ()))])
    return f"{parent}.{near}" if near else ""
