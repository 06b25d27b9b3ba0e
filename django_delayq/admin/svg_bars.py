"""Charts as inline SVG. They use attributes and classes only, because the content security policy forbids styles. Each page shows the
numbers as a table, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

GAP: Final = 0.2  # of a bar's width


def bars(
    stacks: Sequence[tuple[str, Sequence[float]]],
    label: str,
    *,
    height: int = 24,
    look: str = "",
    top: float = 0,
    titles: Sequence[str] = (),
) -> SafeString:
    """Returns bars side by side, one per number. Several series are stacked.

    Args:
        stacks: (class, numbers) from the bottom upward, all of one length.
        label: what the picture shows, for screen readers.
        top: the number at the upper edge, which gets a line, like its half. 0: the highest bar touches the edge.
        titles: the tooltip of each bar.
    """
    count = max((len(numbers) for _, numbers in stacks), default=0)
    floor: list[float] = [0] * count
    edge = max((sum(column) for column in zip(*(numbers for _, numbers in stacks), strict=True)), default=0)
    lines = "".join(f"M0 {_short(-height * share)}h{max(1, count)}" for share in ((0, 0.5, 1) if top else (0,)))
    top = top or edge
    paths = []
    for name, numbers in stacks:
        places = zip(range(count), floor, numbers, strict=True)
        steps = [_bar(at, below, number, height / top) for at, below, number in places if number]
        floor = [a + b for a, b in zip(floor, numbers, strict=True)]
        if steps:
            paths.append((name, "".join(steps)))
    return format_html(
        '<svg class="delayq-chart {}" viewBox="0 {} {} {}" preserveAspectRatio="none" role="img" aria-label="{}" focusable="false">'
        '<path class="delayq-ground" d="{}"/>{}{}</svg>',
        look,
        -height,
        max(1, count),
        height,
        label,
        lines,
        format_html_join("", '<path class="{}" d="{}"/>', paths),
        format_html_join(
            "",
            '<g><title>{}</title><path class="delayq-over" d="M{} 0v-{}h1v{}z"/></g>',
            ((title, at, height, height) for at, title in enumerate(titles)),
        ),
    )


def scale(most: float, steps: Sequence[float] = ()) -> float:
    """Returns a round number that is at least `most`: one of the steps, or 1, 2 or 5 times a power of ten."""
    for step in steps:
        if most <= step:
            return step
    top = 1.0
    while top < most:
        top *= 2.5 if f"{top:g}".startswith("2") else 2
    return top


def _bar(at: int, below: float, number: float, unit: float) -> str:
    tall = max(number * unit, 1.0)  # the smallest number is visible
    return f"M{at} {_short(-below * unit)}v{_short(-tall)}h{1 - GAP:g}v{_short(tall)}z"


def _short(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") or "0"


def sums(numbers: Sequence[int], parts: int) -> list[int]:
    """Adds up the numbers in equal parts, so that a table is short enough for a screen reader."""
    size = len(numbers) // parts
    return [sum(numbers[n * size : (n + 1) * size]) for n in range(parts)]
