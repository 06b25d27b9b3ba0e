"""Locks by name: the scripts lock, prolong and unlock. Only this module translates their arguments and replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from django_delayq.store.connection.link import Link
from django_delayq.store.connection.wake import ListeningLine
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import decode, loader, site
from django_delayq.store.scripts.queue import bounded

WAITS_MS: Final = 2_000  # how long one look counts as a waiting caller; callers that wait look more often

LockAnswer = Literal["held", "done", "lost", "gone", "forgotten"]


class Taken(NamedTuple):
    """Another caller holds the lock. `holder`: its name. `since_ms`: when it took the lock. `left_ms`: the rest of its lease.
    `now_ms`: the time of Redis' clock.
    """

    holder: str
    since_ms: int
    left_ms: int
    now_ms: int


class LockStore(NamedTuple):
    """The locks of one queue. Every call is one script, and safe to repeat with the same arguments. For `now_ms` and errors, see the
    methods of `QueueStore`.
    """

    link: Link
    keys: Keys

    def lock(self, name: str, token: str, *, lease_ms: int, holder: str, waits: bool = False, now_ms: int | None = None) -> int | Taken:
        """Returns the fence if the caller has the lock now, or already had it: the same `token` gets the same fence. `waits`: if
        another caller holds the lock, this one waits for it and wants to be notified when it is free.
        """
        site.admit(self.link, self.keys)
        found, *told = loader.run(
            self.link,
            loader.load("lock", self.keys),
            self.keys,
            *loader.head(now_ms, holder, ""),
            name,
            token,
            lease_ms,
            WAITS_MS if waits else 0,
        )
        if found == b"locked":
            return int(told[0])
        since, who, left, now = told
        return Taken(decode.text(who), int(since), int(left), int(now))

    def prolong(self, held: Sequence[tuple[str, str, int]], *, now_ms: int | None = None) -> list[LockAnswer]:
        """Extends leases, for at most 200 triples of name, token and lease in ms. The answer for each lock: held, lost or gone."""
        bounded(held)
        arguments = [word for lock in held for word in lock]
        reply = loader.run(self.link, loader.load("prolong", self.keys), self.keys, *loader.head(now_ms, "", ""), *arguments)
        return [answer.decode() for answer in reply]

    def unlock(self, name: str, token: str, *, repeats: int = 0, now_ms: int | None = None) -> LockAnswer:
        """Releases the lock. Returns done, lost or gone. `repeats`: the fence of a caller that repeats this because a reply was lost.
        It gets lost or gone if the first call was executed, and forgotten if Redis has lost its contents since the lock was taken.
        """
        told = (*loader.head(now_ms, "", ""), name, token, repeats or "")
        [answer] = loader.run(self.link, loader.load("unlock", self.keys), self.keys, *told)
        found: LockAnswer = answer.decode()
        return found

    def line(self, after_ms: int) -> UnlockLine:
        """A connection that reports locks which became free at or after that time of Redis' clock."""
        return UnlockLine(self, self.keys["unlocked"], after_ms)


class UnlockLine(ListeningLine):
    """A connection on which a caller waits for a lock. See `ListeningLine` for its steps. `names` reads the reply."""

    what = "line that waits for locks"
    command = "xread"

    def __init__(self, store: LockStore, stream: str, after_ms: int) -> None:
        super().__init__(store.link)
        self._stream = stream
        self._after = f"{after_ms - 1}-0"  # also entries of the same ms: an extra look costs less than a missed one

    def _command(self) -> tuple[str | int, ...]:
        return "XREAD", "BLOCK", 0, "STREAMS", self._stream, self._after

    def names(self) -> set[str]:
        """The names of the locks that were released since the last look."""
        reply = self._heard()
        entries = reply[0][1] if reply else []
        if entries:
            self._after = decode.text(entries[-1][0])
        return {decode.text(fields[1]) for _, fields in entries if fields and len(fields) == 2}
