"""Texts from elsewhere: made visible, fit for storage, compared with known words, and fingerprinted. A fingerprint is what errors of
one cause have in common, and no others.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from inspect import getsource
from typing import Any, Final

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Text whose control characters are spelled out: the marks that turn the direction of writing would reorder what stands
    around them, and make one word look like another (CVE-2021-42574). Line ends and tabs stay. JSON stays JSON, and means the same.
    """
    return text if text.isprintable() else _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """The same, with line ends and tabs spelled out too, so that nothing in the text looks like another line."""
    return text if text.isprintable() else visible(text).replace("\n", "\\n").replace("\t", "\\t")


LONGEST: Final = 100_000  # characters of an error or a traceback; the rest is cut
CUT: Final = re.compile(r"… [\d,]+ characters cut …")  # the line that stands for them


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode the text: false with half of a surrogate pair in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean(text: str, longest: int = LONGEST) -> str:
    """Text that every database takes: NUL and lone surrogates escaped, cut in the middle when too long."""
    if "\x00" in text or not (text.isascii() or is_utf8(text)):
        text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text) <= longest:
        return text
    if longest <= 300:
        return text[: longest - 1] + "…"
    half = longest // 2 - 20
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters cut …\n{text[-half:]}"


def cut(text: str) -> str:
    """The first 80 characters, for a message."""
    return text if len(text) <= 80 else text[:77] + "..."


def documented(function: Callable[..., Any]) -> tuple[str, str]:
    """The docstring of a function in one line, and its first sentence without the period. `python -OO` removes docstrings, so it is
    read from the source then.
    """
    found = function.__doc__
    if found is None:
        with suppress(OSError):  # there is no source
            definition: Any = ast.parse(getsource(function)).body[0]
            found = ast.get_docstring(definition)
    text = " ".join((found or "").split())
    return text, text.partition(". ")[0].rstrip(".")


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known word that is most like this one; "" where none is."""
    close = get_close_matches(str(word), list(known), n=1, cutoff=cutoff)
    return close[0] if close else ""


def did_you_mean(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The same as an English question that follows the word, or ""."""
    near = nearest(word, known, cutoff)
    return f" (did you mean {near!r}?)" if near else ""


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
