"""A fault made by rule, and what chooses some of them. The same source gives the same mutants, in the same order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """A rule's change of a text: `new` replaces the characters from `start` to `end`."""

    rule: str
    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Mutant:
    """A change of a file of the package. `key` names it by file, the text of its line and the rule, so that it stays the same while
    other lines are edited; `line` is counted from 1, for people.
    """

    file: str
    key: str
    line: int
    change: Change

    def of(self, text: str) -> str:
        """The text of the file with the fault."""
        return text[: self.change.start] + self.change.new + text[self.change.end :]


def named(file: str, text: str, changes: Iterable[Change]) -> Iterator[Mutant]:
    """Each change with its key. If one rule changes equal lines twice, the second key has a number."""
    seen: Counter[str] = Counter()
    for change in sorted(changes, key=lambda change: (change.start, change.end, change.rule)):
        begin = text.rfind("\n", 0, change.start) + 1
        line = " ".join(text[begin : (text + "\n").index("\n", begin)].split())
        key = f"{file}: {line} [{change.rule}]"
        seen[key] += 1
        number = f" {seen[key]}" if seen[key] > 1 else ""
        yield Mutant(file, key + number, text.count("\n", 0, change.start) + 1, change)


def sample(mutants: Iterable[Mutant], one_in: int, seed: int = 0) -> list[Mutant]:
    """One in so many, chosen by their keys: an edited line changes nothing about the others."""
    return [mutant for mutant in mutants if _number(mutant.key) % one_in == seed % one_in]


def _number(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
