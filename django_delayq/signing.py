"""Signatures of records: an HMAC after the payload, which Lua ignores. The keys are arguments; `conf` derives them.

A signature covers the prefix, the queue, the ID, and the record as it is stored: header and payload. It does not cover values that
scripts change: date, attempts, lease and state. The prefix is part of the key.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Final, Literal

Standing = Literal["newest", "older", "unsigned", "wrong"]

# Compact JSON holds no line end, so no payload ends like this.
MARK: Final = b"\n~"
SIZE: Final = 43  # characters of base64, without padding, for the 32 bytes of SHA-256
_TRAIL: Final = len(MARK) + SIZE
_ALPHABET: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with the first key, and accepts all of them: `keys` are the derived ones, the newest first, at least one."""

    keys: tuple[bytes, ...] = field(repr=False)

    def sign(self, record: bytes, *, queue: str, id: str) -> bytes:
        """The record followed by its signature, which replaces an existing one. `id`: short."""
        bare, _ = split(record)
        return bare + MARK + _signature(self.keys[0], bare, queue, id)

    def standing(self, record: bytes, *, queue: str, id: str) -> Standing:
        """newest or older: signed by the first key, or by another one of these. unsigned; wrong: not by any of these."""
        bare, given = split(record)
        if not given:
            return "unsigned"
        for number, key in enumerate(self.keys):
            if hmac.compare_digest(_signature(key, bare, queue, id), given):
                return "older" if number else "newest"
        return "wrong"

    def verifies(self, record: bytes, *, queue: str, id: str) -> bool:
        """Whether one of the keys has signed it."""
        return self.standing(record, queue=queue, id=id) in ("newest", "older")


def split(record: bytes) -> tuple[bytes, bytes]:
    """The record without its signature, and the signature; b"" for none."""
    if record[-_TRAIL:-SIZE] == MARK and _ALPHABET.issuperset(record[-SIZE:]):
        return record[:-_TRAIL], record[-SIZE:]
    return record, b""


def _signature(key: bytes, record: bytes, queue: str, id: str) -> bytes:
    # Neither a queue's name nor an id holds a line end, so no two triples make the same text.
    text = f"{queue}\n{id}\n".encode() + record
    return urlsafe_b64encode(hmac.digest(key, text, "sha256")).rstrip(b"=")
