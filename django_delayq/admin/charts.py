"""Charts as inline SVG made on the server: attributes and classes only, since a strict content security policy forbids more. Each has
its numbers beside it as a table for those who do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

GAP: Final = 0.2  # of a bar's width


def bars(stacks: Sequence[tuple[str, Sequence[int]]], label: str, *, height: int = 24, look: str = "") -> SafeString:
    """Bars side by side, one per number; several series stand on top of one another.

    Args:
        stacks: (class, numbers) from the bottom upward, all of one length.
        label: what the picture shows, for screen readers.
    """
    count = max((len(numbers) for _, numbers in stacks), default=0)
    floor = [0] * count
    top = max((sum(column) for column in zip(*(numbers for _, numbers in stacks), strict=True)), default=0)
    paths = []
    for name, numbers in stacks:
        places = zip(range(count), floor, numbers, strict=True)
        steps = [_bar(at, below, number, height / top) for at, below, number in places if number]
        floor = [a + b for a, b in zip(floor, numbers, strict=True)]
        if steps:
            paths.append((name, "".join(steps)))
    return format_html(
        '<svg class="delayq-chart {}" viewBox="0 {} {} {}" preserveAspectRatio="none" role="img" aria-label="{}" focusable="false">'
        '<path class="delayq-ground" d="M0 0h{}"/>{}</svg>',
        look,
        -height,
        max(1, count),
        height,
        label,
        max(1, count),
        format_html_join("", '<path class="{}" d="{}"/>', paths),
    )


def _bar(at: int, below: int, number: int, unit: float) -> str:
    tall = max(number * unit, 1.0)
    return f"M{at} {_short(-below * unit)}v{_short(-tall)}h{1 - GAP:g}v{_short(tall)}z"


def _short(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") or "0"


def sums(numbers: Sequence[int], parts: int) -> list[int]:
    """The numbers added up in that many equal parts, for a table that is not too long to listen to."""
    size = len(numbers) // parts
    return [sum(numbers[n * size : (n + 1) * size]) for n in range(parts)]
