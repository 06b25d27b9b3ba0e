"""The format of a queue in Redis, and how a process treats a newer one.

`meta.format` of a partition has its number. The first release writes format 1, and a missing field also means 1. A later release
reads every format up to its own `FORMAT` and writes the one that the queue has. So processes of two releases work side by side during
a deploy. A process that finds a newer number than it knows writes nothing there and waits. Every script compares the numbers
(`lua/include/begin.lua`), and so does the reader of the stream.
"""

from __future__ import annotations

from typing import Any, Final

from django_delayq.store.connection.error_replies import StoreError

FORMAT = 1  # the newest that this release knows
FIRST: Final = 1
REFUSED: Final = "FORMAT"  # the code of the reply of a script that finds a newer format
INTERVAL: Final = 60.0  # seconds after which a process writes `seen:<format>` again


class FormatNewer(StoreError):
    """The queue has a newer format than this process knows. Nothing was written and nothing is lost: a newer process continues with
    it.
    """

    nothing_done = True

    def __init__(self, queue: str, found: int) -> None:
        super().__init__(code="format_newer", queue=queue, found=found, known=FORMAT)
        self.queue, self.found = queue, found

    def __reduce__(self) -> tuple[type[FormatNewer], tuple[str, int]]:
        return FormatNewer, (self.queue, self.found)


def number(raw: Any) -> int:
    """The format in that field; the first one if the field is missing, or was not written by a release."""
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else FIRST


def check(queue: str, raw: Any) -> None:
    """Refuses a newer format.

    Raises:
        FormatNewer: the number is above `FORMAT`.
    """
    found = number(raw)
    if found > FORMAT:
        raise FormatNewer(queue, found)
