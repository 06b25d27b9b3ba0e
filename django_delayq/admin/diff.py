"""Two texts line by line: what stays, what goes, what comes. By Myers' algorithm ("An O(ND) Difference Algorithm and Its Variations",
1986) with a bound on the work: difflib takes cubic time for lines that are alike, and would keep a web process for hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

WORK: Final = 4_000_000  # less than a second; a step costs ten, a line that is passed over one
STEP: Final = 10


def lines(before: str, after: str) -> list[tuple[str, str]]:
    """Marks (" ", "-" or "+") and lines. Where too much differs, the old lines stand above the new ones, paired or not."""
    old, new = before.splitlines(), after.splitlines()
    head = _same(old, new)
    tail = _same(old[head:][::-1], new[head:][::-1])
    middle = _middle(old[head : len(old) - tail], new[head : len(new) - tail])
    found = [(" ", line) for line in old[:head]]
    for same, gone, come in middle:
        found += [*((" ", line) for line in same), *(("-", line) for line in gone), *(("+", line) for line in come)]
    return found + [(" ", line) for line in old[len(old) - tail :]]


def _same(old: Sequence[str], new: Sequence[str]) -> int:
    """How many lines both begin with."""
    return next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _middle(old: list[str], new: list[str]) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Stretches: lines of both, then lines that go, then lines that come."""
    x = y = 0
    same: list[str] = []
    for a, b, length in [*(_runs(old, new) or ()), (len(old), len(new), 0)]:
        yield same, old[x:a], new[y:b]
        same, x, y = old[a : a + length], a + length, b + length


def _runs(old: list[str], new: list[str]) -> list[tuple[int, int, int]] | None:
    """Where equal lines stand in both, and how many; None if that is too much work."""
    levels: list[list[int]] = []  # how far into `old` so many changes lead, on each diagonal from -changes to changes
    work = 0
    for changes in range(len(old) + len(new) + 1):
        level: list[int] = []
        for place in range(changes + 1):
            k = 2 * place - changes
            start = x = _start(levels, changes, place)
            while x < len(old) and x - k < len(new) and old[x] == new[x - k]:
                x += 1
            level.append(x)
            work += STEP + x - start
            if x >= len(old) and x - k >= len(new):
                levels.append(level)
                return _back(levels, place)
            if work > WORK:
                return None
        levels.append(level)
    return None


def _start(levels: list[list[int]], changes: int, place: int) -> int:
    """How far one gets with one change more, before equal lines: by a line that comes, else by one that goes."""
    if not changes:
        return 0
    before = levels[changes - 1]
    return before[place] if _comes(before, place) else before[place - 1] + 1


def _comes(before: list[int], place: int) -> bool:
    return place == 0 or (place < len(before) and before[place - 1] < before[place])


def _back(levels: list[list[int]], place: int) -> list[tuple[int, int, int]]:
    """The way that led there."""
    found = []
    for changes in range(len(levels) - 1, -1, -1):
        x, start = levels[changes][place], _start(levels, changes, place)
        if x > start:
            found.append((start, start - (2 * place - changes), x - start))
        if changes and not _comes(levels[changes - 1], place):
            place -= 1
    return found[::-1]
