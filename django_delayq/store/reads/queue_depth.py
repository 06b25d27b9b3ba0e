"""How full a queue is: what is asked for that, and how partitions add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django_delayq.priority_bands import BANDS
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import decode

MOST_BESIDE = 399  # items of an entry beside the first, as lua/include/untold.lua has it


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """How full a queue is. Times in ms since 1970 (0: none), `oldest_late_ms` and `events_late_ms` (the age of the
    oldest event that no mirror has folded) durations; `due` is part of `scheduled`, and `blocked`, what waits for its
    name, of `due`; `untold`: of how many jobs `events` entries tell; `asked_ms`: when somebody has last asked for jobs here, or has
    held on to some.
    """

    queue: str
    scheduled: int
    due: int
    running: int
    retrying: int
    failed: int
    oldest_late_ms: int
    next_due_ms: int
    paused_ms: int
    paused_by: str
    paused_reason: str
    events: int
    untold: int
    blocked: int
    events_late_ms: int
    generation: str
    restoring: str
    asked_ms: int

    @property
    def paused(self) -> bool:
        """Whether somebody has paused the queue."""
        return self.paused_ms > 0


def depth_commands(keys: Keys, now_ms: int) -> list[tuple[Any, ...]]:
    """What is asked for the depth of a partition at that moment of its server."""
    return [
        *(("ZCARD", keys[band]) for band in BANDS),
        *(("ZCOUNT", keys[band], "-inf", now_ms) for band in BANDS),
        *(("ZRANGE", keys[band], 0, 0, "WITHSCORES") for band in (*BANDS, "blocked")),
        ("ZCARD", keys["blocked"]),
        ("ZCARD", keys["leases"]),
        ("HLEN", keys["runs"]),
        ("HLEN", keys["asks"]),
        ("ZCARD", keys["failed"]),
        ("XLEN", keys["events"]),
        ("XRANGE", keys["events"], "-", "+", "COUNT", 1),
        ("HMGET", keys["meta"], "paused", "paused_by", "paused_why", "generation", "restoring", "surplus", "alive", "site"),
    ]


def depth_of(queue: str, now_ms: int, replies: Sequence[Any]) -> QueueDepth:
    """What the answers to `depth_commands` say."""
    dates = [decode.moment_ms(first[1]) for first in replies[6:10] if first]
    blocked, running, runs, asks, failed, events, oldest, meta = replies[10:]  # oldest: [[id, [b"at", ms, …]]]
    first = min(dates, default=0)
    paused, by, why, generation, restoring, surplus, alive, _ = ((value or b"").decode("utf-8", "replace") for value in meta)
    return QueueDepth(
        queue=queue,
        scheduled=sum(replies[0:3]) + blocked,
        due=sum(replies[3:6]) + blocked,
        blocked=blocked,
        running=running,
        retrying=max(0, runs - running - asks),  # who has asked has not failed; of those that did both, too few are told
        failed=failed,
        oldest_late_ms=max(0, now_ms - first) if first else 0,
        next_due_ms=first,
        paused_ms=decode.moment_ms(paused) or int(bool(paused)),
        paused_by=by,
        paused_reason=why,
        events=events,
        untold=events + min(decode.number(surplus), events * MOST_BESIDE),
        events_late_ms=max(0, now_ms - decode.moment_ms(oldest[0][1][1])) if oldest else 0,
        generation=generation,
        restoring=" of ".join(restoring.split(" ")[-2:]),
        asked_ms=decode.moment_ms(alive),
    )


def summed(parts: Sequence[QueueDepth]) -> QueueDepth:
    """What is in these partitions of a queue together: it is as late as the latest of them, and paused when all are."""
    if len(parts) == 1:
        return parts[0]
    total: dict[str, Any] = {}
    for name in ("scheduled", "due", "running", "retrying", "failed", "events", "untold", "blocked"):
        total[name] = sum(getattr(part, name) for part in parts)
    for name in ("oldest_late_ms", "events_late_ms", "asked_ms"):
        total[name] = max(getattr(part, name) for part in parts)
    paused = all(part.paused for part in parts)
    return replace(
        parts[0],
        **total,
        next_due_ms=min((part.next_due_ms for part in parts if part.next_due_ms), default=0),
        paused_ms=max(part.paused_ms for part in parts) if paused else 0,
        paused_by=parts[0].paused_by if paused else "",
        paused_reason=parts[0].paused_reason if paused else "",
        restoring=next((part.restoring for part in parts if part.restoring), ""),
    )
