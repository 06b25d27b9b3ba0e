"""Tracebacks for people: the frames of the project first, the innermost on top, and the whole below."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from django_delayq.text import CUT, visible

MOST: Final = 12  # frames shown one by one; the whole text has the others
HEAD: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
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
    """Takes a traceback apart. Of several that caused one another it is the last whose frames count. They end where the exception
    speaks: what it says may look like frames, and come from whoever chose the arguments.
    """
    lines = text.split("\n")
    begins = max((number for number, line in enumerate(lines) if line == HEAD), default=len(lines))
    stack = list(_stack(lines[begins + 1 :]))
    frames = []
    for line, code in zip(stack, [*stack[1:], ""], strict=False):
        found = _FRAME.fullmatch(line)
        if found and not _FOREIGN.search(found["file"]):
            place = f"{found['file']}:{found['line']} {found['name']}"
            frames.append(Frame(visible(place), visible(code.strip()) if code.startswith("    ") else ""))
    return Trace(frames[::-1][:MOST], visible(text))


def _stack(lines: Iterable[str]) -> Iterator[str]:
    ahead = iter(lines)
    for line in ahead:
        if CUT.fullmatch(line):
            next(ahead, "")  # the rest of a line, of which nobody knows how it began
        elif line.startswith("  "):
            yield line
        else:
            return
