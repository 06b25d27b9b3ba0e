"""Who may ask the gateway, and what it has answered to requests that may be repeated."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, ids
from django_delayq.models import ExactJSONField

ALL: Final = "*"
PER_MINUTE: Final = 600  # requests that a token may send, unless it is made for another number
# What a token may be made for.
VERBS: Final = (
    *("schedule", "get", "cancel", "reschedule", "run_now", "requeue", "queues", "tasks"),
    *("push", "pull", "ack", "retry", "snooze", "fail", "extend", "deliver", "offer"),
)


def secret_of(name: str, origin: str) -> str:
    """How the list of a token has a secret."""
    return f"{name}={origin}"


class Token(models.Model):
    """One token. Of the token itself only the SHA-256 is kept: it has 256 random bits, so nobody finds it by trying, and a slow hash
    would only slow every request. A rotation copies `name` and `client`. A new token with the name of one that has ended
    is another client. `queues`, `verbs`, `tasks` and
    `targets` (of offers) are lists of names; "*" is every one. `secrets`: which its deliveries may name, each with the origin to which
    it may be sent, `name=https://host`. `shown`: its first characters, by which people tell it from others.
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

    objects: ClassVar[models.Manager[Token]]
    live: bool  # of rows that were read with `tokens.is_live`

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
        """Who acts, for the events."""
        return f"token:{self.name}"

    def allows(self, field: str, name: str) -> bool:
        """Whether a list of its names, such as `queues`, has that one. What is no list of ours allows nothing."""
        listed: Any = getattr(self, field)
        return isinstance(listed, list) and (ALL in listed or name in listed)

    def may_schedule(self, task: str, queue: str) -> bool:
        """Whether it may schedule that task, whose own queue this is. "*" is every task of the queues that it leads to: else one for
        orders could have payments made, by naming its own queue for them.
        """
        return self.allows("tasks", task) and (task in self.tasks or self.allows("queues", queue))

    @property
    def scope(self) -> str:
        """The scope of the keys of its requests. It stays the same after a rotation."""
        return f"gateway:{self.name}:{self.client}"

    @property
    def only(self) -> list[str] | None:
        """The tasks of whose jobs it may know; None: of all jobs of its queues."""
        if self.allows_all("tasks"):
            return None
        listed: Any = self.tasks
        return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []

    def may_send(self, secret: str, origin: str) -> bool:
        """Whether a delivery to that origin may bear that secret. There is no "*": who names a secret for a host of his own, has it."""
        listed: Any = self.secrets
        return isinstance(listed, list) and secret_of(secret, origin) in listed

    def allows_all(self, field: str) -> bool:
        """Whether it allows every name."""
        return self.allows(field, ALL)


class KeptAnswer(models.Model):
    """The answer to a request with an `Idempotency-Key`. `digest`: of the client and the key; `request`: of method, address and body.
    `job`: the id of a job that this request schedules. It is drawn before, so that an answer of 503 can name it; that there is one job
    at most is the word of `PeriodKey`. `status` NULL: not answered yet; until `held_until` a process works on it. Both dates are those
    of the database's clock.
    """

    digest: models.CharField[str, str] = models.CharField(max_length=64, unique=True)
    request: models.CharField[str, str] = models.CharField(max_length=64)
    job: models.UUIDField[UUID, UUID] = models.UUIDField(default=ids.new)
    status: models.PositiveSmallIntegerField[int | None, int | None] = models.PositiveSmallIntegerField(null=True)
    body: ExactJSONField = ExactJSONField(null=True)
    headers: ExactJSONField = ExactJSONField(default=dict)
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    held_until: models.DateTimeField[datetime, datetime] = models.DateTimeField()

    objects: ClassVar[models.Manager[KeptAnswer]]

    class Meta:
        db_table = "delayq_gateway_answer"
        default_permissions = ()
        indexes = (models.Index(fields=["created_at"], name="delayq_gateway_answer_age"),)

    def __str__(self) -> str:
        return f"{self.digest[:12]} {self.status}"
