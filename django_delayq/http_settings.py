"""The values of `DELAYQ["HTTP"]`: where deliveries may go, how they are signed, and how long they may take."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Final

Network = IPv4Network | IPv6Network
SIGNING: Final = "whsec_"  # begins a secret that signs, as the Standard Webhooks write it
SHORTEST, LONGEST = 16, 64  # bytes of such a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """`DELAYQ["HTTP"]`. Durations in seconds; `secrets` maps a name to its values, the newest first."""

    allow: tuple[Network, ...]
    secrets: Mapping[str, tuple[str, ...]] = field(repr=False)
    proxy: str | None = field(repr=False)  # it may hold a password
    ca: str | None
    connect: float
    read: float
    timeout: float
    max_answer: int
    gone: frozenset[int]
    per_host: int | None
    breaker: int | None
    pause: float
    queue: str


def signing_key(secret: str) -> bytes:
    """The bytes of a secret such as `whsec_…`.

    Raises:
        ValueError: it is invalid. The message does not contain it.
    """
    if not secret.startswith(SIGNING):
        raise ValueError(f"a secret for signing begins with {SIGNING}")
    try:
        written = secret.removeprefix(SIGNING)
        key = base64.b64decode(written + "=" * (-len(written) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"the text after {SIGNING} is not base64") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise ValueError(f"a secret for signing has {SHORTEST} to {LONGEST} bytes after {SIGNING}, in base64, not {len(key)}")
    return key
