"""Schedules of periodic tasks, their ticks, and when workers saw which declaration in their code. Only `periodic/` writes them."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_delayq.models.database import DelayqModel, ExactJSONField
from django_delayq.text import visible

NAME: Final = 200  # characters of a schedule's name, and of its cron expression


class Periodic(DelayqModel):
    """A schedule.

    `owner` is either the code that declares the schedule, or users in the admin. The owner sets the dates, policies and arguments.
    `fingerprint` identifies the current declaration. The three `override_…` fields replace the cron expression, the period and the time
    zone if one of the first two is set.

    `decided_to` is the date up to which the fate of each tick is decided. `write_at` is the date when the schedule needs attention
    again, or NULL. If `withdrawing` is true, the jobs of withdrawn ticks must still be cancelled. `retired_at` is the date since when
    no code declares the schedule. `holder` is the run that holds the schedule if runs must not overlap, given by its job and the nonce
    of its claim. `holder_queue` is the queue of that job. `problem` contains the code and the fields of the error that prevents new
    jobs, or NULL.
    """

    class Owner(models.TextChoices):
        """The owner of a schedule."""

        CODE = "code", _("code")
        ADMIN = "admin", _("admin")

    name: models.CharField[str, str] = models.CharField(_("name"), max_length=NAME, unique=True)
    task: models.CharField[str, str] = models.CharField(_("task"), max_length=200)
    owner: models.CharField[str, str] = models.CharField(_("owner"), max_length=5, choices=Owner.choices)
    cron: models.CharField[str, str] = models.CharField(_("cron"), max_length=NAME, blank=True, default="")
    every_ms: models.BigIntegerField[int, int] = models.BigIntegerField(_("every (ms)"), default=0)
    timezone: models.CharField[str, str] = models.CharField(_("time zone"), max_length=100, blank=True, default="")
    jitter_ms: models.BigIntegerField[int, int] = models.BigIntegerField(_("jitter (ms)"), default=0)
    missed: models.CharField[str, str] = models.CharField(_("missed ticks"), max_length=10, default="once")
    overlap: models.CharField[str, str] = models.CharField(_("overlap"), max_length=10, default="allow")
    args = ExactJSONField(_("arguments"), default=list)
    kwargs = ExactJSONField(_("keyword arguments"), default=dict)
    fingerprint: models.CharField[str, str] = models.CharField(max_length=64, blank=True, default="")
    enabled: models.BooleanField[bool, bool] = models.BooleanField(_("on"), default=True)
    override_cron: models.CharField[str, str] = models.CharField(_("cron (override)"), max_length=NAME, blank=True, default="")
    override_every_ms: models.BigIntegerField[int, int] = models.BigIntegerField(_("every (ms, override)"), default=0)
    override_timezone: models.CharField[str, str] = models.CharField(_("time zone (override)"), max_length=100, blank=True, default="")
    decided_to: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    write_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True, db_index=True)
    withdrawing: models.BooleanField[bool, bool] = models.BooleanField(default=False)
    retired_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("retired at"), null=True, blank=True)
    holder: models.CharField[str, str] = models.CharField(max_length=100, blank=True, default="")
    holder_queue: models.CharField[str, str] = models.CharField(max_length=100, blank=True, default="")
    problem = ExactJSONField(null=True)
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("created at"))

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ("name",)
        default_permissions = ("view",)
        permissions = (
            ("switch_periodic", "Can turn schedules on and off"),
            ("override_periodic", "Can override the dates of schedules"),
            ("run_periodic", "Can run schedules now"),
            ("schedule_job", "Can schedule copies of jobs, and add, change and delete schedules"),
        )

    def __str__(self) -> str:
        return visible(self.name)

    @property
    def overridden(self) -> bool:
        """Whether people have replaced the dates that its owner set."""
        return bool(self.override_cron or self.override_every_ms)

    @property
    def active(self) -> bool:
        """Whether it creates jobs."""
        return self.enabled and self.retired_at is None


class Tick(DelayqModel):
    """A date of a schedule. `fate` is what happened to it, and `run_at` is the date including jitter. `job_id` is its job, whose row
    may have been deleted. If `by_hand` is true, `actor` requested an additional run.
    """

    class Fate(models.TextChoices):
        """The fate of a tick. WITHDRAWN: its job is about to be cancelled. CANCELLED: its job is cancelled; the calendar may use the
        tick again.
        """

        SCHEDULED = "scheduled", _("has its job")
        MISSED = "missed", _("missed")
        SKIPPED = "skipped", _("skipped because another run was in progress")
        WITHDRAWN = "withdrawn", _("being withdrawn")
        CANCELLED = "cancelled", _("withdrawn")

    schedule: models.ForeignKey[Periodic, Periodic] = models.ForeignKey(
        Periodic, on_delete=models.CASCADE, related_name="ticks", db_constraint=False
    )
    at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("tick"))
    run_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("run at"))
    fate: models.CharField[str, str] = models.CharField(_("fate"), max_length=10, choices=Fate.choices)
    job_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True, db_index=True)
    by_hand: models.BooleanField[bool, bool] = models.BooleanField(_("by hand"), default=False)
    actor: models.CharField[str, str] = models.CharField(_("actor"), max_length=200, blank=True, default="")
    written_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("written at"))

    class Meta(DelayqModel.Meta):
        ordering = ("-at",)
        constraints = (models.UniqueConstraint(fields=["schedule", "at", "by_hand"], name="delayq_tick_once"),)

    def __str__(self) -> str:
        return f"{self.at.isoformat(' ', 'seconds')} {self.fate}"


class SeenDeclaration(DelayqModel):
    """A declaration in the workers' code, with the dates when it was first and last seen without a gap. The row without a name and a
    fingerprint stores when workers first and last looked for declarations.
    """

    name: models.CharField[str, str] = models.CharField(max_length=NAME)
    fingerprint: models.CharField[str, str] = models.CharField(max_length=64)
    first_seen: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    last_seen: models.DateTimeField[datetime, datetime] = models.DateTimeField()

    class Meta(DelayqModel.Meta):
        db_table = "delayq_seen_declaration"
        constraints = (models.UniqueConstraint(fields=["name", "fingerprint"], name="delayq_seen_declaration_once"),)
