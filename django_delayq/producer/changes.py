"""Cancels or reschedules a job. The change also works if Redis lacks or has forgotten the job: a missing job is published first, or
kept out. The job's row then gets the answer.

A change can be part of the open transaction. It is then a row of that transaction, so a rollback removes it, also a rollback to a
savepoint. The commit hook carries it out. If the process died before, or Redis was away, a relay carries it out.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Literal
from uuid import UUID

from django.db import Error, connections, transaction

from django_delayq import conf, ids, signals
from django_delayq.exceptions import ConfigError, QueueUnknown, StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.producer import commit, horizon, lookup, outbox
from django_delayq.producer.commit import Pending
from django_delayq.producer.outbox.shapes import ChangeRequest, RowUpdate, StoredJob
from django_delayq.producer.publish import TRIES, Publisher
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, Change, EndingKind, EventKind, State
from django_delayq.store.scripts import decode
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.record import Changed
from django_delayq.store.scripts.replicas import Replicas, ReplicasLack

logger = Logger("django_delayq.producer")

PACKAGE: Final = "django_delayq"
Policy = Literal["", "earliest", "latest"]
POLICY: Final = "schedule"  # the actor of a change that a policy makes
STRONGEST: Final = (Change.RUNNING, Change.CONFLICT, Change.DONE, Change.FINISHED)  # of several jobs of a key: what must be known first


class Cancel:
    """The call to Redis that cancels a job, and the update of its row. `done_before`: the value of `lacking` which tells the next
    server that another server has already answered DONE, so that no worker had started the job there. `follows`: whether the cancel
    may continue from a merged job to the job that it was merged into.
    """

    done_before: Final = "scheduled"

    def __init__(
        self, actor: str, reason: str, abort: bool, *, request: int = 0, follows: Callable[[UUID], bool] = lambda _: True
    ) -> None:
        self.actor, self.reason, self._abort, self._request = actor, reason, abort, request
        self.follows = follows

    def ask(self, store: QueueStore, target: UUID | str, lacking: str, unless: str, replicas: Replicas | None = None) -> Changed:
        return store.cancel(
            target, actor=self.actor, reason=self.reason, lacking=lacking, unless=unless, abort=self._abort, replicas=replicas
        )

    def put_in(self, _publisher: Publisher, _row: StoredJob) -> str:
        return ""  # Redis has left a tombstone, or a request, and answered with it

    def row_update(self, changed: Changed) -> RowUpdate:
        kind = EventKind.CANCEL_REQUESTED if changed.change is Change.RUNNING else EventKind.CANCELLED
        return RowUpdate(
            event=changed.event,
            kind=kind,
            actor=self.actor,
            reason=self.reason,
            abort=self._abort and kind is EventKind.CANCEL_REQUESTED,
            request=self._request,
        )

    def request_of(self, job: UUID | None, queue: str, key: str) -> ChangeRequest:
        return ChangeRequest(job=job, queue=queue, key=key, verb="cancel", abort=self._abort, actor=self.actor, reason=self.reason)

    def pending(self, found: Pending) -> Change:
        return found.cancel(self.actor, self.reason)

    def of_row(self, row: StoredJob) -> Change | None:
        return Change.DONE if row.state is State.CANCELLED and not row.ending else None

    def of_far(self, row: StoredJob) -> Change | None:
        id = row.record.id
        if not outbox.far_rows.cancel(id, row.queue, self.actor, self.reason):
            return None
        horizon.withdrawn(id)
        return Change.DONE


class Move:
    """The call to Redis that reschedules a job, and the update of its row. If `delay_ms` is None, `due_ms` is the date. `policy`: see
    `QueueStore.reschedule`.
    """

    done_before: Final = "waited"

    def __init__(self, actor: str, reason: str, delay_ms: int | None, due_ms: int, policy: Policy = "", *, request: int = 0) -> None:
        self.actor, self.reason, self._policy, self._request = actor, reason, policy, request
        self._delay_ms, self._due_ms = delay_ms, due_ms

    @property
    def date(self) -> int | str:
        """The date as a script takes it."""
        return self._due_ms if self._delay_ms is None else f"+{self._delay_ms}"

    def ask(self, store: QueueStore, target: UUID | str, lacking: str, unless: str, replicas: Replicas | None = None) -> Changed:
        due_ms = self._due_ms if self._delay_ms is None else None
        return store.reschedule(
            target,
            due_ms=due_ms,
            delay_ms=self._delay_ms,
            actor=self.actor,
            reason=self.reason,
            lacking=lacking,
            unless=unless,
            policy=self._policy,
            replicas=replicas,
        )

    def put_in(self, publisher: Publisher, row: StoredJob) -> str:
        """Publishes a row that Redis lacks, with its new date, so that a later attempt with the old date finds it there. A row that
        waits for another job keeps the date in its row. Returns the status from restore.lua or schedule.lua.
        """
        id, due_ms = row.record.id, self._due_ms
        if self._delay_ms is not None:  # the delay counts by the clock of the node that gets the job
            due_ms = decode.time_ms(publisher.store.link.execute("TIME")) + self._delay_ms
        if row.published:
            return next(iter(publisher.bring_back([id], due_ms=due_ms)), "")
        status = next((reply.status for reply in publisher.publish_rows([id], due_ms=due_ms).replies), "")
        if status == "behind":
            outbox.jobs.move(id, due_ms, self._delay_ms, self.actor, self.reason)
        return status

    def row_update(self, changed: Changed) -> RowUpdate:
        return RowUpdate(
            event=changed.event,
            kind=EventKind.RESCHEDULED,
            run_at_ms=changed.due_ms,
            actor=self.actor,
            reason=self.reason,
            proposed=self._policy != "",
            request=self._request,
            item=changed.item,
        )

    def request_of(self, job: UUID | None, queue: str, key: str) -> ChangeRequest:
        return ChangeRequest(
            job=job,
            queue=queue,
            key=key,
            verb="reschedule",
            delay_ms=self._delay_ms,
            due_ms=self._due_ms,
            actor=self.actor,
            reason=self.reason,
        )

    def pending(self, found: Pending) -> Change:
        return found.reschedule(self._delay_ms, self._due_ms, self.actor, self.reason)

    def of_row(self, row: StoredJob) -> Change | None:
        return None

    def of_far(self, row: StoredJob) -> Change | None:
        id, queue = row.record.id, conf.get().queues.get(row.queue)
        ahead_ms = 0 if queue is None else queue.horizon_ms
        now = outbox.far_rows.move(id, row.queue, self._due_ms, self._delay_ms, ahead_ms, self.actor, self.reason)
        if now == "near":
            transaction.on_commit(partial(horizon.publish_later, row.queue, [id]), using=conf.get().database, robust=True)
        return Change.DONE if now else None


def one(act: Cancel | Move, id: UUID, queue: str | None) -> Change:
    """Carries out the change on one job: in the open transaction, in a row that Redis lacks, or in Redis. `queue`: the queue of the
    job, if it is known. A cancel of a job that was merged into another job cancels the other job.

    Raises:
        StoreUnavailable, DatabaseError: see `acts.cancel`.
    """
    asked: list[UUID] = []
    while True:
        asked.append(id)
        found = Pending.find(id)
        if found is not None:
            return act.pending(found)
        row = lookup.row_of(id)
        if row is not None and queue not in (None, row.queue):
            return Change.UNKNOWN  # the caller named another queue; the row must not be treated as one that Redis lacks
        name = queue if row is None else row.queue
        if name is None:
            return lookup.everywhere(id, partial(one, act, id))
        if row is not None and row.far:
            done = act.of_far(row)
            if done is not None:
                return done
            row = lookup.row_of(id)  # another process has ended it, or is bringing it in for good
        change = _carried(act, id, name, row)
        merged = row is not None and row.ending == EndingKind.MERGED and change is Change.FINISHED
        if row is None or not merged or row.holder is None or row.holder in asked:
            return change
        if not isinstance(act, Cancel) or not act.follows(row.holder):
            return change
        id, queue = row.holder, row.queue


def by_policy(policy: Policy, moves: Sequence[tuple[UUID, Move]], store: QueueStore) -> list[Change]:
    """Gives the holders of keys, at most 200 of one partition, the dates of new jobs with this policy. One call asks Redis, and one
    transaction updates the rows. Jobs whose rows show more than Redis knows are changed one by one.

    Raises:
        StoreUnavailable, DatabaseError: see `acts.cancel`.
    """
    name, alone = store.queue, stores.replicas(store.queue) is None
    rows = {row.record.id: row for row in (outbox.jobs.read([*dict(moves)]) if outbox.installed else ())}

    def is_usual(row: StoredJob | None) -> bool:
        return alone if row is None else row.queue == name and (row.unfinished or (alone and row.redis_only))

    asked = [(id, move) for id, move in moves if is_usual(rows.get(id))]
    epoch, found = "", list[Changed]()
    if asked:
        with stores.guarded(name, store.partition):
            epoch, found = store.reschedule_many([(id, move.date) for id, move in asked], actor=POLICY, reason=policy, policy=policy)
    replies = list(zip(asked, found, strict=True))
    answers: dict[UUID, Change] = {id: changed.change for (id, _), changed in replies if changed.change is not Change.UNKNOWN}
    told = {id: (move, rows[id], changed) for (id, move), changed in replies if changed.event and id in rows and rows[id].unfinished}
    if told:
        answers |= dict(zip(told, _keep_all([*told.values()], epoch, store), strict=True))
    return [answers[id] if id in answers else one(move, id, name) for id, move in moves]


def of_key(act: Cancel | Move, queue: str, key: str, *, spared: Callable[[Collection[UUID]], set[UUID]] | None = None) -> Change:
    """Carries out the change on the holder of a key and on every unfinished row of the key, until no new one appears. `spared`:
    returns which of some jobs stay unchanged.

    Raises:
        StoreUnavailable, DatabaseError: see `acts.cancel`.
    """
    answers: dict[UUID, Change] = {}
    far = lookup.far_of_key(queue, key)  # a far row that holds the key is its only holder, so Redis need not be asked
    if far is not None and not (spared and spared([far])):
        answers[far] = one(act, far, queue)
        if answers[far] is Change.DONE and lookup.rows_of_key(queue, key) in ([], [far]):
            return Change.DONE
    for _ in range(TRIES):
        holder = lookup.holder(queue, key)
        found = {
            *([holder] if holder else []),
            *lookup.rows_of_key(queue, key),
            *Pending.keyed(queue, key),
        } - answers.keys()
        if found and spared is not None:
            found -= spared(found)
        if not found:
            break
        for id in found:
            answers[id] = one(act, id, queue)
    said = set(answers.values()) or {_last(act, queue, key)}
    return next((change for change in STRONGEST if change in said), Change.UNKNOWN)


def _last(act: Cancel | Move, queue: str, key: str) -> Change:
    """No unfinished job holds the key. Returns the answer of the latest job of the key to a repeated request."""
    latest = lookup.latest_of_key(queue, key)
    row = None if latest is None else lookup.row_of(latest)
    return (None if row is None else act.of_row(row)) or Change.UNKNOWN


def _carried(act: Cancel | Move, id: UUID, name: str, row: StoredJob | None) -> Change:
    """Asks Redis, publishes the job if Redis lacks it, and updates the row. So the answer of Redis is still known after Redis forgets
    the job.
    """
    if row is not None and (row.state is State.SUCCEEDED or row.settled):
        return Change.FINISHED  # a success is final; Redis may not have it, or may have forgotten it
    if row is not None and row.unresolved:
        return Change.CONFLICT  # it may have run or not: only a person can decide
    lacking = _lacking(row)
    store = stores.with_job(name, id)
    replicas = None if row is not None and row.record.durable else stores.replicas(name)
    try:
        with stores.guarded(name, store.partition):
            changed = act.ask(store, id, lacking, "", replicas)
            for _ in range(TRIES):
                if changed.change is not Change.UNKNOWN or row is None or not row.unfinished:
                    break
                status = act.put_in(Publisher(store, actor=act.actor), row)
                if status == "behind":
                    return Change.DONE
                changed = act.ask(store, id, lacking, "", replicas)
                begun = changed.change in (Change.RUNNING, Change.FINISHED)
                if begun and status in ("created", "replaced", "restored"):
                    return Change.DONE  # it has started by now, with the date of its publication
    except ReplicasLack as error:
        error.jobs = (id,)
        raise
    if row is not None and row.record.durable and changed.event:
        return _keep(act, store, row, lacking, changed)
    if changed.change is Change.UNKNOWN and row is not None and row.state in FINISHED:
        return act.of_row(row) or Change.FINISHED  # Redis forgets finished jobs after an hour; the database does not
    return changed.change


def _lacking(row: StoredJob | None) -> str:
    """The state of the row of a job that Redis may lack:

    - "": Redis must have the job, or the row is finished or missing.
    - "running": the row is running.
    - a time in ms: the job waits until then.
    - "scheduled": the job has certainly not started. No server was ever confirmed, so no server can have lost it.
    """
    if row is None or not row.unfinished:
        return ""
    if row.state is State.RUNNING:
        return "running"
    lost = row.published or outbox.jobs.servers(row.queue, ids.partition(row.record.id))
    return str(row.run_at_ms) if lost else "scheduled"


def _keep(act: Cancel | Move, store: QueueStore, row: StoredJob, lacking: str, changed: Changed) -> Change:
    """Updates the row, outside the caller's transaction: otherwise the row would stay locked until that transaction ends, and the
    mirror would wait.

    A restore that read the row before this update may have put the job back in another epoch by now. Then the change is made once
    more in that epoch.
    """
    id, name, using = row.record.id, row.queue, conf.get().database

    def tell() -> Change:
        last, stood = changed, changed.epoch
        for _ in range(TRIES):
            if not outbox.jobs.apply(row, act.row_update(last)):
                return Change.FINISHED
            if stood.rpartition(":")[2] in outbox.jobs.servers(name, store.partition)[1:]:
                # If the row had been updated before the other server was confirmed, the change would have been copied to that server.
                # It will be copied within seconds.
                raise StoreUnavailable(code="server_replaced", job=ids.short(id))
            try:
                with stores.guarded(name, store.partition):
                    again = act.ask(store, id, act.done_before if last.change is Change.DONE else lacking, stood)
            except StoreUnavailable as error:
                error.nothing_done = False  # it was done in the earlier epoch
                raise
            if again.epoch == stood or not again.event:
                return last.change if again.epoch == stood else again.change
            last, stood = again, again.epoch
        return last.change

    if transaction.get_connection(using).in_atomic_block:
        transaction.on_commit(tell, using=using, robust=True)
        return changed.change
    return tell()


def _keep_all(moves: Sequence[tuple[Move, StoredJob, Changed]], epoch: str, store: QueueStore) -> list[Change]:
    """Like `_keep`, for several moves that one call has made in that epoch."""
    using = conf.get().database

    def tell() -> list[Change]:
        told = outbox.jobs.apply_moves([(row, move.row_update(changed)) for move, row, changed in moves])
        with stores.guarded(store.queue, store.partition):
            now, _ = store.reschedule_many([], unless=epoch)
        if now != epoch or epoch.rpartition(":")[2] in outbox.jobs.servers(store.queue, store.partition)[1:]:
            return [_keep(move, store, row, _lacking(row), changed) for move, row, changed in moves]
        return [changed.change if done else Change.FINISHED for (_, _, changed), done in zip(moves, told, strict=True)]

    if transaction.get_connection(using).in_atomic_block:
        transaction.on_commit(tell, using=using, robust=True)
        return [changed.change for _, _, changed in moves]
    return tell()


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
            one(act, own, queue)
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
    name = ids.short(request.job) if request.job is not None else repr(request.key)
    try:
        if request.job is None:
            change = of_key(_act(request), request.queue, request.key, spared=partial(outbox.requests.spared, request, late=late))
        elif late and outbox.requests.spared(request, [request.job], late=True):
            change = Change.CONFLICT
        else:
            change = one(_act(request), request.job, request.queue or None)
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


def warn_immediate(call: str, job: UUID | None, queue: str, key: str) -> None:
    """With DEBUG, warns about a change that acts at once although the caller's transaction may be rolled back: once per place. Calls by
    this package, as from the admin, are meant to act at once.
    """
    if not conf.is_debug() or not commit.is_open(connections[conf.get().database]):
        return
    if Pending.keyed(queue, key) if job is None else Pending.find(job) is not None:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(f"{PACKAGE}.producer"):
        frame, level = frame.f_back, level + 1
    if frame.f_globals.get("__name__", "").split(".")[0] == PACKAGE:
        return
    said = (
        f"{call} takes effect immediately: a rollback of the open transaction does not undo it. "
        "Pass at_commit=True to make it part of the transaction."
    )
    warnings.warn(said, RuntimeWarning, stacklevel=level)


def _act(request: ChangeRequest) -> Cancel | Move:
    if request.verb == "cancel":
        return Cancel(request.actor, request.reason, request.abort, request=request.id)
    return Move(request.actor, request.reason, request.left_ms, request.due_ms, request=request.id)


def _of_far(act: Cancel | Move, job: UUID) -> Change | None:
    """Changes a far row in the transaction; None if the row is not far."""
    if not any(queue.horizon_ms for queue in conf.get().queues.values()):
        return None
    row = lookup.row_of(job)
    return act.of_far(row) if row is not None and row.far else None
