"""Schedules planned jobs.

With outbox durability, a job is first a row in the caller's transaction. After the commit it is published to Redis. If Redis is away,
the row waits, and the relay publishes it later: the request does not fail. With redis durability, the commit publishes the job. If
Redis is away, the call raises; after a commit of a transaction of the caller, the error is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django.db import Error, connections, transaction

from django_delayq import clock, conf, ids, signals
from django_delayq.exceptions import KeyTaken, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.job_meta import shown
from django_delayq.logger import Logger
from django_delayq.producer import changes, commit, commit_requests, horizon, outbox
from django_delayq.producer.breaker import Untaken, with_jobs
from django_delayq.producer.changes import Move
from django_delayq.producer.commit import Plan, Publication
from django_delayq.producer.horizon import HorizonRows
from django_delayq.producer.job import Job
from django_delayq.producer.options import JobTemplate
from django_delayq.producer.outbox.shapes import AlreadyScheduled, TakenKey, WaitingRow, WantedKey
from django_delayq.producer.publish import Publisher, Sent
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.connection.link import FanOut
from django_delayq.store.scripts.record import CREATED, FORBIDDEN, REFUSED, REPEATS, ScheduleReply, ScheduleStatus, policy_word
from django_delayq.store.scripts.replicas import ReplicasLack

T = TypeVar("T")
K = TypeVar("K")
LINK: Final = attrgetter("publisher.store.link")
logger = Logger("django_delayq.producer")

ONCE: Final = attrgetter("once")
HELD: Final = frozenset({"kept", "moved", "taken", "running"})  # replies about the holder of a key
UNREACHED: Final = "redis_away"  # the next call may find a server, such as the next primary
LATE_PUBLISH: Final = 30.0  # seconds; a commit later than that is left to the relay
RESENT_MS: Final = 50 * 60_000  # Redis knows an ended job for an hour


class PlanGroup(NamedTuple):
    """The plans for one partition of a queue."""

    publisher: Publisher
    plans: list[Plan]


class PipelinedCall:
    """A call of `schedule_many` that is on its way to Redis while the next batch is made. There is one at a time."""

    def __init__(self) -> None:
        self.open = True
        self._sent: tuple[Publisher, Sequence[Plan], Callable[[], Sent]] | None = None
        self._refused: list[KeyTaken] = []

    def __enter__(self) -> PipelinedCall:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.open = False  # a later publication by a commit waits for the replies
        try:
            self.collect()
        except (StoreUnavailable, KeyTaken) as other:
            if error is None:
                raise
            logger.warning("the previous batch was not accepted either: %s", other)

    def start(self, publisher: Publisher, batch: Sequence[Plan]) -> None:
        self._read()
        try:
            with stores.guarded(publisher.store.queue, publisher.store.partition, schedules=True, answers=False):
                answer = publisher.send(batch, "")
        except StoreUnavailable as error:
            raise with_jobs(error, batch) from error
        self._sent = publisher, batch, answer

    def collect(self) -> None:
        self._read()
        refused, self._refused = self._refused, []
        _tell_refused(refused, alone=True)

    def _read(self) -> None:
        if self._sent is not None:
            (publisher, batch, answer), self._sent = self._sent, None
            self._refused += _answered(batch, _send_safely(publisher, batch, answer))


waiting: Final = Untaken()


def put_one(plan: Plan, inserted: Callable[[Job], None] | None = None) -> Job:
    """Schedules one job. `inserted` is called with the job when its row is written and Redis does not have it yet, so before any
    worker runs it. It is not called for a job that was merged into another one, nor in a transaction of the caller, whose commit
    publishes.
    """
    job: Job = plan.job
    if plan.template.inline:
        if _free([plan]):
            if inserted is not None:
                inserted(job)
            commit.run_inline([plan])
        return job
    if not plan.durable and plan.once is None and (not plan.key or _script_decides(plan)):
        connection = connections[plan.template.using]
        if not commit.is_open(connection) and (connection.autocommit or connection.get_autocommit()):  # the check itself is slow
            if inserted is not None:
                inserted(plan.job)
            publisher = Publisher.of(plan.queue, plan.partition, durable=False)
            send = _send_redis_only if plan.key else _send_safely
            _, [reply] = send(publisher, [plan])  # there is no commit to wait for
            if (refused := _answer(plan, reply)) is not None:
                raise refused
            return job
    return put_all([plan], inserted=inserted)[0]


def _script_decides(plan: Plan) -> bool:
    """Whether one call of the script decides about the key, since no row and no former partition can hold it."""
    queue = plan.template.queue
    return plan.on_conflict in ("keep", "error") and queue.horizon is None and not queue.former_partitions


def put_all(
    plans: Sequence[Plan],
    pipelined: PipelinedCall | None = None,
    inserted: Callable[[Job], None] | None = None,
) -> list[Job]:
    """Schedules at most 200 jobs. With `pipelined`, the calls for jobs of redis durability are still under way when this returns.
    `inserted`: see `put_one`, which passes a single job.
    """
    if plans and plans[0].template.inline:
        commit.run_inline(_free(plans))
        return [plan.job for plan in plans]
    fresh = plans
    if keyed := [plan for plan in plans if plan.key]:
        _refuse_twice(keyed)
        if pipelined is not None:
            pipelined.collect()  # before that, the holder of a key is not known
        fresh = _unmerged(plans, keyed)
    for (using, durable), group in _by(fresh, attrgetter("using", "durable")):
        if durable:
            if pipelined is not None:
                pipelined.collect()  # jobs that were passed first are sent first
            _rows_first(group, inserted and partial(inserted, group[0].job))
        elif group := [*_free(group)]:  # a period key is committed before Redis is asked
            if inserted is not None:
                inserted(group[0].job)
            connection = connections[using]
            alone = not commit.is_open(connection)
            connection.on_commit(Publication(group, partial(_publish, pipelined=pipelined, alone=alone)), robust=not alone)
    return [plan.job for plan in plans]


def _free(plans: Sequence[Plan]) -> Sequence[Plan]:
    """Takes the period keys of these jobs. Returns the jobs without such a key, and those that got theirs. The `Job` of each other
    plan now points to the job that has the key.
    """
    first: dict[str, Plan] = {}
    for plan in plans:
        if plan.once is not None:
            first.setdefault(plan.once.digest, plan)
    if not first:
        return plans
    wanted = [WantedKey(plan.once, plan.id, plan.queue, plan.task) for plan in first.values() if plan.once is not None]
    held = outbox.period_keys.take(wanted, stores.places.shared)
    failpoint("producer.took_key")
    free = []
    for plan in plans:
        key = None if plan.once is None else held.get(plan.once.digest)
        if key is not None and not _may_be_unsent(plan, key):
            _point_to(plan, key)
        elif key is not None:
            plan.id, plan.once = key.job, None  # it keeps the key, whatever Redis answers
            free.append(plan)
        elif plan.once is None or first[plan.once.digest] is plan:
            free.append(plan)
        else:  # the same call schedules that job
            plan.job.id, plan.job.created, plan.job.due_ms = first[plan.once.digest].id, False, None
    return free


def _may_be_unsent(plan: Plan, key: TakenKey) -> bool:
    """Whether Redis may not have received the job that has the key, because a call before this one failed. It is then sent again under
    its id, which Redis still knows if it has received it.
    """
    own = plan.once is not None and plan.once.after_end and not plan.durable and not plan.template.inline
    if not own or key.until is not None or key.age_ms >= RESENT_MS or not plan.may_know(key.task):
        return False
    return ids.partition(key.job) == ids.partition(plan.id) and not outbox.jobs.read([key.job])


def _point_to(plan: Plan, key: TakenKey) -> None:
    if plan.once is not None and not plan.once.after_end:
        raise AlreadyScheduled(key.job)
    if not plan.may_know(key.task):
        raise _refused(plan, FORBIDDEN)
    plan.job.id, plan.job.created, plan.job.due_ms = key.job, False, None


def _settle_keys(sent: Mapping[UUID, Plan], *, undone: bool = False) -> None:
    """Deletes the period keys of jobs without rows that were not scheduled. `sent`: the jobs by the ids under which they were sent
    first; `_send_redis_only` may send a job again under another id. `undone`: none was scheduled.
    """
    for id, plan in sent.items():
        if plan.once is not None and (undone or plan.job.created is False):
            outbox.period_keys.release(plan.once, id)
        elif plan.once is not None and plan.id != id:
            outbox.period_keys.rename(plan.once, id, plan.id)


def _rows_first(plans: Sequence[Plan], inserted: Callable[[], None] | None = None) -> None:
    connection = connections[conf.get().database]
    alone = not commit.is_open(connection)
    once = any(map(ONCE, plans))
    if any(plan.template.horizon_ms for plan in plans):
        _within_horizon(plans, connection, alone, inserted)
        return
    if not once and alone and len(plans) == 1 and connection.get_autocommit():
        # A single statement commits by itself, which saves the round trips of BEGIN and COMMIT.
        failpoint("producer.commit")
        outbox.jobs.insert(plans)
        try:
            if inserted is not None:
                inserted()
        finally:  # the row is committed
            _publish_rows(plans, alone=alone)
        return
    with transaction.atomic(using=connection.alias, savepoint=once):
        if not (plans := _free(plans)):
            return
        outbox.jobs.insert(plans)
        connection.on_commit(Publication(plans, partial(_publish_rows, alone=alone)), robust=not alone)
        if inserted is not None and alone:
            inserted()
        failpoint("producer.commit")


def _within_horizon(plans: Sequence[Plan], connection: Any, alone: bool, inserted: Callable[[], None] | None = None) -> None:
    """Inserts jobs of a queue with a horizon: far rows wait in the database, and near rows are published like any others."""
    publish = partial(_publish_rows, alone=alone)
    with transaction.atomic(using=connection.alias):  # with a savepoint: a refusal undoes this call only
        if not (plans := _free(plans)):
            return
        written = HorizonRows(plans, publish)
        for plan, reply in written.merged:
            if reply.status in REFUSED:
                raise _refused(plan, reply)
            if plan.once is not None:
                outbox.period_keys.release(plan.once, plan.id)
        connection.on_commit(lambda: [_answer(*merged) for merged in written.merged], robust=not alone)
        if written.near:
            connection.on_commit(Publication(written.near, publish), robust=not alone)
        connection.on_commit(written, robust=not alone)  # far rows of these keys come second
        if inserted is not None and alone and not written.merged:
            inserted()
        failpoint("producer.commit")
    for plan, reply in written.merged:
        plan.job.id = reply.id  # at once: the same transaction may cancel it. `created` is known at the commit


def _refuse_twice(plans: Sequence[Plan]) -> None:
    """Refuses a batch with two jobs of the same key, if the second one requires the key to be free."""
    first: dict[tuple[str, str], Plan] = {}
    for plan in plans:
        other = first.setdefault((plan.queue, plan.key), plan)
        if other is not plan and plan.on_conflict == "error":
            raise KeyTaken(
                f"Another job in the same batch has the key {shown(plan.key)!r}, so no job in the batch was scheduled.", holder=other.id
            )


def _unmerged(plans: Sequence[Plan], keyed: Sequence[Plan]) -> Sequence[Plan]:
    """Returns the plans that no unfinished job holds the key of; the `Job` of each other plan now points to the holder. Nothing is
    changed before it is certain that none is refused. In an open transaction the answer is not known yet: the holder may end before
    the commit, and the script decides then. `keyed`: those with a key.
    """
    replies = _held(keyed)
    if not replies:
        return plans
    for plan, reply in replies.items():
        if reply.status in REFUSED:
            raise _refused(plan, reply)
    moved = _moved({plan: reply.id for plan, reply in replies.items() if reply.status == "moved"})
    merged = [plan for plan, reply in replies.items() if reply.status != "moved" or plan in moved]
    for plan in merged:
        _answer(plan, replies[plan])
    return [plan for plan in plans if plan not in merged]


def _held(plans: Sequence[Plan]) -> dict[Plan, ScheduleReply]:
    """Returns the replies for jobs whose keys other jobs hold. Redis is asked before a row is written, once per partition."""
    found = dict[Plan, ScheduleReply]()
    closed: list[Plan] = []
    for using, part in _by(plans, attrgetter("using")):
        if not commit.is_open(connections[using]):
            closed += part
    for group, held in FanOut[PlanGroup]().each(_by_store(closed), LINK, _ask) if closed else ():
        if isinstance(held, StoreUnavailable):
            durable = [plan for plan in group.plans if plan.durable and plan.on_conflict in ("keep", "error")]
            found.update(_held_by_rows(durable, group.publisher.store.queue))
        else:
            found.update(held)
    return found


def _ask(group: PlanGroup, last: bool = False) -> dict[Plan, ScheduleReply]:
    publisher, plans = group
    with stores.guarded(publisher.store.queue, publisher.store.partition, schedules=True):
        replies = publisher.ask(plans)
    asked = zip(plans, replies, strict=True)
    held = {plan: reply for plan, reply in asked if reply.id != plan.id and reply.status not in ("behind", "asked")}
    return _ask(group, last=True) if held and not last and _catch_up(publisher.store.queue, held) else held


def _catch_up(queue: str, held: Mapping[Plan, ScheduleReply]) -> bool:
    """Carries out the committed changes of jobs that hold these keys. Otherwise a new job would be merged into a job that is then
    cancelled. Returns whether there were any.
    """
    if not outbox.installed:
        return False
    try:
        return commit_requests.catch_up(queue, {reply.id for reply in held.values()}, {plan.key for plan in held})
    except Error:
        if any(plan.durable for plan in held):
            raise
        return False  # Redis-only jobs do not need the database


def _held_by_rows(plans: Sequence[Plan], queue: str) -> Iterator[tuple[Plan, ScheduleReply]]:
    """The replies for held keys if Redis does not answer: only rows that wait like these jobs decide. A job that Redis had may have
    ended there, and a new job must not be merged into it.
    """
    keys = {plan.key for plan in plans}
    waiting = outbox.jobs.waiting(queue, keys) if plans else []
    first = {row.key: row for row in reversed(waiting)}
    changed = outbox.requests.about(queue, (), keys) if first else []  # the relay makes these changes first
    unsure = {request.key for request in changed} | {request.job for request in changed}
    for plan in plans:
        if (holder := first.get(plan.key)) is not None and unsure.isdisjoint((plan.key, holder.id)):
            status: ScheduleStatus = "taken" if plan.on_conflict == "error" else "kept"
            yield plan, ScheduleReply(status, holder.id, 0) if plan.may_know(holder.task) else FORBIDDEN


def _moved(holders: Mapping[Plan, UUID]) -> set[Plan]:
    """Gives each holder the date of its plan, as any other change does. Returns the plans whose holders now have a date that fits. For
    the others, the script decides when the new job is scheduled.
    """
    fit, now = set(), clock.monotonic()
    for policy in sorted({plan.on_conflict for plan in holders}):
        word = policy_word(policy)
        for publisher, group in _by_store([plan for plan in holders if plan.on_conflict == policy]):
            moves = [(holders[plan], Move(changes.POLICY, word, plan.left_ms(now), plan.due_ms or 0, policy)) for plan in group]
            try:
                answers = changes.by_policy(policy, moves, publisher.store)
            except (StoreUnavailable, Error):
                continue
            fit |= {plan for plan, change in zip(group, answers, strict=True) if change in (Change.DONE, Change.RUNNING)}
    return fit


def _publish(plans: Sequence[Plan], pipelined: PipelinedCall | None = None, *, alone: bool) -> None:
    """Publishes jobs of redis durability. No relay publishes them later."""
    refused: list[KeyTaken] = []
    if pipelined is not None and pipelined.open:
        pipelined.collect()
    for publisher, group in _by_store(plans, durable=False):
        horizon.meet_in_redis(group, publisher.store.queue)
        once = {plan.id: plan for plan in group if plan.once is not None}
        if pipelined is not None and pipelined.open and not once:
            pipelined.start(publisher, group)
            continue
        try:
            refused += _answered(group, _send_redis_only(publisher, group))
            _settle_keys(once)
        except StoreUnavailable as error:
            if error.nothing_done:  # it is certain that Redis does not have them
                _settle_keys(once, undone=True)
            if alone:
                raise
            lost = ", ".join(ids.short(plan.id) for plan in group)
            logger.error(
                "Redis did not accept committed jobs with redis durability, and they will not be sent again: %s: %s", lost, error
            )
            signals.store_unavailable.send_robust(sender=None, error=error)
    _tell_refused(refused, alone=alone)


def _tell_refused(refused: Sequence[KeyTaken], *, alone: bool) -> None:
    """Reports refused jobs. After a commit of the caller nothing is raised, because Django would drop the hooks that follow."""
    if alone and refused:
        raise refused[-1]
    for one in refused:
        logger.warning("A committed job was not scheduled: %s", one)


def _send_safely(publisher: Publisher, batch: Sequence[Plan], answer: Callable[[], Sent] | None = None) -> Sent:
    """Sends jobs, or reads the answer to a call that was already sent. If the answer is lost, the same jobs are sent once more; no
    job is created twice.
    """
    try:
        with stores.guarded(publisher.store.queue, publisher.store.partition, schedules=True, asks=answer is None):
            if answer is not None:
                return publisher.finish(batch, answer())
            return publisher.publish(batch)
    except StoreUnavailable as error:
        answered = isinstance(error, (StoreRefused, ReplicasLack)) or isinstance(error.__cause__, StoreError)
        if answered or (error.nothing_done and error.code != UNREACHED):
            raise with_jobs(error, batch) from error  # Redis gives the same answer to the same call
        lost = not error.nothing_done
    try:
        with stores.guarded(publisher.store.queue, publisher.store.partition):
            return publisher.resolve_repeats(batch, publisher.publish(batch))
    except StoreUnavailable as error:
        if lost:  # refused or not, the first call may have succeeded
            error.nothing_done = False
        raise with_jobs(error, batch) from error


def _send_redis_only(publisher: Publisher, batch: Sequence[Plan]) -> Sent:
    """Sends jobs without rows. A job that meets a holder with a committed change is sent again after that change, under another id,
    since its own id is merged.
    """
    epoch, replies = _send_safely(publisher, batch)
    merged = {n: plan for n, plan in enumerate(batch) if plan.key and replies[n].status in HELD}
    if merged and _catch_up(publisher.store.queue, {plan: replies[n] for n, plan in merged.items()}):
        for plan in merged.values():
            plan.id = ids.new(plan.partition)
        epoch, again = _send_safely(publisher, list(merged.values()))
        for n, reply in zip(merged, again, strict=True):
            replies[n] = reply
    return epoch, replies


def _answered(plans: Sequence[Plan], sent: Sent) -> list[KeyTaken]:
    """Updates the `Job` objects. Returns the errors of the refused jobs."""
    if plans and not plans[0].durable:  # a far row since the first check did not see these
        horizon.meet_in_redis(plans, plans[0].queue)
    return [refused for plan, reply in zip(plans, sent[1], strict=True) if (refused := _answer(plan, reply)) is not None]


def _answer(plan: Plan, reply: ScheduleReply) -> KeyTaken | None:
    status, id, due_ms = reply
    if status not in CREATED:
        return _not_created(plan, reply)
    job = plan.job
    job.id, job.created = id, job.id == id or status not in REPEATS  # else an earlier call has scheduled it, see `_may_be_unsent`
    if due_ms:
        job.due_ms = due_ms
    if signals.job_scheduled.receivers:
        signals.job_scheduled.send_robust(sender=plan.template.task, job=job)
    return None


def _not_created(plan: Plan, reply: ScheduleReply) -> KeyTaken | None:
    if reply.status == "behind":  # it waits as a row, and runs when the holder has ended
        plan.job.created = True
    elif reply.status not in ("contested", "asked"):  # the relay decides about these later
        plan.job.id, plan.job.created, plan.job.due_ms = plan.id if reply is FORBIDDEN else reply.id, False, None
        if reply.status in REFUSED:
            return _refused(plan, reply)
    return None


def _refused(plan: Plan, reply: ScheduleReply) -> KeyTaken:
    if reply is FORBIDDEN:
        text = (
            f"The key {shown(plan.key)!r} of the job {ids.short(plan.id)} is held by a job of a task of which its sender may not know."
        )
        return KeyTaken(text, holder=reply.id, code="key_denied")
    why = "is running and cannot be replaced now" if reply.status == "running" else "is unfinished"
    return KeyTaken(
        f"The key {shown(plan.key)!r} of the job {ids.short(plan.id)} is held by the job {ids.short(reply.id)}, which {why}.",
        holder=reply.id,
    )


def _publish_rows(plans: Sequence[Plan], *, alone: bool) -> None:
    """Publishes rows after the commit. An error must not break the request: the relay publishes the rows later."""
    failpoint("producer.committed")
    begun = clock.monotonic() - LATE_PUBLISH
    timely = [plan for plan in plans if plan.started >= begun]
    if late := len(plans) - len(timely):
        logger.warning("jobs (%d) were committed after more than %.0f s, so the relay publishes them", late, LATE_PUBLISH)
    refused: list[KeyTaken] = []

    def publish(group: PlanGroup) -> None:
        (publisher, free), name = group, group.publisher.store.queue
        raced = bool(free[0].template.horizon_ms) and horizon.meet(free, name)
        found = None if alone else _look(name, free)
        with stores.guarded(name, publisher.store.partition, schedules=True):
            asks = raced or not alone or any(plan.on_conflict == "after" for plan in free)  # else Redis has been asked
            if held := publisher.publish_before(free, found) if asks else {}:
                refused.extend(_answered_by_id(free, held))
                free = [plan for plan in free if plan.id not in held]
            if free:
                refused.extend(_send_rows(publisher, free))

    groups = _by_store(timely)
    fan_out = FanOut[PlanGroup]()
    try:
        for _ in fan_out.each(groups, LINK, publish):
            pass
        for server, unavailable in fan_out.errors.items():
            waiting.note(server, sum(len(group.plans) for group in fan_out.missed[server]), unavailable)
            signals.store_unavailable.send_robust(sender=None, error=unavailable)
    except Error as error:
        logger.warning("Committed jobs left to the relay, because the database does not answer: %d: %s", len(plans), error)
    if refused:
        _tell_refused(refused, alone=alone)


def _look(queue: str, plans: Sequence[Plan]) -> list[WaitingRow] | None:
    """The rows of these keys, as `publish_before` needs them. The query that reads them also tells whether transactions have committed
    changes. If they may have, the changes for these keys are made first, and the rows must be read again: the result is None.
    """
    keys = {plan.key for plan in plans if plan.key}
    found = outbox.jobs.waiting(queue, keys, with_requests=True) if keys else []
    if not keys or (found and not found[0].requests):
        return found
    for request in outbox.requests.about(queue, (), keys):
        commit_requests.carry_out(request, late=True)
    return None


def _send_rows(publisher: Publisher, batch: Sequence[Plan]) -> list[KeyTaken]:
    epoch = batch[0].epoch
    if epoch and all(plan.epoch == epoch for plan in batch):
        sent = publisher.publish(batch, epoch)
        stores.learn(publisher.store, sent[0])
        if sent[1]:
            return _answered(batch, sent)
    # Redis has another epoch than when these jobs were planned. Somebody may have published, cancelled and lost them since, so the
    # rows are read.
    rows = publisher.publish_rows([plan.id for plan in batch])
    stores.learn(publisher.store, rows.epoch)
    return _answered_by_id(batch, dict(zip(rows.jobs, rows.replies, strict=True)))


def _answered_by_id(batch: Sequence[Plan], answers: Mapping[UUID, ScheduleReply]) -> list[KeyTaken]:
    known = [plan for plan in batch if plan.id in answers]
    return _answered(known, ("", [answers[plan.id] for plan in known]))


def _by(plans: Sequence[Plan], trait: Callable[[JobTemplate], K]) -> Iterable[tuple[K, list[Plan]]]:
    """Groups plans by a value that their task and options decide."""
    template = plans[0].template if plans else None
    if template is not None and (len(plans) == 1 or all(plan.template is template for plan in plans)):  # the usual case
        return [(trait(template), list(plans))]
    groups: dict[K, list[Plan]] = {}
    for plan in plans:
        groups.setdefault(trait(plan.template), []).append(plan)
    return groups.items()


def _by_store(plans: Sequence[Plan], *, durable: bool = True) -> list[PlanGroup]:
    """Groups plans by queue and partition."""
    found: list[PlanGroup] = []
    for queue, group in _by(plans, attrgetter("queue.name")):
        parts: dict[int, list[Plan]] = {}
        if not group[0].template.divided:
            parts = {0: group}
        else:
            for plan in group:
                parts.setdefault(plan.partition, []).append(plan)
        for partition, part in parts.items():
            found.append(PlanGroup(Publisher.of(queue, partition, durable=durable), part))
    return found


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Splits items into batches, in their order. An item is drawn from the iterator only when its batch is requested."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
