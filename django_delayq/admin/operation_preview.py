"""What a person has seen before an operation starts: it is about these jobs, and no others."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from uuid import UUID

from django_delayq import conf, ids
from django_delayq.console.selection import Selection


@dataclass(frozen=True, slots=True)
class Preview:
    """What a person has seen before starting: when, up to which job, and, as a digest, for which tasks the words stood. It comes back
    with the form; an operation is about nothing that came later, and about no other tasks.
    """

    at_ms: int
    upto: UUID
    digest: str

    @classmethod
    def now(cls, wanted: Selection) -> Preview:
        """Of this moment."""
        tasks = json.dumps(wanted.tasks)
        newest = ids.new()
        if conf.get().partitions:  # others of this millisecond may sort behind it, though they were there before
            newest = ids.end_of(newest)
        return cls(wanted.at_ms, newest, hashlib.sha256(tasks.encode()).hexdigest()[:16])

    @classmethod
    def read(cls, text: str, wanted: Selection) -> Preview | None:
        """What came back; None where it is not of these tasks. Without any: this moment."""
        here = cls.now(wanted)
        if not text:
            return here
        try:
            at_ms, upto, digest = text.split(".")
            seen = cls(int(at_ms), ids.full(upto), digest)
        except ValueError:
            return None
        if seen.digest != here.digest or not 0 < seen.at_ms <= here.at_ms:
            return None
        return cls(seen.at_ms, min(seen.upto, here.upto), digest)

    def of(self, wanted: Selection) -> Selection:
        """The same jobs, as they were meant then."""
        return replace(wanted, at_ms=self.at_ms)

    def written(self) -> str:
        """For the form."""
        return f"{self.at_ms}.{ids.short(self.upto)}.{self.digest}"
