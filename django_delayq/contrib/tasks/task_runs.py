"""Runs of Django's tasks: calls the function with the context, updates the result, and sends the signals of Django."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.db import Error

from django_delayq import codec, conf, ids
from django_delayq.contrib.tasks import task_errors
from django_delayq.contrib.tasks.api import Task, TaskApi, TaskContext, TaskResult, api_of, normalize_json
from django_delayq.contrib.tasks.declared import DjangoTask, Earlier, as_enqueued, new_result, plain
from django_delayq.exceptions import PayloadTooLarge
from django_delayq.producer.task import registry
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.current import CurrentJob, current

ROOM: Final = 64  # bytes of an outcome besides its value, see worker/outcome.py
RUNNING: Final[ContextVar[tuple[str, TaskResult]]] = ContextVar("django_delayq.contrib.tasks.running")  # with the fence of the run
INLINE: Final[OrderedDict[UUID, TaskResult]] = OrderedDict()  # the only copy of the results of jobs that run inline
MOST_INLINE: Final = 1_000


def callable_of(task: Task) -> Callable[..., Any]:
    """The function that workers call. It adds the context if the task takes one, and validates the return value."""
    func = task.func

    if inspect.iscoroutinefunction(func):

        @wraps(func)
        async def call(*args: Any, **kwargs: Any) -> Any:
            result = of_current()
            return _returned(result, await func(*_context(task, result), *args, **kwargs))
    else:

        @wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = of_current()
            return _returned(result, func(*_context(task, result), *args, **kwargs))

    signature = inspect.signature(func)
    if task.takes_context:  # callers do not pass the context
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    call.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it first
    return call


def remember(id: UUID, result: TaskResult) -> None:
    """Keeps the result of a job that runs inline. Its run updates the result."""
    INLINE[id] = result
    while len(INLINE) > MOST_INLINE:
        INLINE.popitem(last=False)


def of_current() -> TaskResult:
    """The result of the current run."""
    job = current()
    return _kept(job) or _of_run(job)


def started(sender: Any, job: CurrentJob, **_: Any) -> None:
    """Receiver of `job_started`: sends `task_started`."""
    if isinstance(sender, DjangoTask):
        result = _of_run(job)
        RUNNING.set((job.fence, result))
        api_of(result.task).task_started.send(_sender(result), task_result=result)


def succeeded(sender: Any, job: CurrentJob, **_: Any) -> None:
    """Receiver of `job_succeeded`: sends `task_finished`."""
    if isinstance(sender, DjangoTask):
        result = _kept(job) or _of_run(job)
        _set(result, finished_at=job.now, status=api_of(result.task).TaskResultStatus.SUCCESSFUL)
        send_finished(result)


def failed(sender: Any, job: CurrentJob, outcome: Outcome, **_: Any) -> None:
    """Receiver of `job_failed`: sends `task_finished` while the error is being handled, as receivers expect."""
    if not isinstance(sender, DjangoTask):
        return
    result = _kept(job) or _of_run(job)
    result.errors.append(task_errors.of_detail(api_of(result.task), outcome.detail))
    _set(result, finished_at=job.now, status=api_of(result.task).TaskResultStatus.FAILED)
    if (error := outcome.error) is None:
        send_finished(result)
        return
    frames = error.__traceback__
    try:
        raise error
    except BaseException:
        send_finished(result)
    finally:
        error.__traceback__ = frames  # without this frame


def put_off(sender: Any, job: CurrentJob, outcome: Outcome, **_: Any) -> None:
    """Receiver of `job_retried` and `job_snoozed`: with `INLINE` there is no other run, so the task has failed."""
    if isinstance(sender, DjangoTask) and job.id in INLINE:
        failed(sender, job, outcome)


def send_finished(result: TaskResult) -> None:
    """Sends `task_finished`. The sender is the class of the backend that enqueued the task."""
    api_of(result.task).task_finished.send(_sender(result), task_result=result)


def _sender(result: TaskResult) -> type | None:
    """None if the settings of this process do not contain the backend that enqueued the task."""
    try:
        return type(api_of(result.task).task_backends[result.backend])
    except ImproperlyConfigured:
        return None


def _kept(job: CurrentJob) -> TaskResult | None:
    fence, result = RUNNING.get(("", None))
    # With INLINE all runs have the same fence, and a run may schedule another.
    return result if fence == job.fence and result is not None and result.id == ids.short(job.id) else None


def _of_run(job: CurrentJob) -> TaskResult:
    if (here := INLINE.get(job.id)) is not None:
        running = api_of(here.task).TaskResultStatus.RUNNING
        _set(here, status=running, started_at=job.started_at, last_attempted_at=job.started_at)
        here.worker_ids.append(job.worker)
        return here
    registered: Any = registry.get(job.task)
    task = as_enqueued(registered, job.queue, job.meta)
    earlier = _earlier(api_of(task), job) if job.attempt > 1 else Earlier(None, [], [])
    return new_result(
        task,
        job.id,
        "RUNNING",
        job.args,
        job.kwargs,
        started_at=earlier.started_at or job.started_at,
        last_attempted_at=job.started_at,
        errors=earlier.errors,
        worker_ids=[*earlier.worker_ids, job.worker],
    )


def _earlier(api: TaskApi, job: CurrentJob) -> Earlier:
    """The earlier attempts, from their rows. If the mirror is behind, or the database is not available, workers have no name, but the
    number of attempts is correct.
    """
    from django_delayq.contrib.tasks import task_rows  # after the models are loaded

    count = job.attempt - 1
    try:
        found = task_rows.earlier_attempts(api, job.id)
    except Error:
        found = Earlier(None, [], [])
    known = found.worker_ids[-count:]
    return found._replace(worker_ids=[*known, *[""] * (count - len(known))])


def _returned(result: TaskResult, value: Any) -> Any:
    """The value as it is stored.

    Raises:
        TypeError, ValueError, PayloadError: it cannot be stored, so the task has failed.
    """
    kept = plain(normalize_json(value))
    codec.check(kept, "the return value")
    limit = conf.get().queue(current().queue).max_payload - ROOM
    size = len(codec.dumps(kept))
    if size > limit:
        raise PayloadTooLarge(code="result_size", task=result.task.module_path, size=size, limit=limit)
    _set(result, _return_value=kept)
    return kept


def _context(task: Task, result: TaskResult) -> tuple[TaskContext, ...]:
    return (api_of(task).TaskContext(task_result=result),) if task.takes_context else ()


def _set(result: TaskResult, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)
