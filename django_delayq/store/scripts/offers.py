"""What runs offer to others: the script offer. How an entry looks is a contract with other languages."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from django_delayq.store.connection.link import Link
from django_delayq.store.scripts import decode, encode, loader
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.target import OfferTarget

FREE: Final = b"free"
OfferStatus = Literal["offered", "again", "cancel", "lost", "gone"]


class OfferReply(NamedTuple):
    """What came of an offer, see offer.lua. `place`: the id of its entry; of a list, how long that was with it; else ""."""

    status: OfferStatus
    place: str


class OfferStore:
    """Offers of the jobs of one partition; the call is one script, and safe to repeat."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    def offer(
        self, target: OfferTarget, body: bytes, *, id: str, attempt: int, nonce: str, worker: str = "", now_ms: int | None = None
    ) -> OfferReply:
        """Puts the `body` (JSON) of the job with that short id into the target, unless that was done before. One call, but three on a
        Cluster if the target's key is in another slot than the queue: what was pushed by who dies before the last is pushed again.

        Raises:
            StoreUnavailable: as `QueueStore`; StoreRefused with `full`: no memory is left, and nothing was written.
            StoreError: as `QueueStore`; `reply` begins with WRONGTYPE if something else stands at the target's key.
        """
        script, link = loader.load("offer", self._store.keys), self._store.link
        told = (*encode.head(now_ms, worker, ""), id, attempt, nonce)
        content = _content(target, id, body)
        there = link.beside(target.key)
        if there is link:
            most = "" if target.maxlen is None else target.maxlen
            status, place = loader.run(link, script, self._store.keys, *told, target.kind, most, *content, beside=target.key)
            return OfferReply(status.decode(), decode.text(place))
        status, place = loader.run(link, script, self._store.keys, *told, "look", "")
        if status != FREE:
            return OfferReply(status.decode(), decode.text(place))
        place = _push(there, target, content)
        status, place = loader.run(link, script, self._store.keys, *told, "note", "", place)
        return OfferReply(status.decode(), decode.text(place))


def _push(link: Link, target: OfferTarget, content: tuple[Any, ...]) -> Any:
    """Pushes, without a note. Returns the place."""
    if target.kind == "stream":
        most = () if target.maxlen is None else ("MAXLEN", "~", target.maxlen)
        return link.execute("XADD", target.key, *most, "*", *content)
    length = link.execute("RPUSH", target.key, *content)
    if target.maxlen is not None:
        link.execute("LTRIM", target.key, -target.maxlen, -1)
    return length


def _content(target: OfferTarget, id: str, body: bytes) -> tuple[Any, ...]:
    if target.kind == "stream":
        return "id", id, "body", body
    return (b'{"id":"%b","body":%b}' % (id.encode(), body),)
