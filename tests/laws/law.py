"""A law: its sentence, the observations that it needs, and the function that finds violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.laws.history import History, Sees

Findings = Iterable[tuple[str, str]]  # a job, or "", and what is wrong with it
Finder = Callable[[History], Findings]


@dataclass(frozen=True, slots=True)
class Law:
    """`name`: that of the function, in words; its docstring is the sentence."""

    name: str
    needs: Sees
    find: Finder


LAWS: list[Law] = []


def law(needs: Sees) -> Callable[[Finder], Finder]:
    """Makes a law of a function."""

    def enact(find: Finder) -> Finder:
        LAWS.append(Law(find.__name__.replace("_", " "), needs, find))
        return find

    return enact
