"""Tracebacks for people: the frames of the project first, the innermost on top, and the whole below."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from django_delayq.admin.show import visible

MOST: Final = 12  # frames shown one by one; the whole text has the others
_FRAME: Final = re.compile(r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)
_FOREIGN: Final = re.compile(
    r"[/\\](site-packages|dist-packages)[/\\]|[/\\]lib(64)?[/\\]python\d|^<|[/\\]django_delayq[/\\]worker[/\\]"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: where, and the line of code."""

    place: str
    code: str


@dataclass(frozen=True, slots=True)
class Trace:
    """`frames`: those of the project, the innermost first; `text`: all of it."""

    frames: list[Frame]
    text: str

    def __bool__(self) -> bool:
        return bool(self.text)


def read(text: str) -> Trace:
    """Takes a traceback apart. Of several that caused one another it is the last whose frames count."""
    last = text[text.rfind("Traceback (most recent call last)") :] if "Traceback (most" in text else text
    frames = []
    for found in _FRAME.finditer(last):
        if _FOREIGN.search(found["file"]):
            continue
        rest = last[found.end() + 1 :]
        line = rest.split("\n", 1)[0]
        code = line.strip() if line.startswith("    ") else ""
        frames.append(Frame(visible(f"{found['file']}:{found['line']} {found['name']}"), visible(code)))
    return Trace(frames[::-1][:MOST], visible(text))
