"""The number of the format in which a queue stands in Redis, and what a process does that meets a newer one.

`meta.format` of a partition says it; absent means 0. A release reads every format up to its own `FORMAT` and writes the one that the
queue has. Only `upgrade` raises the number, and only then may what is new be written, so that old and new processes work side by side
while a deploy rolls. A process that finds a newer number than it knows writes nothing there and waits: every script looks
(`lua/include/begin.lua`), and so does who reads the stream.

| format | adds |
|---|---|
| 0 | what was written before formats had numbers |
| 1 | entries of the stream bear `f`, the format that they were written in; signatures of records cover the prefix |

A change of format adds a row here, a dump under `tests/formats`, and a section in `docs/upgrading.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from django_delayq import clock
from django_delayq.signing import Signer
from django_delayq.store.error_replies import StoreError

FORMAT = 1  # the newest that this release knows
PREFIX_SIGNED: Final = 1  # from this format on signatures of records cover the prefix
NAMES_KNOWN: Final = 1  # releases that know no newer format than the one below it know no names of jobs
REFUSED: Final = "FORMAT"  # the code of the reply of a script that meets a newer one
QUIET_MS: Final = 3_600_000  # no process of an older release has been there for so long: then the format is raised by itself
TELL: Final = 60.0  # seconds between words of a process that calls
SHOWS_MS: Final = 150_000  # who has called for less than that may do so still


class FormatNewer(StoreError):
    """The queue has a newer format than this process knows. Nothing was written, nothing is lost: a newer process goes on with it."""

    nothing_done = True

    def __init__(self, queue: str, found: int) -> None:
        super().__init__(code="format_newer", queue=queue, found=found, known=FORMAT)
        self.queue, self.found = queue, found

    def __reduce__(self) -> tuple[type[FormatNewer], tuple[str, int]]:
        return FormatNewer, (self.queue, self.found)


class Word:
    """Word of this process's format, left once a minute by those scripts that every process calls: schedule and claim."""

    def __init__(self) -> None:
        self._left = float("-inf")

    def now(self, now_ms: int | None) -> int | str | None:
        """What such a script is given for the time: "!" for Redis' own, and to leave word."""
        if now_ms is not None or clock.monotonic() - self._left < TELL:
            return now_ms
        self._left = clock.monotonic()
        return "!"


class Form:
    """In which form the records of a queue are signed: that without a prefix while it has format 0, unless that is not accepted."""

    def __init__(self, signer: Signer | None) -> None:
        self._signer = self._now = signer
        self._until = float("-inf")

    def signer(self, look: Callable[[], Any], *, anew: bool = False) -> Signer | None:
        """The one that signs; None where nothing is signed. `look` reads `meta.format`; it is called once a minute, or `anew`."""
        if self._signer is not None and self._signer.former and (anew or clock.monotonic() >= self._until):
            self._now = self._signer if number(look()) >= PREFIX_SIGNED else self._signer.before_upgrade()
            self._until = clock.monotonic() + TELL
        return self._now


def number(raw: Any) -> int:
    """The format that a field says; 0 for none, or for what nobody of us has written."""
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0


def check(queue: str, raw: Any) -> int:
    """The format that `meta.format` says.

    Raises:
        FormatNewer: it is above `FORMAT`.
    """
    found = number(raw)
    if found > FORMAT:
        raise FormatNewer(queue, found)
    return found


def older(workers: Iterable[Mapping[str, Any]], *, below: int | None = None) -> list[Mapping[str, Any]]:
    """Those of these beats that come from a release with a smaller format; beats of 0 name none."""
    most = FORMAT if below is None else below
    return [worker for worker in workers if number(worker.get("format", 0)) < most]
