"""The event stream of a partition, for the mirror. Only the scripts write it; see `lua/include/begin.lua`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from django_delayq import ids
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import decode, formats, loader, site
from django_delayq.store.scripts.record import says_durable
from django_delayq.store.scripts.worker_registry import WorkerRegistry

FIRST = "0-0"  # before every entry


class Item(NamedTuple):
    """One event: its kind, its space-separated fields (the first is the job's short id, if it has a job), and an opaque body (a
    record, a detail JSON or a reason; b"" for none). `number`: its place in the entry, from 0. `raw`: its value in the stream,
    unchanged.
    """

    kind: str
    fields: tuple[str, ...]
    body: bytes
    number: int = 0
    raw: bytes = b""


class Entry(NamedTuple):
    """The changes of one script call. `id`: the stream id, "ms-n". `at_ms`: the time of Redis. `by`: the worker or the person.
    `format`: the format of the queue when the entry was written.
    """

    id: str
    at_ms: int
    by: str
    why: str
    items: tuple[Item, ...]
    format: int = formats.FIRST


def item(kind: str, raw: bytes, number: int) -> Item:
    """An item, from its kind and its value."""
    head, _, body = raw.partition(b"\n")
    fields = tuple(head.decode("utf-8", "replace").split(" ")) if head else ()
    return Item(kind, fields, body, number, raw)


class NewerEvents(StoreError):
    """Events that only a newer release understands. Nothing was folded and nothing is lost: a newer mirror continues with them."""

    def __init__(self, queue: str, entry: Entry) -> None:
        super().__init__(
            f"the entry {entry.id} of {queue!r} has format {entry.format}, and this process knows formats up to "
            f"{formats.FORMAT}: its mirror stops. Upgrade django-delayq in this process, and restart it"
        )


class Lag(NamedTuple):
    """How far the mirror of a queue is behind: the number of waiting entries, and the age of the oldest in seconds."""

    entries: int
    seconds: float


class EventLog:
    """Reads and trims the stream of one partition.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self.keys = keys

    def now_ms(self) -> int:
        """The time of its server's clock."""
        return decode.time_ms(self._link.execute("TIME"))

    def read(self, after: str, count: int) -> list[Entry]:
        """Reads at most `count` entries after the stream id `after` (`FIRST` for all), oldest first.

        Raises:
            FormatNewer: the queue has a newer format than this process knows.
            SiteRefused: the queue belongs to another site.
        """
        # The format is read last: entries of a newer format are written only after the field has it.
        raw, (format, own) = self._link.ask(
            ("XRANGE", self.keys["events"], f"({after}", "+", "COUNT", count),
            ("HMGET", self.keys["meta"], "format", "site"),
        )
        site.check(self.keys.prefix, self.keys.queue, self._link.home, decode.text(own))
        formats.check(self.keys.queue, format)
        return [_entry(id, pairs) for id, pairs in raw]

    def is_newer(self, format: int) -> bool:
        """Whether the queue, or a live worker, has a newer format."""
        said = [self._link.execute("HGET", self.keys["meta"], "format")]
        beats = WorkerRegistry(self._link, prefix=self.keys.prefix).all()
        said += [str(beat.get("format", formats.FIRST)) for beat in beats if not beat["silent"]]
        return any(decode.number(one) > format for one in said)

    def trim(self, upto: str, *, surplus: int = 0, server: str = "", found: str = "", token: str = "") -> None:
        """Drops the entries up to and including the stream id `upto`. It does so only if the server is still the run from which they
        were read, and no other turn of a mirror has written its token since. `surplus`: how many more jobs than entries they report
        on. `found`: the token that this turn found in Redis. `token`: the token that it committed.
        """
        loader.run(self._link, loader.load("trim", self.keys), self.keys, "", "", "", upto, server, surplus, found, token)

    def records(self, ids: Sequence[str]) -> list[bytes]:
        """The records that Redis keeps of these short ids, at most 200; b"" for those it does not have."""
        return [raw or b"" for raw in self._link.execute("HMGET", self.keys["jobs"], *ids)] if ids else []

    def unknown(self, jobs: Sequence[UUID], *, tombstones: bool = False) -> list[UUID]:
        """The jobs among these, at most 200, that Redis does not know, neither by a record nor by a tombstone. With `tombstones`: those
        for which it has only a tombstone.
        """
        if not jobs:
            return []
        names = [ids.short(id) for id in jobs]
        ends = self._link.execute("ZMSCORE", self.keys["finished"], *names)
        there = zip(jobs, self.records(names), ends, strict=True)
        return [id for id, record, end in there if not record and (end is not None) == tombstones]

    def ended(self, jobs: Sequence[UUID]) -> list[UUID]:
        """The jobs among these, at most 200, for which Redis has only a tombstone."""
        return self.unknown(jobs, tombstones=True)

    def jobs(self) -> Iterator[list[tuple[str, bool]]]:
        """Pairs of short id and durability for all jobs in Redis, a few hundred at a time. A job may come twice."""
        cursor = b"0"
        while True:
            cursor, flat = self._link.execute("HSCAN", self.keys["jobs"], cursor, "COUNT", 200)
            yield [
                (decode.text(id), says_durable(raw))
                for id, raw in zip(flat[::2], flat[1::2], strict=True)
                if decode.job_id(id) is not None
            ]
            if cursor == b"0":
                return

    def tells(self, entries: Iterable[str]) -> set[tuple[str, str]]:
        """Finds which of these entries are in the stream. Returns pairs of an entry id and the short id of a job in it."""
        wanted, found = sorted(entries), set()
        for start in range(0, len(wanted), 200):
            for reply in self._link.ask(*(("XRANGE", self.keys["events"], id, id) for id in wanted[start : start + 200])):
                for entry in (_entry(id, pairs) for id, pairs in reply):
                    found |= {(entry.id, item.fields[0]) for item in entry.items if item.fields}
        return found

    def length(self) -> int:
        """The number of entries that wait for the mirror."""
        return int(self._link.execute("XLEN", self.keys["events"]))

    def last_id(self) -> str:
        """The last stream id, even if its entry has been trimmed; `FIRST` for a stream that does not exist."""
        if not self._link.execute("EXISTS", self.keys["events"]):
            return FIRST
        facts = self._link.execute("XINFO", "STREAM", self.keys["events"])
        last: bytes = dict(zip(facts[::2], facts[1::2], strict=True))[b"last-generated-id"]
        return last.decode()

    def generation(self) -> str:
        """The generation of the store's data; "" if it has none (never used, or wiped)."""
        return decode.text(self._link.execute("HGET", self.keys["meta"], "generation"))


def _entry(id: bytes, pairs: list[bytes]) -> Entry:
    at_ms, by, why = decode.moment_ms(id.partition(b"-")[0]), "", ""  # the time of the id, unless the script wrote another
    format = formats.FIRST
    items: list[Item] = []
    for kind, value in zip(pairs[::2], pairs[1::2], strict=True):
        if kind == b"at":
            at_ms = decode.moment_ms(value) or at_ms
        elif kind == b"by":
            by = value.decode("utf-8", "replace")
        elif kind == b"why":
            why = value.decode("utf-8", "replace")
        elif kind == b"f" and not items:
            format = formats.number(value)
        else:
            items.append(item(kind.decode("utf-8", "replace"), value, len(items)))
    return Entry(id.decode(), at_ms, by, why, tuple(items), format)
