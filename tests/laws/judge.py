"""The judge: holds a history against every law that it has the facts for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tests.laws import of_batches, of_jobs, of_keys, of_limits, of_names, of_pauses, of_queues, of_surroundings, of_ticks
from tests.laws.history import History, Sees
from tests.laws.law import LAWS, Law

# Their functions enter LAWS.
BOOKS = (of_queues, of_jobs, of_keys, of_names, of_limits, of_pauses, of_ticks, of_batches, of_surroundings)


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing that should not have happened."""

    law: str
    job: str
    text: str

    def __str__(self) -> str:
        return f"{self.law}: {self.job} {self.text}" if self.job else f"{self.law}: {self.text}"


def judge(history: History) -> list[Breach]:
    """Every breach of every law that this history can be judged by."""
    history = replace(history)  # it builds its own indexes
    return [Breach(one.name, job, text) for one in judged(history.sees) for job, text in one.find(history)]


@lru_cache
def judged(sees: Sees) -> tuple[Law, ...]:
    """The laws that can be judged by those who see so much."""
    return tuple(one for one in LAWS if one.needs in sees)


def unjudged(sees: Sees) -> list[str]:
    """The names of all others."""
    return [one.name for one in LAWS if one.needs not in sees]
