"""What the process of a worker that keeps records says of them to the supervisor, for the metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from django_delayq import clock, codec
from django_delayq.console.overview import DOWN
from django_delayq.console.samples import Sample
from django_delayq.logger import Logger
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.worker.latest_text import LatestText

logger = Logger("django_delayq.worker")

EVERY: Final = 5.0  # seconds
SAMPLES_EVERY: Final = 10.0


class RecordsReport:
    """1. Every five seconds it puts up what the mirrors have folded, and how far behind they are. 2. With `samples`, every ten seconds,
    also the queues in numbers. What Redis cannot tell is left out. It dies with its process; then what stands there becomes too old.
    """

    def __init__(self, page: LatestText, mirrors: Sequence[MirrorLoop], samples: Callable[[], list[Sample]] | None = None) -> None:
        self._page = page
        self._mirrors = mirrors
        self._samples = samples
        self._told: list[Sample] = []
        self._next = 0.0

    def poll(self) -> float:
        """One report."""
        if self._samples is not None and clock.monotonic() >= self._next:
            self._told = self._samples()
            self._next = clock.monotonic() + SAMPLES_EVERY
        said = {"at": clock.monotonic(), "mirrors": list(map(_mirror, self._mirrors)), "samples": self._told}
        if not self._page.write(codec.dumps(said)):
            logger.warning("the metrics of these queues are too long to be told")
        return EVERY


def _mirror(mirror: MirrorLoop) -> dict[str, Any]:
    said: dict[str, Any] = {"queue": mirror.queue.name, "folded": mirror.folded}
    try:
        lag = mirror.lag()
    except DOWN:
        return said
    return {**said, "entries": lag.entries, "seconds": lag.seconds}
