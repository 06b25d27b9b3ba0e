"""What the model remembers of a job, and of a worker's last claim."""

from __future__ import annotations

from dataclasses import dataclass

from django_delayq.job import JobRecord
from django_delayq.states import State


@dataclass
class Job:
    """An unfinished or failed job. `date`: when it is due, its lease ends, or it failed."""

    id: str
    record: JobRecord
    date: int
    state: State = State.SCHEDULED
    attempt: int = 0
    crashes: int = 0
    fence: str = ""
    asked: str | None = None  # who asked for its cancel
    progress: str = ""
    keyless: bool = False  # it was adopted when another job had its key
    small: bool = False  # its run does not say that it has a key

    @property
    def letter(self) -> str:
        return self.record.lane[0]

    @property
    def body(self) -> bytes:
        return b"" if self.record.durable else self.record.encode()

    def run(self) -> str:
        letter = self.letter.upper() if self.record.key and not self.small else self.letter
        return f"{self.attempt}:{self.crashes}:{letter}:{self.fence}"


@dataclass(frozen=True)
class LastClaim:
    """What a worker took with its last claim that took something: ids and dates."""

    nonce: str
    at: int
    jobs: tuple[tuple[str, int], ...]

    def line(self) -> str:
        return " ".join([self.nonce, str(self.at), *(f"{id}={due}" for id, due in self.jobs)])
