from __future__ import annotations

import struct

import pytest

from django_delayq import spread
from django_delayq.spread import BUCKETS, SLOT_MS, SLOTS, bucket, decode, percentile


def slot(number: int, late: dict[int, int], ran: dict[int, int]) -> bytes:
    counts = [*(late.get(b, 0) for b in range(BUCKETS)), *(ran.get(b, 0) for b in range(BUCKETS))]
    return struct.pack(f">{spread._WIDTH}I", number, *counts, *([0] * 15))


@pytest.mark.parametrize(
    ("ms", "number"), [(-5, 0), (0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (2**40, BUCKETS - 1)]
)
def test_a_duration_is_counted_by_its_power_of_two(ms, number):
    assert bucket(ms) == number


def test_percentiles_lie_within_the_bucket_that_holds_them():
    counts = [0] * BUCKETS
    counts[bucket(100)] = 90
    counts[bucket(5000)] = 10
    assert 64 <= percentile(counts, 0.5) < 128
    assert 4096 <= percentile(counts, 0.95) <= 8192
    assert percentile(counts, 0.2) < percentile(counts, 0.8)


def test_what_takes_less_than_a_millisecond_is_told_as_such():
    assert 0 < percentile([7, *[0] * (BUCKETS - 1)], 0.5) <= 1


def test_nothing_counted_has_no_percentile():
    assert percentile([0] * BUCKETS, 0.5) is None


def test_slots_of_the_last_hour_are_added_up_and_older_ones_left_out():
    now = 1_800_000_000_000
    latest = now // SLOT_MS
    raw = slot(latest, {3: 5}, {1: 1}) + slot(latest - 12, {3: 2, 4: 1}, {}) + slot(latest - 13, {3: 100}, {2: 100})
    found = decode(raw, now)
    assert (found.late[3], found.late[4], sum(found.late)) == (7, 1, 8)
    assert sum(found.ran) == 1


def test_an_empty_or_half_written_value_counts_nothing():
    assert sum(decode(b"", 0).late) == sum(decode(b"\0" * 100, 10**12).ran) == 0
    assert SLOTS * SLOT_MS > 3_600_000
