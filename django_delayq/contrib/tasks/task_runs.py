"""A task of Django while a worker runs it: its function with the context that Django promises, its result as far as it is known here,
and the signals about both.
"""

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
from django_delayq.contrib.tasks.api import (
    Task,
    TaskContext,
    TaskResult,
    Words,
    normalize_json,
    words_of,
)
from django_delayq.contrib.tasks.declared import DjangoTask, Earlier, as_enqueued, enqueued_at
from django_delayq.contrib.tasks.plain_json import plain
from django_delayq.exceptions import PayloadTooLarge
from django_delayq.producer.task import registry
from django_delayq.store.queue import Outcome
from django_delayq.worker.current import CurrentJob, current

ROOM: Final = 64  # bytes that the end of a run takes beside its value, see worker/outcome.py
RUNNING: Final[ContextVar[tuple[str, TaskResult]]] = ContextVar("django_delayq.contrib.tasks.running")  # by the fence of its run
INLINE: Final[OrderedDict[UUID, TaskResult]] = OrderedDict()  # results of jobs that run where they are scheduled; nothing else has them
MOST_INLINE: Final = 1_000


def callable_of(task: Task) -> Callable[..., Any]:
    """The function that workers call: that of the task, which gets the context if it takes one, and whose value is looked at."""
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
    if task.takes_context:  # who enqueues does not give it
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    call.__signature__ = signature  # type: ignore[attr-defined]  # what inspect asks for first
    return call


def remember(id: UUID, result: TaskResult) -> None:
    """Keeps the result of a job that runs in this process, with `INLINE`: its run fills it in."""
    INLINE[id] = result
    while len(INLINE) > MOST_INLINE:
        INLINE.popitem(last=False)


def of_current() -> TaskResult:
    """The result of the run that is under way here."""
    job = current()
    return _kept(job) or _of_run(job)


def started(sender: Any, job: CurrentJob, **_: Any) -> None:
    """Receiver of `job_started`: sends `task_started`."""
    if isinstance(sender, DjangoTask):
        result = _of_run(job)
        RUNNING.set((job.fence, result))
        words_of(result.task).task_started.send(_sender(result), task_result=result)


def succeeded(sender: Any, job: CurrentJob, **_: Any) -> None:
    """Receiver of `job_succeeded`: sends `task_finished`."""
    if isinstance(sender, DjangoTask):
        result = _kept(job) or _of_run(job)
        _set(result, finished_at=job.now, status=words_of(result.task).TaskResultStatus.SUCCESSFUL)
        tell_finished(result)


def failed(sender: Any, job: CurrentJob, outcome: Outcome, **_: Any) -> None:
    """Receiver of `job_failed`: sends `task_finished`, while the error is the one that is handled, as receivers expect."""
    if not isinstance(sender, DjangoTask):
        return
    result = _kept(job) or _of_run(job)
    result.errors.append(task_errors.of_detail(words_of(result.task), outcome.detail))
    _set(result, finished_at=job.now, status=words_of(result.task).TaskResultStatus.FAILED)
    error = outcome.error
    frames = error.__traceback__ if error is not None else None
    try:
        if error is not None:
            raise error
        tell_finished(result)
    except BaseException as raised:
        if raised is not error:
            raise
        tell_finished(result)
    finally:
        if error is not None:
            error.__traceback__ = frames  # without this frame, for who looks at it next


def put_off(sender: Any, job: CurrentJob, outcome: Outcome, **_: Any) -> None:
    """Receiver of `job_retried` and `job_snoozed`: with `INLINE` no other run follows, so the task has failed."""
    if isinstance(sender, DjangoTask) and job.id in INLINE:
        failed(sender, job, outcome)


def tell_finished(result: TaskResult) -> None:
    """Sends `task_finished`. The sender of Django's signals is the class of the backend by which the task was enqueued."""
    words_of(result.task).task_finished.send(_sender(result), task_result=result)


def _sender(result: TaskResult) -> type | None:
    """None: the settings of this process do not have the backend by which the task was enqueued elsewhere."""
    try:
        return type(words_of(result.task).task_backends[result.backend])
    except ImproperlyConfigured:
        return None


def _kept(job: CurrentJob) -> TaskResult | None:
    fence, result = RUNNING.get(("", None))
    # With INLINE all have one fence, and a run may be inside of another.
    return result if fence == job.fence and result is not None and result.id == ids.short(job.id) else None


def _of_run(job: CurrentJob) -> TaskResult:
    if (here := INLINE.get(job.id)) is not None:
        running = words_of(here.task).TaskResultStatus.RUNNING
        _set(here, status=running, started_at=job.started_at, last_attempted_at=job.started_at)
        here.worker_ids.append(job.worker)
        return here
    registered: Any = registry.get(job.task)
    task = as_enqueued(registered, job.queue, job.meta)
    words = words_of(task)
    earlier = _earlier(words, job) if job.attempt > 1 else Earlier(None, [], [])
    result: TaskResult = words.TaskResult(
        task=task,
        id=ids.short(job.id),
        status=words.TaskResultStatus.RUNNING,
        enqueued_at=enqueued_at(job.id),
        started_at=earlier.started_at or job.started_at,
        finished_at=None,
        last_attempted_at=job.started_at,
        args=job.args,
        kwargs=job.kwargs,
        backend=task.backend,
        errors=earlier.errors,
        worker_ids=[*earlier.worker_ids, job.worker],
    )
    return result


def _earlier(words: Words, job: CurrentJob) -> Earlier:
    """What rows tell of the attempts before this one. The mirror may be behind, and the database away: then a name is missing, but
    never an attempt.
    """
    from django_delayq.contrib.tasks import task_rows  # not before the models are there

    count = job.attempt - 1
    try:
        found = task_rows.earlier(words, job.id)
    except Error:
        found = Earlier(None, [], [])
    known = found.worker_ids[-count:]
    return found._replace(worker_ids=[*known, *[""] * (count - len(known))])


def _returned(result: TaskResult, value: Any) -> Any:
    """The value as it is kept.

    Raises:
        TypeError, ValueError, PayloadError: it cannot be kept, so the task has failed.
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
    return (words_of(task).TaskContext(task_result=result),) if task.takes_context else ()


def _set(result: TaskResult, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)
