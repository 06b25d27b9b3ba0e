"""Extends the leases of all that the task processes hold. It lives in the supervisor, so that a task which keeps the
interpreter to itself for a minute does not lose its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from django_delayq import clock
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import MOST
from django_delayq.worker.lease_table import RUNNING, SETTLING, LeaseSlot
from django_delayq.worker.line import Line
from django_delayq.worker.supervisor.fork import Child

logger = Logger("django_delayq.worker")

PASS = 1.0  # seconds between passes, at most
SHARE = 8  # passes in a lease, at least, and after an error too: two of them may fail
MISSED = 2.0  # seconds after which an unknown lease counts as lost; its job may be about to be adopted
LONG = 1.0  # seconds after which a running job counts as a long one
PATIENCE = 8  # the fraction of the shortest lease in which a pass calls slow servers

Kept = tuple[Child, LeaseSlot]


def longest_pause(lines: Sequence[Line]) -> float:
    """The longest time in seconds between two checks of the leases of these lines."""
    return min([PASS, *(line.lease / SHARE for line in lines)])


class LeaseExtender:
    """Extends the leases of all task processes.

    1. Every third of a lease it extends all leases of a line, including those of waiting jobs.
    2. Every second it extends the jobs whose progress has changed, and every other second the jobs that run for long. So a cancel
       request reaches a task within two seconds.
    3. It writes the answers of Redis into the lease table: lost, cancel, abort, and until when the lease is certainly valid. It also
       tells the process of an abort.
    """

    def __init__(
        self,
        *,
        lines: Sequence[Line],
        children: Callable[[], Iterable[Child]],
        worker: str,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._lines = lines
        self._children = children
        self._worker = worker
        self._monotonic = monotonic
        self._full_at = dict.fromkeys(lines, 0.0)
        self._pass = longest_pause(lines)
        self._progress: dict[tuple[int, int, int], int] = {}
        self._gone: dict[tuple[str, str], float] = {}  # since when Redis does not know the lease
        self._odd = False
        self._asked = dict.fromkeys(lines, 0.0)  # the time of the last call
        self._failed: dict[Link, float] = {}  # servers that failed or were slow, and when
        self.lost: Counter[str] = Counter()  # leases, by queue

    def poll(self) -> float:
        """Does one pass over all lines.

        Raises:
            StoreUnavailable: a server is away; the leases on other servers have been extended, and a later pass extends the rest.
            StoreError: Redis refused a line; the others have been extended.
        """
        now = self._monotonic()
        by_line = self._wanted(now)
        refused: dict[Line, DelayqError] = {}
        down: StoreUnavailable | None = None
        # Servers that failed or were slow come last, and the one with the latest failure comes at the end. A pass waits for only one
        # server that does not answer: the leases on healthy servers must not expire in the meantime. Slow servers are called until
        # the pass has taken long; the lines of such a server take turns.
        patience = now + min((line.lease for line in by_line), default=0.0) / PATIENCE
        for line, kept in sorted(by_line.items(), key=lambda each: self._place(each[0])):
            node = line.store.link.server
            if down is not None and node in self._failed:
                refused[line] = down
                continue
            began = self._monotonic()
            if began < patience and not node.away:
                node.cooldown.end()
            try:
                for start in range(0, len(kept), MOST):
                    self._extend(line, kept[start : start + MOST])
                    if start + MOST < len(kept):
                        node.cooldown.end()  # the rest of this line follows now: each pass would leave out the same leases
                self._asked[line] = began
                self._failed.pop(node, None)
                if node.cooldown.active:
                    self._failed[node] = began
            except (StoreError, StoreRefused) as error:  # only this line failed; the leases of the others must not expire
                refused[line] = error
            except StoreUnavailable as error:
                refused[line] = error
                self._failed[node] = self._monotonic()
                if error.code != "redis_cooldown":
                    down = error
                    self._asked[line] = began
        for line, full_at in self._full_at.items():
            if full_at <= now and line not in refused:
                self._full_at[line] = now + line.lease / 3
        if refused:
            raise next(iter(refused.values()))
        return self._pass

    def _wanted(self, now: float) -> dict[Line, list[Kept]]:
        """The leases to extend in this pass."""
        self._gone = {job: since for job, since in self._gone.items() if now - since < 60 * MISSED}
        self._odd = not self._odd
        by_line: dict[Line, list[Kept]] = {}
        seen: dict[tuple[int, int, int], int] = {}
        for child in self._children():
            if child.leases is None:
                continue
            for held in child.leases.held():
                line = self._lines[held.line]
                changed = held.progress_turn != self._progress.get((child.pid, held.row, held.turn), 0)
                long = self._odd and held.state == RUNNING and now - held.started > LONG
                gone = (held.id, held.fence) in self._gone
                if changed or long or gone or self._full_at[line] <= now:
                    by_line.setdefault(line, []).append((child, held))
                if held.progress_turn:
                    seen[child.pid, held.row, held.turn] = held.progress_turn
        self._progress = seen
        return by_line

    def _place(self, line: Line) -> tuple[float, float]:
        failed = self._failed.get(line.store.link.server, 0.0)
        return failed, self._asked[line] if failed else 0.0

    def _extend(self, line: Line, kept: Sequence[Kept]) -> None:
        progress = {held.id: held.progress for _, held in kept if held.progress_turn}
        sent = self._monotonic()
        failpoint("lease_extender.extend")
        answers = line.store.extend(
            [(held.id, held.fence) for _, held in kept], worker=self._worker, lease_ms=line.lease_ms, progress=progress
        )
        failpoint("lease_extender.extended")
        for child, held in kept:
            leases = child.leases
            assert leases is not None  # only this thread frees it, and not during a pass
            answer = answers[held.id]
            if answer == "wait":
                continue  # Redis is removing its old contents; then the job is adopted
            if answer == "gone":
                since = self._gone.setdefault((held.id, held.fence), sent)
                if sent - since < MISSED:
                    continue
                answer = "lost"
            self._gone.pop((held.id, held.fence), None)
            if answer != "lost":
                leases.extended(held, sent + line.lease)
            if answer in ("cancel", "abort"):
                leases.cancel(held)  # before the run is interrupted, so that it ends as cancelled
            if answer == "abort":
                child.abort(held, self._monotonic())
            elif answer == "lost" and leases.state(held) not in (None, SETTLING):
                # The job is still in its row, so it was not settled during the call.
                leases.lose(held.row, held.turn)
                self.lost[line.queue] += 1
                logger.warning("job %s: its lease is lost. Another worker may be running it", held.id)
