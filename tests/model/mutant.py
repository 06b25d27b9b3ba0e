"""A fault put in on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mutant:
    """A file of the package, what stands in it, and the fault that takes its place."""

    name: str
    file: str
    old: str
    new: str
    where: Literal["lua", "store", "ground", "worker"]
    test: str = ""
