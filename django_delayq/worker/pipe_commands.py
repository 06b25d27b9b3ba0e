"""What a supervisor tells a task process, mostly how to come to its end: one letter each, through a pipe. What concerns one job, as a
request to cancel it, goes through the lease table instead (`supervisor/lease_extender.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

QUIET: Final = b"Q"  # claim no more; finish what is here
RETIRE: Final = b"R"  # claim no more, give back what waits, finish what runs, then run the jobs on their last chance, end
LEAVE: Final = b"L"  # claim no more, give back what waits, those included, finish what runs, end
NOW: Final = b"N"  # give back what runs as well, and end
ABORT: Final = b"A"  # end the runs that the lease table marks as aborted

GAVE_UP: Final = 3  # exit code of a task process in a burst that could not reach Redis


@dataclass(frozen=True, slots=True)
class Ends:
    """A child's ends of the pipes: commands to it, and one that closes when the supervisor is gone."""

    commands: int
    alive: int
