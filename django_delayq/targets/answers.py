"""The answer to a request, or the error, and when to send the request again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from django_delayq.exceptions import DelayqError

KEPT: Final = 2048  # bytes of an answer that the job keeps
LONGEST_WAIT: Final = 86_400.0  # seconds; the maximum of a Retry-After
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # the host has a problem
TEXTS: Final[Mapping[str, str]] = {
    "answer": "{target} answered {status} after {ms} ms: {answer}",
    "redirect": "{target} answered {status} after {ms} ms, which is a redirect. A delivery follows only redirects with 307 and 308, "
    "at most {redirects} (redirects=…).",
    "name": "{target} has no address: {cause}.",
    "connect": "{target} could not be reached: {cause}.",
    "timeout": "{target} did not answer within {limit}, the limit for the whole delivery.",
    "tls": "{target} could not prove its identity: {cause}.",
    "broken": "{target} closed the connection before it had answered: {cause}.",
    "unready": 'This worker cannot deliver: DELAYQ["HTTP"] is not set there, or the package urllib3 is missing.',
    "secret": "The secret {secret!r} is not in DELAYQ['HTTP']['SECRETS'] of this worker, or cannot sign.",
}
WITHHELD: Final = (
    "{target} answered {status} after {ms} ms with {size} bytes. They are not kept, because the request contained a secret."
)
REDIRECTED: Final = (
    "{target} redirected the delivery, which failed there ({code}). The error does not say where, because the request contained a "
    "secret."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of a host. `body`: at most the first 2 KB; `size`: how many bytes were read; `complete`: whether `body` is the whole
    body; `ms`: time since the request began.
    """

    status: int
    body: bytes
    size: int
    complete: bool
    ms: int
    retry_after: str = ""
    date: str = ""
    location: str = ""


class DeliveryFailed(DelayqError):
    """The host did not accept a delivery. `fields` contains `target` and, if the host responded, `status`, `ms` and `answer`."""

    code = "delivery_failed"
    texts = TEXTS


def wait(asked: str, date: str, now: datetime) -> float | None:
    """The seconds of a `Retry-After`, from one to a day; None if it is not valid. A date is compared with the `Date` of the same
    answer, which is by the same clock, or otherwise with `now`.
    """
    asked = asked.strip()
    if asked.isascii() and asked.isdigit():
        seconds = float(asked[:10])
    else:
        until = _read(asked)
        if until is None:
            return None
        seconds = (until - (_read(date) or now)).total_seconds()
    return min(max(seconds, 1.0), LONGEST_WAIT)


def _read(date: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(date)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
