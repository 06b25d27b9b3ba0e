"""What runs offer to others: the script offer. How an entry looks is a contract with other languages."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from django_delayq.store import decode, encode, scripts
from django_delayq.store.queue import QueueStore
from django_delayq.target import OfferTarget

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
        """Puts the `body` (JSON) of the job with that short id into the target, unless that was done before.

        Raises:
            StoreUnavailable: as `QueueStore`; StoreRefused with `full`: no memory is left, and nothing was written.
            StoreError: as `QueueStore`; `reply` begins with WRONGTYPE if something else stands at the target's key.
        """
        script = scripts.load("offer")
        head = encode.head(now_ms, worker, "")
        most = "" if target.maxlen is None else target.maxlen
        told = (id, attempt, nonce, target.kind, most, *_content(target, id, body))
        status, place = scripts.run(self._store.link, script, self._store.keys, *head, *told, beside=target.key)
        return OfferReply(status.decode(), decode.text(place))


def _content(target: OfferTarget, id: str, body: bytes) -> tuple[Any, ...]:
    if target.kind == "stream":
        return "id", id, "body", body
    return (b'{"id":"%b","body":%b}' % (id.encode(), body),)
