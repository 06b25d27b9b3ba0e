"""Commands as bytes. The client library would look at each argument first, in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _plain(command: tuple[Any, ...]) -> bytes:
    """What hiredis packs, for who does without."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


_pack: Callable[[tuple[Any, ...]], bytes]
try:
    from hiredis import pack_command as _pack
except ImportError:
    _pack = _plain


class Opening(bytes):
    """The first words of commands that begin alike, packed once; it stands for them in a command. `words`: how many they are."""

    words: int

    @classmethod
    def of(cls, *words: Any) -> Opening:
        made = cls(_pack(words).partition(b"\n")[2])
        made.words = len(words)
        return made


def packed(command: tuple[Any, ...]) -> bytes:
    """The command as it is sent."""
    opening = command[0]
    if not isinstance(opening, Opening):
        return _pack(command)
    rest = _pack(command[1:]).partition(b"\n")[2]
    return b"*%d\r\n%b%b" % (opening.words + len(command) - 1, opening, rest)
