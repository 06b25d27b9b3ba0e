"""How often jobs were evicted in this worker: killed in the middle of a run for a neighbour's sake."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from typing import Final

ALONE_AFTER: Final = 3  # evictions in a row; then a job runs with nothing beside it

ROWS: Final = 128
_HEAD: Final = struct.Struct("Q")  # how many notes have been made
_ROW: Final = struct.Struct("24sQ")


class Evictions:
    """In memory that the task processes share with the supervisor, who alone writes. Redis counts too, for all workers, but from format
    1 on only (see store/lua/include/runs.lua); this counts in one worker, and knows the last 128 jobs. A row that is read in the middle
    of a write counts as none.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _HEAD.size + ROWS * _ROW.size)
        self._read, self._known = 0, dict[str, int]()

    def note(self, id: str) -> None:
        """One more eviction of that job."""
        (made,) = _HEAD.unpack_from(self._map)
        rows = [_ROW.unpack_from(self._map, self._at(row)) for row in range(ROWS)]
        found = next((row for row, (known, _) in enumerate(rows) if known.rstrip(b"\0") == id.encode()), None)
        row = made % ROWS if found is None else found
        _ROW.pack_into(self._map, self._at(row), id.encode(), 1 if found is None else rows[row][1] + 1)
        _HEAD.pack_into(self._map, 0, made + 1)

    def known(self) -> Mapping[str, int]:
        """How often each job was, by its short id."""
        (made,) = _HEAD.unpack_from(self._map)
        if made != self._read:
            rows = (_ROW.unpack_from(self._map, self._at(row)) for row in range(ROWS))
            self._known = {id.rstrip(b"\0").decode("ascii", "replace"): count for id, count in rows if count}
            self._read = made
        return self._known

    @staticmethod
    def _at(row: int) -> int:
        return _HEAD.size + row * _ROW.size
