"""Counts of a queue's last hour: how many jobs ended, how late their last runs started, and how long these took. The counts are few
enough for Redis, and fine enough to distinguish 5 ms from 5 s.

Bucket 0 is less than a millisecond, bucket n less than 2^n ms and at least half of that, the last one all longer durations.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

BUCKETS: Final = 25
MINUTES: Final = 60  # of the past that are returned one by one
SLOT: Final = 5  # minutes that share their counts of lateness and run time
SLOT_MS: Final = SLOT * 60_000
SLOTS: Final = 14  # an hour, the slot that is being filled, and one to spare
KINDS: Final = ("succeeded", "failed", "retried")
_WIDTH: Final = 1 + 2 * BUCKETS + len(KINDS) * SLOT  # numbers of a slot: its own, lateness, run times, and minute by minute what ended

LENGTH: Final = SLOTS * _WIDTH * 4  # bytes


class Spread(NamedTuple):
    """`late`, `ran`: how late the last runs of ended jobs started and how long they took, as counts per bucket. The others: jobs per
    minute, the oldest minute first, the last one being the one under way; a retried job may be counted many times.
    """

    late: tuple[int, ...]
    ran: tuple[int, ...]
    succeeded: tuple[int, ...]
    failed: tuple[int, ...]
    retried: tuple[int, ...]

    @property
    def done(self) -> int:
        """Jobs that ended in the hour, one way or the other."""
        return sum(self.succeeded) + sum(self.failed)

    @property
    def done_per_minute(self) -> float:
        """Over the last five whole minutes."""
        return (sum(self.succeeded[-6:-1]) + sum(self.failed[-6:-1])) / 5

    @property
    def failure_share(self) -> float | None:
        """Failed among the jobs that ended, 0 to 1; None when none did."""
        return sum(self.failed) / self.done if self.done else None


def bucket(ms: int) -> int:
    """The bucket of a duration."""
    return min(max(ms, 0).bit_length(), BUCKETS - 1)


def times(late_ms: int, ran_ms: int) -> int | bytes:
    """Both buckets of a run in one number, for `settle`; b"" if the run was not timed."""
    return bucket(late_ms) * BUCKETS + bucket(ran_ms) if ran_ms >= 0 else b""


def joined(raws: Sequence[bytes]) -> bytes:
    """The sum of several keys `spread`, for `decode` and `decode_slots`."""
    return b"".join(raw[: len(raw) // (_WIDTH * 4) * (_WIDTH * 4)] for raw in raws)


def decode(raw: bytes, now_ms: int) -> Spread:
    """The content of the key `spread` of a queue for the hour before `now_ms`."""
    late, ran = [0] * BUCKETS, [0] * BUCKETS
    ended = {kind: [0] * MINUTES for kind in KINDS}
    first = now_ms // 60_000 - MINUTES + 1
    for slot, counts in _slots(raw, now_ms // SLOT_MS):
        late = [a + b for a, b in zip(late, counts[:BUCKETS], strict=True)]
        ran = [a + b for a, b in zip(ran, counts[BUCKETS : 2 * BUCKETS], strict=True)]
        for number, count in enumerate(counts[2 * BUCKETS :]):
            minute = slot * SLOT + number % SLOT - first
            if 0 <= minute < MINUTES:
                ended[KINDS[number // SLOT]][minute] += count
    return Spread(late=tuple(late), ran=tuple(ran), **{kind: tuple(numbers) for kind, numbers in ended.items()})


def decode_slots(raw: bytes, now_ms: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """The same hour in twelve slots, the oldest first, the last one being under way: lateness and run times of each, as counts per
    bucket.
    """
    latest = now_ms // SLOT_MS
    nothing = (0,) * (2 * BUCKETS)
    found: dict[int, Sequence[int]] = {}
    for slot, counts in _slots(raw, latest):
        found[slot] = [a + b for a, b in zip(found.get(slot, nothing), counts, strict=False)]
    told = [found.get(slot, nothing) for slot in range(latest - MINUTES // SLOT + 1, latest + 1)]
    return [(counts[:BUCKETS], counts[BUCKETS : 2 * BUCKETS]) for counts in told]


def _slots(raw: bytes, latest: int) -> Iterator[tuple[int, Sequence[int]]]:
    """The slots of the hour before the end of slot `latest`, and their counts."""
    for at in range(0, len(raw) // (_WIDTH * 4) * (_WIDTH * 4), _WIDTH * 4):
        slot, *counts = struct.unpack_from(f">{_WIDTH}I", raw, at)
        if latest - MINUTES // SLOT <= slot <= latest:
            yield slot, counts


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Milliseconds below which that share (0 to 1) of what was counted lies, taken as spread evenly over the logarithm within its
    bucket; None when nothing was counted.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, seen = share * total, 0
    for number, count in enumerate(counts):
        if count and seen + count >= wanted:
            within = (wanted - seen) / count
            return within if number == 0 else float(2.0 ** (number - 1 + within))
        seen += count
    return float(2**BUCKETS)
