"""Jobs whose task is not registered here: they wait, as during a deploy, and fail when a day has not brought the task."""

from __future__ import annotations

import threading
from typing import Final

from django_delayq import clock

STEPS: Final = (60.0, 120.0, 300.0, 600.0)  # seconds; the last repeats
PATIENCE: Final = 86_400.0
MOST: Final = 10_000  # ids remembered; beyond it the oldest begin anew


class UnknownTasks:
    """Remembers since when this process has seen a job without its task.

    From format 1 on the job's entry in `runs` says since when no worker has known its task, and that counts, over all workers and
    deploys. Below, only this process's memory: a worker that starts anew, perhaps with the task, gives the job another day. Failing
    late is the harmless mistake.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def delay(self, job: str, waited: float = 0.0) -> float | None:
        """Seconds until the job may ask again; None: it has waited long enough. `waited`: seconds since it was first put off, if the
        job itself says so, else 0.
        """
        now = clock.monotonic()
        with self._lock:
            since, times = self._seen.pop(job, (now, 0))
            since = now - waited if waited else since
            if now - since > PATIENCE:
                return None
            while len(self._seen) >= MOST:
                del self._seen[next(iter(self._seen))]
            self._seen[job] = since, times + 1
        return STEPS[min(times, len(STEPS) - 1)]
