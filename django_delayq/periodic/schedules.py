"""Actions of people on schedules. Each action is an event with actor and reason.

Actions change rows in the caller's transaction, and workers obey within five seconds. Waiting jobs are cancelled at the commit, or
by a worker later if Redis is unavailable then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import Error as DriverError
from django.db import IntegrityError, transaction

from django_delayq import durations
from django_delayq.exceptions import ConfigError, DelayqError
from django_delayq.logger import Logger
from django_delayq.models import Periodic, Tick, database
from django_delayq.periodic import schedule_rows
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import TICK_OPTIONS, check_arguments, check_jobs, check_name, check_policies, tick_meta
from django_delayq.periodic.schedule_rows import begin, dates_of, locked, note, withdraw
from django_delayq.producer import job as jobs
from django_delayq.producer.lookup import check_words
from django_delayq.producer.outbox import rows
from django_delayq.producer.schedule import put_in
from django_delayq.producer.task import registry
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.text import did_you_mean

logger = Logger("django_delayq.periodic")

MICROSECOND: Final = timedelta(microseconds=1)


def get(name: str) -> Periodic:
    """The schedule of that name.

    Raises:
        ConfigError: no schedule has that name.
    """
    found = Periodic.objects.filter(name=name).first()
    if found is None:
        raise _unknown(name)
    return found


def turn_off(name: str, actor: str, reason: str = "") -> Periodic:
    """Stops the schedule and cancels its waiting ticks. Due and running jobs go on. Like most actions, it returns the row.

    Raises (all actions):
        ConfigError: the schedule does not exist or is retired, or the action is not possible.
        DatabaseError: nothing was changed.
    """
    with _living(name, "turn_off()", actor, reason) as row:
        if row.enabled:
            row.enabled = False
            _save(row, "periodic_off", actor, reason)
    return row


def turn_on(name: str, actor: str, reason: str = "") -> Periodic:
    """Starts the schedule again from now on. Ticks of the time when it was off do not count as missed."""
    with _living(name, "turn_on()", actor, reason) as row:
        if not row.enabled:
            row.enabled = True
            _save(row, "periodic_on", actor, reason, withdraws=False)
    return row


def override(
    name: str, *, cron: str = "", every: durations.Delay | None = None, timezone: str = "", actor: str, reason: str = ""
) -> Periodic:
    """Replaces the dates of the schedule until the override is dropped: by a cron in a time zone, by default the schedule's own, or by
    a period. The jitter stays. Waiting ticks are cancelled, and written anew with the new dates.

    Raises:
        ConfigError: also if the dates are not valid or never come.
    """
    with _living(name, "override()", actor, reason) as row:
        zone = timezone or (row.timezone if row.cron else "") or "UTC"
        given = _dates(cron, every, "UTC" if every is not None else zone, None, f"override({name!r})")
        row.override_cron, row.override_every_ms, row.override_timezone = given.cron, given.every_ms, given.timezone
        _save(row, "periodic_dates", actor, reason, dates=dates_of(row).text)
    return row


def drop_override(name: str, actor: str, reason: str = "") -> Periodic:
    """Restores the dates of the owner from now on. Does nothing without an override."""
    with _living(name, "drop_override()", actor, reason) as row:
        if row.overridden:
            row.override_cron, row.override_every_ms, row.override_timezone = "", 0, ""
            _save(row, "periodic_dates", actor, reason, dates=dates_of(row).text, dropped=True)
    return row


def run_now(name: str, actor: str, reason: str = "") -> jobs.Job:
    """Schedules one more job, due now, whether the schedule is on or off. Its dates do not change. The overlap policy applies to this
    run too.

    Raises:
        UnknownTask: the task is not registered in this process.
        As `schedule`.
    """
    with _living(name, "run_now()", actor, reason) as row:
        task, now = registry.get(row.task), schedule_rows.now()
        last = Tick.objects.filter(schedule=row, by_hand=True).order_by("-at").values_list("at", flat=True).first()
        at = now if last is None or last < now else last + MICROSECOND  # different for two calls at the same time on a coarse clock
        job = put_in(
            task,
            TICK_OPTIONS._replace(using=database.alias()),
            tuple(row.args),
            dict(row.kwargs),
            tick=tick_meta(row, at, by_hand=True),
        )
        Tick.objects.create(
            schedule_id=row.pk,  # not schedule=row: a router of the project could refuse it
            at=at,
            run_at=at,
            fate=Tick.Fate.SCHEDULED,
            job_id=job.id,
            by_hand=True,
            actor=rows.clean(actor, 200),
            written_at=now,
        )
        note(row, "periodic_run", now, actor=actor, reason=reason, job=str(job.id))
    return job


def create(
    name: str,
    task: str,
    *,
    cron: str = "",
    every: durations.Delay | None = None,
    timezone: str = "UTC",
    jitter: durations.Delay | None = None,
    missed: str = "once",
    overlap: str = "allow",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    actor: str,
    reason: str = "",
) -> Periodic:
    """Creates a schedule that the admin owns. This process must have registered the task.

    Raises:
        UnknownTask: the task is not registered.
        PayloadError, PayloadTooLarge: the arguments do not fit the task.
        QueueUnknown: the settings do not list its queue.
        ConfigError: the name is taken, or another option is not valid.
    """
    where = f"schedule {name!r}"
    check_words("create()", actor, reason)
    check_name(where, name)
    row = Periodic(name=name, owner=Periodic.Owner.ADMIN)
    _fill(row, where, task, _dates(cron, every, timezone, jitter, where), missed, overlap, args, kwargs)
    with database.atomic():
        row.decided_to = row.write_at = row.created_at = now = schedule_rows.now()
        try:
            with database.atomic():
                row.save(using=database.alias(), force_insert=True)
        except IntegrityError:
            raise ConfigError(f"{where}: a schedule with this name already exists.", hint="Choose another name.") from None
        note(row, "periodic_created", now, actor=actor, reason=reason, task=task, dates=dates_of(row).text)
    return row


def change(
    name: str,
    *,
    task: str | None = None,
    cron: str = "",
    every: durations.Delay | None = None,
    timezone: str = "UTC",
    jitter: durations.Delay | None = None,
    missed: str = "once",
    overlap: str = "allow",
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    actor: str,
    reason: str = "",
) -> Periodic:
    """Changes a schedule that the admin owns from now on. None keeps the task or the arguments. Waiting ticks are cancelled, and
    written anew.

    Raises:
        As `create`; ConfigError also if code declares the schedule.
    """
    where = f"schedule {name!r}"
    with _living(name, "change()", actor, reason) as row:
        if row.owner != Periodic.Owner.ADMIN:
            raise ConfigError(f"The schedule {name!r} is declared in code.", hint="Change it there, or override its dates here.")
        dates = _dates(cron, every, timezone, jitter, where)
        given = row.args if args is None else args, row.kwargs if kwargs is None else kwargs
        _fill(row, where, row.task if task is None else task, dates, missed, overlap, *given)
        _save(row, "periodic_changed", actor, reason, task=row.task, dates=dates.text)
    return row


def delete(name: str, actor: str, reason: str = "") -> None:
    """Deletes a schedule that the admin owns, and its ticks. Waiting ticks are cancelled first and at once, even if the transaction is
    rolled back later. Jobs stay in queues that the settings no longer list. Jobs keep their rows.

    Raises:
        ConfigError: also if code declares the schedule, or if it was turned on meanwhile.
        StoreUnavailable: the waiting jobs could not be cancelled. The schedule is off now. Delete it when Redis is available.
    """
    _check_ours(get(name))
    schedule = turn_off(name, actor, reason).pk
    while True:
        while not schedule_rows.cancel_withdrawn(schedule, give_up=True):
            pass
        with locked(pk=schedule) as row:
            if row is None:
                raise _unknown(name)
            _check_ours(row)
            if row.enabled:
                raise ConfigError(
                    f"The schedule {name!r} was turned on while it was being deleted.", hint="To remove it, delete it again."
                )
            if not row.withdrawing:
                note(row, "periodic_deleted", schedule_rows.now(), actor=actor, reason=reason, task=row.task)
                Tick.objects.filter(schedule=row).delete()
                Periodic.objects.filter(pk=row.pk).delete()
                return


@contextmanager
def _living(name: str, caller: str, actor: str, reason: str) -> Iterator[Periodic]:
    """The row, locked. A retired schedule cannot be changed until code declares it again."""
    check_words(caller, actor, reason)
    with locked(name=name) as row:
        if row is None:
            raise _unknown(name)
        if row.retired_at is not None:
            raise ConfigError(
                f"The schedule {name!r} is retired: no code declares it.", hint="It continues once code declares it again."
            )
        yield row


def _check_ours(row: Periodic) -> None:
    if row.owner != Periodic.Owner.ADMIN:
        raise ConfigError(f"The schedule {row.name!r} is declared in code.", hint="Remove it there, or turn it off here.")


def _unknown(name: str) -> ConfigError:
    known = list(Periodic.objects.values_list("name", flat=True)[:1000])
    return ConfigError(
        f"There is no schedule {name!r}{did_you_mean(name, known)}.",
        hint="A schedule that is declared in code exists once a worker with the role relay has read it.",
    )


def _dates(cron: str, every: durations.Delay | None, timezone: str, jitter: durations.Delay | None, where: str) -> Dates:
    dates = Dates.of(cron, every=every, timezone=timezone, jitter=jitter, where=where)
    if not dates.fires:
        raise ConfigError(
            f"{where}: the cron expression {cron!r} never matches a date.", hint="Check whether any of these months has this day."
        )
    return dates


def _fill(row: Periodic, where: str, task: str, dates: Dates, missed: str, overlap: str, args: Any, kwargs: Any) -> None:
    """Writes checked values into the row of a schedule that the admin owns."""
    check_policies(where, missed, overlap)
    arguments, row.kwargs = check_arguments(where, args, kwargs)
    row.task, row.missed, row.overlap, row.args = task, missed, overlap, list(arguments)
    row.cron, row.every_ms, row.timezone, row.jitter_ms = astuple(dates)
    check_jobs(row)


def _save(row: Periodic, kind: str, actor: str, reason: str, *, withdraws: bool = True, **detail: Any) -> None:
    """Lets the schedule begin anew from now on, and writes an event of this kind. `withdraws`: its waiting ticks are cancelled."""
    now = schedule_rows.now()
    if withdraws:
        withdraw(row, now, actor=actor)
    begin(row, now, now)
    row.save(using=database.alias())
    if row.withdrawing:
        transaction.on_commit(partial(_cancel_withdrawn, row.pk), using=database.alias(), robust=True)
    note(row, kind, now, actor=actor, reason=reason, **detail)


def _cancel_withdrawn(schedule: int) -> None:
    try:
        schedule_rows.cancel_withdrawn(schedule)
    except (DelayqError, StoreError, DriverError) as error:
        logger.warning("a worker will cancel the waiting jobs of a schedule: %s", error)
