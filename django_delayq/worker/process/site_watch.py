"""Whether another database records the queues of this process: a copy with the same site id. Without this look, movers would not learn
it, since the mirror may be in another process, or in another worker.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Sequence
from typing import Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts import decode, site
from django_delayq.store.scripts.site import NOTHING, Known, SiteRefused, Trimmed
from django_delayq.worker.line import Line

logger = Logger("django_delayq.worker")

EVERY: Final = 4.0  # seconds between looks


class SiteWatch(threading.Thread):
    """1. Reads from Redis what the mirrors of the lines trimmed last. 2. If that has changed, reads the checkpoints.
    3. `site.check_mirror` compares the two; while it refuses a line, `QueueStore.claim` refuses it as well. Without the database, or
    Redis, claims go on. It ends with its process.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__(name="delayq-site", daemon=True)
        self._by_link: dict[Link, list[Line]] = {}
        for line in lines:
            self._by_link.setdefault(line.store.link, []).append(line)
        self._own: dict[Line, Trimmed] = {}  # what was found to be written by this database

    def run(self) -> None:
        """Looks until the process ends."""
        while True:
            try:
                self.look()
            except Exception:  # claims must not go on unwatched
                logger.exception("the check for other databases failed; it is repeated")
            clock.sleep(EVERY * (0.5 + random.random() / 2))

    def look(self) -> None:
        """One look at all lines."""
        changed = {line: trimmed for line, trimmed in self._trimmed().items() if self._own.get(line) != trimmed}
        looks, known = (site.LOOKS if changed else 0), dict[Line, Known]()
        while looks:
            if (checkpoints := site.all_known()) is None:
                return
            known = {line: checkpoints.get((line.queue, line.partition), NOTHING) for line in changed}
            if all(site.has_recorded(known[line], trimmed) for line, trimmed in changed.items()):
                break
            looks -= 1
            clock.sleep(site.LAG)
        for line, trimmed in changed.items():
            self._own.pop(line, None)
            with contextlib.suppress(SiteRefused):  # the next claim reports it
                site.check_mirror(line.store.keys, line.store.link.home, trimmed, known[line])
                self._own[line] = trimmed

    def _trimmed(self) -> dict[Line, Trimmed]:
        found: dict[Line, Trimmed] = {}
        for link, lines in self._by_link.items():
            asked = [("HMGET", line.store.keys["meta"], "site", "mirrored", "mirror_token") for line in lines]
            with contextlib.suppress(StoreUnavailable, StoreError):
                for line, reply in zip(lines, link.execute_many(asked), strict=True):
                    if not isinstance(reply, Exception) and decode.text(reply[0]) == site.of(line.store.keys.prefix):
                        found[line] = Trimmed.read(*reply[1:])
        return found
