"""What a task of Django can say to this backend beyond Django's words. Other backends do not look at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, make_dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar

from django_delayq import clock
from django_delayq.contrib.tasks.api import Task, words_of
from django_delayq.exceptions import ConfigError
from django_delayq.producer.options import Conflict, Durability
from django_delayq.producer.task_options import Backoff
from django_delayq.text import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE: Final = "delayq_options"  # of a function
OF_FUNCTIONS: Final = ("max_attempts", "backoff", "poll", "timeout", "atomic", "sensitive", "on_failure")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayqTask(Task):
    """A task of Django with the options of `delayq.schedule` that Django has no word for. None: what the function, the backend's
    OPTIONS or the queue says.
    """

    max_attempts: int | None = None
    backoff: Backoff | str | None = None
    timeout: clock.Delay | None = None
    key: str | None = None
    on_conflict: Conflict | None = None
    delay: clock.Delay | None = None
    expires: clock.Delay | datetime | None = None
    meta: Mapping[str, Any] | None = field(default=None, hash=False)
    durability: Durability | None = None


DJANGOS: Final = frozenset(field.name for field in fields(Task))
EXTRA_FIELDS: Final = tuple(one for one in fields(DelayqTask) if one.name not in DJANGOS)
EXTRAS: Final = tuple(one.name for one in EXTRA_FIELDS)


@cache
def task_class(kind: type[Task]) -> type[DelayqTask]:
    """`DelayqTask` for tasks of that class, which may be that of the package django-tasks beside Django's own."""
    if issubclass(DelayqTask, kind):
        return DelayqTask
    extras = [(one.name, one.type, _fresh(one)) for one in EXTRA_FIELDS]
    namespace = {"__module__": __name__, "__doc__": DelayqTask.__doc__}
    made: type[DelayqTask] = make_dataclass(
        "DelayqTask", extras, bases=(kind,), namespace=namespace, frozen=True, slots=True, kw_only=True
    )
    return made


def _fresh(one: Field[Any]) -> Any:
    return field(default=one.default, hash=one.hash)


def using(task: Task, **extras: Any) -> DelayqTask:
    """The task with more options for what is enqueued by it: `using(send, key="mail:7", delay="30m").enqueue(7)`. They are kept by
    `.using(...)` of Django, and other backends run the task without them.

    Raises:
        ConfigError: an option is unknown; the text names the nearest known one.
    """
    _refuse_unknown(f"using({task.module_path})", extras, EXTRAS)
    known = {*DJANGOS, *EXTRAS}
    own = {one.name: getattr(task, one.name) for one in fields(task) if one.name in known}
    return task_class(words_of(task).Task)(**{**own, **extras})


def options(**given: Any) -> Callable[[F], F]:
    """Notes options of `delayq.task` on a function, below Django's `@task`: `@task` over `@options(max_attempts=5, backoff="15s 3m")`.

    Raises:
        ConfigError: an option is unknown. What its value is worth is looked at when this backend gets the task.
    """
    _refuse_unknown("options()", given, OF_FUNCTIONS)

    def note(function: F) -> F:
        setattr(function, ATTRIBUTE, {**said_by(function), **given})
        return function

    return note


def said_by(function: Callable[..., Any]) -> dict[str, Any]:
    """What `options` has noted."""
    return dict(getattr(function, ATTRIBUTE, {}))


def extras_of(task: Task) -> dict[str, Any]:
    """The options that a task bears beyond Django's, without those that say nothing."""
    ours = isinstance(task, task_class(words_of(task).Task))
    found = {name: getattr(task, name) for name in EXTRAS} if ours else {}
    return {name: value for name, value in found.items() if value is not None}


def _refuse_unknown(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            near = did_you_mean(name, known)
            raise ConfigError(f"{where}: {name!r} is no option{near}. The options are: {', '.join(known)}.")
