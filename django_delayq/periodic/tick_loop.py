"""The loop that keeps schedules: every worker with the role relay runs one. There is no leader, and nothing is held while one waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db import Error as DriverError
from django.db import IntegrityError, models

from django_delayq import clock, conf
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.mirror.database_errors import about_data
from django_delayq.mirror.exists import ExistsQuery
from django_delayq.mirror.rows import hindered
from django_delayq.models import Periodic
from django_delayq.periodic import schedule_rows, withdrawals
from django_delayq.periodic.declarations import Declarations, declarations
from django_delayq.periodic.sightings import BUDGET, Sightings
from django_delayq.periodic.tick_writer import TickWriter
from django_delayq.producer.task import registry
from django_delayq.store.error_replies import StoreError

logger = Logger("django_delayq.periodic")

UNUSED: Final = 60.0  # seconds between looks where there are no schedules
IDLE: Final = 5.0  # the same where there are: what people change is obeyed within this time
SOON: Final = 0.5  # the same where another loop has in hand what is due
LOOK: Final = timedelta(seconds=30)  # between looks at who declares what
BATCH: Final = 100  # schedules in one transaction
BARRED: Final = timedelta(seconds=30)  # for which a schedule is left alone that cannot be written here
UNWRITTEN: Final = timedelta(seconds=30)  # longer than that something was due: nobody can write it, so its row says why


class _Due(NamedTuple):
    """A schedule for which there is something to do."""

    pk: int
    name: str
    owner: str
    task: str
    fingerprint: str
    write_at: datetime | None
    withdrawing: bool
    problem: object


class TickLoop:
    """1. Now and then notes what this code declares, see `Sightings`. 2. Cancels the jobs of ticks that are to be no more. 3. Writes
    the next ticks of schedules, each with its job: of those whose declaration in force is this code's, and of those of the admin whose
    task this code has. Which queues the worker serves does not matter.

    A tick's job waits in Redis before its date, since it is written when the one before it is due: so the database need not be there
    at that moment, nor this loop. All by the database's clock. It dies at any point without harm, see `TickWriter`.

    Args:
        declared: what the code declares.
    """

    def __init__(self, *, using: str, declared: Declarations = declarations) -> None:
        self.using = using
        self._declared = declared
        self._any = ExistsQuery(self._rows().filter(models.Q(retired_at__isnull=True) | models.Q(withdrawing=True)))
        self._sightings = Sightings(using=using, declared=declared)
        self._writer = TickWriter(using=using, mine=self._is_mine)
        self._looked: datetime | None = None
        self._barred: dict[int, tuple[datetime, str]] = {}  # schedules that cannot be written here: until when, and why

    def poll(self) -> float:
        """One pass. Returns seconds to sleep: 0 when there is more to do.

        Raises:
            DatabaseError: call again later.
        """
        if conf.get().inline or not (self._declared.all() or self._any.found()):
            return UNUSED
        now, left = schedule_rows.now(self.using), False
        if self._looked is None or not self._looked <= now < self._looked + LOOK:
            left = self._sightings.look(now)
            now = schedule_rows.now(self.using)
            self._looked = None if left else now
        due = self._due(now)
        due = [one for one in due if not self._is_barred(one, now)]
        left |= self._withdraw([one for one in due if one.withdrawing], now)
        mine = [one for one in due if one.write_at is not None and one.write_at <= now and self._is_mine(one)]
        done = self._write(mine[:BATCH], now)
        self._tell_orphans(due, now)
        if len(mine) > BATCH or done or left:
            return 0.0
        return SOON if mine else self._until_next(now)

    def _rows(self) -> models.QuerySet[Periodic]:
        return Periodic.objects.using(self.using)

    def _due(self, now: datetime) -> list[_Due]:
        found = self._rows().filter(models.Q(write_at__lte=now) | models.Q(withdrawing=True)).order_by("write_at")
        return [_Due(*row) for row in found.values_list(*_Due._fields)]

    def _until_next(self, now: datetime) -> float:
        following = self._rows().filter(write_at__gt=now).order_by("write_at").values_list("write_at", flat=True).first()
        return IDLE if following is None else min(IDLE, (following - now).total_seconds())

    def _is_mine(self, row: Periodic | _Due) -> bool:
        """Whether this code may write ticks of it."""
        if row.owner == Periodic.Owner.ADMIN:
            return registry.find(row.task) is not None
        own = self._declared.get(row.name)
        return own is not None and own.fingerprint == row.fingerprint

    # what is to be no more

    def _withdraw(self, due: Sequence[_Due], now: datetime) -> bool:
        """Returns whether some are left for the next pass: mirror and relay wait for this one."""
        until, left = clock.monotonic() + BUDGET, False
        for one in due:
            try:
                left |= not withdrawals.carry_out(one.pk, self.using)
            except (StoreUnavailable, StoreError) as error:  # ticks are written all the same; this is tried with each look
                logger.debug("jobs of schedule %s are not yet cancelled: %s", one.name, error)
                return False
            except Exception as error:
                if not _of_one(error):
                    raise
                self._bar(one, error, now)
            if clock.monotonic() >= until:
                return True
        return left

    # what is to be

    def _write(self, mine: Sequence[_Due], now: datetime) -> int:
        """Writes what is due of these schedules. Returns of how many. One that cannot be written does not stop the others."""
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
                if not _of_one(error):
                    raise
                self._bar(one, error, now)
        return done

    def _is_barred(self, one: _Due, now: datetime) -> bool:
        until, _ = self._barred.get(one.pk, (now, ""))
        return now < until <= now + BARRED

    def _bar(self, one: _Due, error: Exception, now: datetime) -> None:
        """Leaves it alone for a while: told once in the log, and, as nobody else writes it either, in its row."""
        _, before = self._barred.get(one.pk, (now, ""))
        said = f"{type(error).__name__}: {error}"
        self._barred[one.pk] = now + BARRED, said
        if said != before:
            logger.error("schedule %s cannot run here: %s", one.name, error, exc_info=None if isinstance(error, DelayqError) else error)
        self._tell(one, error, now)

    def _tell_orphans(self, due: Sequence[_Due], now: datetime) -> None:
        """Those of the admin whose task nobody seems to have."""
        for one in due:
            if one.owner == Periodic.Owner.ADMIN and not self._is_mine(one):
                self._tell(one, DelayqError(code="task_unknown", name=one.task), now)

    def _tell(self, one: _Due, error: Exception, now: datetime) -> None:
        if one.problem is None and one.write_at is not None and one.write_at < now - UNWRITTEN:
            self._rows().filter(pk=one.pk, problem__isnull=True, write_at=one.write_at).update(problem=hindered(error)["problem"])


def _of_one(error: Exception) -> bool:
    """Whether it is trouble of one schedule: what a database says of rows, or an error of ours. All else of a database is about all."""
    return not isinstance(error, DriverError) or isinstance(error, IntegrityError) or bool(about_data(error))


class UnendingLoop:
    """The loop in a worker: mirror, relay and restore run in the same process, and are not to end for the sake of schedules."""

    def __init__(self, loop: TickLoop) -> None:
        self._loop = loop

    def poll(self) -> float:
        """One pass. What nobody expected is logged.

        Raises:
            StoreUnavailable, StoreError, DatabaseError: call again later.
        """
        try:
            return self._loop.poll()
        except (StoreUnavailable, StoreError, DriverError):
            raise
        except Exception:
            logger.exception("schedules do not run here for now")
            return BARRED.total_seconds()
