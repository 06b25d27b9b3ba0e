"""Writes arguments as scripts take them; their headers say which."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from django_delayq import ids

MOST_SAID: Final = 2048  # bytes of an actor or a reason: each stands in an event, and, of a pause, in every look at the queue


def head(now_ms: int | str | None, by: str, why: str) -> tuple[int | str, bytes, bytes]:
    """The three that every script begins with; `now_ms` None: Redis' own clock; "!": that, and word of the caller's format is left.
    Who and why are cut at 2 KB.
    """
    return "" if now_ms is None else now_ms, _said(by) if by else b"", _said(why) if why else b""


def _said(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MOST_SAID:
        return raw
    return raw[: MOST_SAID - 3].decode("utf-8", "ignore").encode() + "…".encode()  # no character is cut in two


def target(job: UUID | str) -> str:
    """A job by its id, or by its business key as text."""
    return ids.short(job) if isinstance(job, UUID) else "=" + job


def flag(said: bool) -> str:
    """Yes or no."""
    return "1" if said else "0"
