"""Jobs due after the horizon of their queue are written as far rows. Redis does not know them until the relay brings them in.

Keys are unique across far and near jobs. Between two far jobs the database decides, by a unique key and under the lock of the row.
Between a near and a far job, both sides write first and check afterwards. After its commit, the writer of a far row asks Redis, and
the rows that are on their way to Redis. The writer of a near row looks for a far row after its own commit. So at least one of the two
sees the other. The far row is then made near, and the script decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from uuid import UUID

from django.db import Error, transaction

from django_delayq import clock, conf, ids, signals
from django_delayq.exceptions import StoreUnavailable
from django_delayq.job_meta import shown
from django_delayq.logger import Logger
from django_delayq.producer import outbox
from django_delayq.producer.commit import Plan, Withdrawal
from django_delayq.producer.outbox.shapes import StoredJob
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.record import JobRecord, ScheduleItem, ScheduleReply

logger = Logger("django_delayq.producer")


def is_far(plan: Plan) -> bool:
    """Whether a job is written as a far row, by Redis' clock. The database's clock decides which rows are brought in, and when."""
    horizon_ms = plan.template.horizon_ms
    if not horizon_ms:
        return False
    left = plan.delay_ms if plan.delay_ms is not None else (plan.due_ms or 0) - stores.now_ms(plan.queue)
    return left > horizon_ms


class HorizonRows:
    """Writes the rows of one call, if queues have a horizon: near rows, which `publish` sends to Redis at the commit, far rows, and
    jobs that were merged into another job. It is also the commit hook of the far rows.

    Raises:
        StoreUnavailable: another transaction holds a key for more than two seconds; nothing was written.
    """

    def __init__(self, plans: Sequence[Plan], publish: Callable[[list[Plan]], None]) -> None:
        self._publish = publish
        self.__qualname__ = "HorizonRows"  # by which Django logs a robust hook
        self.near: list[Plan] = []
        self.far: list[Plan] = []
        self.merged: list[tuple[Plan, ScheduleReply]] = []
        taken: set[Plan] = set()
        on_the_way: set[tuple[str, str]] = set()  # keys of near jobs of this call: later jobs of the same key go to Redis too
        # In the order of their keys, because otherwise two calls could wait for each other.
        for plan in sorted((plan for plan in plans if plan.key and plan.template.horizon_ms), key=attrgetter("scope", "key", "queue")):
            far = (plan.queue, plan.key) not in on_the_way and is_far(plan)
            reply = outbox.far_rows.contest(plan, plan.template.horizon_ms, far=far)
            if reply is not None:
                self.merged.append((plan, reply))
                taken.add(plan)
            elif far:
                self.far.append(plan)
                taken.add(plan)
            else:
                on_the_way.add((plan.queue, plan.key))
        free = [plan for plan in plans if not plan.key and is_far(plan)]
        taken.update(free)
        self.near = [plan for plan in plans if plan not in taken]
        self.far += free
        if free:
            outbox.jobs.insert(free, far=True)
        if self.near:
            outbox.jobs.insert(self.near)

    def __call__(self) -> None:
        """Runs after the commit: updates the `Job` objects, and asks Redis who holds the keys. If that fails, the relay does it."""
        for plan in self.far:
            plan.job.due_ms = clock.wall_ms() + (plan.left_ms(clock.monotonic()) or 0) if plan.delay_ms is not None else plan.due_ms
        for plan, reply in self.merged:
            if reply.status == "moved" and not reply.due_ms:
                publish_later(plan.queue, [reply.id])
        try:
            self._ask()
        except StoreUnavailable as error:
            logger.warning("the keys of far jobs could not be checked in Redis. The relay will check them: %s", error)
            signals.store_unavailable.send_robust(sender=None, error=error)
        except Error as error:
            logger.warning("the relay will check the keys of far jobs, because the database does not respond: %s", error)

    def _ask(self) -> None:
        for plan in self.far:
            if not plan.key:
                if not plan.withdrawn:
                    _created(plan)
                continue
            publisher = Publisher.of(plan.queue, plan.partition)
            with stores.guarded(plan.queue, plan.partition, schedules=True):
                row = keep_or_meet(publisher, plan, waits=True)
            if row is None:
                continue  # the same transaction has cancelled it
            if row.far:
                _created(plan)
                continue
            plan.redate(row.left_ms, row.run_at_ms, clock.monotonic())
            self._publish([plan])


def withdrawn(job: UUID) -> None:
    """A far row was cancelled. If the open transaction wrote the row, the signal that it was scheduled is not sent. It is sent after
    all if the savepoint of the cancel is rolled back.
    """
    connection = transaction.get_connection(conf.get().database)
    for place, (_, hook, _) in enumerate(connection.run_on_commit if connection.in_atomic_block else ()):
        for plan in hook.far if isinstance(hook, HorizonRows) else ():
            if plan.id == job:
                connection.run_on_commit.insert(place, (set(connection.savepoint_ids), Withdrawal(plan), False))
                return


def keep_or_meet(publisher: Publisher, item: JobRecord, *, waits: bool = False) -> StoredJob | None:
    """Asks whether Redis, or a row on its way there, holds the key of a far row. If neither does, the row keeps the key and stays
    far. Otherwise the row is made near. The caller then publishes it, and the script decides. If another transaction is changing the
    row, this `waits` for it, or the row stays far and unchecked. Returns the current row, or None if it needs no publication.

    Raises:
        StoreUnavailable, DatabaseError: the holder is unknown. The row stays far, and the caller asks again later.
    """
    row = _row(item.id)
    if row is not None and row.far:
        publisher.put_in_waiting(item.key)  # first: rows that are published between the two checks would be missed by both
        [reply] = publisher.ask([ScheduleItem.of(item, due_ms=row.run_at_ms)])
        if reply.status == "asked":
            raise StoreUnavailable(code="far_key_unknown", key=shown(item.key), queue=publisher.store.queue)
        if reply.id != item.id:
            outbox.far_rows.bring_in([item.id], waits=shown(item.key) if waits else "")
            row = _row(item.id)  # again: until then, another call could give it another date
            if row is not None and row.far:
                return row
    if row is not None and not (row.far or row.unpublished):
        row = None
    outbox.far_rows.mark_checked(item.id)
    return row


def _row(job: UUID) -> StoredJob | None:
    return outbox.jobs.read([job]).get(job)


def check(publisher: Publisher, jobs: Sequence[UUID]) -> None:
    """Asks Redis about the keys of far rows, for the relay: the processes that wrote the rows could not ask.

    Raises:
        StoreUnavailable, DatabaseError: call again later.
    """
    there = outbox.jobs.read(jobs)
    for job in jobs:
        if job not in there:
            outbox.far_rows.mark_checked(job)
            continue
        row = keep_or_meet(publisher, there[job].record)
        if row is not None and not row.far:
            publisher.publish_rows([job])


def publish_later(queue: str, jobs: Sequence[UUID]) -> None:
    """Publishes rows that have become near, after their commit. If that fails, the relay publishes them."""
    try:
        for partition, some in ids.by_partition(jobs).items():
            with stores.guarded(queue, partition, schedules=True):
                Publisher.of(queue, partition).publish_rows(some)
    except (StoreUnavailable, Error) as error:
        logger.warning("the relay will publish %s, because its new date is near: %s", ", ".join(map(ids.short, jobs)), error)


def meet(plans: Sequence[Plan], queue: str, *, waits: bool = False) -> bool:
    """Makes the far rows of these keys near that were written in the meantime. Returns whether there were any. `waits`: see
    `bring_in_keys`.
    """
    keys = {plan.key for plan in plans if plan.key and plan.template.queue.horizon}
    return bool(keys) and outbox.far_rows.bring_in_keys(queue, keys, waits=waits)


def meet_keys(queue: str, keys: Collection[str]) -> None:
    """Checks the far rows of these keys after jobs of the keys have come back to Redis without writing a row. If that fails, the relay
    does it.
    """
    try:
        if keys and outbox.far_rows.bring_in_keys(queue, keys, waits=True):
            for key in keys:
                for partition in conf.get().queue(queue).homes(key):
                    with stores.guarded(queue, partition, schedules=True):
                        Publisher.of(queue, partition).complete([key])
    except (StoreUnavailable, Error) as error:
        logger.warning("could not check whether far jobs hold the keys %s of %s: %s", ", ".join(map(repr, keys)), queue, error)


def meet_in_redis(plans: Sequence[Plan], queue: str) -> None:
    """Checks the far rows for jobs of redis durability, which have no rows that far jobs could find. Publishes the rows that it
    finds. Errors are only logged: whether Redis accepts the jobs themselves is a separate question.
    """
    if not outbox.installed or not any(plan.key and plan.template.queue.horizon for plan in plans):
        return
    try:
        if meet(plans, queue, waits=True):
            partition = plans[0].partition
            with stores.guarded(queue, partition, schedules=True):
                Publisher.of(queue, partition).publish_before(plans)
    except (StoreUnavailable, Error) as error:
        logger.warning("could not check whether far jobs hold the keys of new jobs (%d): %s", len(plans), error)


def _created(plan: Plan) -> None:
    plan.job.created = True
    if signals.job_scheduled.receivers:
        signals.job_scheduled.send_robust(sender=plan.template.task, job=plan.job)
