"""What came of a request: an answer, or why there is none; and what the one and the other mean for the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from django_delayq.exceptions import DelayqError

KEPT: Final = 2048  # bytes of an answer
LONGEST_WAIT: Final = 86_400.0  # seconds that a Retry-After may ask for
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # an answer that says: the host is not well
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
    """What a host said: `body` has at most its first 2 KB, `size` is how many bytes were read, `complete` says whether `body` is all of
    it; `ms` since the request began.
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
    """A delivery that the host did not accept; `fields`: `target`; and `status`, `ms` and `answer` if the host answered."""

    code = "delivery_failed"


def failure(code: str, target: str, *, text: str = "", **fields: Any) -> DeliveryFailed:
    """The error of that code. `text`: in place of the usual one."""
    return DeliveryFailed((text or TEXTS[code]).format(target=target, **fields), code=code, target=target, **fields)


def wait(asked: str, date: str, now: datetime) -> float | None:
    """Seconds of a `Retry-After`, in either of its forms: at least one, at most a day; None for what is none. One that is a date is
    compared with the `Date` of the same answer, which the same clock has written; without one, with `now`.
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
