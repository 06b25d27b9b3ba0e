"""Tracebacks for people: the frames of the project, and the whole text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from django_delayq.text import CUT, visible

MOST_FRAMES: Final = 12  # frames shown one by one; the whole text has the others
TRACEBACK_HEAD: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_FOREIGN: Final = re.compile(
    r"[/\\](site-packages|dist-packages)[/\\]|[/\\]lib(64)?[/\\]python\d|^<|[/\\]django_delayq[/\\]worker[/\\]"
)


@dataclass(frozen=True, slots=True)
class Frame:
    place: str
    code: str


@dataclass(frozen=True, slots=True)
class Trace:
    """`frames`: those of the project, the innermost first; `text`: all of it."""

    frames: list[Frame]
    text: str

    def __bool__(self) -> bool:
        return bool(self.text)


def read_traceback(text: str) -> Trace:
    """Parses a traceback. Only frames of the last exception count. They end at its message, which may look like frames and can come
    from the caller of the task.
    """
    lines = text.split("\n")
    begins = max((number for number, line in enumerate(lines) if line == TRACEBACK_HEAD), default=len(lines))
    stack = list(_stack_lines(lines[begins + 1 :]))
    frames = []
    for line, code in zip(stack, [*stack[1:], ""], strict=False):
        found = _FRAME.fullmatch(line)
        if found and not _FOREIGN.search(found["file"]):
            place = f"{found['file']}:{found['line']} {found['name']}"
            frames.append(Frame(visible(place), visible(code.strip()) if code.startswith("    ") else ""))
    return Trace(frames[::-1][:MOST_FRAMES], visible(text))


def _stack_lines(lines: Iterable[str]) -> Iterator[str]:
    ahead = iter(lines)
    for line in ahead:
        if CUT.fullmatch(line):
            next(ahead, "")  # the rest of a line whose beginning was cut
        elif line.startswith("  "):
            yield line
        else:
            return
