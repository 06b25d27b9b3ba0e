"""Results of tasks, made from the rows of jobs and attempts, or from Redis if the job has no row yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from django_delayq import codec, conf, ids
from django_delayq.contrib.tasks import task_errors
from django_delayq.contrib.tasks.api import TaskApi, TaskError, TaskResult, TaskResultStatus, api_of
from django_delayq.contrib.tasks.declared import DjangoTask, Earlier, as_enqueued, new_result
from django_delayq.contrib.tasks.task_errors import TaskCancelled, TaskCrashed, TaskExpired, TaskNotRun
from django_delayq.exceptions import PayloadError
from django_delayq.mirror.ends import CRASHES
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import PUT_OFF, AttemptOutcome, EndingKind, State

STATUSES: Final = {
    State.SCHEDULED: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
NO_ATTEMPT: Final = {*PUT_OFF, AttemptOutcome.CRASHED}
RAISED: Final = {AttemptOutcome.RETRIED, AttemptOutcome.FAILED}


def find(id: UUID) -> TaskResult | None:
    """The result of a job, or of the job into which it was merged. None if there is no such job, or its task is not a task of Django.

    Raises:
        StoreUnavailable: the database does not have the job, and Redis does not answer.
    """
    rows = Job.objects
    row = rows.filter(pk=id).first()
    if row is None:
        return _in_redis(id)
    if row.merged_into is not None and row.ending == EndingKind.MERGED:
        row = rows.filter(pk=row.merged_into).first() or row
    return of_row(row, id)


def of_row(row: Job, id: UUID) -> TaskResult | None:
    """The result of a row, with the requested id."""
    registered = registry.find(row.task)
    if not isinstance(registered, DjangoTask):
        return None
    task = as_enqueued(registered, row.queue, (row.options or {}).get("meta") or {})
    runs = _attempts(row.pk)
    counted = [run for run in runs if run.outcome not in NO_ATTEMPT]
    lacking = max(0, row.attempts - len(counted))  # AUDIT does not keep them
    began = [run.started_at for run in runs] or ([row.started_at] if row.started_at else [])
    api = api_of(task)
    result = new_result(
        task,
        id,
        STATUSES[State(row.state)],
        row.args,
        row.kwargs,
        started_at=min(began, default=None),
        finished_at=row.finished_at,
        last_attempted_at=max(began, default=None),
        errors=[*_errors(api, runs), *_end(api, row, runs)],
        worker_ids=[*[row.worker] * lacking, *(run.worker for run in counted)],
    )
    if row.state == State.SUCCEEDED:
        object.__setattr__(result, "_return_value", row.result)
    return result


def earlier_attempts(api: TaskApi, id: UUID) -> Earlier:
    """The ended attempts of a job, from their rows."""
    runs = [run for run in _attempts(id) if run.finished_at is not None and run.outcome not in NO_ATTEMPT]
    return Earlier(min((run.started_at for run in runs), default=None), _errors(api, runs), [run.worker for run in runs])


def _attempts(id: UUID) -> list[Attempt]:
    return list(Attempt.objects.filter(job_id=id).order_by("pk"))


def _errors(api: TaskApi, runs: Sequence[Attempt]) -> list[TaskError]:
    wrong = (run for run in runs if run.outcome in RAISED or (run.outcome == AttemptOutcome.CANCELLED and run.error_class))
    own = (run for run in wrong if run.error_class not in task_errors.OURS)
    return [task_errors.of_attempt(api, run.error_class, run.message, run.traceback) for run in own]


def _end(api: TaskApi, row: Job, runs: Sequence[Attempt]) -> list[TaskError]:
    """Our error for a job that ended without an exception of its task."""
    if row.state == State.CANCELLED:
        return [task_errors.of_ours(api, TaskExpired if row.ending == EndingKind.EXPIRED else TaskCancelled, row.error)]
    if row.state != State.FAILED:
        return []
    if row.fingerprint == CRASHES:
        return [task_errors.of_ours(api, TaskCrashed, row.error)]
    last = next((run.error_class for run in reversed(runs) if run.outcome == AttemptOutcome.FAILED), None)
    if last is not None:
        return [task_errors.of_ours(api, task_errors.OURS[last], row.error)] if last in task_errors.OURS else []
    expired = row.expires_at is not None and row.finished_at is not None and row.finished_at >= row.expires_at
    return [task_errors.of_ours(api, TaskExpired if expired else TaskNotRun, row.error)]


def _in_redis(id: UUID) -> TaskResult | None:
    """A job of redis durability that has no row yet."""
    for queue in conf.get().queues:
        view = stores.view_of(id, queue)
        if view is None:
            continue
        signer = conf.get().signer
        if view.record is None or (signer is not None and not signer.verifies(view.raw, queue=queue, id=ids.short(id))):
            return None
        registered = registry.find(view.record.task)
        if not isinstance(registered, DjangoTask):
            return None
        try:
            args, kwargs, options = codec.decode_payload(view.record.payload)
        except PayloadError:
            return None  # no worker can run it
        task = as_enqueued(registered, queue, options.get("meta") or {})
        status = STATUSES[State(view.state)]
        why = (
            [task_errors.of_ours(api_of(task), TaskNotRun, "the reason is not known yet")] if status == TaskResultStatus.FAILED else []
        )
        workers = [""] * view.attempt
        return new_result(task, id, status, args, kwargs, errors=why, worker_ids=workers)
    return None
