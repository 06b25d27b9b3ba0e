"""Operations that people have started on all jobs that match."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, ids
from django_delayq.models.database import DelayqModel
from django_delayq.models.fields import ExactJSONField


class Operation(DelayqModel):
    """One verb for all jobs that match, in steps: `console.operation_loop` carries it out. `selection`: the arguments of `Selection`.
    Jobs that were scheduled after the start (`upto`) are not included. `last`: the last job that was processed. `chunk`: the jobs
    that are being processed. `passed_over`: jobs left for later because their server was unavailable, NULL for none, see
    `console.operation_parts`. `problem`: why the operation does not continue, as the code and fields of an error; NULL for no
    problem.
    """

    class Stage(models.TextChoices):
        """The progress of the operation."""

        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        PAUSED = "paused", _("paused")
        CANCELLED = "cancelled", _("cancelled")
        FINISHED = "finished", _("finished")

    id: models.UUIDField[UUID, UUID] = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    verb: models.CharField[str, str] = models.CharField(_("verb"), max_length=20)
    selection = ExactJSONField(_("selection"), default=dict)
    options = ExactJSONField(_("options"), default=dict)
    stage: models.CharField[str, str] = models.CharField(_("stage"), max_length=10, choices=Stage.choices, default=Stage.WAITING.value)
    actor: models.CharField[str, str] = models.CharField(_("actor"), max_length=200)
    user: models.CharField[str, str] = models.CharField(max_length=200, blank=True, default="")
    permission: models.CharField[str, str] = models.CharField(max_length=100, blank=True, default="")
    reason: models.TextField[str, str] = models.TextField(_("reason"), blank=True, default="")
    seconds: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("over how many seconds"), default=0)
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("created at"), default=clock.now)
    started_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("finished at"), null=True, blank=True)
    expected: models.PositiveBigIntegerField[int | None, int | None] = models.PositiveBigIntegerField(
        _("expected"), null=True, blank=True
    )
    seen: models.PositiveBigIntegerField[int, int] = models.PositiveBigIntegerField(_("seen"), default=0)
    counts = ExactJSONField(_("counts"), default=dict)
    problem = ExactJSONField(null=True)
    upto: models.UUIDField[UUID, UUID] = models.UUIDField(default=ids.new)
    last: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True, blank=True)
    chunk = ExactJSONField(default=list)
    passed_over = ExactJSONField(null=True)
    paced_from: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True, blank=True)
    paced_seen: models.PositiveBigIntegerField[int, int] = models.PositiveBigIntegerField(default=0)
    holder: models.CharField[str, str] = models.CharField(max_length=64, blank=True, default="")
    held_until: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "delayq_operation"
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = (
            ("start_operation", "Can start operations on all jobs that match"),
            ("steer_operation", "Can pause, resume and cancel operations"),
        )
        indexes = (models.Index(fields=["stage", "id"], name="delayq_operation_stage"),)

    def __str__(self) -> str:
        return f"{self.verb} {ids.short(self.id)}"

    @property
    def over(self) -> bool:
        """Whether the operation is finished or cancelled."""
        return self.stage in (self.Stage.FINISHED, self.Stage.CANCELLED)
