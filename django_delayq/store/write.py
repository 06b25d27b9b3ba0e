"""Writes arguments as scripts take them; their headers say which."""

from __future__ import annotations

from uuid import UUID

from django_delayq import ids


def head(now_ms: int | None, by: str, why: str) -> tuple[int | str, bytes, bytes]:
    """The three that every script begins with; `now_ms` None: Redis' own clock."""
    return "" if now_ms is None else now_ms, by.encode("utf-8", "replace"), why.encode("utf-8", "replace")


def target(job: UUID | str) -> str:
    """A job by its id, or by its business key as text."""
    return ids.short(job) if isinstance(job, UUID) else "=" + job


def flag(said: bool) -> str:
    """Yes or no."""
    return "1" if said else "0"
