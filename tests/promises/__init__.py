"""The promises of docs/topics/guarantees.md and docs/topics/security.md, and the tests that prove them.

A table of these files is a promise. Its name is the anchor of the promise in the documentation, so it does not change.
`heading` is the heading of the promise on its page, `tests` are ids of pytest, `besides` is another proof in words.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FILES = [Path(__file__).with_name(f"{name}.toml") for name in ("jobs", "failures", "features", "security")]
MARKS = re.compile(r"\[([^]]+)\]\([^)]*\)|`")  # links and code


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    heading: str
    tests: list[str]
    besides: str = ""


def plain(heading: str) -> str:
    """A heading of Markdown as it is in `Promise.heading`."""
    return MARKS.sub(lambda found: found[1].replace("`", "") if found[1] else "", heading)


def _read() -> dict[str, Promise]:
    return {slug: Promise(**table) for file in FILES for slug, table in tomllib.loads(file.read_text("utf-8")).items()}


PROMISES = _read()
