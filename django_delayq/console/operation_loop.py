"""Operations: one change of all matching jobs, of any number, in steps. `operations` starts them, and the worker's record keeper
carries them out.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any, Final
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import Error as DriverError
from django.db.models import Q, QuerySet

from django_delayq import clock, conf, ids
from django_delayq.console import keyset, verbs
from django_delayq.console.selection import Selection
from django_delayq.exceptions import DelayqError, StoreUnavailable, TooManyJobs
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.models import Job, Operation, database
from django_delayq.models.database import ExistsQuery
from django_delayq.producer import put_back, queues
from django_delayq.producer.outbox.rows import hindered
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import StoreError

logger = Logger("django_delayq.operations")

CHUNK: Final = 200  # jobs between two reads of the row: a person who pauses it waits for no more than these
STEPS: Final = 5  # steps of a purge between two such reads
LEASE: Final = 30.0  # seconds for which one record keeper alone works on an operation
MOST_COUNTED: Final = 500_000  # jobs in one statement: it takes a tenth of a second, in which the record keeper does nothing else
IDLE: Final = 1.0
ORDERS: Final = 2.0  # seconds between checks for started operations, while an event would announce other work
AT_ONCE: Final = 20  # operations checked in one pass
AGAIN: Final = 10.0  # seconds until an operation whose server was away is tried again, while others continue
Stage = Operation.Stage

VERBS: Final[dict[str, verbs.Each]] = {name: verb.each for name, verb in verbs.VERBS.items()}
PURGE, CANCEL, REQUEUE = "purge", "cancel", "requeue"


Part = tuple[str, int]  # a queue, and the number of a partition


@dataclass(frozen=True, slots=True)
class Stretch:
    """The jobs of these partitions after `last`, by id. None: all jobs that are in no other stretch."""

    parts: frozenset[Part] | None
    last: UUID | None

    def has(self, part: Part) -> bool:
        return self.parts is not None and part in self.parts

    def without(self, others: Sequence[Stretch], last: UUID | None) -> Stretch:
        """The rest of the stretch, after `last`."""
        gone = frozenset(part for other in others for part in other.parts or ())
        return Stretch((self.parts or frozenset()) - gone, last)


@dataclass(slots=True)
class ChunkResult:
    """The result of a chunk. `undone`: the jobs without an answer, because of `error`; `unsure`: those that may have been changed.
    `passed`: the stretches that are left for later; `stuck`: whether the rest of the stretch cannot be reached either, and `last` the
    position from which it continues.
    """

    counts: Counter[str] = field(default_factory=Counter)
    done: list[Job] = field(default_factory=list)
    undone: list[Job] = field(default_factory=list)
    passed: list[Stretch] = field(default_factory=list)
    unsure: list[Job] = field(default_factory=list)
    stuck: bool = False
    last: UUID | None = None
    error: StoreUnavailable | StoreError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Jobs of a stretch that are handled together, by id. `others`: stretches that are left for later; `begun`: jobs of these that were
    started before; `last`: the position after the chunk; `more`: whether there may be more in the stretch; `again`: whether the jobs
    of the chunk had been started before. `ends`: the ids of all jobs that have been started when the chunk begins, each with its
    end before a requeue, see `put_back.ends`; otherwise with "".
    """

    stretch: Stretch
    others: Sequence[Stretch]
    begun: Sequence[Job]
    jobs: Sequence[Job]
    last: UUID | None
    more: bool
    again: bool = False
    ends: Mapping[str, str]

    def sort_out(self, result: ChunkResult, wanted: Selection) -> None:
        """Decides how partitions that cannot be reached continue. If certainly none of their jobs was changed after a position, they
        continue there. Otherwise their jobs without an answer are repeated.
        """
        undone, sure = result.undone, result.error is not None and result.error.nothing_done and not self.again
        while undone:
            number = self.jobs.index(undone[0])
            away = _parts_away(self.stretch, [*self.others, *result.passed], _part_of(undone[0]), wanted)
            position = self.last
            if sure and not any(away is None or _part_of(job) in away for job in self.jobs[number:] if job not in undone):
                position = self.jobs[number - 1].pk if number else self.stretch.last
            else:
                result.unsure += [job for job in undone if away is None or _part_of(job) in away]
            if away is None:
                result.stuck, result.last = True, position
                return
            result.passed.append(Stretch(away, position))
            undone = [job for job in undone if _part_of(job) not in away]

    def left(self, operation: Operation, result: ChunkResult) -> dict[str, Any]:
        """The columns of the operation after the chunk."""
        last, over = result.last if result.stuck else self.last, not (self.more or result.stuck)
        chunk = {id: self.ends.get(id, "") for id in (str(job.pk) for job in (*result.unsure, *self.begun))}
        later = [*self.others, *result.passed]
        if self.stretch.parts is None:
            return {"last": operation.upto if over else last, "passed_over": _written(later), "chunk": chunk}
        if not over:  # after the others, which are next
            later.insert(len(self.others), self.stretch.without(result.passed, last))
        return {"last": operation.last, "passed_over": _written(later), "chunk": chunk}


def left_for_later(operation: Operation) -> list[Stretch]:
    return [
        Stretch(frozenset((queue, partition) for queue, partition in each["parts"]), UUID(each["last"]) if each["last"] else None)
        for each in operation.passed_over or ()
    ]


def _written(stretches: Iterable[Stretch]) -> list[dict[str, Any]] | None:
    """The stretches, as the column stores them."""
    return [{"parts": sorted(each.parts or ()), "last": each.last.hex if each.last else None} for each in stretches] or None


def labels(operation: Operation) -> list[str]:
    """The queues of stretches that are left for later, with a number if a queue has several partitions."""
    known = conf.get().queues
    parts = sorted({part for stretch in left_for_later(operation) for part in stretch.parts or ()})
    return [known[queue].label(partition) if queue in known else queue for queue, partition in parts]


def _in_stretch(rows: QuerySet[Job], stretch: Stretch, others: Sequence[Stretch], wanted: Selection) -> QuerySet[Job]:
    """The jobs of a stretch that existed when the operation was created, by the clock of the database: ids contain the clock of web
    hosts. For rows that the mirror wrote, only the id is known.
    """
    if wanted.at_ms:
        rows = rows.filter(Q(durable=False) | Q(created_at__lt=clock.from_ms(wanted.at_ms + 1)))
    if stretch.parts is not None:
        return rows.filter(_in_parts(stretch.parts))
    elsewhere = frozenset(part for other in others for part in other.parts or ())
    return rows.exclude(_in_parts(elsewhere)) if elsewhere else rows


def _parts_away(stretch: Stretch, others: Sequence[Stretch], part: Part, wanted: Selection) -> frozenset[Part] | None:
    """The partitions of a stretch that are on the same unreachable server as this one; None if all of them are."""
    only, queues = wanted.queue or wanted.search.value("queue"), conf.get().queues.items()
    every = ((name, partition) for name, queue in queues if only in ("", name) for partition in queue.served)
    parts = every if stretch.parts is None else stretch.parts
    parts = frozenset(each for each in parts if not any(other.has(each) for other in others))
    try:
        server = stores.places.of(*part).server
        away = frozenset(each for each in parts if stores.places.of(*each).server is server) | {part}
    except StoreUnavailable:  # the places are unknown
        return None
    return away if parts - away else None


def _part_of(job: Job) -> Part:
    """The queue and the partition of a job."""
    return job.queue, ids.partition(job.pk)


def _in_parts(parts: frozenset[Part]) -> Q:
    by_queue: dict[str, list[int]] = {}
    for queue, partition in sorted(parts):
        by_queue.setdefault(queue, []).append(partition)
    return reduce(or_, (Q(queue=queue, partition__in=numbers) for queue, numbers in by_queue.items()))


class OperationLoop:
    """Carries out operations on many jobs.

    1. It takes operations that wait or run. Each has a lease on its row, so only one of several record keepers works on it.
    2. It records which jobs it is about to change.
    3. It changes them by one call, each as a person would.
    4. It records the result of each job, and the progress of the operation.

    If a server is away, it postpones the jobs on that server, and continues with the others. At the end it returns to them, and then
    every ten seconds.

    Before the first job, it counts the matching jobs if an index can count them. An operation with a limit or a time is always
    counted, ten thousand rows per pass, so that mirror, relay and restore, which share the process, have their turns in between.

    It may die at any point without harm: the record keeper that takes over repeats the jobs of the last chunk. So does one that has not
    received the answer of Redis. A job that is cancelled, or has its date, answers `done` once more. A job that was requeued does not,
    even if it has run and failed again. It is counted as "again", because it is unknown who requeued it.
    """

    def __init__(self) -> None:
        self.me = secrets.token_hex(8)
        self._any = ExistsQuery(_going_on())
        self._purges: dict[UUID, Iterator[int]] = {}  # those under way, with their position
        self._hindered: dict[UUID, float] = {}  # where queues are on several servers: those whose server was away, and until when
        self._counted: dict[UUID, tuple[int, UUID | None]] = {}  # those that are being counted: the count, and the position

    def poll(self) -> float:
        """Does a chunk of each operation that is due. Returns the seconds to sleep: 0 if there is more to do at once.

        Raises:
            StoreUnavailable, StoreError, DatabaseError: call again later.
        """
        now = clock.monotonic()
        found = list(_going_on(self._free()).defer("frozen").order_by("id")[:AT_ONCE]) if self._any.found() else []
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
            self._mine(operation).update(**hindered(error))
            raise

    def _pause(self, operation: Operation, why: Exception, **only: Any) -> None:
        """Pauses the operation, unless a person has cancelled it in the meantime."""
        _going_on(pk=operation.pk, **only).update(stage=Stage.PAUSED, **hindered(why))

    def _free(self) -> Q:
        return Q(held_until__isnull=True) | Q(held_until__lt=database.ago()) | Q(holder=self.me)

    def _take(self, operation: Operation) -> bool:
        now = database.now()
        mine = {"holder": self.me, "held_until": now + timedelta(seconds=LEASE)}
        if operation.holder != self.me or operation.paced_from is None:  # the time in between is not caught up in a rush
            mine |= {"paced_from": now, "paced_seen": operation.seen}
        first = operation.started_at is None
        if first:
            mine |= {"started_at": now, "stage": Stage.RUNNING}
        failpoint("operations.take")
        taken = _going_on(self._free(), pk=operation.pk).update(**mine)
        failpoint("operations.taken")
        if not taken:
            return False
        for name, value in mine.items():
            setattr(operation, name, value)
        if first and operation.expected is None and operation.verb != PURGE:
            expected = keyset.count_up_to(chosen(operation), Job.objects.filter(pk__lte=operation.upto), MOST_COUNTED)
            if expected is not None and expected <= MOST_COUNTED:  # an index finds them, and they are not too many
                self._expect(operation, expected)
        return operation.stage != Stage.PAUSED

    def _expect(self, operation: Operation, expected: int) -> None:
        """Starts the pace now: so many jobs in so much time. Pauses an operation on more jobs than its limit."""
        if operation.limit is not None and expected > operation.limit:
            self._pause(operation, TooManyJobs(code=TooManyJobs.code, count=expected, limit=operation.limit))
            operation.stage = Stage.PAUSED
        operation.expected, operation.paced_from = expected, database.now()
        failpoint("operations.expect")
        self._mine(operation).update(expected=expected, paced_from=operation.paced_from)
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
        """The next ten thousand rows after `last`, by id, and the id of the last one; None: no rows follow. Of frozen ids, the next
        thousand.
        """
        ahead = Job.objects.filter(pk__lte=operation.upto).order_by("pk")
        if operation.frozen is not None:
            found = operation.frozen[bisect_right(operation.frozen, ids.short(last)) if last else 0 :]
            rest = found[keyset.STEP - 1 : keyset.STEP + 1]
            return ahead.filter(pk__in=[ids.full(id) for id in found[: keyset.STEP]]), ids.full(rest[0]) if len(rest) > 1 else None
        if last is not None:
            ahead = ahead.filter(pk__gt=last)
        edge = list(ahead.values_list("pk", flat=True)[keyset.WINDOW : keyset.WINDOW + 1])
        return (ahead.filter(pk__lte=edge[0]), edge[0]) if edge else (ahead, None)

    def _step(self, operation: Operation) -> float:
        if operation.expected is None and (operation.seconds or operation.limit is not None):
            self._count_on(operation)
            return 0.0
        room, wait = pace(operation, database.now())
        if room <= 0:
            return wait
        stretches = left_for_later(operation)
        if operation.last != operation.upto:
            stretches.insert(0, Stretch(None, operation.last))
        error: StoreUnavailable | StoreError | None = None
        for stretch in stretches:
            try:
                return self._go_through(operation, stretch, min(room, CHUNK))
            except (StoreUnavailable, StoreError) as hindrance:
                error = hindrance
        if error is not None:
            raise error
        self._finish(operation)
        return 0.0

    def _go_through(self, operation: Operation, stretch: Stretch, size: int) -> float:
        """Does a chunk, or repeats the jobs that were begun. Jobs on a server that is away are postponed if there are jobs on other
        servers.
        """
        others = [each for each in left_for_later(operation) if each.parts != stretch.parts]
        chunk = self._begun(operation, stretch, others) or self._next(operation, stretch, others, size)
        if chunk.jobs and not chunk.again:
            failpoint("operations.begin")
            begun = self._mine(operation).update(chunk=chunk.ends)
            failpoint("operations.begun")
            if not begun:
                return IDLE
            operation.chunk = chunk.ends
        told = self._do(operation, chunk)
        left = chunk.left(operation, told)
        self._save(
            operation,
            counts=dict(Counter(operation.counts) + told.counts),
            seen=operation.seen + len(told.done),
            **left,
            **(hindered(told.error) if told.error is not None or not left["passed_over"] else {}),
        )
        if told.done and operation.user:  # as for a job that a person changed by hand
            said = ": ".join(filter(None, (f"{operation.verb} (operation {ids.short(operation.pk)})", operation.reason)))
            verbs.write_admin_log(operation.user, Job, [(str(job.pk), str(job)) for job in told.done], said)
        if told.stuck and told.error is not None:
            raise told.error
        if not operation.passed_over and operation.last == operation.upto:
            self._finish(operation)
        return 0.0

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
        return Operation.objects.filter(pk=operation.pk, holder=self.me)

    def _begun(self, operation: Operation, stretch: Stretch, others: Sequence[Stretch]) -> Chunk | None:
        """The jobs of the stretch that were begun, but have no answer."""
        light, jobs, begun = Job.objects.defer("args", "kwargs", "options", "result", "error"), list[Job](), list[Job]()
        for job in light.filter(pk__in=[*operation.chunk]).order_by("pk") if operation.chunk else ():
            elsewhere = any(each.has(_part_of(job)) for each in others)
            (jobs if stretch.has(_part_of(job)) or (stretch.parts is None and not elsewhere) else begun).append(job)
        if not jobs:
            return None
        # The position is not behind them yet if the record keeper has died.
        ahead = stretch.last is None or Job.objects.filter(pk__in=[job.pk for job in jobs], pk__gt=stretch.last).exists()
        last = jobs[-1].pk if ahead else stretch.last
        return Chunk(stretch=stretch, others=others, begun=begun, jobs=jobs, last=last, more=True, again=True, ends=operation.chunk)

    def _next(self, operation: Operation, stretch: Stretch, others: Sequence[Stretch], size: int) -> Chunk:
        wanted = chosen(operation)
        ahead, edge = self._window(operation, stretch.last)
        most = keyset.STEP if wanted.search.by_argument else size
        looked = list(_in_stretch(wanted.rows(ahead), stretch, others, wanted).order_by("pk")[:most])
        jobs = [job for job in looked if wanted.search.exact(job)][:size]
        last, more = edge or (looked[-1].pk if looked else stretch.last), edge is not None
        if len(jobs) == size or len(looked) == most:
            last, more = (jobs if len(jobs) == size else looked)[-1].pk, True
        begun = list(Job.objects.only("pk").filter(pk__in=[*operation.chunk])) if operation.chunk else []
        known = put_back.ends(jobs) if operation.verb == REQUEUE else {}
        ends = {**operation.chunk, **{str(job.pk): known.get(job.pk, "") for job in jobs}}
        return Chunk(stretch=stretch, others=others, begun=begun, jobs=jobs, last=last, more=more, ends=ends)

    def _do(self, operation: Operation, chunk: Chunk) -> ChunkResult:
        told = ChunkResult()
        options = dict(operation.options)
        if "run_at" in options:  # else `delay` in seconds
            options["run_at"] = datetime.fromisoformat(options["run_at"])
        if operation.verb == REQUEUE:
            options |= {"ends": {UUID(id): end for id, end in chunk.ends.items()}, "by_person": bool(operation.user)}
        elif operation.verb == CANCEL and not operation.user:
            options["follows"] = lambda _: False  # a program, or its token, did not mean the job that another was merged into
        for job, answer in verbs.apply(VERBS[operation.verb], chunk.jobs, actor=operation.actor, reason=operation.reason, **options):
            if isinstance(answer, (StoreUnavailable, StoreError)):
                if told.error is None or told.error.nothing_done:  # an unknown result of one server counts more than a refusal
                    told.error = answer
                told.undone.append(job)
                continue
            if isinstance(answer, DelayqError):
                logger.warning("operation %s leaves job %s alone: %s", operation.pk, job.pk, answer)
                told.counts["left"] += 1
            else:
                told.counts["again" if chunk.again and answer is not Change.DONE else answer.value] += 1
            told.done.append(job)
        chunk.sort_out(told, chosen(operation))
        return told

    def _purge(self, operation: Operation) -> float:
        counts: Counter[str] = Counter(operation.counts)
        steps = self._purges.pop(operation.pk, None) or queues.purge(
            str(operation.selection.get("queue", "")), actor=operation.actor, reason=operation.reason
        )
        done, away = list[int](), None
        try:
            for count in islice(steps, STEPS):
                done.append(count)
        except StoreUnavailable as error:
            away = error
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


def chosen(operation: Operation) -> Selection:
    """The search for the jobs of an operation. Frozen ids need none."""
    wanted = Selection(**operation.selection)
    return wanted if operation.frozen is None else Selection(at_ms=wanted.at_ms)


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
    if not operation.user:
        return None
    user = get_user_model()._default_manager.filter(pk=operation.user).first()
    if user is None or not user.is_active:
        return DelayqError(code="actor_inactive", actor=operation.actor)
    asked = ("view_queue",) if operation.verb == PURGE else ("view_job", "start_operation")  # the permissions that starting it needs
    needed = (operation.permission, *(f"delayq.{name}" for name in asked))
    missing = [name for name in needed if name and not user.has_perm(name)]
    return DelayqError(code="permission_gone", actor=operation.actor, permission=missing[0]) if missing else None


def _going_on(*where: Q, **more: Any) -> QuerySet[Operation]:
    """The operations that wait or run."""
    return Operation.objects.filter(*where, stage__in=(Stage.WAITING, Stage.RUNNING), **more)
