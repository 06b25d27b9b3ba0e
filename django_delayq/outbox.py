"""What the producer asks of the database, as a protocol: floor 2 knows no models. The mirror's package implements it, and the app
installs it when it is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from django_delayq.exceptions import ConfigError
from django_delayq.job import JobRecord
from django_delayq.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxItem:
    """A job for the outbox: its record, and what the row shows beside it."""

    record: JobRecord
    queue: str
    run_at_ms: int
    on_conflict: str
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """A row as the producer needs it. `seen`: the last event that it has folded."""

    record: JobRecord
    queue: str
    state: State
    run_at_ms: int
    published: bool
    seen: str


class Outbox(Protocol):
    """The database side, installed by the mirror's package when the app is ready."""

    def add(self, items: Sequence[OutboxItem], using: str) -> None:
        """Inserts rows in the caller's transaction."""

    def find_unpublished(self, queue: str, key: str, using: str) -> UUID | None:
        """The scheduled row of that key which Redis does not have yet."""

    def find_latest(self, queue: str, key: str, using: str) -> UUID | None:
        """The latest row of that key; not one that was merged into another job, since it never held the key."""

    def unpublished(self, queue: str, after: UUID | None, limit: int, using: str) -> list[UUID]:
        """Scheduled rows of a queue that Redis has not confirmed, behind the id `after`, by id."""

    def row(self, job: UUID, using: str) -> OutboxRow | None:
        """The row of a job."""

    def note_cancel(self, job: UUID, seen: str, using: str) -> bool:
        """Notes in the row that a cancel was answered with done, if the row has folded nothing since `seen`; False if it has, or if
        there is no need.
        """

    def forget_cancel(self, job: UUID, using: str) -> None:
        """Takes back what `note_cancel` has noted."""

    def cancel_unpublished(self, job: UUID, actor: str, reason: str, using: str) -> bool:
        """Ends a row that Redis does not have; False if it is not such a row."""

    def move_unpublished(self, job: UUID, run_at_ms: int, actor: str, reason: str, using: str) -> bool:
        """Changes the date of a row that Redis does not have; False if it is not such a row."""

    def edit(
        self,
        job: UUID,
        args: list[Any],
        kwargs: dict[str, Any],
        act: Callable[[], bool],
        actor: str,
        reason: str,
        using: str,
    ) -> bool:
        """Gives a failed or cancelled row other arguments, calls `act` while the row is locked, and takes it all back unless that
        answers True.
        """


_installed: Outbox | None = None


def install(outbox: Outbox | None) -> None:
    """Gives the producer its database side; None takes it away."""
    global _installed
    _installed = outbox


def installed() -> Outbox | None:
    """The database side, if there is one."""
    return _installed


def need() -> Outbox:
    """The database side.

    Raises:
        ConfigError: the app is not installed.
    """
    if _installed is None:
        raise ConfigError('The outbox is not installed. Add "django_delayq" to INSTALLED_APPS, and migrate.')
    return _installed
