"""Tokens, and stored answers to requests with an `Idempotency-Key`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, ids
from django_delayq.models import DelayqModel, ExactJSONField
from django_delayq.producer.task import registry

ALL: Final = "*"
PER_MINUTE: Final = 600  # the default limit of requests
# The verbs of tokens.
VERBS: Final = (
    *("schedule", "get", "cancel", "reschedule", "run_now", "requeue", "queues", "tasks"),
    *("push", "pull", "ack", "retry", "snooze", "fail", "extend", "deliver", "offer"),
)


def secret_of(name: str, origin: str) -> str:
    """The entry for a secret in `Token.secrets`."""
    return f"{name}={origin}"


class Token(DelayqModel):
    """A token. The row contains only its SHA-256. The token has 256 random bits, so a slow hash is not necessary. A rotation copies
    `name` and `client`; a new token with the name of an old one is another client. `queues`, `verbs`, `tasks` and `targets` (of
    offers) are lists of names, or "*" for all. `secrets`: the secrets that its deliveries can use, each with its origin, as in
    `name=https://host`. `shown`: the first characters of the token, so that people can recognise it.
    """

    name: models.CharField[str, str] = models.CharField(_("name"), max_length=100)
    client: models.UUIDField[UUID, UUID] = models.UUIDField(default=ids.new, editable=False)
    digest: models.CharField[str, str] = models.CharField(max_length=64, unique=True, editable=False)
    shown: models.CharField[str, str] = models.CharField(_("begins with"), max_length=12, editable=False)
    queues: ExactJSONField = ExactJSONField(_("queues"), default=list)
    verbs: ExactJSONField = ExactJSONField(_("verbs"), default=list)
    tasks: ExactJSONField = ExactJSONField(_("tasks"), default=list)
    secrets: ExactJSONField = ExactJSONField(_("secrets"), null=True, blank=True)
    targets: ExactJSONField = ExactJSONField(_("targets"), null=True, blank=True)
    per_minute: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(_("requests per minute"), default=PER_MINUTE)
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(_("created at"), default=clock.now)
    created_by: models.CharField[str, str] = models.CharField(_("created by"), max_length=200, blank=True, default="")
    expires_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("expires at"), null=True, blank=True)
    revoked_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("revoked at"), null=True, blank=True)
    last_used_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(_("last used"), null=True, blank=True)

    live: bool  # if the query uses `tokens.is_live`

    class Meta:
        db_table = "delayq_gateway_token"
        verbose_name = _("gateway token")
        verbose_name_plural = _("gateway tokens")
        ordering = ("name", "-id")
        default_permissions = ("view",)
        permissions = (("revoke_token", "Can revoke gateway tokens"),)
        indexes = (models.Index(fields=["name", "id"], name="delayq_gateway_token_name"),)

    def __str__(self) -> str:
        return f"{self.name} {self.shown}…"

    @property
    def actor(self) -> str:
        """The actor in events."""
        return f"token:{self.name}"

    def allows(self, field: str, name: str) -> bool:
        """Whether a list such as `queues` contains the name, or another name of a task. A value that is not a list allows nothing."""
        listed: Any = getattr(self, field)
        names = registry.spellings(name) if field == "tasks" else (name,)
        return isinstance(listed, list) and (ALL in listed or any(one in listed for one in names))

    def may_schedule(self, task: str, queue: str) -> bool:
        """Whether it may schedule a task with this default queue. "*" means only tasks whose default queue is a queue of the token.
        Otherwise, a token for orders could schedule payments in its own queue.
        """
        named = any(name in self.tasks for name in registry.spellings(task)) if self.allows("tasks", task) else None
        return named is not None and (named or self.allows("queues", queue))

    @property
    def scope(self) -> str:
        """The scope of the keys of its requests. It stays the same after a rotation."""
        return f"gateway:{self.name}:{self.client}"

    @property
    def only(self) -> list[str] | None:
        """The tasks whose jobs it can see; None for all jobs of its queues."""
        if self.allows("tasks", ALL):
            return None
        listed: Any = self.tasks
        names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        return list(dict.fromkeys(one for name in names for one in registry.spellings(name)))

    def may_send(self, secret: str, origin: str) -> bool:
        """Whether a delivery to this origin may contain the secret. There is no "*": a client could send any secret to its own host."""
        listed: Any = self.secrets
        return isinstance(listed, list) and secret_of(secret, origin) in listed


class KeptAnswer(DelayqModel):
    """The answer to a request with an `Idempotency-Key`. `digest`: hash of the client and the key; `request`: hash of method, URL and
    body. `job`: the id for a job that the request schedules. It exists before the job, so that a 503 can contain it; `PeriodKey`
    ensures that there is only one job. `status` is NULL until the request is answered; until `held_until`, a process works on it.
    Both dates are by the clock of the database.
    """

    digest: models.CharField[str, str] = models.CharField(max_length=64, unique=True)
    request: models.CharField[str, str] = models.CharField(max_length=64)
    job: models.UUIDField[UUID, UUID] = models.UUIDField(default=ids.new)
    status: models.PositiveSmallIntegerField[int | None, int | None] = models.PositiveSmallIntegerField(null=True)
    body: ExactJSONField = ExactJSONField(null=True)
    headers: ExactJSONField = ExactJSONField(default=dict)
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    held_until: models.DateTimeField[datetime, datetime] = models.DateTimeField()

    class Meta:
        db_table = "delayq_gateway_answer"
        default_permissions = ()
        indexes = (models.Index(fields=["created_at"], name="delayq_gateway_answer_age"),)

    def __str__(self) -> str:
        return f"{self.digest[:12]} {self.status}"
