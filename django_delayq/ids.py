"""Job IDs: UUIDv7, created by the client. Their short form has 22 characters of base62 that sort the same: by time.

The ID contains the partition of its job: version 7 for the first one, version 6 for that of its lowest 10 bits. Everything else is
the same in both versions, so IDs sort by millisecond; within one, version 6 comes first. Only this module knows this. RFC 9562 has
version 8 for custom layouts, but MariaDB's UUID type only stores versions up to 7.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import uuid
from array import array
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final
from uuid import UUID, SafeUUID

from django_delayq import clock
from django_delayq.text import cut

SHORT_LENGTH: Final = 22

# In ASCII order, so that comparing the texts byte by byte compares the numbers.
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES: Final = {letter: value for value, letter in enumerate(_ALPHABET)}
_PAIRS: Final = [one + other for one in _ALPHABET for other in _ALPHABET]  # two digits at a time: half the divisions
_HALF: Final = 62**11  # below 2**66: two such digits hold 128 bits, and the loops below work on small numbers
_SIX: Final = 62**6
_HEX: Final = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_WORDS: Final = 256  # random words drawn from the system at a time
_TAIL_BITS: Final = 74  # what UUIDv7 leaves beside 48 bits of milliseconds, 4 of version and 2 of variant
_LOW: Final = (1 << 62) - 1
_PARTITION_BITS: Final = 10
_PARTITION: Final = (1 << _PARTITION_BITS) - 1
_LOW_6: Final = _LOW ^ _PARTITION
_HEAD_7: Final = 7 << 76 | 2 << 62  # version and variant
_VERSION: Final = 15 << 76 | 3 << 62
_HEAD_6: Final = 6 << 76 | 2 << 62


class _Sequence:
    """The last id of this process: the next is greater, also within a millisecond and when the clock steps back."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.ms = -1
        self.tail = 0
        self.words: list[int] = []

    def several(self, count: int, now: int, partition: int = 0) -> list[UUID]:
        ms, tail, words, made = self.ms, self.tail, self.words, []
        # The lowest bits of version 6 are taken: it counts above them.
        head, low, above = (_HEAD_6 | partition, _LOW_6, _PARTITION_BITS) if partition else (_HEAD_7, _LOW, 0)
        for _ in range(count):
            # A random step keeps the next id hard to guess.
            if now <= ms:
                if not words:  # drawn from the system many at a time: each call costs
                    words = list(array("I", os.urandom(4 * _WORDS)))
                tail += 1 + words.pop() << above
            if now > ms or tail >> _TAIL_BITS:
                ms, tail = max(now, ms + 1), _fresh()
            made.append(_uuid(ms << 80 | head | tail >> 62 << 64 | tail & low))
        self.ms, self.tail, self.words = ms, tail, words
        return made


def _fresh() -> int:
    """All bits of a tail but the top one, so that 2**73 steps remain for the ids that follow within the same millisecond. Asked of the
    system for each millisecond: a copy of this process that was made otherwise than by `fork`, as of a virtual machine, has the same
    words in its memory.
    """
    return int.from_bytes(os.urandom(10)) >> 7


_sequence = _Sequence()
# Python 3.14's own; it keeps its last value without a lock, so it is called under ours.
_standard: Callable[[], UUID] | None = getattr(uuid, "uuid7", None)


def new(partition: int = 0) -> UUID:
    """A fresh id, greater than every other that this process made for the same partition; safe across threads and `fork`."""
    return several(1, partition)[0]


def several(count: int, partition: int = 0) -> list[UUID]:
    """So many of `new`, in their order, which say that partition; ValueError for one that no id can say: 0 to 1023.

    Each is greater than all that this process made for the same partition.
    """
    global _sequence
    if not 0 <= partition <= _PARTITION:
        raise ValueError(f"a job id cannot contain the partition {partition}; use a number from 0 to {_PARTITION}")
    sequence = _sequence
    if sequence.pid != os.getpid():
        # A forked child must not go on from its parent's numbers, nor wait for a lock that a parent's thread held. A hook of
        # `os.register_at_fork` would cost less, but servers that fork in C, as uWSGI does, need not call it.
        sequence = _sequence = _Sequence()
    with sequence.lock:
        if _standard is not None and not partition:
            return [_standard() for _ in range(count)]
        return sequence.several(count, clock.wall_ms(), partition)


def derived(seed: str, ms: int, partition: int = 0) -> UUID:
    """The id of that moment and partition whose other bits are made of `seed`: the same for the same."""
    tail = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:10]) >> (80 - _TAIL_BITS)
    head, low = (_HEAD_6 | partition, _LOW_6) if partition else (_HEAD_7, _LOW)
    return _uuid(ms << 80 | head | (tail >> 62) << 64 | tail & low)


def placed(id: UUID, wanted: int) -> UUID:
    """The id that stands for this one in that partition, always the same: itself, if it says that partition already."""
    return id if partition(id) == wanted else derived(id.hex, id.int >> 80, wanted)


def _uuid(number: int) -> UUID:
    """`UUID(int=number)` without the look at its other arguments, which takes three times as long."""
    made = _bare(UUID)
    _set_int(made, number)
    _set_safe(made, _UNKNOWN)
    return made


_UNKNOWN: Final = SafeUUID.unknown
_bare: Final = object.__new__
_slots: Final = vars(UUID)  # a UUID refuses to be changed, its slots do not
_set_int: Final = _slots["int"].__set__
_set_safe: Final = _slots["is_safe"].__set__


def short(id: UUID) -> str:
    """The 22 characters of an id: what Redis has, and what people read. There is no other form for either."""
    first, rest = divmod(id.int, _HALF)
    second, third = divmod(rest, _SIX)  # small numbers are divided in half the time
    return f"{_eleven(first)}{_five(second)}{_PAIRS[third // 14776336]}{_PAIRS[third // 3844 % 3844]}{_PAIRS[third % 3844]}"


# Consecutive IDs have a common prefix: eleven digits within a millisecond, and usually five more.
@lru_cache(maxsize=64)
def _eleven(number: int) -> str:
    high, low = divmod(number, _SIX)
    return f"{_five(high)}{_PAIRS[low // 14776336]}{_PAIRS[low // 3844 % 3844]}{_PAIRS[low % 3844]}"


@lru_cache(maxsize=64)
def _five(number: int) -> str:
    return f"{_ALPHABET[number // 14776336]}{_PAIRS[number // 3844 % 3844]}{_PAIRS[number % 3844]}"


def full(text: str) -> UUID:
    """The id of 22 characters; ValueError for anything else."""
    if len(text) == SHORT_LENGTH:
        high = low = 0
        try:
            for letter in text[:11]:
                high = high * 62 + _VALUES[letter]
            for letter in text[11:]:
                low = low * 62 + _VALUES[letter]
            return UUID(int=high * _HALF + low)  # 62**22 is above 2**128: UUID refuses what does not fit
        except (KeyError, ValueError):
            pass
    raise ValueError(f"{cut(repr(text))} is not a job id: 22 letters and digits")


def check(text: str) -> None:
    """Does nothing for 22 characters that `full` can read; ValueError for anything else. Much cheaper than reading them."""
    if len(text) != SHORT_LENGTH or not text.isascii() or not text.isalnum() or text > _LAST:
        raise ValueError(f"{cut(repr(text))} is not a job id: 22 letters and digits")


def parse(id: UUID | str) -> UUID:
    """The id in what a caller gives: a UUID, its text with or without dashes, or 22 characters; else ValueError."""
    if isinstance(id, UUID):
        return id
    if isinstance(id, str):
        text = id.strip()
        if len(text) == SHORT_LENGTH:
            return full(text)
        if _HEX.fullmatch(text):
            return UUID(text)
    raise ValueError(f"{cut(repr(id))} is not a job id: pass its 22 letters and digits, or the UUID")


def created_ms(id: UUID) -> int:
    """When the id was made, in milliseconds since 1970; ValueError for a UUID without a time (neither version 6 nor 7)."""
    if id.version not in (6, 7):
        raise ValueError(f"{id} is a UUID of version {id.version}, which contains no time; job ids are version 6 or 7")
    return id.int >> 80


def partition(id: UUID) -> int:
    """The partition in which the job of that id is. 0 for a UUID that is no id of ours, too: no partition has such a job."""
    return id.int & _PARTITION if id.int & _VERSION == _HEAD_6 else 0


def by_partition(jobs: Iterable[UUID]) -> dict[int, list[UUID]]:
    """These jobs by the partitions that their ids say."""
    found: dict[int, list[UUID]] = {}
    for job in jobs:
        found.setdefault(partition(job), []).append(job)
    return found


_LAST: Final = short(UUID(int=2**128 - 1))
