"""Characters that are not seen and yet change what is: control characters, and marks that turn the direction of writing."""

from __future__ import annotations

import re

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Text whose control characters are spelled out: the marks that turn the direction of writing would reorder what stands
    around them, and make one word look like another (CVE-2021-42574).
    """
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
