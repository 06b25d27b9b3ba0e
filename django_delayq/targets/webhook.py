"""Signatures of the Standard Webhooks (https://www.standardwebhooks.com): deliveries sign, and receivers verify. A signature is `v1,`
and the base64 of HMAC-SHA256 over `id.timestamp.body`.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from django_delayq import clock, durations
from django_delayq.exceptions import ConfigError, DelayqError
from django_delayq.setting_readers import signing_key

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
HEADERS: Final = (ID, TIMESTAMP, SIGNATURE)
VERSION: Final = "v1"
MOST: Final = 20  # signatures of a request that are checked
TEXTS: Final[Mapping[str, str]] = {
    "header_missing": "The request has no header {header}: it is not a signed delivery, or a proxy removed the header.",
    "timestamp_wrong": "Its webhook-timestamp is not a number of seconds since 1970.",
    "timestamp_old": "It was signed {seconds} s ago, and {tolerance} s are tolerated: an old request sent again, or a wrong clock.",
    "timestamp_new": "It was signed {seconds} s from now, and {tolerance} s are tolerated: one of the two clocks is wrong.",
    "signature_wrong": "No signature matches one of these secrets: the request is forged, was changed on its way, or was signed "
    "with another secret.",
}


class SignatureRefused(DelayqError):
    """A request does not have a valid signature. Respond with 400 or 401, and ignore the request. `code` contains the reason."""

    code = "signature_wrong"
    texts = TEXTS


class Verified(NamedTuple):
    """A request with a valid signature. `id` is the same for every attempt of a delivery, so you can process each delivery once.
    `signed_at` is the time of the attempt.
    """

    id: str
    signed_at: datetime


def signatures(id: str, timestamp: int, body: bytes, secrets: Iterable[str]) -> str:
    """The value of `webhook-signature`: one signature for each secret, so that receivers can switch from one to another."""
    return " ".join(f"{VERSION},{_signature(id, str(timestamp), body, signing_key(secret))}" for secret in secrets)


def verify(request: Any, secrets: str | Iterable[str], *, body: bytes | None = None, tolerance: durations.Delay = "5m") -> Verified:
    """Verifies the signature of a request, in constant time.

    Args:
        request: A Django request. For other frameworks, pass the headers, and pass the raw bytes of the request as `body`.
        secrets: A secret such as `"whsec_…"`, or several. One of them must match.
        tolerance: The maximum difference between the request's timestamp and the current time.

    Raises:
        SignatureRefused: The request does not have a valid signature.
        ConfigError: A secret is invalid, there are no secrets, or the body is missing.
    """
    headers, content = getattr(request, "headers", request), getattr(request, "body", None) if body is None else body
    if not isinstance(content, bytes):
        raise ConfigError("verify() was given headers without a body. Pass the received bytes as body=.")
    keys = _keys(secrets)
    id, stamp, given = (_header(headers, name) for name in HEADERS)
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise SignatureRefused(code="timestamp_wrong")
    age, most = clock.wall_ms() // 1000 - int(stamp), durations.seconds(tolerance)
    if abs(age) > most:
        raise SignatureRefused(code="timestamp_old" if age > 0 else "timestamp_new", seconds=abs(age), tolerance=f"{most:g}")
    offered = [one.partition(",")[2] for one in given.split(" ")[:MOST] if one.startswith(f"{VERSION},")]
    wanted = [_signature(id, stamp, content, key).encode() for key in keys]
    good = False
    for one in offered:
        for other in wanted:  # constant time: compares all
            good |= hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other)
    if not good:
        raise SignatureRefused(code="signature_wrong")
    return Verified(id, clock.from_ms(int(stamp) * 1000))


def _signature(id: str, stamp: str, body: bytes, key: bytes) -> str:
    return base64.b64encode(hmac.digest(key, f"{id}.{stamp}.".encode("utf-8", "surrogatepass") + body, "sha256")).decode()


def _keys(secrets: str | Iterable[str]) -> list[bytes]:
    try:
        keys = [signing_key(one) for one in ([secrets] if isinstance(secrets, str) else secrets)]
    except ValueError as error:
        raise ConfigError(f"verify() was given an invalid secret: {error}.") from None
    if not keys:
        raise ConfigError(
            "verify() was called without a secret. Pass a secret, or a list with the new and the old one during a rotation."
        )
    return keys


def _header(headers: Any, name: str) -> str:
    for given, value in headers.items():  # the headers of http.server and Flask have items(), but are not a Mapping
        if given.lower() == name and value:
            return str(value)
    raise SignatureRefused(code="header_missing", header=name)
