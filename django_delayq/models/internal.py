"""Tables beside those of jobs: the progress of the mirror, the events that it could not fold, data about queues that Redis may forget,
and the operations that people have started on all jobs that match.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, ids
from django_delayq.models.database import DelayqModel, ExactJSONField
from django_delayq.text import visible


class SetAside(DelayqModel):
    """An item of the event stream that the mirror couldn't write to the database. `raw` contains the item, truncated if the database
    can't store all of it, and `length` is its full length. The row is written in the transaction of the checkpoint, so the mirror never
    skips an item without a row here. `code` is the reason, see `mirror.database_errors` and `mirror.fold`. `tries` is how many
    times the item was rejected.
    """

    queue: models.CharField[str, str] = models.CharField(_("queue"), max_length=100)
    partition: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(default=0)
    stream_id: models.CharField[str, str] = models.CharField(_("stream entry"), max_length=60)
    item: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("item"))
    kind: models.CharField[str, str] = models.CharField(_("kind"), max_length=40)
    job_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)
    at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("at"))
    actor: models.CharField[str, str] = models.CharField(_("actor"), max_length=200, blank=True, default="")
    why: models.TextField[str, str] = models.TextField(_("reason"), blank=True, default="")
    raw: models.BinaryField[bytes, bytes] = models.BinaryField()
    length: models.PositiveBigIntegerField[int, int] = models.PositiveBigIntegerField(_("bytes"))
    code: models.CharField[str, str] = models.CharField(_("code"), max_length=40)
    text: models.TextField[str, str] = models.TextField(_("reason for rejection"), blank=True, default="")
    noticed_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("rejected at"))
    tries: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("tries"), default=1)

    class Meta:
        db_table = "delayq_set_aside"
        verbose_name = _("rejected event")
        verbose_name_plural = _("rejected events")
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = (("retry_setaside", "Can retry rejected events"),)
        constraints = (models.UniqueConstraint(fields=["queue", "partition", "stream_id", "item"], name="delayq_set_aside_once"),)
        indexes = (models.Index(fields=["queue", "noticed_at"], name="delayq_set_aside_noticed"),)

    def __str__(self) -> str:
        return f"{self.queue} {self.stream_id}/{self.item} {visible(self.kind)}"


class Pause(DelayqModel):
    """The pause of a queue, a task or a concurrency name, or the rate that a person has set for a name. It survives if Redis loses its
    data. `word` is `queue:`, `task:`, `name:` or `rate:` and the name. `paused_at` is NULL if it is no longer paused; of a rate, it is
    since when it is set. `until` is the end of the pause. `pace_ms` is the time between two of the jobs that return after it. `rate`
    has the form of `Quota.told`. `missing` lists the partitions of which Redis has not confirmed the latest change yet. `digest` is of
    the word, because databases compare text differently.
    """

    word: models.CharField[str, str] = models.CharField(max_length=210)
    digest: models.CharField[str, str] = models.CharField(max_length=64, unique=True)
    paused_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True)
    paused_by: models.CharField[str, str] = models.CharField(max_length=200, blank=True, default="")
    paused_why: models.TextField[str, str] = models.TextField(blank=True, default="")
    until: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True)
    pace_ms: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(default=0)
    rate: models.CharField[str, str] = models.CharField(max_length=40, blank=True, default="")
    missing: models.TextField[str, str] = models.TextField(blank=True, default="")

    class Meta(DelayqModel.Meta):
        db_table = "delayq_pause"


class Batch(DelayqModel):
    """Jobs with one follow-up, see `producer.batch`. The rows of its members have its id. `waits_for`: "succeeded" or "ended".
    `follow_up` is as in the row of a job: the job to schedule, and later its id. `open_key` is a digest of the key, until the batch is
    over. `over_at`: when the follow-up was written, or when it was decided that there is none. The counts are those of that moment.
    """

    id: models.UUIDField[UUID, UUID] = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    key: models.CharField[str, str] = models.CharField(_("key"), max_length=200, blank=True, default="")
    open_key: models.CharField[str | None, str | None] = models.CharField(max_length=64, null=True, unique=True)  # noqa: DJ001  # unique, and most have none
    waits_for: models.CharField[str, str] = models.CharField(max_length=10)
    follow_up = ExactJSONField(null=True)
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("created at"))
    over_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("finished at"), null=True, blank=True)
    cancelled_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True, blank=True)
    cancelled_by: models.CharField[str, str] = models.CharField(max_length=200, blank=True, default="")
    cancelled_why: models.TextField[str, str] = models.TextField(blank=True, default="")
    aborts: models.BooleanField[bool, bool] = models.BooleanField(default=False)
    succeeded: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("succeeded"), default=0)
    failed: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("failed"), default=0)
    cancelled: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("cancelled"), default=0)

    class Meta:
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = (("cancel_batch", "Can cancel batches"),)
        indexes = (models.Index(fields=["over_at", "id"], name="delayq_batch_over"),)

    def __str__(self) -> str:
        return visible(self.key) or self.short_id

    @property
    def short_id(self) -> str:
        """The id in its 22-character form, as shown on pages."""
        return ids.short(self.id)


class UncheckedKey(DelayqModel):
    """A far job whose key hasn't been checked in Redis yet. The row is written together with the job's row, and deleted after Redis has
    responded.
    """

    job_id: models.UUIDField[UUID, UUID] = models.UUIDField(primary_key=True)
    queue: models.CharField[str, str] = models.CharField(max_length=100)

    class Meta(DelayqModel.Meta):
        db_table = "delayq_unchecked_key"
        indexes = (models.Index(fields=["queue", "job_id"], name="delayq_unchecked_key_queue"),)


class PeriodKey(DelayqModel):
    """A key that schedules one job in a period. `digest`: of the scope, the queue and the key. It is written in the transaction of the
    job's row; for a job without a row it is committed before Redis is asked. `until`: the end of the period by the database's clock;
    NULL: no end of the job was mirrored. `period_ms`: the period begins when the job ends; NULL: it began at `at`, when the job
    got the key.
    """

    digest: models.CharField[str, str] = models.CharField(max_length=64, primary_key=True)
    job: models.UUIDField[UUID, UUID] = models.UUIDField()
    until: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True)
    period_ms: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    at: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    queue: models.CharField[str, str] = models.CharField(max_length=100)
    task: models.CharField[str, str] = models.CharField(max_length=200)

    class Meta(DelayqModel.Meta):
        db_table = "delayq_period_key"
        indexes = (
            models.Index(fields=["until"], name="delayq_period_key_until"),
            models.Index(fields=["job"], name="delayq_period_key_job"),
        )


class CommitRequest(DelayqModel):
    """A change that a transaction makes when it commits, see `producer.commit_requests`. The row is written in that transaction, and
    deleted when the change is made. It is not a column of the job's row. A lock on that row until the commit would make the mirror
    wait, and a job of redis durability may have no row.
    """

    job_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)
    queue: models.CharField[str, str] = models.CharField(max_length=100, blank=True, default="")
    key: models.CharField[str, str] = models.CharField(max_length=200, blank=True, default="")
    verb: models.CharField[str, str] = models.CharField(max_length=20)
    abort: models.BooleanField[bool, bool] = models.BooleanField(default=False)
    delay_ms: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    due_ms: models.BigIntegerField[int, int] = models.BigIntegerField(default=0)
    actor: models.CharField[str, str] = models.CharField(max_length=200, blank=True, default="")
    reason: models.TextField[str, str] = models.TextField(blank=True, default="")
    at: models.DateTimeField[datetime, datetime] = models.DateTimeField()

    class Meta(DelayqModel.Meta):
        db_table = "delayq_commit_request"


class Site(DelayqModel):
    """The id of this database, in one row that the migration creates; see `store/scripts/site.py`. `former`: the id before, while an
    adoption is under way; "" otherwise.
    """

    number: models.PositiveSmallIntegerField[int, int] = models.PositiveSmallIntegerField(primary_key=True, default=1)
    site: models.CharField[str, str] = models.CharField(max_length=32)
    former: models.CharField[str, str] = models.CharField(max_length=32, default="")


class Checkpoint(DelayqModel):
    """The progress of the mirror in the events of one partition, saved in the transaction of the rows.

    `restored`: the generation of Redis' data that is known to hold every unfinished job. `servers`: the runs of servers that were
    confirmed, the last one first. `way_back`: the generation that a restore is bringing back, until jobs that are lost for good have
    been looked for. `address`: the address of Redis when it was confirmed last, see `site.address`. `mirror_tokens`: the tokens of
    the last two turns, see `store/scripts/site.py`. `format`: the format of the queue, see `store/scripts/formats.py`; a queue that
    Redis has lost starts with this number again.
    """

    queue: models.CharField[str, str] = models.CharField(max_length=100)
    partition: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(default=0)
    generation: models.CharField[str, str] = models.CharField(max_length=64, blank=True, default="")
    restored: models.CharField[str, str] = models.CharField(max_length=64, blank=True, default="")
    last_event: models.CharField[str, str] = models.CharField(max_length=40, default="0-0")
    turns: models.PositiveBigIntegerField[int, int] = models.PositiveBigIntegerField(default=0)
    updated_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True)
    servers: models.TextField[str | None, str | None] = models.TextField(null=True)  # noqa: DJ001  # NULL: none was confirmed
    way_back: models.CharField[str | None, str | None] = models.CharField(max_length=64, null=True)  # noqa: DJ001  # NULL: no restore is under way
    address: models.TextField[str | None, str | None] = models.TextField(null=True)  # noqa: DJ001  # NULL: never confirmed
    format: models.PositiveSmallIntegerField[int, int] = models.PositiveSmallIntegerField(default=1, db_default=1)
    mirror_tokens: models.CharField[str | None, str | None] = models.CharField(max_length=80, null=True)  # noqa: DJ001  # NULL: no turn yet

    class Meta(DelayqModel.Meta):
        constraints = (models.UniqueConstraint(fields=["queue", "partition"], name="delayq_checkpoint_partition"),)


class Operation(DelayqModel):
    """An action on all matching jobs, which `console.operation_loop` performs step by step. `selection` contains the arguments of
    `Selection`. `frozen` contains the ids of the only jobs to change, in order, and `expected` their number; if it is NULL,
    `selection` decides. Jobs scheduled after the start (`upto`) are not included. `last` is the last job that was processed, and
    `chunk` contains the jobs that are being processed, each with its end before a requeue. `passed_over` contains jobs that were
    postponed because their server was unavailable, or NULL. `problem` contains the code and the fields of the error that stopped the
    operation, or NULL.
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
    frozen = ExactJSONField(null=True)
    last: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True, blank=True)
    chunk = ExactJSONField(default=dict)
    passed_over = ExactJSONField(null=True)
    paced_from: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True, blank=True)
    paced_seen: models.PositiveBigIntegerField[int, int] = models.PositiveBigIntegerField(default=0)
    holder: models.CharField[str, str] = models.CharField(max_length=64, blank=True, default="")
    held_until: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = (
            ("start_operation", "Can start operations on all jobs that match a search"),
            ("steer_operation", "Can pause, resume and cancel operations"),
        )
        indexes = (models.Index(fields=["stage", "id"], name="delayq_operation_stage"),)

    def __str__(self) -> str:
        return f"{self.verb} {ids.short(self.id)}"

    @property
    def over(self) -> bool:
        """Whether the operation is finished or cancelled."""
        return self.stage in (self.Stage.FINISHED, self.Stage.CANCELLED)
