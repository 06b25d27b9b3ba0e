"""Jobs with other arguments: edits a finished job and requeues it, or schedules a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_delayq import codec, conf, ids
from django_delayq.exceptions import PayloadError
from django_delayq.job_meta import NAMED, VERSION, SharedName, in_meta, in_payload
from django_delayq.producer import carriers, horizon, outbox, put_back
from django_delayq.producer.options import Options
from django_delayq.producer.schedule import put_in
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import COPY_OF, MESSAGE, PERIODIC, REQUEUEABLE, SCHEDULED_BY, SCHEDULED_WHY, Change, State
from django_delayq.store.scripts.record import JobRecord

if TYPE_CHECKING:
    from django_delayq.models import Job as JobRow
    from django_delayq.producer.job import Job

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def check(task: str, queue: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks whether a job of the task can be scheduled with these arguments.

    Raises:
        UnknownTask: no such task is registered.
        PayloadError, PayloadTooLarge: the task cannot be called with them, or they are not JSON, or too large.
        QueueUnknown: the settings do not list the queue.
    """
    if task == MESSAGE:
        if len(args) != 1 or kwargs:
            raise PayloadError(code="message_arguments", given=len(args) + len(kwargs))
        codec.encode_payload(tuple(args), {}, None, limit=conf.get().queue(queue).max_payload, task=task)
        return
    found = registry.get(task)
    if found.own:
        raise PayloadError(code="own_task", task=task)
    (found.check_typed if conf.get().check_types else found.check_arguments)(tuple(args), kwargs)
    codec.encode_payload(tuple(args), dict(kwargs), None, limit=conf.get().queue(queue).max_payload, task=task)


def upgrade(job: JobRow) -> None:
    """Gives a row the arguments of the present version of its task, without saving it. It keeps arguments that are not understood."""
    task, meta = registry.find(job.task), (job.options or {}).get("meta")
    if task is not None and job.version != task.version:
        with suppress(PayloadError):
            args, kwargs = task.understood(job.args, job.kwargs, meta)
            job.args, job.kwargs = list(args), dict(kwargs)
            job.options = {**(job.options or {}), "meta": {**(meta or {}), VERSION: task.version}}


def edit_and_requeue(job: UUID, args: Sequence[Any], kwargs: Mapping[str, Any], *, actor: str = "", reason: str = "") -> Change:
    """Requeues a failed or cancelled job with other arguments, due now and with all attempts. `conflict`: another change came first,
    the row does not show the end of the job yet, or another job has its key. Then the arguments do not change.

    Raises:
        UnknownTask, PayloadError, PayloadTooLarge, QueueUnknown: as `check`.
        StoreUnavailable: as for `requeue`.
    """
    row = outbox.jobs.read([job]).get(job)
    if row is None:
        return Change.UNKNOWN
    if row.state not in REQUEUEABLE:
        return Change.FINISHED if row.state is State.SUCCEEDED else Change.CONFLICT
    check(row.record.task, row.queue, args, kwargs)
    record, options = _edited(put_back.revived(row.record, row.queue), args, kwargs, conf.get().queue(row.queue).max_payload)
    _check_home(row.queue, row.record, record)
    if put_back.held_by_rows(row.queue, [record]) or put_back.taken_elsewhere(job, row.queue, record):
        return Change.CONFLICT
    if put_back.waits_for_commit():
        again = partial(edit_and_requeue, job, args, kwargs, actor=actor, reason=reason)
        return put_back.at_commit("edited and requeued", job, row.queue, again)
    answers: list[Change] = []

    def act() -> bool:
        with stores.guarded(row.queue, ids.partition(job)):
            store = stores.with_job(row.queue, job)
            answers.append(store.requeue(job, record, vouched=True, actor=actor, reason=reason)[0])
        return answers[-1] is Change.DONE

    # Redis is asked while the row is locked. If two people edit one job, the second finds it scheduled, and changes nothing.
    def edit() -> Change:
        outbox.jobs.edit(job, list(args), dict(kwargs), options, act, actor, reason)
        return answers[0] if answers else Change.CONFLICT

    [change] = put_back.noted([job], row.queue, actor, reason, lambda: [edit()])
    if change is Change.DONE:
        put_back.warn_unserved(job, row.queue)
    if change is Change.DONE and record.key:
        horizon.meet_keys(row.queue, [record.key])
    return Change.CONFLICT if change is Change.UNKNOWN else change


def schedule_copy(
    job: JobRow,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    id: UUID,
    delay: float = 0,
    actor: str = "",
    reason: str = "",
) -> Job:
    """Schedules a job with the same task, queue, priority, ladder, timeout, key, meta and context, and with these arguments. It has all
    attempts again, and does not belong to a tick. `id`: the id of the copy; a second call with it schedules nothing. `delay`: seconds.
    The meta of the copy has the actor and the reason.

    Raises:
        KeyTaken: an unfinished job has the key.
        UnknownTask, PayloadError, PayloadTooLarge, QueueUnknown: as `check`; also for tasks of this package.
        StoreUnavailable: as for `schedule`.
    """
    check(job.task, job.queue, args, kwargs)
    given = job.options or {}
    meta = {name: value for name, value in job.meta.items() if name not in (PERIODIC, SCHEDULED_WHY)}
    meta |= {COPY_OF: job.short_id, SCHEDULED_BY: actor} | ({SCHEDULED_WHY: reason} if reason else {})
    lasted = None if job.expires_at is None else job.expires_at - job.created_at + timedelta(seconds=delay)
    options = Options(
        delay=delay,
        key=job.key,
        on_conflict="error" if job.key else "keep",
        expires=lasted,
        meta=meta,
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        backoff=given.get("backoff"),
        timeout=given.get("timeout"),
        concurrency=_own_name(job),
    )
    return put_in(
        registry.get(job.task), options, tuple(args), dict(kwargs), id, carried=carriers.propagated_context(given.get("meta"))
    )


def _own_name(job: JobRow) -> tuple[str, int] | None:
    """The concurrency name that the job shares with others, as a format. None if its task makes the name."""
    name, task = job.shared_name, registry.get(job.task)
    if name is None:
        return None
    try:
        made = task.named.made(tuple(job.args), job.kwargs, job.task) if task.named else ""
    except PayloadError:
        made = ""
    most = task.named.most if task.named else 0
    return None if (made, most) == (name.text, name.most) else (name.text.replace("{", "{{").replace("}", "}}"), name.most)


def _check_home(queue: str, before: JobRecord, after: JobRecord) -> None:
    """Checks that the new name belongs to the same partition: a job stays in its partition, and a name is counted in one partition.

    Raises:
        PayloadError: the new arguments make a name that belongs to another partition.
    """
    name, partition = in_payload(after.payload), ids.partition(after.id)
    if name is None or name == in_payload(before.payload) or partition in conf.get().queue(queue).homes(name.home):
        return
    raise PayloadError(
        f"With these arguments, the job would have the name {name.home!r}, which belongs to another partition of the "
        f"queue {queue!r}. Use arguments that do not change the name, or schedule a copy."
    )


def _edited(record: JobRecord, args: Sequence[Any], kwargs: Mapping[str, Any], limit: int) -> tuple[JobRecord, dict[str, Any]]:
    """The record with other arguments, and the values that go with it."""
    try:
        before, named_before, options = codec.decode_payload(record.payload)
    except PayloadError:
        before, named_before, options = [], {}, {}
    meta, task = options.pop("meta", {}), registry.find(record.task)
    if (name := in_meta(meta)) is not None:
        meta |= {NAMED: _name(record.task, name, (before, named_before), (args, kwargs), meta).packed()}
    if task is not None:
        meta = {one: value for one, value in meta.items() if one != VERSION} | ({VERSION: task.version} if task.version != 1 else {})
    if meta:
        options["meta"] = meta
    payload = codec.encode_payload(tuple(args), dict(kwargs), options or None, limit=limit, task=record.task)
    return replace(record, payload=payload), options


def _name(task: str, name: SharedName, before: Arguments, after: Arguments, meta: Mapping[str, Any]) -> SharedName:
    """Returns the name for the new arguments if the task made the old name. Any other name stays."""
    found = registry.find(task)
    naming = found.naming if found else None
    if found is None or naming is None:
        return name
    try:
        args, kwargs = found.understood(*before, meta)
        made = naming.name(tuple(args), kwargs, task)
    except PayloadError:
        return name
    same = (made.text, made.most, made.rate and made.rate.text) == (name.text, name.most, name.rate and name.rate.text)
    return naming.name(tuple(after[0]), after[1], f"{task} edited") if same else name
