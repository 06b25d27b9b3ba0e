"""The backend of Django's tasks: registers tasks, enqueues them as jobs, finds their results, and checks TASKS."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.checks import CheckMessage

from django_delayq import conf, ids, signals
from django_delayq.contrib.tasks import task_runs
from django_delayq.contrib.tasks.api import BaseTaskBackend, InvalidTask, Task, TaskResult, api_of, error_class, packages, task_classes
from django_delayq.contrib.tasks.declared import (
    CARRIED,
    OF_FUNCTIONS,
    DjangoTask,
    altered,
    carried,
    enqueued_at,
    extras_of,
    new_result,
    options_of,
    plain,
    task_class,
)
from django_delayq.exceptions import ConfigError
from django_delayq.findings import check_message
from django_delayq.producer import acts, worker_modules
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.job import Job
from django_delayq.producer.options import DURABILITIES, NONE, Options
from django_delayq.producer.schedule import put_in
from django_delayq.producer.task import Task as Registered
from django_delayq.producer.task import make_task, registry
from django_delayq.states import Change, EndCause
from django_delayq.text import did_you_mean

FUNCTION_OPTIONS: Final = ("max_attempts", "backoff", "timeout")  # options of a function that hold for each of its jobs
REPORTED_BY_WORKER: Final = frozenset({EndCause.SUCCEEDED, EndCause.FAILED})
ATTEMPTS: Final = 1  # as with Django's other backends
OPTIONS: Final = ("max_attempts", "backoff", "timeout", "durability")


class DelayqBackend(BaseTaskBackend):
    """Enqueues tasks as jobs.

    A task is part of the caller's transaction. If the transaction is rolled back, the task isn't enqueued. Otherwise, it isn't lost. By
    default, a task has one attempt. To change this, set `max_attempts` in OPTIONS or on the task. Positive priorities are high, and
    negative ones are low.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        for api in packages():
            api.BaseTaskBackend.register(type(self))
        _connect()

    @property
    def task_class(self) -> type[Task]:  # type: ignore[override]  # each package has an instance
        """The class of the tasks created by `@task`, which depends on the package whose `task_backends` created this backend."""
        known = ((api.Task, api.task_backends) for api in packages())
        kinds = (kind for kind, backends in known if self.alias in backends.settings and backends[self.alias] is self)
        return task_class(next(kinds, Task))

    @classmethod
    def register_found(cls) -> None:
        """Registers the tasks in the modules that workers import, when Django starts. It includes tasks that are declared for other
        backends: a web process may enqueue them with `.using(backend=…)`.

        Raises:
            InvalidTask: An option is not valid, or a task of `@delayq.task` has the same name.
        """
        _connect()  # a worker runs tasks without creating a backend
        kinds = task_classes()
        for name in worker_modules.names():
            for value in list(vars(sys.modules.get(name, object)).values()):
                if isinstance(value, kinds):
                    register(value)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Runs the system checks for this alias in TASKS."""
        return [*super().check(**kwargs), *_option_findings(self.alias, self.queues, self.options)]

    def validate_task(self, task: Task) -> None:
        """Checks that this backend can run the task, and registers it.

        Raises:
            InvalidTask: The backend can't run the task.
        """
        try:
            super().validate_task(task)
        except InvalidTask as error:
            raise error_class("InvalidTask")(*error.args) from None
        register(task)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Schedules a job for the task, in the open transaction.

        Raises:
            InvalidTask: See `validate_task`.
            TypeError, ValueError: Django rejects the arguments.
            PayloadError, PayloadTooLarge: The arguments can't be represented in JSON, don't match the signature, or are too large.
            QueueUnknown, ConfigError, KeyTaken, StoreUnavailable: See `delayq.schedule`.
        """
        refuse_loop("task.aenqueue(…)")
        self.validate_task(task)
        api = api_of(task)
        result = new_result(task, None, "READY", args, kwargs, backend=self.alias)  # the id is set when the job exists
        known = register(task)

        def inserted(job: Job) -> None:
            _name(result, job)
            if conf.get().inline:
                task_runs.remember(job.id, result)
            api.task_enqueued.send(type(self), task_result=result)

        job = put_in(known, self._options(known, task), tuple(plain(result.args)), plain(result.kwargs), inserted=inserted)
        if not result.id:
            inserted(job)
        _name(result, job)  # again: when it was published, it may have been merged into the job that holds its key
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Returns the result with this id, from the job's rows. This includes tasks that the open transaction enqueued. With INLINE,
        there are no rows, and the process remembers its latest results.

        Raises:
            TaskResultDoesNotExist: There is no such job, or it doesn't belong to a task of Django.
            StoreUnavailable: The database doesn't have the job, and Redis doesn't respond.
        """
        from django_delayq.contrib.tasks import task_rows  # after the models are loaded

        try:
            id = ids.parse(result_id)
        except (ValueError, TypeError):
            raise error_class("TaskResultDoesNotExist")(result_id) from None
        found = task_runs.INLINE.get(id) if conf.get().inline else task_rows.find(id)
        if found is None:
            raise error_class("TaskResultDoesNotExist")(result_id)
        return found

    def cancel(self, result_id: str, *, abort: bool = False, actor: str = "", reason: str = "") -> Change:
        """Like `delayq.cancel`."""
        return acts.cancel(result_id, abort=abort, actor=actor, reason=reason)

    def reschedule(self, result_id: str, run_after: datetime | timedelta, *, actor: str = "", reason: str = "") -> Change:
        """Like `delayq.reschedule`, but takes a date, or a timedelta from now.

        Raises:
            ConfigError: `run_after` is neither an aware datetime nor a timedelta.
            StoreUnavailable, DatabaseError: See `delayq.cancel`.
        """
        if not isinstance(run_after, datetime | timedelta):
            raise ConfigError(f"reschedule(): run_after={run_after!r} must be an aware datetime or a timedelta.")
        moves: dict[str, Any] = {"delay": run_after} if isinstance(run_after, timedelta) else {"run_at": run_after}
        return acts.reschedule(result_id, actor=actor, reason=reason, **moves)

    acancel, areschedule = twin(cancel), twin(reschedule)

    def _options(self, known: DjangoTask, task: Task) -> Options:
        """The options of the job: from the call, then the function, then OPTIONS. The queue has the other defaults."""
        static = {**options_of(task.func), **extras_of(known.declared)}
        own = {name: static[name] for name in FUNCTION_OPTIONS if name in static} | extras_of(task)
        found: dict[str, Any] = {**self.options, **own}
        for name in ("backoff", "timeout"):
            if name in static and found[name] is static[name]:
                del found[name]  # workers read it from the task
        if CARRIED in (found.get("meta") or {}):
            raise ConfigError(f"{task.module_path}: meta contains the key {CARRIED!r}, which this backend uses. Use another key.")
        if differs := carried(known.declared, task):
            found["meta"] = {**(found.get("meta") or {}), CARRIED: differs}
        if task.run_after is not None:
            found["run_at"] = task.run_after
        return NONE.but({**found, "queue": task.queue_name, "priority": task.priority}, task.module_path)


def _name(result: TaskResult, job: Job) -> None:
    object.__setattr__(result, "id", ids.short(job.id))
    object.__setattr__(result, "enqueued_at", enqueued_at(job.id))


def _connect() -> None:
    for sender, receiver in RECEIVERS:
        sender.connect(receiver)  # once, even if called again


def _ended(job: Any, row: Any, cause: EndCause, **_: Any) -> None:
    """Receiver of `job_ended`: sends `task_finished` for jobs that ended without a run."""
    from django_delayq.contrib.tasks import task_rows  # after the models are loaded

    if row is not None and cause not in REPORTED_BY_WORKER:
        result = task_rows.of_row(row, row.pk)
        if result is not None:
            task_runs.send_finished(result)


def register(task: Task) -> DjangoTask:
    """The registered task. Registers it if necessary.

    Raises:
        InvalidTask: an option is not valid, or a task of `@delayq.task` has the same name.
    """
    known = registry.find(task.module_path)
    if isinstance(known, DjangoTask) and known.declared.func is task.func and known.declared.takes_context == task.takes_context:
        return known
    if known is not None and not isinstance(known, DjangoTask):
        raise error_class("InvalidTask")(f"A task defined with @delayq.task has the same name, {task.module_path}. Rename one of them.")
    own = {name: value for name, value in extras_of(task).items() if name in OF_FUNCTIONS}
    given = {"queue": task.queue_name, "priority": task.priority, "max_attempts": ATTEMPTS, **options_of(task.func), **own}
    where = f"@task on {task.module_path}"
    try:
        fresh = make_task(DjangoTask, task_runs.callable_of(task), where=where, name=task.module_path, **given)
    except ConfigError as error:
        raise error_class("InvalidTask")(str(error)) from error
    fresh.declared = altered(task, run_after=None)
    registry.add(fresh)
    return fresh


def _option_findings(alias: str, queues: set[str], options: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """The findings for one alias of TASKS."""
    where = f'TASKS["{alias}"]["OPTIONS"]'
    if not isinstance(options, Mapping):
        yield check_message("E031", f"{where} must be a dict, not {options!r}.")
        options = {}
    for name, value in options.items():
        if name not in OPTIONS:
            hint = f"Available options: {', '.join(OPTIONS)}."
            yield check_message("E030", f"{where} has an unknown option {name!r}{did_you_mean(name, OPTIONS)}.", hint)
        elif wrong := _option_error(where, name, value):
            yield check_message("E031", wrong)
    if conf.problems():
        return
    for name in sorted(queues - set(conf.get().queues), key=str):
        yield check_message(
            "E032",
            f'TASKS["{alias}"]["QUEUES"] has the queue {name!r}, which is not in DELAYQ["QUEUES"].',
            f"Add it there, or use one of these queues: {', '.join(sorted(conf.get().queues))}.",
        )


def _option_error(where: str, name: str, value: Any) -> str:
    """The error in a value, or an empty string."""
    if name == "durability":
        return "" if value in DURABILITIES else f"{where}: durability={value!r} must be 'outbox' or 'redis'."
    if name == "max_attempts" and value == 0:
        return f"{where}: max_attempts=0 means no limit, which is only allowed for jobs that expire. Set it on the task with using()."
    try:
        make_task(Registered, _option_findings, where=where, **{name: value})
    except ConfigError as error:
        return str(error)
    return ""


RECEIVERS: Final = (
    (signals.job_started, task_runs.started),
    (signals.job_succeeded, task_runs.succeeded),
    (signals.job_failed, task_runs.failed),
    (signals.job_retried, task_runs.put_off),
    (signals.job_snoozed, task_runs.put_off),
    (signals.job_ended, _ended),
)
