"""Lists which consumer held which message, and until when, from the ledger that each consumer wrote."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.app import record


class Span:
    """A message that one consumer holds, from `took` until it settles it. If it never does, until its lease ends."""

    def __init__(self, line: dict[str, Any], lease: float) -> None:
        self.fence, self.took, self.lease_end = line["fence"], line["t"], line["sent"] + int(lease * 1e9)
        self.ends = 0

    @property
    def over(self) -> int:
        """The time until which no other consumer may have the message."""
        return self.ends or self.lease_end


def held(folder: Path, lease: float) -> dict[str, list[Span]]:
    """Returns the spans of each message, by id, from the ledgers in the folder."""
    found: dict[str, list[Span]] = defaultdict(list)
    for line in record.lines(folder, "consumer-*.jsonl"):
        if line["what"] == "took":
            found[line["id"]].append(Span(line, lease))
        elif line["what"] == "ends":
            span = next(span for span in found[line["id"]] if span.fence == line["fence"])
            span.ends = line["t"]
    return found


def overlaps(found: dict[str, list[Span]]) -> list[str]:
    """Returns the messages that two consumers held at the same time."""
    slack = 20_000_000  # ns; the lease runs by Redis' clock, the spans by that of the host
    return [
        f"{id}: {first.fence} and {second.fence}"
        for id, spans in found.items()
        for first, second in pairwise(spans)
        if second.took < first.over - slack
    ]
