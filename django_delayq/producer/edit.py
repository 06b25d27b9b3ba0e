"""Jobs with other arguments: edits a finished job and requeues it, or schedules a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_delayq import codec, conf, ids
from django_delayq.exceptions import PayloadError
from django_delayq.job_meta import NAMED, SharedName, bare, in_meta, in_payload, scope_of
from django_delayq.producer import carriers, horizon, name_format, outbox, put_back
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
    """Schedules a job with the same task, queue, priority, ladder, timeout, scope, key, meta and context, and with these arguments. It
    has all attempts again, and does not belong to a tick. `id`: the id of the copy; a second call with it schedules nothing. `delay`:
    seconds. The meta of the copy has the actor and the reason.

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
        **_own_name(job),
        fair=_own_word(job),
    )
    return put_in(
        registry.get(job.task),
        options,
        tuple(args),
        dict(kwargs),
        id,
        carried=carriers.propagated_context(given.get("meta")),
        scope=job.scope,
    )


def _own_name(job: JobRow) -> dict[str, Any]:
    """The option that gives the concurrency name which the job shares with others. None if its task makes the name."""
    name, task = job.shared_name, registry.get(job.task)
    if name is None:
        return {}
    try:
        made = task.named.made(tuple(job.args), job.kwargs, job.task, job.scope) if task.named else ""
    except PayloadError:
        made = ""
    if (made, task.named.most if task.named else 0) == (name.text, name.most):
        return {}
    text = bare(name.text).replace("{", "{{").replace("}", "}}")
    return {"serial": text} if scope_of(name.text) else {"concurrency": (text, name.most)}


def _own_word(job: JobRow) -> str | None:
    """The fair word of the job as a format, if its task does not make it; otherwise None."""
    name, task = job.shared_name, registry.get(job.task)
    try:
        made = task.faired.made(tuple(job.args), job.kwargs, job.task, job.scope) if task.faired else ""
    except PayloadError:
        made = ""
    return None if name is None or name.fair in ("", made) else name.fair.replace("{", "{{").replace("}", "}}")


def _check_home(queue: str, before: JobRecord, after: JobRecord) -> None:
    """Checks that the new name belongs to the same partition: a job stays in its partition, and a name is counted in one partition.

    Raises:
        PayloadError: the new arguments make a name that belongs to another partition.
    """
    name, partition = in_payload(after.payload), ids.partition(after.id)
    if name is None or not name.home or name == in_payload(before.payload) or partition in conf.get().queue(queue).homes(name.home):
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
    name = in_meta(options.get("meta"))
    if name is not None:
        options["meta"] |= {NAMED: _name(record, name, (before, named_before), (args, kwargs)).packed()}
    payload = codec.encode_payload(tuple(args), dict(kwargs), options or None, limit=limit, task=record.task)
    return replace(record, payload=payload), options


def _texts(name: SharedName) -> tuple[object, ...]:
    return name.text, name.most, name.rate and name.rate.text, name.fair


def _name(record: JobRecord, name: SharedName, before: Arguments, after: Arguments) -> SharedName:
    """Returns the name for the new arguments if the task made the old name. Any other name stays."""
    task, scope = record.task, record.scope
    found = registry.find(task)
    naming = name_format.naming(found.named, found.rated, found.faired) if found else None
    if naming is None:
        return name
    try:
        made = naming.name(tuple(before[0]), before[1], task, scope)
    except PayloadError:
        return name
    same = _texts(made) == _texts(name)
    return naming.name(tuple(after[0]), after[1], f"{task} edited", scope) if same else name
