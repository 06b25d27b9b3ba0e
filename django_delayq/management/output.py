"""The output of commands: aligned tables for people, one JSON document for programs, and progress on standard error."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TextIO
from uuid import UUID

from django_delayq import durations, ids
from django_delayq.console.export import plain
from django_delayq.console.wording import second
from django_delayq.text import visible


class Visible(io.TextIOBase):
    """Escapes control characters before it writes to `out`: errors, keys and arguments can contain anything. JSON keeps its meaning."""

    def __init__(self, out: Any) -> None:
        self._out = out

    def write(self, text: str) -> int:
        self._out.write(visible(text))
        return len(text)


def print_json(out: TextIO, document: Any) -> None:
    out.write(json.dumps(document, default=plain, indent=2, ensure_ascii=False) + "\n")


def print_table(out: TextIO, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Aligns columns; numbers are on the right."""
    texts = [[shown(value) for value in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(head, *texts, strict=True)]
    right = [bool(rows) and all(isinstance(row[n], (int, float)) for row in rows) for n in range(len(head))]
    for line in [list(head), *texts]:
        cells = [
            cell.rjust(width) if on_right else cell.ljust(width) for cell, width, on_right in zip(line, widths, right, strict=True)
        ]
        out.write("  ".join(cells).rstrip() + "\n")


def shown(value: Any) -> str:
    """A value for people, on one line: dates to the second, a dash for nothing."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return second(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = visible(" ".join(str(ids.short(value) if isinstance(value, UUID) else value).split()))
    return text if len(text) <= 80 else text[:79] + "…"


def duration(seconds: float) -> str:
    """A duration for people; a dash for zero."""
    return durations.text(round(seconds)) if seconds >= 1 else ("-" if seconds <= 0 else "<1s")


@contextmanager
def progress(total: int, what: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes how many more are done. It draws a bar by rich if that is installed, or else prints plain lines. It
    writes to standard error, so that the output stays clean.
    """
    if quiet or total < 200:
        yield lambda count: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        done = 0

        def advance(count: int) -> None:
            """Prints a line for every tenth that is done."""
            nonlocal done
            before, done = done, done + count
            if done * 10 // total > before * 10 // total:
                sys.stderr.write(f"{what}: {done} of {total}\n")

        yield advance
        return
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
