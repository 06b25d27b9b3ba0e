"""Fingerprints: what errors of one cause have in common, and no others."""

from __future__ import annotations

import hashlib
import re
from typing import Final

LONGEST_LINE: Final = 2_000  # characters of the first line of an error that tell errors apart
SAID: Final = 500  # of a message, once what varies has been taken out
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\d+")
_WORD, _DIGIT = re.compile(r"\S+"), re.compile(r"\d")


def error_fingerprint(kind: str, message: str, place: str) -> str:
    """A digest that is equal for errors with the same cause: the same class, raised at the same place in the project's code. The
    message does not count, because it can contain request IDs, names and addresses. If no place is known, the message counts, without
    numbers and IDs.
    """
    return _digest("\n".join((kind, place) if place else (kind, without_varying(message)[:SAID], "")))


def without_varying(message: str) -> str:
    """The message with a mark for each number and id."""
    return _VARYING.sub("#", message)


def text_fingerprint(text: str) -> str:
    """For an error of which only a text is known, such as a worker's crash: the same for texts that differ in numbers and ids only.
    Such ids have letters as well (a host's name, a job's short id), so that a word with a digit counts for nothing.
    """
    line = text.strip().split("\n", 1)[0][:LONGEST_LINE]
    # Word by word: one pattern that looks for a digit within a word would go back through words without one.
    first = _WORD.sub(lambda word: "#" if _DIGIT.search(word[0]) else word[0], line)[:SAID]
    return _digest(first) if first else ""


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:12]
