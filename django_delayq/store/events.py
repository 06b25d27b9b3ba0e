"""The event stream of a partition, as the mirror reads it. Written by the scripts only; see `lua/include/begin.lua`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django_delayq.job import says_durable
from django_delayq.store import read, scripts
from django_delayq.store.connection import Link
from django_delayq.store.keys import Keys

FIRST = "0-0"  # before every entry


class Item(NamedTuple):
    """One happening: its kind, its space-separated fields (the first is the job's short id, where there is one), and an
    opaque body (a record, a detail JSON or a reason; b"" when there is none). `number`: its place in the entry, from 0.
    """

    kind: str
    fields: tuple[str, ...]
    body: bytes
    number: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """What one script call changed. `id` is the stream id, "ms-n"; `at_ms` Redis' time; `by` the worker or the person."""

    id: str
    at_ms: int
    by: str
    why: str
    items: tuple[Item, ...]


def position(stream_id: str) -> tuple[int, int]:
    """A stream id as numbers that compare; (0, 0) for none."""
    ms, _, number = stream_id.partition("-")
    return (int(ms), int(number)) if ms.isdigit() and number.isdigit() else (0, 0)


class EventLog:
    """Reads and trims the stream of one partition.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self.keys = keys

    def read(self, after: str, count: int) -> list[Entry]:
        """At most `count` entries behind the stream id `after` (`FIRST` for all), oldest first."""
        raw = self._link.execute("XRANGE", self.keys["events"], f"({after}", "+", "COUNT", count)
        return [_entry(id, pairs) for id, pairs in raw]

    def trim(self, upto: str, *, server: str = "") -> None:
        """Drops the entries up to and including the stream id `upto`, if the server still is the run that they were read from."""
        scripts.run(self._link, scripts.load("trim"), self.keys, "", "", "", upto, server)

    def records(self, ids: Sequence[str]) -> list[bytes]:
        """The records that Redis keeps of these short ids, at most 200; b"" for those it does not have."""
        return [raw or b"" for raw in self._link.execute("HMGET", self.keys["jobs"], *ids)] if ids else []

    def jobs(self) -> Iterator[list[tuple[str, bool]]]:
        """Short id, and whether it is durable, of all jobs that Redis has, a few hundred at a time; one may come twice."""
        cursor = b"0"
        while True:
            cursor, flat = self._link.execute("HSCAN", self.keys["jobs"], cursor, "COUNT", 200)
            yield [
                (read.text(id), says_durable(raw))
                for id, raw in zip(flat[::2], flat[1::2], strict=True)
                if read.job_id(id) is not None
            ]
            if cursor == b"0":
                return

    def length(self) -> int:
        """How many entries wait for the mirror."""
        return int(self._link.execute("XLEN", self.keys["events"]))

    def last_id(self) -> str:
        """The stream id given last, also when its entry has been trimmed; `FIRST` for a stream that never was."""
        if not self._link.execute("EXISTS", self.keys["events"]):
            return FIRST
        facts = self._link.execute("XINFO", "STREAM", self.keys["events"])
        last: bytes = dict(zip(facts[::2], facts[1::2], strict=True))[b"last-generated-id"]
        return last.decode()

    def generation(self) -> str:
        """The generation of the store's data; "" while it has none (never used, or wiped)."""
        return read.text(self._link.execute("HGET", self.keys["meta"], "generation"))


def _entry(id: bytes, pairs: list[bytes]) -> Entry:
    at_ms, by, why = read.moment_ms(id.partition(b"-")[0]), "", ""  # as scripts write it, unless they say otherwise
    items: list[Item] = []
    for kind, value in zip(pairs[::2], pairs[1::2], strict=True):
        if kind == b"at":
            at_ms = read.moment_ms(value) or at_ms
        elif kind == b"by":
            by = value.decode("utf-8", "replace")
        elif kind == b"why":
            why = value.decode("utf-8", "replace")
        else:
            head, _, body = value.partition(b"\n")
            fields = tuple(head.decode("utf-8", "replace").split(" ")) if head else ()
            items.append(Item(kind.decode("utf-8", "replace"), fields, body, len(items)))
    return Entry(id.decode(), at_ms, by, why, tuple(items))
