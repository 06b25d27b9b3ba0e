"""The record: what Redis did, as rows. The producer (outbox) and the mirror write these rows. The admin never writes them; it acts
through Redis.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, ids
from django_delayq.job_meta import NAMED, ONLY, SharedName, in_meta
from django_delayq.models.database import DelayqModel as DelayqModel
from django_delayq.models.database import ExactJSONField as ExactJSONField
from django_delayq.models.database import JSONText as JSONText
from django_delayq.models.database import PartialIndex
from django_delayq.models.internal import Batch, Checkpoint, Operation, Pause, SetAside
from django_delayq.models.internal import CommitRequest as CommitRequest
from django_delayq.models.internal import PeriodKey as PeriodKey
from django_delayq.models.internal import Site as Site
from django_delayq.models.internal import UncheckedKey as UncheckedKey
from django_delayq.models.periodic import Periodic, SeenDeclaration, Tick
from django_delayq.models.state_queries import DERIVED as DERIVED
from django_delayq.models.state_queries import FAR as FAR
from django_delayq.models.state_queries import PARKED_ROWS as PARKED_ROWS
from django_delayq.models.state_queries import RETRYING as RETRYING
from django_delayq.models.state_queries import UNENDED as UNENDED
from django_delayq.models.state_queries import UNPUBLISHED as UNPUBLISHED
from django_delayq.models.state_queries import UNRESOLVED as UNRESOLVED
from django_delayq.models.state_queries import of_state as of_state
from django_delayq.states import CARRIED, CUSTOMER, PARKED, UNFINISHED, AttemptOutcome, EndingKind, State
from django_delayq.text import visible


def meta_of(options: Any) -> dict[str, Any]:
    """The metadata that the scheduler attached to a job with these options, and the customer that a carrier packed."""
    meta = (options or {}).get("meta") or {}
    carried = meta.get(CARRIED)
    found = {CUSTOMER: carried[CUSTOMER]} if isinstance(carried, dict) and CUSTOMER in carried else {}
    return found | {name: value for name, value in meta.items() if name not in (CARRIED, NAMED, ONLY)}


# The value of `settled` in rows that a person has marked as succeeded.
SUCCEEDED_HERE: Final = "person"
STATES: Final = [
    (State.SCHEDULED.value, _("scheduled")),
    (State.RUNNING.value, _("running")),
    (State.SUCCEEDED.value, _("succeeded")),
    (State.FAILED.value, _("failed")),
    (State.CANCELLED.value, _("cancelled")),
]
OUTCOMES: Final = [
    (AttemptOutcome.RUNNING.value, _("running")),
    (AttemptOutcome.SUCCEEDED.value, _("succeeded")),
    (AttemptOutcome.RETRIED.value, _("retried")),
    (AttemptOutcome.SNOOZED.value, _("snoozed")),
    (AttemptOutcome.ASKED.value, _("polled")),
    (AttemptOutcome.EVICTED.value, _("evicted")),
    (AttemptOutcome.FAILED.value, _("failed")),
    (AttemptOutcome.CRASHED.value, _("crashed")),
    (AttemptOutcome.CANCELLED.value, _("cancelled")),
]


class Job(DelayqModel):
    """A job.

    `published` is the date when Redis confirmed the job. While it is NULL, the relay still has to publish the job. `last_event` is the
    last stream entry that was folded into this row, so that folding it again has no effect. `settled` is the fence of the atomic run
    that has committed (see `Step`), or SUCCEEDED_HERE. No later event undoes such a success. `far` is true if the job is due after
    `HORIZON`, so that it is only in the database. `far_key` is unique among the far rows with the same key. It has no meaning once the
    row has been published.

    `ending` shows how a cancelled job ended: merged or replaced (`merged_into` is the other job), or expired. It is NULL if a user
    cancelled the job, and "unknown" for an unresolved job (see UNRESOLVED). `delay_ms` is the requested delay of a job that hasn't been
    published. `asked` is how many times the task has raised NotYet, or NULL.

    `follow_up` contains the job that is scheduled when this one succeeds (see `outbox.shapes.packed`), and later the id of that job.
    `awaited` is true if rows with on_conflict="after" wait for this job. `batch` is the id of its batch. It is no foreign key: MySQL
    would lock the row of the batch for each new job.
    """

    id: models.UUIDField[UUID, UUID] = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    queue: models.CharField[str, str] = models.CharField(_("queue"), max_length=100)
    task: models.CharField[str, str] = models.CharField(_("task"), max_length=200)
    args = ExactJSONField(_("arguments"), default=list)
    kwargs = ExactJSONField(_("keyword arguments"), default=dict)
    options = ExactJSONField(_("options"), default=dict)
    key: models.CharField[str, str] = models.CharField(_("key"), max_length=200, blank=True, default="")
    state: models.CharField[str, str] = models.CharField(_("state"), max_length=10, choices=STATES)
    priority: models.IntegerField[int, int] = models.IntegerField(_("priority"), default=0)
    run_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("run at"))
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("created at"))
    started_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("finished at"), null=True, blank=True)
    expires_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("expires at"), null=True, blank=True)
    attempts: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("attempts"), default=0)
    max_attempts: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("max attempts"), default=1)
    crashes: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("crashes"), default=0)
    worker: models.CharField[str, str] = models.CharField(_("worker"), max_length=200, blank=True, default="")
    error: models.TextField[str, str] = models.TextField(_("error"), blank=True, default="")
    fingerprint: models.CharField[str, str] = models.CharField(_("fingerprint"), max_length=64, blank=True, default="")
    result = ExactJSONField(_("result"), null=True, blank=True)
    durable: models.BooleanField[bool, bool] = models.BooleanField(_("durable"), default=True)
    on_conflict: models.CharField[str, str] = models.CharField(max_length=40, default="keep")
    settled: models.CharField[str, str] = models.CharField(max_length=64, blank=True, default="")
    cancel_requested: models.BooleanField[bool, bool] = models.BooleanField(_("cancel requested"), default=False)
    published: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("published"), null=True, blank=True)
    last_event: models.CharField[str, str] = models.CharField(max_length=40, blank=True, default="")
    ending: models.CharField[str | None, str | None] = models.CharField(max_length=10, null=True)  # noqa: DJ001  # most rows have none
    merged_into: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)
    delay_ms: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    asked: models.PositiveIntegerField[int | None, int | None] = models.PositiveIntegerField(_("polled"), null=True)
    far: models.BooleanField[bool, bool] = models.BooleanField(_("far"), default=False, db_default=False)
    far_key: models.CharField[str | None, str | None] = models.CharField(max_length=32, null=True)  # noqa: DJ001  # unique, and most have none
    follow_up = ExactJSONField(null=True)
    batch: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)
    awaited: models.BooleanField[bool, bool] = models.BooleanField(default=False, db_default=False)
    # A copy of the partition in the id, for queries.
    partition: models.SmallIntegerField[int, int] = models.SmallIntegerField(default=0, db_default=0)

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = (
            ("cancel_job", "Can cancel jobs"),
            ("requeue_job", "Can requeue jobs"),
            ("run_now_job", "Can run jobs now"),
            ("reschedule_job", "Can reschedule jobs"),
            ("resolve_job", "Can mark unresolved jobs as succeeded or failed"),
            ("forget_key", "Can free the keys of jobs before their period ends"),
            ("edit_job", "Can requeue jobs with different arguments"),
            ("export_job", "Can export lists of jobs"),
            ("view_sensitive", "Can see masked arguments"),
        )
        indexes = (
            # Each list of the admin is read in the order of one of these indexes, and each count needs only one of them.
            models.Index(fields=["state", "run_at", "id"], name="delayq_job_state_run_at"),
            models.Index(fields=["queue", "state", "run_at", "id"], name="delayq_job_queue_state"),
            models.Index(fields=["task", "state", "run_at", "id"], name="delayq_job_task_state"),
            PartialIndex(fields=["fingerprint", "state", "run_at"], name="delayq_job_fingerprint", rows=~models.Q(fingerprint="")),
            PartialIndex(
                fields=["state", "attempts", "run_at", "id"],
                name="delayq_job_retrying",
                rows=models.Q(attempts__gt=0) | ~models.Q(state=State.SCHEDULED.value),
            ),
            models.Index(fields=["queue", "id"], name="delayq_job_queue"),
            models.Index(fields=["task", "id"], name="delayq_job_task"),
            # varchar_pattern_ops: PostgreSQL uses no other index to find keys by their beginning.
            PartialIndex(
                fields=["queue", "key", "id"],
                name="delayq_job_key",
                rows=~models.Q(key=""),
                opclasses=["varchar_ops", "varchar_pattern_ops", "uuid_ops"],
            ),
            PartialIndex(
                fields=["state", "published", "id"],
                name="delayq_job_unpublished",
                rows=models.Q(far=False),
                sqlite=True,
                mysql=["state", "far", "published", "id"],
            ),
            models.Index(fields=["state", "finished_at"], name="delayq_job_finished"),
            PartialIndex(
                fields=["queue", "run_at"],
                name="delayq_job_far",
                rows=models.Q(far=True),
                sqlite=True,
                mysql=["far", "queue", "run_at"],
            ),
            PartialIndex(fields=["batch", "state", "run_at"], name="delayq_job_batch", rows=models.Q(batch__isnull=False), sqlite=True),
            PartialIndex(fields=["far_key"], name="delayq_job_far_key", rows=models.Q(far_key__isnull=False), sqlite=True, unique=True),
        )

    def __str__(self) -> str:
        return f"{visible(self.task)} {self.short_id}"

    @property
    def short_id(self) -> str:
        """The id in its 22-character form, as shown in lists, logs and pages."""
        return ids.short(self.id)

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata that the scheduler attached to the job."""
        return meta_of(self.options)

    @property
    def shared_name(self) -> SharedName | None:
        """The name that limits how many of its jobs run at a time; None without one."""
        return in_meta((self.options or {}).get("meta"))

    @property
    def at_most(self) -> float | None:
        """For how many seconds after the first call later calls can move it, see `schedule`; None without a limit."""
        found: float | None = (self.options or {}).get("at_most")
        return found

    @property
    def late(self) -> float:
        """Seconds since run_at of a scheduled job; 0 for all others."""
        if self.state != State.SCHEDULED:
            return 0.0
        return max(0.0, (clock.now() - self.run_at).total_seconds())

    @property
    def unresolved(self) -> bool:
        """Whether no event says how the job ended, or whether it ran before Redis lost it."""
        return self.ending == EndingKind.UNKNOWN and self.state in UNFINISHED

    @property
    def derived(self) -> str:
        """The derived state unresolved, far, unpublished, parked, due or retrying if one applies; else the state."""
        if self.unresolved:
            return "unresolved"
        if self.state == State.SCHEDULED:
            if self.far and self.published is None:
                return "far"
            if self.published is None and self.durable:
                return "unpublished"
            if self.fingerprint in PARKED:
                return "parked"
            if self.late:
                return "due"
            if self.attempts:
                return "retrying"
        return self.state


class Queue(Job):
    """A queue, for the index and the permissions of the admin. Its contents are read from Redis. There is no table of queues.

    It is a proxy model, because `dumpdata` and similar commands would look for the table of an unmanaged model.
    """

    class Meta:
        proxy = True
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = (
            ("pause_queue", "Can pause and resume queues, tasks and names"),
            ("set_rate", "Can set and reset rates"),
            ("purge_queue", "Can purge queues"),
        )


class Worker(Job):
    """A worker. Like a `Queue`, it is read from Redis and has no table."""

    class Meta:
        proxy = True
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        permissions = (("quiet_worker", "Can quiet workers"), ("stop_worker", "Can stop and dismiss workers"))


class Target(Job):
    """A host of deliveries, or a target of offers. Like a `Queue`, it has no table."""

    class Meta:
        proxy = True
        verbose_name = _("target")
        verbose_name_plural = _("targets")
        default_permissions = ("view",)


class Attempt(DelayqModel):
    """A run of a job, identified by its fence. After a crash, the next run has the same number. `problem` contains the `code` and
    `fields` of the error that ended the run, for use by programs. It also contains `wait_ms` if the task requested a delay. Otherwise,
    it is NULL.
    """

    job: models.ForeignKey[Job, Job] = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempt_set", db_constraint=False)
    number: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("number"))
    fence: models.CharField[str, str] = models.CharField(max_length=64)
    worker: models.CharField[str, str] = models.CharField(_("worker"), max_length=200, blank=True, default="")
    started_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("started at"))
    finished_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("finished at"), null=True, blank=True)
    outcome: models.CharField[str, str] = models.CharField(
        _("outcome"), max_length=10, default=AttemptOutcome.RUNNING.value, choices=OUTCOMES
    )
    error_class: models.CharField[str, str] = models.CharField(_("error class"), max_length=200, blank=True, default="")
    message: models.TextField[str, str] = models.TextField(_("message"), blank=True, default="")
    traceback: models.TextField[str, str] = models.TextField(_("traceback"), blank=True, default="")
    problem = ExactJSONField(null=True)

    class Meta(DelayqModel.Meta):
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=["job", "fence"], name="delayq_attempt_job_fence"),)

    def __str__(self) -> str:
        return f"{ids.short(self.job_id)} #{self.number} {self.outcome}"


class Step(DelayqModel):
    """A completed `delayq.once()` block, recorded in the transaction of its effects. If the name is "", it is a whole atomic run."""

    job_id: models.UUIDField[UUID, UUID] = models.UUIDField()  # no foreign key: the row of a job may come later, or not at all
    name: models.CharField[str, str] = models.CharField(_("name"), max_length=100, blank=True, default="")
    fence: models.CharField[str, str] = models.CharField(max_length=64)
    at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("at"), db_index=True)
    result = ExactJSONField(_("result"), null=True, blank=True)

    class Meta(DelayqModel.Meta):
        constraints = (models.UniqueConstraint(fields=["job_id", "name"], name="delayq_step_once"),)

    def __str__(self) -> str:
        return f"{ids.short(self.job_id)} {self.name}"


class Event(DelayqModel):
    """An event of a job or of a queue, with its actor and reason. Runs are stored as `Attempt` rows. Rows are never changed."""

    job: models.ForeignKey[Job | None, Job | None] = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="event_set", db_constraint=False, null=True, blank=True
    )
    queue: models.CharField[str, str] = models.CharField(_("queue"), max_length=100)
    at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("at"))
    kind: models.CharField[str, str] = models.CharField(_("kind"), max_length=20)
    actor: models.CharField[str, str] = models.CharField(_("actor"), max_length=200, blank=True, default="")
    reason: models.TextField[str, str] = models.TextField(_("reason"), blank=True, default="")
    detail = ExactJSONField(_("detail"), null=True, blank=True)
    stream_id: models.CharField[str, str] = models.CharField(max_length=60)
    item: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(default=0)

    class Meta(DelayqModel.Meta):
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=["queue", "stream_id", "item"], name="delayq_event_once"),)

    def __str__(self) -> str:
        return f"{self.at.isoformat(' ', 'seconds')} {self.kind}"


__all__ = (
    "Attempt",
    "Batch",
    "Checkpoint",
    "Event",
    "Job",
    "Operation",
    "Pause",
    "Periodic",
    "Queue",
    "SeenDeclaration",
    "SetAside",
    "Step",
    "Target",
    "Tick",
    "Worker",
)
