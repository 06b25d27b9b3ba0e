"""The format of a partition: which one it has, and the script upgrade, which gives it the newest one."""

from __future__ import annotations

from dataclasses import dataclass

from django_delayq.store import formats
from django_delayq.store.queue import QueueStore


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The format of a queue before and after the call. `older`: formats of older processes -> ms since one called last."""

    before: int
    after: int
    older: dict[int, int]


class FormatStore:
    """The calls of one partition that concern its format; safe to repeat.

    Raises (all methods):
        StoreUnavailable, StoreError: as `QueueStore`.
    """

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    def look(self) -> int:
        """The format that the queue has; it may be a newer one than this process knows."""
        return formats.number(self._store.link.execute("HGET", self._store.keys["meta"], "format"))

    def used(self) -> bool:
        """Whether a job has ever been in the queue, since Redis was empty."""
        return bool(self._store.link.execute("HEXISTS", self._store.keys["meta"], "generation"))

    def upgrade(self, *, quiet_ms: int = 0, least: int = 0, actor: str = "", reason: str = "", now_ms: int | None = None) -> Upgraded:
        """From now on the queue has the newest format that this release knows, if it has `least` already and no process of an older
        release has called for `quiet_ms`.
        """
        before, after, *seen = map(int, self._store.run("upgrade", now_ms, actor, reason, quiet_ms, least))
        return Upgraded(before, after, dict(zip(seen[::2], seen[1::2], strict=True)))
