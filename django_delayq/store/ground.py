"""What a partition stands on, and how jobs come back that Redis has lost: the scripts restore and confirm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django_delayq.failpoints import failpoint
from django_delayq.store import read
from django_delayq.store.events import FIRST, position
from django_delayq.store.queue import QueueStore, bounded

Restored = Literal["restored", "adopted", "there", "finished", "lost", "merged", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreItem:
    """A job that Redis may not have. `id` is short. With a fence it is a run that this worker holds, else a row; `attempt` and
    `crashes` are then those behind it. Its date, or the end of its lease: `due_ms`, but `delay_ms` from Redis' now at least.
    `requeued`: the row is unfinished, since a requeue of which older data does not know; of that alone may an end be undone.
    Of a finished row `record` is the word that says how: b"failed", b"succeeded" or b"cancelled".
    """

    id: str
    record: bytes
    attempt: int = 0
    crashes: int = 0
    fence: str = ""
    due_ms: int = 0
    delay_ms: int = 0
    requeued: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """`generation` of the data ("" for none), the run of the `server` that holds it, the one that was `confirmed` to hold what the
    database has seen; `older`: an event is missing that the database has; `rolled`: that has been found before, and restore is at
    it; `restoring`: its progress, "ms who done total"; `now_ms`: the clock of the server (0 where INFO is not allowed).
    """

    generation: str
    server: str
    confirmed: str
    older: bool
    rolled: bool
    restoring: str
    now_ms: int


class GroundStore:
    """The calls of one partition that restore needs; like those of `QueueStore`, each is one script, and safe to repeat.

    Raises (all methods):
        StoreUnavailable, StoreError: as `QueueStore`.
    """

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    def look(self, seen: str) -> Ground:
        """What the queue stands on. `seen`: the last event that the database has, of which `Ground.older` speaks."""
        commands: list[tuple[Any, ...]] = [
            ("HMGET", self._store.keys["meta"], "generation", "server", "mirrored", "rolled", "restoring"),
            ("INFO", "server"),
        ]
        if seen != FIRST:  # an idle mirror looks often, and then asks for no event
            commands.append(("XRANGE", self._store.keys["events"], seen, seen))
        meta, server, *rest = self._store.link.execute_many(commands)
        found = rest[0] if rest else []
        for reply in (meta, found):
            if isinstance(reply, Exception):
                raise reply
        generation, confirmed, mirrored, rolled, restoring = map(read.text, meta)
        told = server if isinstance(server, bytes) else b""
        run, us = re.search(rb"run_id:(\w+)", told), re.search(rb"server_time_usec:(\d+)", told)
        here, now_ms = run[1].decode() if run else "", int(us[1]) // 1000 if us else 0
        older = seen != FIRST and not found and position(mirrored) < position(seen)
        return Ground(generation, here, confirmed, older, bool(rolled), restoring, now_ms)

    def stand(self) -> str:
        """The ground as claims tell it; a store without a generation is given one."""
        return self._restore([], "", "", "", "", "", None)[0]

    def adopt(
        self, items: Sequence[RestoreItem], *, worker: str, ground: str, now_ms: int | None = None
    ) -> tuple[str, list[Restored]]:
        """Nothing -> running: what this worker holds and Redis may have lost. `ground`: that of the claims. Returns the ground, and
        one answer per item, in order.
        """
        return self._restore(items, worker, "adopted", ground or "?", "", "", now_ms)

    def restore(
        self,
        items: Sequence[RestoreItem],
        *,
        rolled: bool | Literal["noted"] = False,
        progress: str = "",
        actor: str = "",
        now_ms: int | None = None,
    ) -> tuple[str, list[Restored]]:
        """Nothing -> scheduled, from rows. `rolled`: Redis has older data than the rows, which are right where it differs; "noted":
        if it has not been confirmed by another meanwhile. `progress` is noted for people. Returns the ground, and one answer per
        item, in order.
        """
        older = rolled if isinstance(rolled, str) else "1" if rolled else ""
        return self._restore(items, actor, "", "", older, progress, now_ms)

    def _restore(
        self,
        items: Sequence[RestoreItem],
        by: str,
        why: str,
        ground: str,
        rolled: str,
        progress: str,
        now_ms: int | None,
    ) -> tuple[str, list[Restored]]:
        bounded(items)
        arguments: list[Any] = [self._store.offer, ground, rolled, progress]
        for item in items:
            arguments += (item.id, item.record, item.attempt, item.crashes, item.fence)
            arguments += (item.due_ms, item.delay_ms, "1" if item.requeued else "")
        reply = self._store.run("restore", now_ms, by, why, *arguments)
        return read.text(reply[0]), [answer.decode() for answer in reply[1:]]

    def confirm(
        self, generation: str, *, server: str = "", renew: str = "", behind: str = "", mirrored: str = "",
        actor: str = "", now_ms: int | None = None,
    ) -> bool:  # fmt: skip
        """The data of this generation is what the database has seen; or, with another generation in `renew`, it was rolled back.
        `behind`: a stream id that new events must be behind; `mirrored`: the last event that the database has. False if the
        generation, or the run of the `server`, is another by now.
        """
        failpoint("restore.confirm")
        answer: bytes = self._store.run("confirm", now_ms, actor, "", generation, renew, behind, mirrored, server)
        failpoint("restore.confirmed")
        return answer == b"ok"
