"""A fault of the past, put in on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mutant:
    """A file of the package, the text in it, and the fault that replaces this text. `bug`: the effect that users saw. `test`: file
    and name of a test that notices it within one process. `drill`: whether the campaign's drill notices it each time; otherwise the
    test must.
    """

    name: str
    file: str
    old: str
    new: str
    where: Literal["lua", "epoch", "worker"]
    bug: str
    test: str = ""
    drill: bool = True
