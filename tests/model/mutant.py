"""A fault put in on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mutant:
    """A file of the package, what stands in it, and the fault that takes its place. `test`: what notices it; without one the machine
    does. What the dice of the machine come upon seldom has a test of its own.
    """

    name: str
    file: str
    old: str
    new: str
    where: Literal["lua", "store", "ground", "worker"]
    test: str = ""
