"""A fault of the past, put in on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mutant:
    """A file of the package, what stands in it, and the fault that takes its place. `bug`: what people saw of it. `test`: file and name
    of one that notices it within one process. `drill`: whether the campaign's drill notices it each time; else the test has to.
    """

    name: str
    file: str
    old: str
    new: str
    where: Literal["lua", "epoch", "worker"]
    bug: str
    test: str = ""
    drill: bool = True
