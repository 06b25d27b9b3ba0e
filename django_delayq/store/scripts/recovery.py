"""The epoch of a partition, and the restore of jobs that Redis has lost: the scripts restore, sweep and confirm."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from django_delayq import ids
from django_delayq.exceptions import PayloadError
from django_delayq.job_meta import may_carry, told_of
from django_delayq.store.scripts import decode, site
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.queue import QueueStore, bounded
from django_delayq.store.scripts.record import JobRecord, read
from django_delayq.store.scripts.site import Trimmed

Restored = Literal["restored", "adopted", "there", "finished", "lost", "merged", "epoch", "wait"]
Confirmed = Literal["ok", "changed", "busy"]

# The phases of a restore, see confirm.lua; "" when Redis holds everything that the database has seen.
FOUND: Final = "found"
SWEEP: Final = "sweep"
ADOPT: Final = "adopt"
REST: Final = "rest"
ADOPTION_MS: Final = 3000  # due jobs wait that long, so that a worker that already runs one can adopt it


def fresh_generation() -> str:
    """A new generation for a restore, different from all others."""
    return "r" + secrets.token_hex(8)


class RestoreItem(NamedTuple):
    """A job that Redis may not have, in the order of restore.lua. `id` is short. With a fence it is a run that this worker holds, else
    a row. For a row, `attempt` and `crashes` count the runs before. `due_ms`: its date, or the end of its lease, but at least
    `delay_ms` after Redis' now. `unsure_ms`, `begun`, `asks`, `first_ms`: see restore.lua.
    """

    id: str
    record: bytes
    attempt: int = 0
    crashes: int = 0
    fence: str = ""
    due_ms: int = 0
    delay_ms: int = 0
    unsure_ms: int = 0
    begun: Literal["", "run", "cancel"] = ""
    asks: int = 0
    first_ms: int | Literal[""] = ""


class Epoch(NamedTuple):
    """The epoch of a partition, and the state of its restore. `site`: the site of the queue ("" for none). `generation`: that of the
    data ("" for none). `server`: the run of the server ("" if INFO is not allowed). `confirmed`: the server that was confirmed to
    hold what the database has seen (None: none was). `older`: an event that the database has is missing. `rolled`: this was found
    before, and the restore is in this phase. `restoring`: its progress, "ms who done total". `now_ms`: the clock of the server (0 if
    INFO is not allowed). `trimmed`: what the mirror has trimmed.
    """

    site: str
    generation: str
    server: str
    confirmed: str | None
    older: bool
    rolled: str
    restoring: str
    now_ms: int
    trimmed: Trimmed


class EpochStore:
    """The calls of one partition for a restore. Like those of `QueueStore`, each is one script, and safe to repeat.

    Raises (all methods):
        StoreUnavailable, StoreError: as `QueueStore`.
    """

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    def look(self, seen: str = "") -> Epoch:
        """The epoch of the queue. `seen`: the last event that the database has, for `Epoch.older`; "": none."""
        commands, seen = [*self.asks], seen or FIRST
        if seen != FIRST:  # an idle mirror looks often, and then needs no event
            commands.append(("XRANGE", self._store.keys["events"], seen, seen))
        return self.read(self._store.link.execute_many(commands), seen)

    @property
    def asks(self) -> Sequence[tuple[Any, ...]]:
        """The commands of `look` if the database has seen no event."""
        meta = self._store.keys["meta"]
        return ("HMGET", meta, "generation", "server", "mirrored", "mirror_token", "rolled", "restoring", "site"), ("INFO", "server")

    def read(self, replies: Sequence[Any], seen: str = FIRST) -> Epoch:
        """The epoch from the replies to `asks`.

        Raises:
            SiteRefused: the queue belongs to another site.
        """
        meta, server, *rest = replies
        found = rest[0] if rest else []
        for reply in (meta, found):
            if isinstance(reply, Exception):
                raise reply
        generation, _, mirrored, _, rolled, restoring, own = map(decode.text, meta)
        site.check(self._store.keys.prefix, self._store.queue, self._store.link.home, own)
        confirmed = None if meta[1] is None else decode.text(meta[1])
        told = server if isinstance(server, bytes) else b""
        run, us = re.search(rb"run_id:(\w+)", told), re.search(rb"server_time_usec:(\d+)", told)
        here, now_ms = run[1].decode() if run else "", int(us[1]) // 1000 if us else 0
        older = seen != FIRST and not found and position(mirrored) < position(seen)
        return Epoch(own, generation, here, confirmed, older, rolled, restoring, now_ms, Trimmed.read(*meta[2:4]))

    def holders(self, keys: Collection[str]) -> list[UUID]:
        """The jobs that hold these business keys in Redis."""
        found = self._store.link.execute("HMGET", self._store.keys["keys"], *keys) if keys else []
        return [id for id in map(decode.job_id, filter(None, found)) if id is not None]

    def stand(self) -> str:
        """The epoch in the form that claims have. A store without a generation gets one."""
        return self._restore([], "", "", "", "", None)[0]

    def adopt(self, items: Sequence[RestoreItem], *, worker: str, epoch: str, now_ms: int | None = None) -> tuple[str, list[Restored]]:
        """Nothing -> running: the runs of this worker that Redis may have lost. `epoch`: that of the claims. Returns the epoch, and
        one answer per item, in order. All answers are `wait` while nothing can be adopted yet.
        """
        return self._restore(items, worker, "adopted", epoch or "?", "", now_ms)

    def row(
        self,
        record: JobRecord,
        *,
        runs: bool,
        attempts: int,
        crashes: int,
        asks: int,
        due_ms: int,
        cancel: bool,
        lease_ms: int,
        first_ms: int | Literal[""] = "",
    ) -> RestoreItem:
        """The item for an unfinished row. A job that runs according to its row gets a lease, in which its worker can adopt it
        (`cancel`: a cancellation was requested). A due job may have begun without an event. So it waits a little longer, for the same
        reason.
        """
        id, written = ids.short(record.id), self._store.written(record)
        if not runs:
            return RestoreItem(id, written, attempts, crashes, "", due_ms, ADOPTION_MS, lease_ms, asks=asks, first_ms=first_ms)
        return RestoreItem(
            id=id,
            record=written,
            attempt=max(0, attempts - 1),
            crashes=crashes,
            delay_ms=lease_ms,
            begun="cancel" if cancel else "run",
            asks=asks,
            first_ms=first_ms,
        )

    def restore(
        self,
        items: Sequence[RestoreItem],
        *,
        epoch: str,
        progress: str = "",
        actor: str = "",
        now_ms: int | None = None,
    ) -> list[Restored]:
        """Nothing -> scheduled or running, from rows. `epoch`: the value of `QueueStore.epoch` before the rows were read. In another
        epoch nothing is written, and all answers are `epoch`. `progress` is noted for people, and keeps other restores away. Returns
        one answer per item, in order.
        """
        return self._restore(items, actor, "", epoch, progress, now_ms)[1] if items else []

    def _restore(
        self, items: Sequence[RestoreItem], by: str, why: str, epoch: str, progress: str, now_ms: int | None
    ) -> tuple[str, list[Restored]]:
        bounded(items)
        arguments: list[Any] = [self._store.new_generation, epoch, progress]
        for item in items:
            arguments += (*item, _name(item.record))
        reply = self._store.run("restore", now_ms, by, why, *arguments)
        return decode.text(reply[0]), [answer.decode() for answer in reply[1:]]

    def sweep(
        self, generation: str, cursor: str = "0", *, progress: str = "", actor: str = "", now_ms: int | None = None
    ) -> tuple[str, int]:
        """Removes all durable jobs; their rows decide. Returns the cursor for the next call, and the number of jobs that this call
        has removed. "0" is the end; "" means that this generation is not being swept.
        """
        after, gone = self._store.run("sweep", now_ms, actor, "", generation, progress, cursor)
        return decode.text(after), int(gone)

    def drop(self, jobs: Sequence[str], *, actor: str = "", now_ms: int | None = None) -> int:
        """Removes these jobs, by short ids: their rows have ended. Returns how many Redis had."""
        bounded(jobs)
        return int(self._store.run("sweep", now_ms, actor, "", "", "", "", *jobs)[1])

    def confirm(
        self,
        generation: str,
        *,
        server: str = "",
        phase: str = "",
        renew: str = "",
        behind: str = "",
        mirrored: str = "",
        progress: str = "",
        actor: str = "",
        now_ms: int | None = None,
    ) -> Confirmed:
        """Notes that Redis holds what the database has seen; or that it does not, and that the restore is in this `phase`. `renew`:
        another generation, for data that is not trusted. `behind`: new events must come after this stream id. `mirrored`: the last
        event that the database has. Returns "changed" if the generation, or the run of the `server`, has changed; "busy" if another
        restore is at work.
        """
        answer: bytes = self._store.run("confirm", now_ms, actor, "", generation, server, phase, renew, behind, mirrored, progress)
        return answer.decode()  # type: ignore[return-value]  # one of the three words that confirm.lua has


def _name(record: bytes) -> str:
    """The argument of the script for the concurrency name in a record, signed or not; "" if the record is not ours."""
    try:
        return told_of(read(record)[1]) if may_carry(record) else ""
    except PayloadError:
        return ""
