"""Django's tasks with the options of this backend, as they are declared and as they are enqueued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, make_dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.contrib.tasks.api import Task, TaskError, TaskResult, api_of
from django_delayq.exceptions import ConfigError
from django_delayq.producer.options import OPTIONS
from django_delayq.producer.task import Task as Registered
from django_delayq.text import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Task)
ATTRIBUTE: Final = "delayq_options"  # of a function
OF_FUNCTIONS: Final = ("max_attempts", "backoff", "poll", "timeout", "atomic", "sensitive", "on_failure")
CARRIED: Final = "_task"  # the key in the meta of a job for what differs from the declaration
DIFFERS: Final = ("backend", "priority", "run_after")


# The options of `schedule` that Django does not have.
EXTRAS: Final = tuple(name for name in OPTIONS if name not in ("run_at", "queue", "priority", "using", "serial", "concurrency"))


@cache
def task_class(kind: type[Task]) -> type[Task]:
    """`DelayqTask` for tasks of this class: of Django, or of the package django-tasks."""
    extras = [(name, Any, field(default=None, hash=name != "meta")) for name in EXTRAS]
    text = "A task with options of `delayq.schedule`. If an option is None, the value comes from the function, OPTIONS or the queue."
    namespace = {"__module__": __name__, "__doc__": text}
    return make_dataclass("DelayqTask", extras, bases=(kind,), namespace=namespace, frozen=True, slots=True, kw_only=True)


DelayqTask: Final = task_class(Task)


def using(task: Task, **extras: Any) -> Task:
    """Returns the task with more options: `using(send, key="mail:7", delay="30m").enqueue(7)`. Django's `.using(...)` keeps them. Other
    backends ignore them.

    Raises:
        ConfigError: An option is unknown.
    """
    _refuse_unknown(f"using({task.module_path})", extras, EXTRAS)
    known = {*EXTRAS, *(one.name for one in fields(Task))}
    own = {one.name: getattr(task, one.name) for one in fields(task) if one.name in known}
    return task_class(api_of(task).Task)(**{**own, **extras})


def options(**given: Any) -> Callable[[F], F]:
    """Sets options of `delayq.task` for a function. Place it below Django's `@task`: `@options(max_attempts=5, backoff="15s 3m")`.

    Raises:
        ConfigError: An option is unknown. Invalid values raise an exception later, when the backend validates the task.
    """
    _refuse_unknown("options()", given, OF_FUNCTIONS)

    def note(function: F) -> F:
        setattr(function, ATTRIBUTE, {**options_of(function), **given})
        return function

    return note


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The options that `options` has set."""
    return dict(getattr(function, ATTRIBUTE, {}))


def extras_of(task: Task) -> dict[str, Any]:
    """The options of a task that Django does not have, without those that are None."""
    ours = isinstance(task, task_class(api_of(task).Task))
    found = {name: getattr(task, name) for name in EXTRAS} if ours else {}
    return {name: value for name, value in found.items() if value is not None}


def _refuse_unknown(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            near = did_you_mean(name, known)
            raise ConfigError(f"Unknown option {name!r} for {where}{near}. Available options: {', '.join(known)}.")


class Earlier(NamedTuple):
    """The earlier attempts of a job: the start of the first, their errors, and their workers."""

    started_at: datetime | None
    errors: list[TaskError]
    worker_ids: list[str]


class DjangoTask(Registered[..., Any]):
    """A task of Django in the registry. `declared`: the task as the project declares it."""

    raises_inline = False  # the result has the error

    declared: Task


def altered(task: T, **changes: Any) -> T:
    """A copy with other values. They are not validated again: they were valid when the task was enqueued."""
    made = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(made, one.name, changes.get(one.name, getattr(task, one.name)))
    return made


def carried(declared: Task, task: Task) -> dict[str, Any]:
    """The differences between the enqueued task and its declaration, for the meta of the job."""
    found = {name: getattr(task, name) for name in DIFFERS if getattr(task, name) != getattr(declared, name)}
    if found.get("run_after") is not None:
        found["run_after"] = found["run_after"].isoformat()
    return found


def as_enqueued(task: DjangoTask, queue: str, meta: Mapping[str, Any]) -> Task:
    """The task of Django that was enqueued as this job."""
    changed = meta.get(CARRIED)
    found = {name: changed[name] for name in DIFFERS if name in changed} if isinstance(changed, Mapping) else {}
    if isinstance(found.get("run_after"), str):
        found["run_after"] = datetime.fromisoformat(found["run_after"])
    return altered(task.declared, queue_name=queue, **found)


def new_result(task: Task, id: UUID | None, status: str, args: Any, kwargs: Any, **known: Any) -> TaskResult:
    """A result of the job with the id, or of one that does not exist yet. `known`: its other fields, if they are known."""
    api = api_of(task)
    named = {"id": "", "enqueued_at": None} if id is None else {"id": ids.short(id), "enqueued_at": enqueued_at(id)}
    fields = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"), None)
    fields |= {**named, "backend": task.backend, "errors": [], "worker_ids": [], **known}
    result: TaskResult = api.TaskResult(task=task, status=api.TaskResultStatus(status), args=args, kwargs=kwargs, **fields)
    return result


def enqueued_at(id: UUID) -> datetime:
    """The date in the id of the job. It is known before a row is read, and is the same in all processes."""
    return clock.from_ms(ids.created_ms(id))


def plain(value: Any) -> Any:
    """A normalised value as JSON would return it: with plain types instead of subclasses, such as members of `TextChoices`. Keys that
    are not text stay as they are, and are rejected later.
    """
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if type(value) in (bool, str, int, float):
        return value
    # A subclass may override these methods.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value
