"""Characters that are not seen and yet change what is: control characters, and marks that turn the direction of writing."""

from __future__ import annotations

import re

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Text whose control characters are spelled out: the marks that turn the direction of writing would reorder what stands
    around them, and make one word look like another (CVE-2021-42574). Line ends and tabs stay. JSON stays JSON, and means the same.
    """
    return text if text.isprintable() else _HIDDEN.sub(_spelled, text)


def one_line(text: str) -> str:
    """The same, with line ends and tabs spelled out too, so that nothing in the text looks like another line."""
    return text if text.isprintable() else visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _spelled(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
