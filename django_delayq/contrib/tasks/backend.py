"""The backend of Django's tasks: enqueues them as jobs, and looks up what came of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.core.checks import CheckMessage

from django_delayq import conf, ids, signals
from django_delayq.contrib.tasks import option_checks, registered, task_runs
from django_delayq.contrib.tasks.api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    error_class,
    packages,
    words_of,
)
from django_delayq.contrib.tasks.declared import CARRIED, DjangoTask, carried, enqueued_at
from django_delayq.contrib.tasks.extras import DelayqTask, extras_of, said_by, task_class
from django_delayq.contrib.tasks.plain_json import plain
from django_delayq.exceptions import ConfigError
from django_delayq.producer import acts
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.job import Job
from django_delayq.producer.options import NONE, Options
from django_delayq.producer.schedule import put_in
from django_delayq.states import Change, EndCause

WORTH: Final = ("max_attempts", "backoff", "timeout")  # what a function says of each of its jobs
SAID_BY_RUNS: Final = frozenset({EndCause.SUCCEEDED, EndCause.FAILED})  # these ends the worker tells, with the error at hand


class DelayqBackend(BaseTaskBackend):
    """Tasks as jobs of delayq.

    A task is enqueued in the transaction of its caller: a rollback leaves nothing behind, a commit is never forgotten. It has one
    attempt, unless OPTIONS["max_attempts"] or the task says more. Above 0 its priority is the high band, below 0 the low one.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    # What Django has no word for yet.
    supports_retry = True
    supports_cancel = True
    supports_reschedule = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        for words in packages():
            words.BaseTaskBackend.register(type(self))
        _listen()

    @property
    def task_class(self) -> type[DelayqTask]:  # type: ignore[override]  # an instance has one, and each package an instance
        """The class that `@task` makes tasks of: of the package whose `task_backends` has made this backend."""
        known = ((words.Task, words.task_backends) for words in packages())
        kinds = (kind for kind, backends in known if self.alias in backends.settings and backends[self.alias] is self)
        return task_class(next(kinds, Task))

    @classmethod
    def register_found(cls) -> None:
        """Makes the tasks of installed apps known to workers: `django_delayq` calls it when it is ready."""
        _listen()  # a worker needs no backend to run what was enqueued elsewhere
        registered.register_found()

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Django's system checks ask each backend."""
        return [*super().check(**kwargs), *option_checks.found(self.alias, self.queues, self.options)]

    def validate_task(self, task: Task) -> None:
        """Whether this backend can run it; then workers of this process know it.

        Raises:
            InvalidTask: it cannot.
        """
        try:
            super().validate_task(task)
        except InvalidTask as error:
            raise error_class("InvalidTask")(*error.args) from None
        registered.register(task)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Schedules a job for the task, in the transaction that is open.

        Raises:
            InvalidTask: as `validate_task`.
            TypeError, ValueError: Django's rules for arguments. PayloadError, PayloadTooLarge: arguments that JSON cannot hold, or that
                the function does not take.
            QueueUnknown, ConfigError, KeyTaken, StoreUnavailable: as `delayq.schedule`.
        """
        refuse_loop("task.aenqueue(…)")
        self.validate_task(task)
        words = words_of(task)
        result: TaskResult = words.TaskResult(
            task=task,
            id="",  # that of the job, once there is one
            status=words.TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        known = registered.register(task)

        def inserted(job: Job) -> None:
            _name(result, job)
            if conf.get().inline:
                task_runs.remember(job.id, result)
            words.task_enqueued.send(type(self), task_result=result)

        job = put_in(known, self._options(known, task), tuple(plain(result.args)), plain(result.kwargs), inserted=inserted)
        if not result.id:
            inserted(job)
        _name(result, job)  # anew: it may have been merged into the holder of its key when it was published
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The result of that id, as the rows of its job tell it; in a transaction, also of what was enqueued in it. With `INLINE` there
        are no rows, and this process has the results of what it has run last.

        Raises:
            TaskResultDoesNotExist: nobody knows it, or it is no result of a task of Django.
            StoreUnavailable: the database does not know it, and Redis cannot be asked.
        """
        from django_delayq.contrib.tasks import task_rows  # not before the models are there

        try:
            id = ids.parse(result_id)
        except (ValueError, TypeError):
            raise error_class("TaskResultDoesNotExist")(result_id) from None
        found = task_runs.INLINE.get(id) if conf.get().inline else task_rows.find(id)
        if found is None:
            raise error_class("TaskResultDoesNotExist")(result_id)
        return found

    def cancel(self, result_id: str, *, abort: bool = False, actor: str = "", reason: str = "") -> Change:
        """As `delayq.cancel`."""
        return acts.cancel(result_id, abort=abort, actor=actor, reason=reason)

    def reschedule(self, result_id: str, run_after: datetime | timedelta, *, actor: str = "", reason: str = "") -> Change:
        """As `delayq.reschedule`: to that moment, or by so long from now.

        Raises:
            ConfigError: it is neither an aware datetime nor a timedelta.
            StoreUnavailable, DatabaseError: as for `delayq.cancel`.
        """
        if not isinstance(run_after, datetime | timedelta):
            raise ConfigError(f"reschedule(): run_after={run_after!r} must be an aware datetime, or a timedelta from now on.")
        moves: dict[str, Any] = {"delay": run_after} if isinstance(run_after, timedelta) else {"run_at": run_after}
        return acts.reschedule(result_id, actor=actor, reason=reason, **moves)

    acancel, areschedule = twin(cancel), twin(reschedule)

    def _options(self, known: DjangoTask, task: Task) -> Options:
        """What the call says stands over what the function says, and that over OPTIONS; what nobody says is left to the queue."""
        static = {**said_by(task.func), **extras_of(known.declared)}
        own = {name: static[name] for name in WORTH if name in static} | extras_of(task)
        said: dict[str, Any] = {**self.options, **own}
        for name in ("backoff", "timeout"):
            if name in static and said[name] is static[name]:
                del said[name]  # workers find it at the task
        if CARRIED in (said.get("meta") or {}):
            raise ConfigError(f"{task.module_path}: meta has the key {CARRIED!r}, under which this backend packs. Name it otherwise.")
        if differs := carried(known.declared, task):
            said["meta"] = {**(said.get("meta") or {}), CARRIED: differs}
        if task.run_after is not None:
            said["run_at"] = task.run_after
        return NONE.but({**said, "queue": task.queue_name, "priority": task.priority}, task.module_path)


def _name(result: TaskResult, job: Job) -> None:
    object.__setattr__(result, "id", ids.short(job.id))
    object.__setattr__(result, "enqueued_at", enqueued_at(job.id))


def _listen() -> None:
    for told, receiver in RECEIVERS:
        told.connect(receiver)  # once, however often it is said


def _ended(job: Any, row: Any, cause: EndCause, **_: Any) -> None:
    """Receiver of `job_ended`: a task that no run has brought to its end has finished, too."""
    from django_delayq.contrib.tasks import task_rows  # not before the models are there

    if row is not None and cause not in SAID_BY_RUNS:
        result = task_rows.of_row(row, row.pk)
        if result is not None:
            task_runs.tell_finished(result)


RECEIVERS: Final = (
    (signals.job_started, task_runs.started),
    (signals.job_succeeded, task_runs.succeeded),
    (signals.job_failed, task_runs.failed),
    (signals.job_retried, task_runs.put_off),
    (signals.job_snoozed, task_runs.put_off),
    (signals.job_ended, _ended),
)
