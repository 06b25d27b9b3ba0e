"""Jobs that this release cannot run: their task is not registered here or takes other arguments, or a carrier or a key is missing.
They wait, as during a deploy, and fail after a day.
"""

from __future__ import annotations

import threading
from typing import Final

from django_delayq import clock

STEPS: Final = (60.0, 120.0, 300.0, 600.0)  # seconds; the last repeats
PATIENCE: Final = 86_400.0
MOST: Final = 10_000  # ids remembered; beyond it the oldest begin anew


class ParkedJobs:
    """Remembers how often this process has parked each job. The job's entry in `runs` has the time of the first park, which counts over
    all workers and deploys. Where Redis has lost that, the memory of this process counts, and a job may get another day.
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
