"""The loop of schedules: it notes which declarations the deployed code has, and writes due ticks with their jobs.

Each worker that writes ticks notes what its code declares. So only one of two versions that run side by side writes ticks, and a
schedule that no code declares any more is retired.

Each worker with the role relay runs one. There is no leader, and a waiting loop holds no locks. The loop decides by the clock of the
database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import Error as DriverError
from django.db import IntegrityError, models
from django.db.models import F

from django_delayq import clock, conf
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.mirror import checkpoint
from django_delayq.mirror.database_errors import about_data
from django_delayq.models import Periodic, SeenDeclaration, Tick, database
from django_delayq.models.database import ExistsQuery
from django_delayq.periodic import schedule_rows
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import TICK_OPTIONS, Declaration, Declarations, declarations, tick_meta
from django_delayq.periodic.schedule_rows import begin, dates_of, locked, note, withdraw
from django_delayq.producer import homes
from django_delayq.producer.outbox.declarations import KEPT, Seen, came_last
from django_delayq.producer.outbox.declarations import note as note_seen
from django_delayq.producer.outbox.rows import hindered
from django_delayq.producer.schedule import Binding, schedule_many
from django_delayq.producer.task import registry
from django_delayq.store.connection.error_replies import StoreError

logger = Logger("django_delayq.periodic")

UNUSED: Final = 60.0  # seconds between passes if there are no schedules
IDLE: Final = 5.0  # seconds between passes if there are some: a change by people takes effect within this time
SOON: Final = 0.5  # seconds between passes if another loop has the due schedules locked
LOOK: Final = timedelta(seconds=30)  # between two notes of what this code declares
BATCH: Final = 100  # schedules in one transaction
BLOCKED: Final = timedelta(seconds=30)  # between two attempts for a schedule that cannot be written here
UNWRITTEN: Final = timedelta(seconds=30)  # a tick that is due for longer can be written by no worker, so the row gets the reason
LATE: Final = timedelta(seconds=60)  # a tick is missed when its date passed longer ago than this
NEAR: Final = timedelta(seconds=10)  # ticks within this time have their jobs
FAR: Final = timedelta(seconds=15)  # a pass writes ticks up to here, so it handles a schedule every few seconds only
MOST_MISSED: Final = 100  # passed ticks of one schedule that get a job in one pass, and that get a row without a job
# How far the search for passed ticks goes back: until it has found that many, or reaches what is decided.
WINDOWS: Final = tuple(timedelta(hours=hours) for hours in (1, 24, 24 * 7, 24 * 31, 24 * 366, 24 * 366 * 30))
HELD_UP: Final = timedelta(seconds=1)  # between two checks whether the former job of a tick is cancelled
LONGEST_HELD: Final = timedelta(hours=1)  # a tick is given up so long after its date if its former job cannot be cancelled
Fate = Tick.Fate
RETIRED: Final = timedelta(hours=1)  # a schedule that no code has declared for so long is retired
BUDGET: Final = 1.0  # seconds of one pass, about, for changes of schedules; mirror, relay and writer wait meanwhile
LOOKED_AT: Final = ("name", "owner", "task", "fingerprint", "write_at", "withdrawing", "problem")  # columns of a due schedule
WORKERS: Final = ("", "")  # this row says since when workers note declarations


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTicks:
    """Ticks of one schedule. `jobs`: the ticks that get a job, in order. `missed`: the newest hundred passed ticks that get none.
    `since`: the first missed tick that was not counted, if there were more. `decided_to`: all ticks up to this date are decided then.
    `write_at`: when the next pass is due, None for never.
    """

    jobs: Sequence[datetime]
    missed: Sequence[datetime]
    since: datetime | None
    decided_to: datetime
    write_at: datetime | None


def due_ticks(dates: Dates, name: str, missed: str, decided_to: datetime, now: datetime) -> DueTicks:
    """Returns the ticks to write: those that passed since `decided_to`, by the policy `missed`; the next tick; and those near it.

    Raises:
        ConfigError: the cron or the time zone cannot be read on this host.
    """
    past, since = _past(dates, decided_to, now)
    late: list[datetime] = []
    over: list[datetime] = []
    for tick in past:
        (late if dates.jittered(name, tick) >= now - LATE else over).append(tick)
    if len(late) > MOST_MISSED:  # because of a jitter of hours: the others count as missed
        over, late = sorted([*over, *late[:-MOST_MISSED]]), late[-MOST_MISSED:]
    kept = min({"skip": 0, "once": 1, "all": MOST_MISSED}[missed], MOST_MISSED - len(late))
    chosen = over[len(over) - min(kept, len(over)) :]
    dropped = over[: len(over) - len(chosen)]
    if len(dropped) > MOST_MISSED:
        since, dropped = since or dropped[0], dropped[-MOST_MISSED:]
    ahead, following = _ahead(dates, max(decided_to, now), now)
    if ahead:
        end = ahead[-1]
        write_at = None if following is None else min(end, following - NEAR)
    else:
        end, write_at = max(decided_to, now), None
    jobs = sorted([*chosen, *late, *ahead])
    return DueTicks(jobs=jobs, missed=dropped, since=since, decided_to=end, write_at=write_at)


def _past(dates: Dates, decided_to: datetime, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The passed ticks after `decided_to`, the newest few thousand at most, and where uncounted ones begin."""
    found: list[datetime] = []
    for window in WINDOWS:
        begin = max(decided_to, now - window)
        found = []
        for tick in dates.after(begin):
            if tick > now:
                break
            found.append(tick)
        if begin == decided_to:
            return found, None
        if len(found) > 2 * MOST_MISSED:
            break
    return found, decided_to


def _ahead(dates: Dates, after: datetime, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The next tick and those near it, and the first tick after these."""
    found: list[datetime] = []
    for tick in dates.after(after):
        if found and tick > now + FAR:
            return found, tick
        found.append(tick)
    return found, None


@dataclass(slots=True)
class _Batch:
    """The writes of one transaction. `careful`: rows of its ticks may exist already."""

    now: datetime
    careful: bool
    bindings: list[Binding] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    retaken: list[Tick] = field(default_factory=list)
    rows: list[Periodic] = field(default_factory=list)
    missed: list[tuple[Periodic, DueTicks]] = field(default_factory=list)


class TickWriter:
    """1. Locks the rows of due schedules, and skips those that another loop has locked. 2. Decides which ticks get a job. 3. Inserts
    ticks, then jobs, and saves in each schedule's row up to where it is decided. 4. Commits. The commit hook publishes the jobs, or the
    relay does later.

    A tick with a row is decided and gets no second job, except a withdrawn tick whose job was cancelled. Such rows are rare, so the
    first attempt does not look for them. If the unique index finds one, the transaction is rolled back, and the loop repeats it
    schedule by schedule, with a look first. The index alone ensures one job per tick, whatever the locks of a database do.

    A crash leaves all of this or nothing.
    """

    def __init__(self, *, mine: Callable[[Periodic], bool]) -> None:
        self._mine = mine

    def write(self, schedules: Sequence[int], now: datetime) -> int:
        """Writes the due ticks of these schedules. Returns the number of schedules; other loops have the rest locked.

        Raises:
            IntegrityError: rows of ticks may exist already. Nothing is written. Call `write_one` for each.
            DelayqError: a job cannot be made. Nothing is written.
            DatabaseError: nothing is written. Call again.
        """
        return self._write(schedules, _Batch(now, careful=False))

    def write_one(self, schedule: int, now: datetime) -> int:
        """Writes the due ticks of this schedule, after a look at which exist. Returns 0 if another loop has it locked.

        Raises:
            IntegrityError: the database refuses its rows from every process.
            DelayqError, DatabaseError: as `write`.
        """
        batch = _Batch(now, careful=True)
        try:
            return self._write([schedule], batch)
        except IntegrityError:
            if self._known(schedule, [tick.at for tick in batch.ticks]):
                return 0  # another loop wrote them after the look; the next pass sees the rest
            raise

    def _write(self, schedules: Sequence[int], batch: _Batch) -> int:
        with database.atomic():
            checkpoint.end_if_frozen(database.connection())
            for row in self._locked(schedules):
                if row.active and row.write_at is not None and row.write_at <= batch.now and self._mine(row):
                    self._decide(row, batch)
            self._save(batch)
            failpoint("ticks.write")
        failpoint("ticks.written")
        for row, found in batch.missed:
            first, last = found.since or found.missed[0], found.missed[-1]
            count = f"more than {len(found.missed)}" if found.since else str(len(found.missed))
            text = "schedule %s: no jobs were created for %s ticks from %s to %s (missed=%r)"
            logger.warning(text, row.name, count, first, last, row.missed)
        return len(batch.rows)

    def _locked(self, schedules: Sequence[int]) -> list[Periodic]:
        found = Periodic.objects.filter(pk__in=schedules).order_by("pk")
        if database.connection().features.has_select_for_update_skip_locked:
            return list(found.select_for_update(skip_locked=True))
        found.order_by().update(withdrawing=F("withdrawing"))  # takes the locks on all databases
        return list(found)

    def _decide(self, row: Periodic, batch: _Batch) -> None:
        now, dates = batch.now, dates_of(row)
        found = due_ticks(dates, row.name, row.missed, row.decided_to, now)
        known = self._known(row.pk, [*found.jobs, *found.missed]) if batch.careful else {}
        task = registry.get(row.task)
        found = _before_withdrawn(found, row.decided_to, now, [at for at, tick in known.items() if tick.fate == Fate.WITHDRAWN])
        row.write_at = found.write_at
        for at, has_job in (*((at, True) for at in found.jobs), *((at, False) for at in found.missed)):
            there = known.get(at)
            if there is not None and there.fate != Fate.CANCELLED:
                continue
            tick = Tick(schedule_id=row.pk, at=at, run_at=dates.jittered(row.name, at), fate=Fate.MISSED, written_at=now)
            if has_job:
                options = TICK_OPTIONS._replace(run_at=tick.run_at, using=database.alias())
                job = homes.drawn(task, options, tuple(row.args), dict(row.kwargs))
                batch.bindings.append(Binding(task, options, tuple(row.args), dict(row.kwargs), job, tick_meta(row, at)))
                tick.fate, tick.job_id = Fate.SCHEDULED, job
            if there is None:
                batch.ticks.append(tick)
            else:
                tick.pk = there.pk
                batch.retaken.append(tick)
        if found.missed:
            batch.missed.append((row, found))
        row.decided_to, row.problem = found.decided_to, None
        batch.rows.append(row)

    def _known(self, schedule: int, instants: Sequence[datetime]) -> dict[datetime, Tick]:
        if not instants:
            return {}
        found = Tick.objects.filter(schedule_id=schedule, by_hand=False, at__gte=min(instants), at__lte=max(instants))
        return {tick.at: tick for tick in found}

    def _save(self, batch: _Batch) -> None:
        ticks, schedules = Tick.objects, Periodic.objects
        ticks.bulk_create(batch.ticks)
        for tick in batch.retaken:
            tick.save(using=database.alias(), update_fields=["job_id", "run_at", "fate", "written_at", "actor"])
        for binding, job in zip(batch.bindings, schedule_many(batch.bindings), strict=True):
            if job.id != binding.id:  # jobs with its concurrency name are in a former partition
                ticks.filter(job_id=binding.id).update(job_id=job.id)
        schedules.bulk_update(batch.rows, ["decided_to", "write_at", "problem"])
        for row, found in batch.missed:
            first, last = found.missed[0].isoformat(), found.missed[-1].isoformat()
            detail: dict[str, Any] = {"since": found.since.isoformat()} if found.since else {}
            note(row, "periodic_missed", batch.now, missed=len(found.missed), first=first, last=last, **detail)


def _before_withdrawn(found: DueTicks, decided_to: datetime, now: datetime, withdrawn: Sequence[datetime]) -> DueTicks:
    """The ticks that can be written now. A withdrawn tick, and all ticks after it, wait until its former job is cancelled."""
    held = min((at for at in withdrawn if at > now - LONGEST_HELD), default=None)
    if held is None:
        return found
    jobs, missed = ([at for at in some if at < held] for some in (found.jobs, found.missed))
    end = max([decided_to, *jobs, *missed])
    return replace(found, jobs=jobs, missed=missed, decided_to=end, write_at=now + HELD_UP)


class TickLoop:
    """1. Notes every 30 seconds what this code declares, see `Deployments`. 2. Cancels the jobs of withdrawn ticks. 3. Writes the next
    ticks of schedules with their jobs. It writes a schedule of code if this code has the declaration in force, and a schedule of the
    admin if this code has the task. The queues of the worker do not matter.

    A tick is written when the one before it is due, so its job waits in Redis before its date. At the date, neither the database nor
    this loop is needed. A crash does no harm, see `TickWriter`.

    Args:
        declared: what the code declares.
    """

    def __init__(self, *, declared: Declarations = declarations) -> None:
        self._declared = declared
        self._any = ExistsQuery(self._rows().filter(models.Q(retired_at__isnull=True) | models.Q(withdrawing=True)))
        self._deployments = Deployments(declared=declared)
        self._writer = TickWriter(mine=self._is_mine)
        self._looked: datetime | None = None
        self._blocked: dict[int, tuple[datetime, str]] = {}  # schedules that cannot be written here: until when, and why

    def poll(self) -> float:
        """One pass. Returns seconds to sleep: 0 when there is more to do.

        Raises:
            DatabaseError: call again later.
        """
        if conf.get().inline or not (self._declared.all() or self._any.found()):
            return UNUSED
        now, left = schedule_rows.now(), False
        if self._looked is None or not self._looked <= now < self._looked + LOOK:
            left = self._deployments.look(now)
            now = schedule_rows.now()
            self._looked = None if left else now
        found = self._rows().filter(models.Q(write_at__lte=now) | models.Q(withdrawing=True)).order_by("write_at")
        due = [one for one in found.only(*LOOKED_AT) if not now < self._blocked.get(one.pk, (now, ""))[0] <= now + BLOCKED]
        left |= self._withdraw([one for one in due if one.withdrawing], now)
        mine = [one for one in due if one.write_at is not None and one.write_at <= now and self._is_mine(one)]
        done = self._write(mine[:BATCH], now)
        for one in due:
            if one.owner == Periodic.Owner.ADMIN and not self._is_mine(one):  # no worker seems to have its task
                self._note_problem(one, DelayqError(code="task_unknown", name=one.task), now)
        if len(mine) > BATCH or done or left:
            return 0.0
        if mine:
            return SOON
        following = self._rows().filter(write_at__gt=now).order_by("write_at").values_list("write_at", flat=True).first()
        return IDLE if following is None else min(IDLE, (following - now).total_seconds())

    def _rows(self) -> models.QuerySet[Periodic]:
        """The schedules that it looks at; the test kit narrows them."""
        return Periodic.objects.all()

    def _is_mine(self, row: Periodic) -> bool:
        """Whether this code may write its ticks."""
        if row.owner == Periodic.Owner.ADMIN:
            return registry.find(row.task) is not None
        own = self._declared.get(row.name)
        return own is not None and own.fingerprint == row.fingerprint

    def _withdraw(self, due: Sequence[Periodic], now: datetime) -> bool:
        """Returns whether some are left for the next pass. Mirror and relay wait for this one."""
        until, left = clock.monotonic() + BUDGET, False
        for one in due:
            try:
                left |= not schedule_rows.cancel_withdrawn(one.pk)
            except (StoreUnavailable, StoreError) as error:  # ticks are written anyway; the next pass tries again
                logger.debug("jobs of schedule %s could not be cancelled yet: %s", one.name, error)
                return False
            except Exception as error:
                self._block(one, error, now)
            if clock.monotonic() >= until:
                return True
        return left

    def _write(self, mine: Sequence[Periodic], now: datetime) -> int:
        """Returns how many of these schedules it wrote. One that cannot be written does not stop the others."""
        if not mine:
            return 0
        try:
            return self._writer.write([one.pk for one in mine], now)
        except Exception as error:
            if not _of_one(error):
                raise
        done = 0
        for one in mine:
            try:
                done += self._writer.write_one(one.pk, now)
            except Exception as error:
                self._block(one, error, now)
        return done

    def _block(self, one: Periodic, error: Exception, now: datetime) -> None:
        """Pauses this schedule. Logs the reason once, and notes it in the row if no other worker writes it either. Raises an error that
        concerns all schedules.
        """
        if not _of_one(error):
            raise error
        _, before = self._blocked.get(one.pk, (now, ""))
        reason = f"{type(error).__name__}: {error}"
        self._blocked[one.pk] = now + BLOCKED, reason
        if reason != before:
            logger.error("schedule %s cannot run here: %s", one.name, error, exc_info=None if isinstance(error, DelayqError) else error)
        self._note_problem(one, error, now)

    def _note_problem(self, one: Periodic, error: Exception, now: datetime) -> None:
        if one.problem is None and one.write_at is not None and one.write_at < now - UNWRITTEN:
            self._rows().filter(pk=one.pk, problem__isnull=True, write_at=one.write_at).update(problem=hindered(error)["problem"])


def _of_one(error: Exception) -> bool:
    """Whether the error concerns one schedule. Database errors that are not about data concern all schedules."""
    return not isinstance(error, DriverError) or isinstance(error, IntegrityError) or bool(about_data(error))


class UnendingLoop:
    """The loop in a worker. An unexpected error of schedules must not end mirror, relay and restore, which run in the same process."""

    def __init__(self, loop: TickLoop) -> None:
        self._loop = loop

    def poll(self) -> float:
        """One pass. Unexpected errors are logged.

        Raises:
            StoreUnavailable, StoreError, DatabaseError: call again later.
        """
        try:
            return self._loop.poll()
        except (StoreUnavailable, StoreError, DriverError):
            raise
        except Exception:
            logger.exception("schedules do not run here at the moment")
            return BLOCKED.total_seconds()


class Deployments:
    """1. Notes what this code declares, unless another worker just has. 2. Puts declarations of this code in force if they came last.
    3. Retires schedules that no code has declared for an hour, if workers have taken notes for as long. If there are many changes, one
    pass does some of them and is called again, so its own notes never become too old.

    If several declarations of a name were seen within two minutes, the newest one is in force. So a deploy takes
    over at once, and a rollback too. If none was seen, the last one stays in force.
    """

    def __init__(self, *, declared: Declarations) -> None:
        self._declared = declared
        self._unkept: set[str] = set()  # names that the database treats as equal to others; logged

    def look(self, now: datetime) -> bool:
        """One pass. Returns whether something may be left for the next one.

        Raises:
            DatabaseError: call again later.
        """
        declared = self._declared.all()
        seen = note_seen([WORKERS, *((one.name, one.fingerprint) for one in declared)], now)
        rows = {row.name: row for row in Periodic.objects.only("name", "owner", "fingerprint", "retired_at")}
        waiting = [one for one in declared if not _is_in_force(rows.get(one.name), one)]
        changed = [one for one in waiting if came_last(one.name, one.fingerprint, seen.values(), now)]
        for one in self._created([one for one in changed if one.name not in rows], now):
            logger.info("schedule %s is new: %s", one.name, one.dates.text)
        acts = [partial(self._put_in_force, one) for one in changed if one.name in rows]
        acts += [partial(self._retire_one, name, now) for name in _orphans(rows.values(), seen, now)]
        until = clock.monotonic() + BUDGET
        for act in acts:
            act()
            if clock.monotonic() >= until:
                return True
        if any(seen_one.last_seen < now - KEPT for seen_one in seen.values()):
            SeenDeclaration.objects.filter(last_seen__lt=now - KEPT).delete()
        return False

    def _created(self, new: list[Declaration], now: datetime) -> list[Declaration]:
        """Creates rows for new schedules. They begin now, so no tick in the past counts as missed."""
        if not new:
            return []
        made = [
            Periodic(name=one.name, created_at=now, decided_to=now, write_at=now, owner=Periodic.Owner.CODE, **_columns_of(one))
            for one in new
        ]
        Periodic.objects.bulk_create(made, ignore_conflicts=True)
        there = set(Periodic.objects.filter(name__in=[one.name for one in new]).values_list("name", flat=True))
        for one in new:
            if one.name not in there and one.name not in self._unkept:
                self._unkept.add(one.name)
                logger.error(
                    "schedule %s has no row: the database treats its name as equal to that of another schedule. Rename it", one.name
                )
        return [one for one in new if one.name in there]

    def _put_in_force(self, one: Declaration) -> None:
        """Puts a declaration in force, unless another version has come meanwhile."""
        with locked(name=one.name) as row:
            now = schedule_rows.now()
            seen = SeenDeclaration.objects.filter(name=one.name)
            if row is None or _is_in_force(row, one) or not came_last(one.name, one.fingerprint, seen, now):
                return
            came_back, before = row.retired_at is not None, dates_of(row)
            for name, value in _columns_of(one).items():
                setattr(row, name, value)
            row.owner, row.retired_at = Periodic.Owner.CODE, None
            withdraw(row, now)
            # With the same dates, ticks that passed during the deploy still count as missed.
            begin(row, min(row.decided_to, now) if dates_of(row) == before and not came_back else now, now)
            row.save(using=database.alias())
            what = "declared again" if came_back else "declared otherwise"
            note(row, "periodic_declared", now, reason=what, dates=one.dates.text)
        logger.info("schedule %s is %s: %s", one.name, what, one.dates.text)

    def _retire_one(self, name: str, now: datetime) -> None:
        with locked(name=name) as row:
            lately = SeenDeclaration.objects.filter(name=name, last_seen__gte=now - RETIRED)
            if row is None or row.retired_at is not None or row.owner != Periodic.Owner.CODE or lately.exists():
                return
            row.retired_at = now
            withdraw(row, now)
            begin(row, now, now)
            row.save(using=database.alias())
            note(row, "periodic_retired", now, reason="no code has declared it for an hour")
        logger.warning("schedule %s is retired: no code has declared it for an hour. Its waiting jobs are cancelled", name)


def _orphans(rows: Iterable[Periodic], seen: Seen, now: datetime) -> list[str]:
    """The schedules of code that no code has declared for an hour."""
    if seen[WORKERS].first_seen > now - RETIRED:
        return []  # the workers that declare it may have been down
    last: dict[str, datetime] = {}
    for seen_one in seen.values():
        last[seen_one.name] = max(seen_one.last_seen, last.get(seen_one.name, seen_one.last_seen))
    lives = [row.name for row in rows if row.retired_at is None and row.owner == Periodic.Owner.CODE]
    return [name for name in lives if name not in last or last[name] < now - RETIRED]


def _is_in_force(row: Periodic | None, one: Declaration) -> bool:
    return row is not None and row.fingerprint == one.fingerprint and row.retired_at is None and row.owner == Periodic.Owner.CODE


def _columns_of(one: Declaration) -> dict[str, Any]:
    """A declaration as columns."""
    policies = {"missed": one.missed, "overlap": one.overlap, "fingerprint": one.fingerprint}
    return {"task": one.task, "args": list(one.args), "kwargs": dict(one.kwargs), **policies, **asdict(one.dates)}
