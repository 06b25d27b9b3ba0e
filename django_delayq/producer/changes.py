"""Changes jobs, up to 200 of one partition by one call. A change of one job is a batch of one. A cancel or a new date also works if
Redis lacks or has forgotten the job: a missing job is published first, or kept out. The job's row then gets the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import ClassVar, Final, NamedTuple
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
from django_delayq.store.connection.link import FanOut
from django_delayq.store.scripts import decode, loader
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.record import Changed, DebouncePolicy, policy_word
from django_delayq.store.scripts.replicas import Replicas, ReplicasLack

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


@dataclass
class JobChange(ABC):
    """A change of jobs. `payloads`: whether it needs the records of the rows; otherwise these are without a payload. `follows`: whether
    the change of a merged job is also made to the job that it was merged into.
    """

    payloads: ClassVar[bool] = False
    actor: str
    reason: str
    follows: Callable[[UUID], bool] = field(default=lambda _: False, kw_only=True)

    def pending(self, _found: Pending) -> Change:
        """Changes a job of the open transaction, in that transaction."""
        return Change.CONFLICT

    def change_far(self, _queue: str, jobs: Sequence[UUID]) -> dict[UUID, Change]:
        """Changes far rows of a queue. Returns the answers; without those of rows that are no longer far."""
        return dict.fromkeys(jobs, Change.CONFLICT)

    @abstractmethod
    def decided(self, row: StoredJob) -> Change | None:
        """The answer, if the row alone decides."""

    @abstractmethod
    def carry_out(self, store: QueueStore, targets: Sequence[ChangeTarget], answers: dict[UUID, Answer]) -> None:
        """Changes at most 200 different jobs of one partition. Stores each answer as soon as it is known.

        Raises:
            DelayqError: this is the answer for the jobs without an answer.
        """


@dataclass
class RedisChange(JobChange):
    """A change that Redis makes, and that the row of the job then gets. `done_before`: the value of `lacking` which tells the next
    server that another server has already answered DONE, so that no worker had started the job there. `ended`: its value
    for a row that has ended. `request`: the stored request that the change carries out.
    """

    done_before: ClassVar[str]
    ended: ClassVar[str] = ""
    request: int = field(default=0, kw_only=True)

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
            some = [target for target in targets if (replicas is None) == target.durable] if waits else targets
            size = 1 if replicas and store.link.moves else MOST  # on a Cluster, each call needs its own WAIT, see `cluster._part`
            for start in range(0, len(some), size):
                self._carry_out(store, some[start : start + size], replicas, answers)

    def _carry_out(
        self, store: QueueStore, targets: Sequence[ChangeTarget], replicas: Replicas | None, answers: dict[UUID, Answer]
    ) -> None:
        """Asks Redis, publishes jobs that Redis lacks, and updates the rows. So the answer of Redis is still known after Redis forgets
        the job.
        """
        jobs, _, rows = zip(*targets, strict=True)
        asked, made, lacks = [], [], []
        for id, row, lacking in zip(jobs, rows, _lacking(rows, store), strict=True):
            asked.append((id, self.ended if row is not None and row.state in REQUEUEABLE else lacking))
        for (id, lacking), row, changed in zip(asked, rows, self.asked(store, asked, replicas), strict=True):
            if isinstance(changed, DelayqError):
                answers[id] = for_caller(changed)
            elif changed.change is Change.UNKNOWN and row is not None and row.unfinished:
                lacks.append((row, lacking))
            elif row is not None and row.record.durable and changed.event:
                made.append(Made(self, row, changed))
            else:
                answers[id] = self._answer(changed, row)
        if made:
            answers |= _keep(made, store)
        for row, lacking in lacks:
            answers[row.record.id] = self._publish(store, row, lacking, replicas)

    def asked(
        self, store: QueueStore, jobs: Sequence[tuple[UUID | str, str]], replicas: Replicas | None = None, *, unless: str = ""
    ) -> list[Changed | DelayqError]:
        """Asks Redis, see `ask`. `unless`: the epoch in which the change was made before."""
        try:
            with stores.guarded(store.queue, store.partition):
                return self.ask(store, jobs, unless, replicas)
        except StoreUnavailable as error:
            if isinstance(error, ReplicasLack):
                error.jobs = tuple(id for id, _ in jobs if isinstance(id, UUID))
            if unless:
                error.nothing_done = False
            raise

    def _publish(self, store: QueueStore, row: StoredJob, lacking: str, replicas: Replicas | None) -> Answer:
        """Publishes a job that Redis lacks, and changes it."""
        id = row.record.id
        for _ in range(TRIES):
            with stores.guarded(store.queue, store.partition):
                status = self.put_in(Publisher(store, actor=self.actor), row)
            if status == "behind":
                return Change.DONE
            [changed] = map(loader.value, self.asked(store, [(id, lacking)], replicas))
            if changed.change in (Change.RUNNING, Change.FINISHED) and status in ("created", "replaced", "restored"):
                return Change.DONE  # it has started by now, with the date of its publication
            if changed.change is not Change.UNKNOWN:
                break
        if row.record.durable and changed.event:
            return _keep([Made(self, row, changed)], store)[id]
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


@dataclass
class Cancel(RedisChange):
    """Cancels jobs."""

    done_before = "scheduled"
    abort: bool
    follows: Callable[[UUID], bool] = field(default=lambda _: True, kw_only=True)

    def ask(
        self, store: QueueStore, jobs: Sequence[tuple[UUID | str, str]], unless: str = "", replicas: Replicas | None = None
    ) -> list[Changed | DelayqError]:
        return store.cancel_each(jobs, actor=self.actor, reason=self.reason, unless=unless, abort=self.abort, replicas=replicas)

    def put_in(self, _publisher: Publisher, _row: StoredJob) -> str:
        return ""  # Redis has left a tombstone, or a request, and answered with it

    def row_update(self, changed: Changed) -> RowUpdate:
        kind = EventKind.CANCEL_REQUESTED if changed.change is Change.RUNNING else EventKind.CANCELLED
        return RowUpdate(
            event=changed.event,
            kind=kind,
            actor=self.actor,
            reason=self.reason,
            abort=self.abort and kind is EventKind.CANCEL_REQUESTED,
            request=self.request,
        )

    def request_of(self, job: UUID | None, queue: str, key: str) -> ChangeRequest:
        return ChangeRequest(job=job, queue=queue, key=key, verb="cancel", abort=self.abort, actor=self.actor, reason=self.reason)

    def pending(self, found: Pending) -> Change:
        return found.cancel(self.actor, self.reason)

    def of_row(self, row: StoredJob) -> Change | None:
        return Change.DONE if row.state is State.CANCELLED and not row.ending else None

    def change_far(self, queue: str, jobs: Sequence[UUID]) -> dict[UUID, Change]:
        done = outbox.far_rows.cancel(jobs, queue, self.actor, self.reason)
        for id in done:
            horizon.withdrawn(id)
        return dict.fromkeys(done, Change.DONE)


@dataclass
class Move(RedisChange):
    """Gives jobs another date. If `delay_ms` is None, `due_ms` is the date. `policy`: see `QueueStore.reschedule`."""

    done_before = "waited"
    ended = "ended"
    delay_ms: int | None
    due_ms: int
    policy: str = ""

    @property
    def date(self) -> int | str:
        """The date as a script takes it."""
        return self.due_ms if self.delay_ms is None else f"+{self.delay_ms}"

    def ask(
        self, store: QueueStore, jobs: Sequence[tuple[UUID | str, str]], unless: str = "", replicas: Replicas | None = None
    ) -> list[Changed | DelayqError]:
        return store.reschedule_each(
            [(job, lacking, self.date) for job, lacking in jobs],
            actor=self.actor,
            reason=self.reason,
            unless=unless,
            policy=self.policy,
            replicas=replicas,
        )

    def put_in(self, publisher: Publisher, row: StoredJob) -> str:
        """Publishes it with its new date, so that a later attempt with the old date finds it there. A row that waits for another job
        keeps the date in its row.
        """
        id, due_ms = row.record.id, self.due_ms
        if self.delay_ms is not None:  # the delay counts by the clock of the node that gets the job
            due_ms = decode.time_ms(publisher.store.link.execute("TIME")) + self.delay_ms
        if debounce := DebouncePolicy.read(self.policy):
            due_ms = max(row.run_at_ms, min(due_ms, debounce.on(row.on_conflict, row.created_at).last_ms))
        if row.published:
            return next(iter(publisher.bring_back([id], due_ms=due_ms)), "")
        status = next((reply.status for reply in publisher.publish_rows([id], due_ms=due_ms).replies), "")
        if status == "behind":
            outbox.jobs.move(id, due_ms, self.delay_ms, self.actor, self.reason)
        return status

    def row_update(self, changed: Changed) -> RowUpdate:
        return RowUpdate(
            event=changed.event,
            kind=EventKind.RESCHEDULED,
            run_at_ms=changed.due_ms,
            actor=self.actor,
            reason=self.reason,
            proposed=self.policy != "",
            request=self.request,
            item=changed.item,
        )

    def request_of(self, job: UUID | None, queue: str, key: str) -> ChangeRequest:
        return ChangeRequest(
            job=job,
            queue=queue,
            key=key,
            verb="reschedule",
            delay_ms=self.delay_ms,
            due_ms=self.due_ms,
            actor=self.actor,
            reason=self.reason,
        )

    def pending(self, found: Pending) -> Change:
        return found.reschedule(self.delay_ms, self.due_ms, self.actor, self.reason)

    def change_far(self, queue: str, jobs: Sequence[UUID]) -> dict[UUID, Change]:
        config = conf.get().queues.get(queue)
        ahead_ms = 0 if config is None else config.horizon_ms
        done, near = outbox.far_rows.move(jobs, queue, self.due_ms, self.delay_ms, ahead_ms, self.actor, self.reason)
        if done and near:
            transaction.on_commit(partial(horizon.publish_later, queue, done), using=conf.get().database, robust=True)
        return dict.fromkeys(done, Change.DONE)


def each(act: JobChange, jobs: Iterable[ChangeTarget]) -> Iterator[Answer]:
    """Changes jobs. Yields the answer for each, in order. A server that is away is called once, and jobs on other servers go on.

    Raises:
        DatabaseError: see `acts.cancel`.
    """
    fan_out, batch = FanOut[QueueStore](), dict[UUID, ChangeTarget]()
    for target in jobs:
        if target.id in batch or len(batch) == MOST:
            yield from map(_batch(act, batch, fan_out).__getitem__, batch)
            batch = {}
        batch[target.id] = target
    yield from map(_batch(act, batch, fan_out).__getitem__, batch)


def one(act: JobChange, id: UUID, queue: str | None) -> Change:
    """Changes one job. `queue`: the queue of the job, if it is known.

    Raises:
        StoreUnavailable, DatabaseError: see `acts.cancel`.
    """
    return loader.value(_batch(act, {id: ChangeTarget(id, queue)}, FanOut())[id])


def for_caller(answer: Answer) -> Answer:
    """The answer, without the errors that only this package knows."""
    return for_callers(answer) if isinstance(answer, StoreError) else answer


def _batch(
    act: JobChange, targets: Mapping[UUID, ChangeTarget], fan_out: FanOut[QueueStore], passed: tuple[UUID, ...] = ()
) -> dict[UUID, Answer]:
    """Changes at most 200 jobs: in the open transaction, in rows that Redis lacks, or in Redis. `passed`: the merged jobs that have led
    to the job.
    """
    answers: dict[UUID, Answer] = {}
    pending = Pending.among(targets)
    rows = lookup.rows_of(targets.keys() - pending.keys(), payloads=act.payloads)
    _change_far(act, targets.values(), rows, answers)
    parts: dict[QueueStore, list[ChangeTarget]] = {}
    for id, queue, _ in targets.values():
        if id in answers:
            continue
        row = rows.get(id)
        try:
            if id in pending:
                answers[id] = act.pending(pending[id])
            elif row is None and queue is None:
                answers[id] = lookup.everywhere(id, partial(one, act, id))
            elif row is not None and queue not in (None, row.queue):
                answers[id] = Change.UNKNOWN  # the caller named another queue; the row must not be treated as one that Redis lacks
            elif row is not None and (decided := act.decided(row)):
                answers[id] = decided
            else:
                name = queue or (row.queue if row is not None else "")
                parts.setdefault(stores.queue(name, ids.partition(id)), []).append(ChangeTarget(id, name, row))
        except DelayqError as error:
            answers[id] = error

    def carry_out(store: QueueStore) -> DelayqError | None:
        try:
            act.carry_out(store, parts[store], answers)
        except StoreUnavailable:
            raise
        except DelayqError as error:
            return error
        return None

    for store, failed in fan_out.each(parts, attrgetter("link"), carry_out):
        for id, _, row in parts[store]:
            if failed is not None:
                answers.setdefault(id, failed)
            holder = row.holder if row is not None and row.ending == EndingKind.MERGED else None
            if answers[id] is Change.FINISHED and holder is not None and holder not in passed and act.follows(holder):
                answers[id] = _batch(act, {holder: ChangeTarget(holder, store.queue)}, fan_out, (*passed, id))[holder]
    return answers


def _change_far(act: JobChange, targets: Iterable[ChangeTarget], rows: dict[UUID, StoredJob], answers: dict[UUID, Answer]) -> None:
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
            rows |= lookup.rows_of(gone, payloads=act.payloads)


def by_policy(policy: str, moves: Sequence[tuple[UUID, Move]], store: QueueStore) -> list[Change]:
    """Gives the holders of keys, at most 200 of one partition, the dates of new jobs with this policy. One call asks Redis, and one
    transaction updates the rows. Jobs whose rows show more than Redis knows are changed one by one.

    Raises:
        StoreUnavailable, DatabaseError: see `acts.cancel`.
    """
    name, alone = store.queue, stores.replicas(store.queue) is None
    rows = lookup.rows_of([*dict(moves)])

    def is_usual(row: StoredJob | None) -> bool:
        return alone if row is None else row.queue == name and (row.unfinished or (alone and row.redis_only))

    asked = [(id, move) for id, move in moves if is_usual(rows.get(id))]
    found = list[Changed]()
    if asked:
        with stores.guarded(name, store.partition):
            dates = [(id, move.date) for id, move in asked]
            _, found = store.reschedule_many(dates, actor=POLICY, reason=policy_word(policy), policy=policy)
    replies = list(zip(asked, found, strict=True))
    answers: dict[UUID, Change] = {id: changed.change for (id, _), changed in replies if changed.change is not Change.UNKNOWN}
    made = [Made(move, rows[id], changed) for (id, move), changed in replies if changed.event and id in rows and rows[id].unfinished]
    if made:
        answers |= {id: loader.value(answer) for id, answer in _keep(made, store).items()}
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
        found = {*lookup.rows_of_key(queue, key), *Pending.keyed(queue, key), *([holder] if holder else [])} - answers.keys()
        if found and spared is not None:
            found -= spared(found)
        if not found:
            break
        for id in found:
            answers[id] = one(act, id, queue)
    said = set(answers.values()) or {_last(act, queue, key)}
    for change in STRONGEST:
        if change in said:
            return change
    return Change.UNKNOWN


def _last(act: Cancel | Move, queue: str, key: str) -> Change:
    """No unfinished job holds the key. Returns the answer of the latest job of the key to a repeated request."""
    latest = lookup.latest_of_key(queue, key)
    row = None if latest is None else lookup.row_of(latest)
    return (None if row is None else act.of_row(row)) or Change.UNKNOWN


def _lacking(rows: Iterable[StoredJob | None], store: QueueStore) -> Iterator[str]:
    """For each row, the state of a job that Redis may lack:

    - "": Redis must have the job, or the row is finished or missing.
    - "running": the row is running.
    - a time in ms: the job waits until then.
    - "scheduled": the job has certainly not started. No server was ever confirmed, so no server can have lost it.
    """
    servers = None
    for row in rows:
        if row is None or not row.unfinished:
            yield ""
        elif row.state is State.RUNNING:
            yield "running"
        else:
            if servers is None and not row.published:
                servers = outbox.jobs.servers(store.queue, store.partition)
            yield str(row.run_at_ms) if row.published or servers else "scheduled"


def _keep(made: Sequence[Made], store: QueueStore) -> dict[UUID, Answer]:
    """Updates the rows, outside the caller's transaction: otherwise the rows would stay locked until that transaction ends, and the
    mirror would wait.
    """
    using = conf.get().database

    def update() -> dict[UUID, Answer]:
        applied = outbox.jobs.apply_all([(row, act.row_update(changed)) for act, row, changed in made])
        former, now = list[str](), ""
        if any(applied):
            former = outbox.jobs.servers(store.queue, store.partition)[1:]
            act, _, first = made[0]
            if _server(first) not in former:
                [asked] = map(loader.value, act.asked(store, [("", "")], unless=first.epoch))  # no job has the key ""
                now = asked.epoch
        answers: dict[UUID, Answer] = {}
        for one, done in zip(made, applied, strict=True):
            answers[one.row.record.id] = _kept(one, store, now, former) if done else Change.FINISHED
        return answers

    if transaction.get_connection(using).in_atomic_block:
        transaction.on_commit(update, using=using, robust=True)
        return {row.record.id: changed.change for _, row, changed in made}
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
        lacking = act.done_before if last.change is Change.DONE else next(_lacking([row], store))
        [again] = map(loader.value, act.asked(store, [(row.record.id, lacking)], unless=last.epoch))
        if again.epoch == last.epoch:
            break
        if not again.event:
            return again.change
        last, now = again, ""
        if not outbox.jobs.apply(row, act.row_update(last)):
            return Change.FINISHED
        former = outbox.jobs.servers(store.queue, store.partition)[1:]
    return last.change


def _server(changed: Changed) -> str:
    """The run of the server that made the change."""
    return changed.epoch.rpartition(":")[2]
