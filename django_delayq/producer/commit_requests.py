"""Changes that are part of the open transaction. Each is then a row of that transaction, so a rollback removes it, also a rollback to a
savepoint. The commit hook carries it out. If the process died before, or Redis was away, a relay carries it out.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from uuid import UUID

from django.db import Error, connections, transaction

from django_delayq import conf, ids, signals
from django_delayq.exceptions import ConfigError, QueueUnknown, StoreUnavailable
from django_delayq.job_meta import shown
from django_delayq.logger import Logger
from django_delayq.producer import changes, commit, lookup, outbox
from django_delayq.producer.changes import Cancel, Move
from django_delayq.producer.commit import Pending
from django_delayq.producer.outbox.shapes import ChangeRequest
from django_delayq.producer.stores import stores
from django_delayq.states import Change

logger = Logger("django_delayq.producer")


class AtCommit:
    """The commit hook of one request."""

    def __init__(self, request: int, job: UUID | None, queue: str, key: str) -> None:
        self.request = request
        self._job, self._place = job, (queue, key)
        self.__qualname__ = "AtCommit"  # by which Django logs a robust hook

    def is_about(self, job: UUID | None, queue: str, key: str) -> bool:
        """Whether the other request names the same job by its id, or the same key. Two jobs may have one key, and a key may name more
        than one job.
        """
        return job == self._job if job is not None else self._job is None and self._place == (queue, key)

    def __call__(self) -> None:
        try:
            for request in outbox.requests.find(pk=self.request):  # empty if a later call replaced it
                # If Redis has just failed, it is not asked again: a transaction may have many changes, and the relay makes them, too.
                listed = request.queue if request.queue in conf.get().queues else ""
                with stores.guarded(listed, ids.partition(self._job) if self._job else 0, schedules=True):
                    carry_out(request)
        except StoreUnavailable as error:
            logger.warning("Redis does not respond, so the relay makes a committed change: %s", error)
            signals.store_unavailable.send_robust(sender=None, error=error)
        except Error as error:
            logger.warning("the database does not respond, so the relay makes a committed change: %s", error)


def has_transaction(call: str) -> bool:
    """Whether a transaction is open that can include a change.

    Raises:
        ConfigError: a transaction is open on another database only, or the code manages transactions by hand.
    """
    outbox.check_installed()
    alias = conf.get().database
    connection = connections[alias]
    if commit.is_open(connection):
        return True
    for other in connections.all(initialized_only=True):
        if commit.is_open(other):
            raise ConfigError(
                f"{call}: at_commit=True requires a transaction on the database {alias!r} (DELAYQ['DATABASE']), but there "
                f"is only one on {other.alias!r}. Its rollback would not undo the change. Open a transaction on {alias!r} "
                f"around the call, or use transaction.on_commit(…, using={other.alias!r}) without at_commit."
            )
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise ConfigError(
            f"{call}: at_commit=True requires transaction.atomic(). Autocommit is off on the database {alias!r}, so "
            "Django does not run on-commit hooks there."
        )
    return False


def keep_for_commit(act: Cancel | Move, job: UUID | None, queue: str, key: str) -> Change:
    """Makes the change part of the open transaction. `job`, or `queue` and `key`, name the job; for a job with a key both may be
    known. If only the database decides a change, it happens at once, in the transaction: a change of a job that the transaction
    schedules, or of a far row.
    """
    connection = transaction.get_connection(conf.get().database)
    if job is not None:
        if (found := Pending.find(job)) is not None:
            return act.pending(found)
        done = _of_far(act, job)
        if done is not None:
            return done
    else:
        for own in Pending.keyed(queue, key):
            changes.one(act, own, queue)
        far = lookup.far_of_key(queue, key)
        if far is not None:
            _of_far(act, far)
    hooks = [hook for _, hook, _ in connection.run_on_commit if isinstance(hook, AtCommit)]
    replaced = [hook.request for hook in hooks if hook.is_about(job, queue, key)]
    if replaced:
        outbox.requests.end(replaced)  # the last call wins; undone with the savepoint of this call
    id = outbox.requests.keep(act.request_of(job, queue, "" if job is not None else key))
    connection.on_commit(AtCommit(id, job, queue, key), robust=True)
    return Change.PENDING


def carry_out(request: ChangeRequest, *, late: bool = False) -> None:
    """Carries out the change, and deletes its row. `late`: a requeue, or a new date, may have come since the commit, and stays.

    Raises:
        StoreUnavailable, StoreError, DatabaseError: the row is kept, and the change may be carried out again.
    """
    name = ids.short(request.job) if request.job is not None else repr(shown(request.key))
    try:
        if request.job is None:
            spared = partial(outbox.requests.spared, request, late=late)
            change = changes.of_key(_act(request), request.queue, request.key, spared=spared)
        elif late and outbox.requests.spared(request, [request.job], late=True):
            change = Change.CONFLICT
        else:
            change = changes.one(_act(request), request.job, request.queue or None)
    except QueueUnknown as error:
        logger.error(
            "%s of %s was committed. It is waiting for a process that has this queue in its settings: %s", request.verb, name, error
        )
        return
    except ConfigError as error:
        logger.error("%s of %s was committed, but the change cannot be made: %s", request.verb, name, error)
    else:
        level = logger.info if change in (Change.DONE, Change.UNKNOWN) else logger.warning
        level("%s of %s at the commit: %s", request.verb, name, change)
    outbox.requests.end([request.id])


def catch_up(queue: str, jobs: Collection[UUID], keys: Collection[str]) -> bool:
    """Carries out the requests about these jobs and keys that are committed, before a new job of such a key is put in. Returns whether
    there were any.

    Raises:
        StoreUnavailable, DatabaseError: see `carry_out`.
    """
    kept = outbox.requests.about(queue, jobs, keys)
    for request in kept:
        carry_out(request, late=True)
    return bool(kept)


def _act(request: ChangeRequest) -> Cancel | Move:
    if request.verb == "cancel":
        return Cancel(request.actor, request.reason, request.abort, request=request.id)
    return Move(request.actor, request.reason, request.left_ms, request.due_ms, request=request.id)


def _of_far(act: Cancel | Move, job: UUID) -> Change | None:
    """Changes a far row in the transaction; None if the row is not far."""
    if not any(queue.horizon for queue in conf.get().queues.values()):
        return None
    row = lookup.row_of(job)
    return act.change_far(row.queue, [job]).get(job) if row is not None and row.far else None
