"""What a person has seen before an operation starts: it is about these jobs, and no others."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from uuid import UUID

from django_delayq import conf, ids
from django_delayq.console import overview
from django_delayq.console.selection import Selection
from django_delayq.models import Job
from django_delayq.states import State


@dataclass(frozen=True, slots=True)
class Preview:
    """What a person has seen before starting: when, by the database's clock, up to which job, as a digest for which tasks the words
    stood, and which jobs ran by Redis' word (`only`, see `Selection`). It comes back with the form; an operation is about nothing that
    came later, about no other tasks, and about no other jobs that run.
    """

    at_ms: int
    upto: UUID
    digest: str
    only: tuple[str, ...] | None = None

    @classmethod
    def now(cls, wanted: Selection) -> Preview:
        """Of this moment."""
        tasks = json.dumps(wanted.tasks)
        only = None if wanted.only is None else tuple(wanted.only)
        rows = Job.objects.using(conf.get().database).order_by("-pk")  # ids are of web hosts, whose clocks may be ahead
        newest = rows.values_list("pk", flat=True).first() or ids.new()
        return cls(wanted.at_ms, newest, hashlib.sha256(tasks.encode()).hexdigest()[:16], only)

    @classmethod
    def read(cls, text: str, wanted: Selection) -> Preview | None:
        """What came back; None where it is not of these tasks. Without any: this moment."""
        here = cls.now(wanted)
        if not text:
            return here
        try:
            at_ms, upto, digest, *running = text.split(".")
            only = tuple(ids.short(ids.full(id)) for id in running[0].split(",")) if running else None
            seen = cls(int(at_ms), ids.full(upto), digest, only)
        except ValueError:
            return None
        if seen.digest != here.digest or not 0 < seen.at_ms <= here.at_ms:
            return None
        if seen.only is not None and (wanted.view != State.RUNNING or len(seen.only) > overview.MOST_LEASED):
            return None
        return replace(seen, upto=min(seen.upto, here.upto))

    def of(self, wanted: Selection) -> Selection:
        """The same jobs, as they were meant then."""
        return replace(wanted, at_ms=self.at_ms, only=self.only)

    def written(self) -> str:
        """For the form."""
        return ".".join([str(self.at_ms), ids.short(self.upto), self.digest, *([",".join(self.only)] if self.only else [])])
