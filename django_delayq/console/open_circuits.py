"""The circuits that workers say are open: hosts that they leave alone for a while. Each process knows its own; beats tell of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from django_delayq.console import overview

MOST: Final = 20  # of one worker, as its beat has them


class OpenCircuit(NamedTuple):
    """`target`: host:port; `until_ms`: since 1970, in the past when it is tried with the next delivery; `worker` says so."""

    target: str
    until_ms: int
    failures: int
    worker: str

    @property
    def host(self) -> str:
        """The name alone, as jobs have it."""
        return self.target.rpartition(":")[0].strip("[]")


def told_by(workers: Iterable[dict[str, Any]]) -> list[OpenCircuit]:
    """What the workers that are there say, the longest first. Whoever can write to Redis can say anything: what is none is left out."""
    found = []
    for worker in workers:
        told = worker.get("circuits")
        for one in told[:MOST] if isinstance(told, list) and not worker["silent"] else ():
            if isinstance(one, dict) and isinstance(one.get("target"), str) and (until := overview.whole(one, "until")):
                found.append(OpenCircuit(one["target"][:300], until, overview.whole(one, "failures"), worker["id"]))
    return sorted(found, key=lambda one: (-one.until_ms, one.worker))


def of_host(workers: Iterable[dict[str, Any]], host: str) -> list[OpenCircuit]:
    """Those of one host, without port."""
    return [one for one in told_by(workers) if one.host == host]
