"""Reads items of the event stream as values for rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.codec import MAX_DEPTH
from django_delayq.producer.outbox import rows
from django_delayq.producer.outbox.rows import JobRow
from django_delayq.states import EventKind
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import Entry, Item

# Kinds for events outside of a run, with an actor. They become Event rows. Runs become Attempt rows. A merge becomes neither: the row
# of the proposal records it, if it has one, and on a hot key each call would add an Event row.
TOLD: Final = frozenset(
    {
        EventKind.RESCHEDULED,
        EventKind.CANCELLED,
        EventKind.CANCEL_REQUESTED,
        EventKind.REQUEUED,
        EventKind.EXPIRED,
        EventKind.ASIDE,
        EventKind.RESTORED,
        EventKind.DROPPED,
        EventKind.PAUSED,
        EventKind.RESUMED,
        EventKind.PURGED,
    }
)
OF_QUEUES: Final = frozenset({EventKind.PAUSED, EventKind.RESUMED, EventKind.PURGED})
ENDED_BADLY: Final = frozenset({EventKind.FAILED, EventKind.ASIDE})
ENDS: Final = frozenset(
    {
        EventKind.CRASHED,
        EventKind.SUCCEEDED,
        EventKind.RETRIED,
        EventKind.SNOOZED,
        EventKind.FAILED,
    }
)
ENDED_OTHERWISE: Final = ENDED_BADLY | {EventKind.CANCELLED, EventKind.EXPIRED}
OF_RUNS: Final = ENDS | {EventKind.CLAIMED, EventKind.CANCELLED}  # their fourth field is the fence
LAST_ENDS: Final = frozenset({EventKind.SUCCEEDED, EventKind.FAILED})
CARRYING: Final = frozenset({EventKind.SCHEDULED, EventKind.REQUEUED, EventKind.RESTORED})  # the record, without durability
KINDS: Final[Mapping[str, EventKind]] = {kind.value: kind for kind in EventKind}
UNKNOWN_KIND: Final = "unknown kind"
EXPIRED: Final = "Expired"  # the class that claim.lua gives to the end of a job that has run before
NO_SUCH_JOB: Final = "no job"
MOST_COUNTED: Final = 2**31 - 1  # what a column of counts holds
MOST_FIELDS: Final = 20  # of an error
LONGEST_FIELD: Final = 2_100  # characters; an answer of a host has 2 KB
NOBODY: Final = UUID(int=0)
# The codes of claim.lua for items that it has set aside, as far as they decide anything: a date without a record, or a second date.
# Events of earlier releases have these texts instead of a code.
NO_JOB: Final = "no_job"
SECOND_DATE: Final = "second_date"
WORDS_OF_OLD: Final = {b"a date without a job": NO_JOB, b"a second date of a running job": SECOND_DATE}
OTHER_QUEUE: Final = "other queue"  # an entry of one queue contains an event of a job of another
ENDED: Final = "ended"  # the row has ended, and with SIGNING no event takes it out of that state, unless a requeue was asked for here
OUT_OF_ENDS: Final = frozenset({EventKind.REQUEUED, EventKind.RESTORED})  # these kinds only mean that a job continues
_full: Final = lru_cache(maxsize=20_000)(ids.full)  # a batch asks for each id half a dozen times


class RefusedItem(NamedTuple):
    """An item that is not folded, and why: a code for programs, a text for people."""

    entry: Entry
    item: Item
    code: str
    text: str = ""


def job_ids(entries: list[Entry]) -> set[UUID]:
    """The ids of all jobs in these entries."""
    found = (item_job(item) for entry in entries for item in entry.items)
    return {id for id in found if id is not None}


def is_strange(entry: Entry) -> bool:
    """Whether an item is of a kind that this release does not know."""
    return any(item.kind not in KINDS for item in entry.items)


def told_behind(entries: list[Entry], jobs: Mapping[UUID, JobRow]) -> set[tuple[UUID, str]]:
    """Pairs of a job and an entry that reports on it, if the row of the job has already folded this entry id or a later one. The row
    may have folded the entry before, or not; see `fold.py`.
    """
    found = set()
    for entry in entries:
        at = position(entry.id)
        for item in entry.items:
            job = jobs.get(item_job(item) or NOBODY) if item.kind in TOLD else None
            if job is not None and position(job.last_event) >= at:
                found.add((job.id, entry.id))
    return found


def ids_of(entries: list[Entry], kinds: Collection[EventKind]) -> list[UUID]:
    """The ids of all jobs for which these entries contain one of these kinds."""
    found = (item_job(item) for entry in entries for item in entry.items if item.kind in kinds)
    return [id for id in found if id is not None]


def item_job(item: Item) -> UUID | None:
    """The job of an item; None if the item names none."""
    if not item.fields:
        return None
    try:
        return _full(item.fields[0])
    except ValueError:
        return None


def is_debounced(kind: EventKind, item: Item) -> bool:
    """Whether another proposal, and not a person, has moved the job. On a hot key this would add a row per call."""
    return kind is EventKind.RESCHEDULED and len(item.fields) > 2


def aside_code(item: Item) -> str:
    """The code for why a script has set this aside; "" if the item has none."""
    return item.fields[1] if len(item.fields) > 1 else WORDS_OF_OLD.get(item.body, "")


def count(text: str) -> int:
    """A number of attempts or crashes, as scripts write it."""
    number = int(text)
    if not 0 <= number <= MOST_COUNTED:
        raise ValueError(f"{text[:20]} is not a number of attempts or crashes")
    return number


def detail_of(body: bytes) -> dict[str, Any]:
    try:
        detail = json.loads(body) if body else {}  # less strict than the codec: an incomplete character must not hide the rest
    except (ValueError, RecursionError):
        return {"m": body[:500].decode("utf-8", "replace")}
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deeper(detail, MAX_DEPTH + 1):
        return {"m": body[:500].decode("utf-8", "replace")}  # we did not write it, and could not write it again
    return detail if isinstance(detail, dict) else {"m": str(detail)}


def problem_of(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    """The value for `Attempt.problem` from the detail of an end; None if the detail has nothing for it, or something that we do not
    write.
    """
    code, fields, wait_ms = detail.get("k"), detail.get("v"), detail.get("w")
    found: dict[str, Any] = {}
    if isinstance(code, str) and isinstance(fields, dict):
        named = islice(fields.items(), MOST_FIELDS)
        found = {"code": rows.clean(code, 60), "fields": {rows.clean(name, 60): _plain(value) for name, value in named}}
    if type(wait_ms) is int and 0 <= wait_ms <= clock.LAST_MS:
        found["wait_ms"] = wait_ms
    return found or None


def _plain(value: Any) -> str | int | None:
    return value if value is None or (isinstance(value, int) and abs(value) < 2**53) else rows.clean(str(value), LONGEST_FIELD)


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        level = [part for one in level if isinstance(one, (list, dict)) for part in (one.values() if isinstance(one, dict) else one)]
    return bool(level)


def moment(ms: Any, otherwise: datetime) -> datetime:
    try:
        return clock.from_ms(int(ms)) if isinstance(ms, (int, float)) and ms > 0 else otherwise
    except (ValueError, OverflowError):
        return otherwise


def told(kind: EventKind, item: Item) -> Any:
    if kind in (EventKind.RESCHEDULED, EventKind.REQUEUED):
        return {"run_at": clock.from_ms(int(item.fields[1])).isoformat()}
    if kind is EventKind.ASIDE:
        return {"reason": item.body.decode("utf-8", "replace")}
    if kind is EventKind.CANCEL_REQUESTED:
        return {"abort": True} if "abort" in item.fields[1:] else None
    detail = detail_of(item.body)
    return {"message": rows.clean(str(detail["m"]))} if detail.get("m") else None
