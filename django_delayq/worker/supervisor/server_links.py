"""The servers that one worker needs: those of the queues it serves, and the shared one, on which it shows itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django_delayq.store.places import Places
from django_delayq.worker.line import Line

RESTS: Final = 0.5  # seconds after a failed call in which no loop of the supervisor waits for that server,
SLOW: Final = 0.5  # and where there are several servers, after one that took longer than this


class ServerLinks:
    """The links of a supervisor, which must not wait for one server to the harm of what is on another."""

    def __init__(self, places: Places, lines: Sequence[Line]) -> None:
        self._places = places
        self._held = list(dict.fromkeys(line.store.link for line in lines)) or [places.shared]
        self._all = list(dict.fromkeys([places.shared, *self._held]))
        several = len(self._all) > 1 or self._all[0].moves
        for link in self._all:
            link.leave_alone(RESTS, SLOW if several else 0.0)

    @property
    def where(self) -> str:
        """The addresses of all; the same while masters change and slots move."""
        return " ".join(dict.fromkeys(link.home for link in self._all))

    @property
    def count(self) -> int:
        """On how many servers its lines are."""
        return len(self._held)

    @property
    def away(self) -> bool:
        """Whether none answers on which it may hold something."""
        return all(link.away for link in self._held)

    def lost(self, queues: Sequence[str]) -> bool:
        """Whether none answers that has one of these queues; of none of them: as `away`."""
        return all(self._places.of(queue, 0).away for queue in queues) if queues else self.away

    def hurry(self, deadline: float) -> None:
        """See `Link.hurry`."""
        for link in self._all:
            link.hurry(deadline)
