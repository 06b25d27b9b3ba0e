"""Operations: one change of all matching jobs, of any number, in steps. The admin starts them, and the worker's record keeper carries
them out.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import Error as DriverError
from django.db.models import Q, QuerySet

from django_delayq import clock, conf, ids
from django_delayq.console import keyset, operation_parts, verbs
from django_delayq.console.operation_parts import Chunk, ChunkResult, Stretch
from django_delayq.console.selection import Selection
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.models import Job, Operation, database
from django_delayq.models.database import ExistsQuery
from django_delayq.producer import queues
from django_delayq.producer.outbox.rows import hindered
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import StoreError

logger = Logger("django_delayq.operations")

CHUNK: Final = 50  # jobs between two reads of the row: a person who pauses it waits for no more than these
STEPS: Final = 5  # steps of a purge between two such reads
LEASE: Final = 30.0  # seconds for which one record keeper alone works on an operation
MOST_COUNTED: Final = 500_000  # jobs in one statement: it takes a tenth of a second, in which the record keeper does nothing else
IDLE: Final = 1.0
ORDERS: Final = 2.0  # seconds between checks for started operations, while an event would announce other work
AT_ONCE: Final = 20  # operations checked in one pass
AGAIN: Final = 10.0  # seconds until an operation whose server was away is tried again, while others continue
Stage = Operation.Stage

VERBS: Final[dict[str, Callable[..., Change]]] = {name: verb.act for name, verb in verbs.VERBS.items()}
PURGE: Final = "purge"


class OperationLoop:
    """Carries out operations on many jobs.

    1. It takes operations that wait or run. Each has a lease on its row, so only one of several record keepers works on it.
    2. It records which jobs it is about to change.
    3. It changes them one by one, as a person would.
    4. It records the result of each job, and the progress of the operation.

    If a server is away, it postpones the jobs on that server, and continues with the others. At the end it returns to them, and then
    every ten seconds.

    Before the first job, it counts the matching jobs if an index can count them. An operation that is spread over a time is always
    counted, ten thousand rows per pass, so that mirror, relay and restore, which share the process, have their turns in between.

    It may die at any point without harm: the record keeper that takes over repeats the jobs of the last chunk. A job that is
    cancelled, or has its date, answers `done` once more. A job that was requeued does not. It is counted as "again", because it is
    unknown who requeued it.
    """

    def __init__(self) -> None:
        self.me = secrets.token_hex(8)
        self._any = ExistsQuery(self._all().filter(stage__in=(Stage.WAITING, Stage.RUNNING)))
        self._purges: dict[UUID, Iterator[int]] = {}  # those under way, with their position
        self._hindered: dict[UUID, float] = {}  # where queues are on several servers: those whose server was away, and until when
        self._counted: dict[UUID, tuple[int, UUID | None]] = {}  # those that are being counted: the count, and the position

    def poll(self) -> float:
        """Does a chunk of each operation that is due. Returns the seconds to sleep: 0 if there is more to do at once.

        Raises:
            StoreUnavailable, StoreError, DatabaseError: call again later.
        """
        now = clock.monotonic()
        found = self._open() if self._any.found() else []
        open_ones = {operation.pk for operation in found}
        self._purges = {id: steps for id, steps in self._purges.items() if id in open_ones}
        self._counted = {id: counted for id, counted in self._counted.items() if id in open_ones}
        self._hindered = {id: at for id, at in self._hindered.items() if at > now and id in open_ones}
        pauses: list[float] = []
        error: StoreUnavailable | StoreError | None = None
        for operation in found:
            if operation.pk in self._hindered:
                continue
            try:
                pauses.append(self._turn(operation))
            except (StoreUnavailable, StoreError) as hindrance:
                if not (conf.get().own_servers or stores.link.moves):
                    raise
                error = hindrance  # only the server of its queue failed: operations on others continue
                self._hindered[operation.pk] = now + AGAIN
        if error is not None and not pauses:
            raise error
        return min(pauses, default=IDLE)

    def _all(self) -> Any:
        return Operation.objects.all()

    def _open(self) -> list[Operation]:
        return list(self._all().filter(self._free(), stage__in=(Stage.WAITING, Stage.RUNNING)).order_by("id")[:AT_ONCE])

    def _turn(self, operation: Operation) -> float:
        try:
            return self._held(operation) if self._take(operation) else IDLE
        except (StoreUnavailable, StoreError, DriverError):
            raise
        except Exception as error:  # of a newer version, for example; it must not stop the mirror in the same process
            logger.exception("operation %s (%s) is paused", operation.pk, operation.verb)
            self._pause(operation, error)
            return IDLE

    def _held(self, operation: Operation) -> float:
        if refusal := refused(operation):
            self._pause(operation, refusal, holder=self.me)
            return IDLE
        try:
            return self._purge(operation) if operation.verb == PURGE else self._step(operation)
        except (StoreUnavailable, StoreError) as error:
            self._all().filter(pk=operation.pk, holder=self.me).update(**hindered(error))
            raise

    def _pause(self, operation: Operation, why: Exception, **only: Any) -> None:
        """Pauses the operation, unless a person has cancelled it in the meantime."""
        going_on = self._all().filter(pk=operation.pk, stage__in=(Stage.WAITING, Stage.RUNNING), **only)
        going_on.update(stage=Stage.PAUSED, **hindered(why))

    def _now(self) -> datetime:
        return database.now()

    def _free(self) -> Q:
        return Q(held_until__isnull=True) | Q(held_until__lt=database.ago()) | Q(holder=self.me)

    def _take(self, operation: Operation) -> bool:
        now = self._now()
        mine = {"holder": self.me, "held_until": now + timedelta(seconds=LEASE)}
        open_ones = self._all().filter(self._free(), pk=operation.pk, stage__in=(Stage.WAITING, Stage.RUNNING))
        if operation.holder != self.me or operation.paced_from is None:  # the time in between is not caught up in a rush
            mine |= {"paced_from": now, "paced_seen": operation.seen}
        first = operation.started_at is None
        if first:
            mine |= {"started_at": now, "stage": Stage.RUNNING}
        failpoint("operations.take")
        taken = open_ones.update(**mine)
        failpoint("operations.taken")
        if not taken:
            return False
        for name, value in mine.items():
            setattr(operation, name, value)
        if first and (expected := self._expected(operation)) is not None:
            self._expect(operation, expected)
        return True

    def _expected(self, operation: Operation) -> int | None:
        """The number of matching jobs, if an index finds them and they are not too many."""
        if operation.verb == PURGE:
            return None
        ahead = Job.objects.filter(pk__lte=operation.upto)
        count = keyset.count_up_to(chosen(operation), ahead, MOST_COUNTED)
        return None if count is None or count > MOST_COUNTED else count

    def _expect(self, operation: Operation, expected: int) -> None:
        """Starts the pace now: so many jobs in so much time."""
        operation.expected, operation.paced_from = expected, self._now()
        mine = self._all().filter(pk=operation.pk, holder=self.me)
        failpoint("operations.expect")
        mine.update(expected=expected, paced_from=operation.paced_from)
        failpoint("operations.expected")

    def _count_on(self, operation: Operation) -> None:
        """Counts the next ten thousand rows. A record keeper that takes over the operation starts the count again."""
        count, last = self._counted.get(operation.pk, (0, None))
        ahead, edge = self._window(operation, last)
        wanted = chosen(operation)
        count += keyset.count_exact(wanted, wanted.rows(ahead))
        if edge is None:
            self._counted.pop(operation.pk, None)
            self._expect(operation, count)
        else:
            self._counted[operation.pk] = count, edge

    def _window(self, operation: Operation, last: UUID | None) -> tuple[QuerySet[Job], UUID | None]:
        """The next ten thousand rows after `last`, by id, and the id of the last one; None: no rows follow."""
        ahead = Job.objects.filter(pk__lte=operation.upto).order_by("pk")
        if last is not None:
            ahead = ahead.filter(pk__gt=last)
        edge = list(ahead.values_list("pk", flat=True)[keyset.WINDOW : keyset.WINDOW + 1])
        return (ahead.filter(pk__lte=edge[0]), edge[0]) if edge else (ahead, None)

    def _step(self, operation: Operation) -> float:
        if operation.seconds and operation.expected is None:
            self._count_on(operation)
            return 0.0
        room, wait = pace(operation, self._now())
        if room <= 0:
            return wait
        stretches = operation_parts.open_ones(operation)
        again = list(_light().filter(pk__in=operation.chunk).order_by("pk")) if operation.chunk else []
        if again:  # from an earlier record keeper; their part comes first
            part = operation_parts.part_of(again[0])
            own = next((each for each in stretches if each.has(part)), stretches[0])
            stretches = [own, *(each for each in stretches if each is not own)]
        error: StoreUnavailable | StoreError | None = None
        for stretch in stretches:
            try:
                return self._go_through(operation, stretch, min(room, CHUNK), again)
            except (StoreUnavailable, StoreError) as hindrance:
                error, again = hindrance, []
        if error is not None:
            raise error
        self._finish(operation)
        return 0.0

    def _go_through(self, operation: Operation, stretch: Stretch, size: int, again: list[Job]) -> float:
        """Does a chunk, or repeats the chunk that was begun. Jobs on a server that is away are postponed if there are jobs on other
        servers.
        """
        others = [each for each in operation_parts.left(operation) if each.parts != stretch.parts]
        if again:
            chunk = Chunk(stretch=stretch, others=others, jobs=again, last=again[-1].pk, more=True, again=True)
        else:
            chunk = self._next(operation, stretch, others, size)
            if chunk.jobs and not self._begin(operation, chunk.jobs):
                return IDLE
        told = self._do(operation, chunk)
        left = chunk.left(operation, told)
        self._save(
            operation,
            counts=dict(Counter(operation.counts) + told.counts),
            seen=operation.seen + len(told.done),
            **left,
            **(hindered(told.error) if told.error is not None or not left["passed_over"] else {}),
        )
        self._log(operation, told.done)
        if told.at is not None and told.error is not None:
            raise told.error
        if not operation.passed_over and operation.last == operation.upto:
            self._finish(operation)
        return 0.0

    def _begin(self, operation: Operation, jobs: Sequence[Job]) -> bool:
        failpoint("operations.begin")
        begun = self._mine(operation).update(chunk=[str(job.pk) for job in jobs])
        failpoint("operations.begun")
        return bool(begun)

    def _save(self, operation: Operation, **fields: Any) -> None:
        failpoint("operations.save")
        self._mine(operation).update(**fields)
        failpoint("operations.saved")
        for name, value in fields.items():
            setattr(operation, name, value)

    def _finish(self, operation: Operation) -> None:
        failpoint("operations.finish")
        self._mine(operation).filter(stage=Stage.RUNNING).update(stage=Stage.FINISHED, finished_at=database.ago())
        failpoint("operations.finished")
        logger.info("operation %s (%s) is finished: %s", operation.pk, operation.verb, operation.counts)

    def _mine(self, operation: Operation) -> Any:
        return self._all().filter(pk=operation.pk, holder=self.me)

    def _next(self, operation: Operation, stretch: Stretch, others: Sequence[Stretch], size: int) -> Chunk:
        wanted = chosen(operation)
        ahead, edge = self._window(operation, stretch.last)
        most = keyset.STEP if wanted.search.by_argument else size
        looked = list(operation_parts.of(wanted.rows(ahead), stretch, others, wanted).order_by("pk")[:most])
        jobs = [job for job in looked if wanted.search.exact(job)][:size]
        last, more = edge or (looked[-1].pk if looked else stretch.last), edge is not None
        if len(jobs) == size or len(looked) == most:
            last, more = (jobs if len(jobs) == size else looked)[-1].pk, True
        return Chunk(stretch=stretch, others=others, jobs=jobs, last=last, more=more)

    def _do(self, operation: Operation, chunk: Chunk) -> ChunkResult:
        told = ChunkResult()
        options, wanted = operation_parts.options(operation), chosen(operation)
        for number, job in enumerate(chunk.jobs):
            part = operation_parts.part_of(job)
            if any(each.has(part) for each in told.passed):
                continue
            try:
                change = VERBS[operation.verb](job.pk, queue=job.queue, actor=operation.actor, reason=operation.reason, **options)
            except (StoreUnavailable, StoreError) as error:
                told.error = error
                away = operation_parts.cut(chunk.stretch, [*chunk.others, *told.passed], part, wanted)
                if away is None:
                    told.at = number
                    return told
                told.passed.append(Stretch(away, chunk.before(number)))
                continue
            except DelayqError as error:
                logger.warning("operation %s leaves job %s alone: %s", operation.pk, job.pk, error)
                told.counts["left"] += 1
            else:
                told.counts["again" if chunk.again and change is not Change.DONE else change.value] += 1
            told.done.append(job)
        return told

    def _purge(self, operation: Operation) -> float:
        counts: Counter[str] = Counter(operation.counts)
        steps = self._purges.pop(operation.pk, None) or queues.purge(
            str(operation.selection.get("queue", "")), actor=operation.actor, reason=operation.reason
        )
        done, away = operation_parts.taken(islice(steps, STEPS))
        over = away is None and len(done) < STEPS
        if len(done) == STEPS:  # goes on where it is: begun anew, it would look at the same rows until the mirror has folded them
            self._purges[operation.pk] = steps
        counts[Change.DONE.value] += sum(done)
        self._save(operation, counts=dict(counts), seen=sum(counts.values()), **hindered(away))
        if away is not None:
            raise away
        if over:
            self._finish(operation)
        return 0.0

    def _log(self, operation: Operation, jobs: Sequence[Job]) -> None:
        """Logs a change as for a job that a person changed by hand."""
        if not jobs or not operation.user:
            return
        said = ": ".join(part for part in (f"{operation.verb} (operation {ids.short(operation.pk)})", operation.reason) if part)
        verbs.write_admin_log(operation.user, Job, [(str(job.pk), str(job)) for job in jobs], said)


def chosen(operation: Operation) -> Selection:
    """The jobs of an operation."""
    return Selection(**operation.selection)


def pace(operation: Operation, now: datetime) -> tuple[int, float]:
    """The number of jobs that may be done by now, and the seconds until the next one."""
    if not operation.seconds or not operation.expected or operation.paced_from is None:
        return CHUNK, 0.0
    rate = operation.expected / operation.seconds
    due = operation.paced_seen + (now - operation.paced_from).total_seconds() * rate
    room = int(due - operation.seen) + (operation.seen == operation.paced_seen)
    return room, min(IDLE, max(0.02, (operation.seen + 1 - due) / rate))


def refused(operation: Operation) -> DelayqError | None:
    """Why the operation may not continue, or its person has lost the permission; None if it may. Checked before every chunk."""
    if operation.verb != PURGE and (loose := chosen(operation).search.loose):  # earlier releases have started such operations
        return DelayqError(code="search_partial", text=loose[0].value)
    if not operation.user:
        return None
    user = get_user_model()._default_manager.filter(pk=operation.user).first()
    if user is None or not user.is_active:
        return DelayqError(code="actor_inactive", actor=operation.actor)
    asked = ("view_queue",) if operation.verb == PURGE else ("view_job", "start_operation")  # the permissions that starting it needs
    needed = (operation.permission, *(f"delayq.{name}" for name in asked))
    missing = [name for name in needed if name and not user.has_perm(name)]
    return DelayqError(code="permission_gone", actor=operation.actor, permission=missing[0]) if missing else None


def _light() -> Any:
    return Job.objects.defer("args", "kwargs", "options", "result", "error")
