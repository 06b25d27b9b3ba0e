"""A text that one process of a worker writes and another one reads, in memory that both share."""

from __future__ import annotations

import mmap
import struct
from typing import Final

SIZE: Final = 1 << 22  # bytes; what nobody writes to takes no memory
LOOKS: Final = 3

_HEAD: Final = struct.Struct("=QQ")  # how often it was begun and ended to write, and the length


class LatestText:
    """One writer, which may be killed at any byte, and readers that never wait: the number in front is odd while the text is being
    written, and who finds another number behind his reading than before it reads again. Made before the fork.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._map = mmap.mmap(-1, size)
        self._size = size

    def write(self, text: bytes) -> bool:
        """Puts the text up in the place of the last one. False: it is too long, and the last one stays."""
        if len(text) > self._size - _HEAD.size:
            return False
        number, length = _HEAD.unpack_from(self._map)
        number |= 1  # even if another writer was killed in the middle
        _HEAD.pack_into(self._map, 0, number, length)
        self._map[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._map, 0, number, len(text))
        _HEAD.pack_into(self._map, 0, number + 1, len(text))
        return True

    def read(self) -> bytes:
        """The text; b"" before there is one, or if it is being written all the time."""
        for _ in range(LOOKS):
            number, length = _HEAD.unpack_from(self._map)
            text = self._map[_HEAD.size : _HEAD.size + min(length, self._size - _HEAD.size)]
            if number % 2 == 0 and _HEAD.unpack_from(self._map)[0] == number:
                return text
        return b""
