"""Finds a job by a Job, an id, or a key and its queue: in its row, in Redis, or in both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from django_delayq import conf, ids
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.job_meta import bare, scope_of
from django_delayq.producer import homes, outbox, scopes
from django_delayq.producer.commit import JobRef
from django_delayq.producer.outbox.shapes import StoredJob
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from django_delayq.store.connection.link import FanOut
from django_delayq.store.scripts.queue import holder_of
from django_delayq.store.scripts.record import validate_key


def target(job: JobRef | UUID | str | None, queue: str | None, scope: str | None = None) -> tuple[UUID, str | None]:
    """The id of the job that the caller names, and its queue if it is known.

    Raises:
        ConfigError: no job is named, or a scope. PayloadError: the id is not valid. QueueUnknown: the settings do not list the queue.
    """
    if scope is not None:
        raise ConfigError(f"scope={scope!r} belongs to a key. Pass key= and queue= as well.")
    if job is None:
        raise ConfigError("Pass a Job, its id, or key= and queue=.")
    if queue is not None:
        conf.get().queue(queue)
    return (job.id, job.queue) if isinstance(job, JobRef) else (_id(job), queue)


def keyed(key: str, queue: str | None, job: JobRef | UUID | str | None, scope: str | None) -> tuple[str, str]:
    """The queue of the key that the caller names, and the key in its scope. `scope`: None is the one in force.

    Raises:
        ConfigError: a job is named as well, or no queue, or no key. QueueUnknown: the settings do not list the queue.
    """
    if job is not None:
        raise ConfigError(f"Pass either a Job or its id, or key={key!r} with queue=, but not both.")
    if queue is None:
        raise ConfigError(f"key={key!r} identifies a job only within its queue. Pass queue= as well.")
    if not validate_key(key):
        raise ConfigError("key='' does not identify a job, because most jobs have no key.")
    config = conf.get().queue(queue)
    if scope is None and conf.get().scope is None:
        return config.name, key
    return config.name, homes.key_in(config, key, scopes.of_call(scope))


def check_words(where: str, actor: str, reason: str) -> None:
    """Checks that actor and reason are text.

    Raises:
        ConfigError: one of them is not.
    """
    for name, value in (("actor", actor), ("reason", reason)):
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {name}={value!r} must be text. Convert the object with str().")


def row_of(id: UUID) -> StoredJob | None:
    """The row of a job; None if it does not exist, cannot be read, or the database side is not installed."""
    return rows_of([id]).get(id)


def rows_of(jobs: Collection[UUID], *, payloads: bool = True) -> dict[UUID, StoredJob]:
    """The rows of those of these jobs that have a row, see `row_of` and `outbox.jobs.read`."""
    return outbox.jobs.read(jobs, payloads=payloads) if outbox.installed else {}


def row_in_any(id: UUID, partitions: Iterable[int]) -> StoredJob | None:
    """The row of a job that was drawn under that id, in whichever partition it was placed."""
    drawn = {id, *(ids.placed(id, partition) for partition in partitions)}
    return next(iter(rows_of(drawn).values()), None)


def rows_of_key(queue: str, key: str) -> list[UUID]:
    """The unfinished durable rows of a key."""
    return list(dict(outbox.jobs.keyed(queue, [key]))) if outbox.installed else []


def far_of_key(queue: str, key: str) -> UUID | None:
    """The far job that holds a key, if it is certain that no other job holds the key. None if the queue has no horizon."""
    if not outbox.installed or conf.get().queue(queue).horizon is None:
        return None
    return outbox.far_rows.of_keys(queue, [key]).get(key)


def latest_of_key(queue: str, key: str) -> UUID | None:
    """The latest job of a key, in any state. Only the database knows it."""
    if not outbox.installed:
        return None
    latest, config, scope = outbox.jobs.find_latest(queue, key), conf.get(), scope_of(key)
    if latest is not None or not scope or config.scope is None or config.scope_only:
        return latest

    def is_mine(job: UUID) -> bool:
        row = row_of(job)
        return row is not None and scopes.has_packed(scope, row.record.payload)

    return outbox.jobs.find_latest(queue, bare(key), is_mine)


def holder(queue: str, key: str) -> UUID | None:
    """The job that holds a key in Redis, in the home of the key or in an earlier home."""
    for partition in conf.get().queue(queue).homes(key):
        with stores.guarded(queue, partition):
            store = stores.queue(queue, partition)
            found = holder_of(store.link, store.keys, key)
        if found is not None:
            return found
    return None


def everywhere(job: UUID, ask: Callable[[str], Change]) -> Change:
    """The first answer of a queue that knows the job. If a server is away, the search continues, and the error is raised only if no
    other server has the job.
    """
    fan_out = FanOut[str]()
    for _, change in fan_out.each(conf.get().queues, lambda name: stores.places.of(name, ids.partition(job)), ask):
        if isinstance(change, Change) and change is not Change.UNKNOWN:
            return change
    fan_out.raise_first()
    return Change.UNKNOWN


def _id(job: UUID | str) -> UUID:
    try:
        return ids.parse(job)
    except (ValueError, TypeError) as error:
        raise PayloadError(str(error)) from None
