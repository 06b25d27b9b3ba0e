"""A worker that leaves when a condition holds: for `delayq bench`."""

from __future__ import annotations

from collections.abc import Callable

from django_delayq.worker.spec import WorkerSpec
from django_delayq.worker.supervisor.supervisor import Supervisor


class Trial(Supervisor):
    """A supervisor that looks twice a second or so whether `done()`, and then leaves as after SIGTERM, with no grace."""

    def __init__(self, spec: WorkerSpec, done: Callable[[], bool]) -> None:
        super().__init__(spec)
        self._done_yet = done

    def _tend(self) -> None:
        if not self._stopping and self._done_yet():
            self._stop(0.0)
        super()._tend()
