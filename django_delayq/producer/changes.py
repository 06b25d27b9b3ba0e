"""Changes jobs, up to 200 of one partition by one call. A change of one job is a batch of one. A cancel or a new date also works if
Redis lacks or has forgotten the job: a missing job is published first, or kept out. The job's row then gets the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal, NamedTuple
from uuid import UUID

from django.db import transaction

from django_delayq import conf, ids
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.producer import horizon, lookup, outbox
from django_delayq.producer.commit import Pending
from django_delayq.producer.outbox.shapes import ChangeRequest, RowUpdate, StoredJob
from django_delayq.producer.publish import TRIES, Publisher
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, REQUEUEABLE, Change, EndingKind, EventKind, State
from django_delayq.store.connection.error_replies import StoreError, for_callers
from django_delayq.store.connection.link import FanOut, Link
from django_delayq.store.scripts import decode, loader
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.record import Changed
from django_delayq.store.scripts.replicas import Replicas, ReplicasLack

Policy = Literal["", "earliest", "latest"]
POLICY: Final = "schedule"  # the actor of a change that a policy makes
STRONGEST: Final = (Change.RUNNING, Change.CONFLICT, Change.DONE, Change.FINISHED)  # of several jobs of a key: what must be known first


Answer = Change | DelayqError  # for one job: the change, or why it is not known


class ChangeTarget(NamedTuple):
    """A job to change, with its queue if that is known, and its row if it has one."""

    id: UUID
    queue: str | None
    row: StoredJob | None = None

    @property
    def durable(self) -> bool:
        """Whether its row is enough to restore it."""
        return self.row is not None and self.row.record.durable


class JobChange(ABC):
    """A change of jobs. `payloads`: whether it needs the records of the rows; otherwise these are without a payload."""

    payloads = False

    def __init__(self, actor: str, reason: str) -> None:
        self.actor, self.reason = actor, reason

    @abstractmethod
    def pending(self, found: Pending) -> Change:
        """Changes a job of the open transaction, in that transaction."""

    @abstractmethod
    def change_far(self, queue: str, jobs: Sequence[UUID]) -> dict[UUID, Change]:
        """Changes far rows of a queue. Returns the answers; without those of rows that are no longer far."""

    @abstractmethod
    def decided(self, row: StoredJob) -> Change | None:
        """The answer, if the row alone decides."""

    @abstractmethod
    def carry_out(self, store: QueueStore, targets: Sequence[ChangeTarget], answers: dict[UUID, Answer]) -> None:
        """Changes at most 200 different jobs of one partition. Stores each answer as soon as it is known.

        Raises:
            DelayqError: this is the answer for the jobs without an answer.
        """

    def follows(self, _holder: UUID) -> bool:
        """Whether the change of a merged job is also made to the job that it was merged into."""
        return False


class RedisChange(JobChange):
    """A change that Redis makes, and that the row of the job then gets. `done_before`: the value of `lacking` which tells the next
    server that another server has already answered DONE, so that no worker had started the job there. `ended`: its value
    for a row that has ended.
    """

    done_before: str
    ended = ""

    @abstractmethod
    def ask(
        self, store: QueueStore, jobs: Sequence[tuple[UUID | str, str]], unless: str = "", replicas: Replicas | None = None
    ) -> list[Changed | DelayqError]:
        """Asks Redis about several jobs in one write, each with its `lacking`. Returns the result or the error of each job; raises the
        error if all have failed.
        """

    @abstractmethod
    def put_in(self, publisher: Publisher, row: StoredJob) -> str:
        """Publishes a row that Redis lacks. Returns the status from the script, "" if the row needs no publication."""

    @abstractmethod
    def row_update(self, changed: Changed) -> RowUpdate:
        """The update of the row."""

    def of_row(self, _row: StoredJob) -> Change | None:
        """The answer for a finished row to a repeated request."""
        return None

    def decided(self, row: StoredJob) -> Change | None:
        if row.state is State.SUCCEEDED or row.settled:
            return Change.FINISHED  # a success is final; Redis may not have it, or may have forgotten it
        return Change.CONFLICT if row.unresolved else None  # it may have run or not: only a person can decide

    def carry_out(self, store: QueueStore, targets: Sequence[ChangeTarget], answers: dict[UUID, Answer]) -> None:
        waits = stores.replicas(store.queue)
        for replicas in (None, waits) if waits else (None,):  # rows need no replicas
            some = [target for target in targets if not waits or (replicas is None) == target.durable]
            size = 1 if replicas and store.link.moves else MOST  # on a Cluster, each call needs its own WAIT, see `cluster._part`
            for start in range(0, len(some), size):
                self._carry_out(store, some[start : start + size], replicas, answers)

    def _carry_out(
        self, store: QueueStore, targets: Sequence[ChangeTarget], replicas: Replicas | None, answers: dict[UUID, Answer]
    ) -> None:
        """Asks Redis, publishes jobs that Redis lacks, and updates the rows. So the answer of Redis is still known after Redis forgets
        the job.
        """
        states = zip(targets, _lacking([target.row for target in targets], store), strict=True)
        asked = [
            (target.id, self.ended if target.row is not None and target.row.state in REQUEUEABLE else lacking)
            for target, lacking in states
        ]
        lacks, made = [], []
        for target, (_, lacking), changed in zip(targets, asked, self._asked(store, asked, replicas), strict=True):
            row = target.row
            if isinstance(changed, DelayqError):
                answers[target.id] = for_caller(changed)
            elif changed.change is Change.UNKNOWN and row is not None and row.unfinished:
                lacks.append((row, lacking))
            elif row is not None and row.record.durable and changed.event:
                made.append(Made(self, row, changed))
            else:
                answers[target.id] = self._answer(changed, row)
        if made:
            answers |= zip((one.row.record.id for one in made), _keep(made, store), strict=True)
        for row, lacking in lacks:
            answers[row.record.id] = self._publish(store, row, lacking, replicas)

    def _asked(self, store: QueueStore, jobs: Sequence[tuple[UUID, str]], replicas: Replicas | None) -> list[Changed | DelayqError]:
        try:
            with stores.guarded(store.queue, store.partition):
                return self.ask(store, jobs, "", replicas)
        except ReplicasLack as error:
            error.jobs = tuple(id for id, _ in jobs)
            raise

    def _publish(self, store: QueueStore, row: StoredJob, lacking: str, replicas: Replicas | None) -> Answer:
        """Publishes a job that Redis lacks, and changes it."""
        id = row.record.id
        for _ in range(TRIES):
            with stores.guarded(store.queue, store.partition):
                status = self.put_in(Publisher(store, actor=self.actor), row)
            if status == "behind":
                return Change.DONE
            [changed] = map(loader.value, self._asked(store, [(id, lacking)], replicas))
            if changed.change in (Change.RUNNING, Change.FINISHED) and status in ("created", "replaced", "restored"):
                return Change.DONE  # it has started by now, with the date of its publication
            if changed.change is not Change.UNKNOWN:
                break
        if row.record.durable and changed.event:
            return _keep([Made(self, row, changed)], store)[0]
        return self._answer(changed, row)

    def _answer(self, changed: Changed, row: StoredJob | None) -> Change:
        if changed.change is Change.UNKNOWN and row is not None and row.state in FINISHED:
            return self.of_row(row) or Change.FINISHED  # Redis forgets finished jobs after an hour; the database does not
        return changed.change


class Made(NamedTuple):
    """A change that Redis has made to the job of a row."""

    act: RedisChange
    row: StoredJob
    changed: Changed


class Cancel(RedisChange):
    """Cancels jobs. `follows`: whether the cancel may continue from a merged job to the job that it was merged into."""

    done_before = "scheduled"

    def __init__(
        self, actor: str, reason: str, abort: bool, *, request: int = 0, follows: Callable[[UUID], bool] = lambda _: True
    ) -> None:
        super().__init__(actor, reason)
        self._abort, self._request, self._follows = abort, request, follows

    def follows(self, holder: UUID) -> bool:
        return self._follows(holder)

    def ask(
        self, store: QueueStore, jobs: Sequence[tuple[UUID | str, str]], unless: str = "", replicas: Replicas | None = None
    ) -> list[Changed | DelayqError]:
        return store.cancel_each(jobs, actor=self.actor, reason=self.reason, unless=unless, abort=self._abort, replicas=replicas)

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

    def change_far(self, queue: str, jobs: Sequence[UUID]) -> dict[UUID, Change]:
        done = outbox.far_rows.cancel(jobs, queue, self.actor, self.reason)
        for id in done:
            horizon.withdrawn(id)
        return dict.fromkeys(done, Change.DONE)


class Move(RedisChange):
    """Gives jobs another date. If `delay_ms` is None, `due_ms` is the date. `policy`: see `QueueStore.reschedule`."""

    done_before = "waited"
    ended = "ended"

    def __init__(self, actor: str, reason: str, delay_ms: int | None, due_ms: int, policy: Policy = "", *, request: int = 0) -> None:
        super().__init__(actor, reason)
        self._policy, self._request = policy, request
        self._delay_ms, self._due_ms = delay_ms, due_ms

    @property
    def date(self) -> int | str:
        """The date as a script takes it."""
        return self._due_ms if self._delay_ms is None else f"+{self._delay_ms}"

    def ask(
        self, store: QueueStore, jobs: Sequence[tuple[UUID | str, str]], unless: str = "", replicas: Replicas | None = None
    ) -> list[Changed | DelayqError]:
        return store.reschedule_each(
            [(job, lacking, self.date) for job, lacking in jobs],
            actor=self.actor,
            reason=self.reason,
            unless=unless,
            policy=self._policy,
            replicas=replicas,
        )

    def put_in(self, publisher: Publisher, row: StoredJob) -> str:
        """Publishes it with its new date, so that a later attempt with the old date finds it there. A row that waits for another job
        keeps the date in its row.
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

    def change_far(self, queue: str, jobs: Sequence[UUID]) -> dict[UUID, Change]:
        config = conf.get().queues.get(queue)
        ahead_ms = 0 if config is None else config.horizon_ms
        done, near = outbox.far_rows.move(jobs, queue, self._due_ms, self._delay_ms, ahead_ms, self.actor, self.reason)
        if done and near:
            transaction.on_commit(partial(horizon.publish_later, queue, done), using=conf.get().database, robust=True)
        return dict.fromkeys(done, Change.DONE)


def each(act: JobChange, jobs: Iterable[ChangeTarget]) -> Iterator[Answer]:
    """Changes jobs. Yields the answer for each, in order. A server that is away is called once, and jobs on other servers go on.

    Raises:
        DatabaseError: see `acts.cancel`.
    """
    fan_out, batch = FanOut[tuple[str, int]](), dict[UUID, ChangeTarget]()
    for target in jobs:
        if target.id in batch or len(batch) == MOST:
            yield from _batch(act, [*batch.values()], fan_out)
            batch = {}
        batch[target.id] = target
    yield from _batch(act, [*batch.values()], fan_out)


def one(act: JobChange, id: UUID, queue: str | None) -> Change:
    """Changes one job. `queue`: the queue of the job, if it is known.

    Raises:
        StoreUnavailable, DatabaseError: see `acts.cancel`.
    """
    return value(_batch(act, [ChangeTarget(id, queue)], FanOut())[0])


def for_caller(answer: Answer) -> Answer:
    """The answer, without the errors that only this package knows."""
    return for_callers(answer) if isinstance(answer, StoreError) else answer


def value(answer: Answer) -> Change:
    """The change; raises the error."""
    if isinstance(answer, DelayqError):
        raise answer
    return answer


def _batch(
    act: JobChange, targets: Sequence[ChangeTarget], fan_out: FanOut[tuple[str, int]], passed: tuple[UUID, ...] = ()
) -> list[Answer]:
    """Changes at most 200 different jobs: in the open transaction, in rows that Redis lacks, or in Redis. `passed`: the merged jobs
    that have led to the job.
    """
    answers: dict[UUID, Answer] = {}
    pending = Pending.among({target.id for target in targets})
    rows = lookup.rows_of([target.id for target in targets if target.id not in pending], payloads=act.payloads)
    _change_far(act, targets, rows, answers)
    parts: dict[tuple[str, int], list[ChangeTarget]] = {}
    for id, queue, _ in targets:
        found: ChangeTarget | Answer
        try:
            found = answers.get(id) or (act.pending(pending[id]) if id in pending else _looked_up(act, id, queue, rows.get(id)))
        except DelayqError as error:
            found = error
        if isinstance(found, ChangeTarget):
            parts.setdefault((found.queue or "", ids.partition(id)), []).append(found)
        else:
            answers[id] = found

    def link(part: tuple[str, int]) -> Link | None:
        with suppress(DelayqError):  # the call raises it again
            return stores.places.of(*part)
        return None

    def carry_out(part: tuple[str, int]) -> DelayqError | None:
        try:
            act.carry_out(stores.queue(*part), parts[part], answers)
        except StoreUnavailable:
            raise
        except DelayqError as error:
            return error
        return None

    for part, failed in fan_out.each(parts, link, carry_out):
        for id, _, row in parts[part]:
            if failed is not None:
                answers.setdefault(id, failed)
            holder = row.holder if row is not None and row.ending == EndingKind.MERGED else None
            if answers[id] is Change.FINISHED and holder is not None and holder not in passed and act.follows(holder):
                answers[id] = _batch(act, [ChangeTarget(holder, part[0])], fan_out, (*passed, id))[0]
    return [answers[target.id] for target in targets]


def _change_far(act: JobChange, targets: Sequence[ChangeTarget], rows: dict[UUID, StoredJob], answers: dict[UUID, Answer]) -> None:
    """Changes those rows that are far. Reads the others of them again: another process has ended them, or is bringing them in."""
    far: dict[str, list[UUID]] = {}
    for id, queue, _ in targets:
        if (row := rows.get(id)) is not None and row.far and queue in (None, row.queue):
            far.setdefault(row.queue, []).append(id)
    for queue, jobs in far.items():
        try:
            answers |= act.change_far(queue, jobs)
        except DelayqError as error:
            answers |= dict.fromkeys(jobs, error)
        if gone := [id for id in jobs if id not in answers]:
            again = lookup.rows_of(gone, payloads=act.payloads)
            rows |= {id: again.get(id, rows[id]) for id in gone}


def _looked_up(act: JobChange, id: UUID, queue: str | None, row: StoredJob | None) -> ChangeTarget | Change:
    """The job with its queue, or the answer if Redis need not be asked."""
    if row is None:
        return lookup.everywhere(id, partial(one, act, id)) if queue is None else ChangeTarget(id, queue)
    if queue not in (None, row.queue):
        return Change.UNKNOWN  # the caller named another queue; the row must not be treated as one that Redis lacks
    return act.decided(row) or ChangeTarget(id, row.queue, row)


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
    found = list[Changed]()
    if asked:
        with stores.guarded(name, store.partition):
            _, found = store.reschedule_many([(id, move.date) for id, move in asked], actor=POLICY, reason=policy, policy=policy)
    replies = list(zip(asked, found, strict=True))
    answers: dict[UUID, Change] = {id: changed.change for (id, _), changed in replies if changed.change is not Change.UNKNOWN}
    made = [Made(move, rows[id], changed) for (id, move), changed in replies if changed.event and id in rows and rows[id].unfinished]
    kept = zip((one.row.record.id for one in made), map(value, _keep(made, store)), strict=True) if made else ()
    answers |= dict(kept)
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


def _lacking(rows: Sequence[StoredJob | None], store: QueueStore) -> list[str]:
    """For each row, the state of a job that Redis may lack:

    - "": Redis must have the job, or the row is finished or missing.
    - "running": the row is running.
    - a time in ms: the job waits until then.
    - "scheduled": the job has certainly not started. No server was ever confirmed, so no server can have lost it.
    """
    waiting = [row for row in rows if row is not None and row.unfinished and row.state is not State.RUNNING]
    confirmed = not all(row.published for row in waiting) and bool(outbox.jobs.servers(store.queue, store.partition))

    def state(row: StoredJob | None) -> str:
        if row is None or not row.unfinished:
            return ""
        if row.state is State.RUNNING:
            return "running"
        return str(row.run_at_ms) if row.published or confirmed else "scheduled"

    return [state(row) for row in rows]


def _keep(made: Sequence[Made], store: QueueStore) -> list[Answer]:
    """Updates the rows, outside the caller's transaction: otherwise the rows would stay locked until that transaction ends, and the
    mirror would wait.
    """
    using = conf.get().database

    def update() -> list[Answer]:
        applied = outbox.jobs.apply_all([(row, act.row_update(changed)) for act, row, changed in made])
        if not any(applied):
            return [Change.FINISHED] * len(made)
        former = outbox.jobs.servers(store.queue, store.partition)[1:]
        act, _, first = made[0]
        now = "" if _server(first) in former else _ask_again(act, store, "", "", first.epoch).epoch  # no job has the key ""
        return [_kept(one, store, now, former) if done else Change.FINISHED for one, done in zip(made, applied, strict=True)]

    if transaction.get_connection(using).in_atomic_block:
        transaction.on_commit(update, using=using, robust=True)
        return [changed.change for _, _, changed in made]
    return update()


def _kept(one: Made, store: QueueStore, now: str, former: Sequence[str]) -> Answer:
    """The answer after the update of the row. `now`: the epoch after the update; `former`: the servers before the last one. A restore
    that read the row before the update may have put the job back in another epoch by now. Then the change is made once more there.
    """
    act, row, last = one
    for _ in range(TRIES):
        if _server(last) in former:
            # If the row had been updated before the other server was confirmed, the change would have been copied to that server.
            # It will be copied within seconds.
            return StoreUnavailable(code="server_replaced", job=ids.short(row.record.id))
        if last.epoch == now:
            break
        lacking = act.done_before if last.change is Change.DONE else _lacking([row], store)[0]
        again = _ask_again(act, store, row.record.id, lacking, last.epoch)
        if again.epoch == last.epoch:
            break
        if not again.event:
            return again.change
        last, now = again, ""
        if not outbox.jobs.apply(row, act.row_update(last)):
            return Change.FINISHED
        former = outbox.jobs.servers(store.queue, store.partition)[1:]
    return last.change


def _ask_again(act: RedisChange, store: QueueStore, job: UUID | str, lacking: str, unless: str) -> Changed:
    try:
        with stores.guarded(store.queue, store.partition):
            answer: Changed = loader.value(act.ask(store, [(job, lacking)], unless)[0])
    except StoreUnavailable as error:
        error.nothing_done = False  # it was done in the earlier epoch
        raise
    return answer


def _server(changed: Changed) -> str:
    """The run of the server that made the change."""
    return changed.epoch.rpartition(":")[2]
