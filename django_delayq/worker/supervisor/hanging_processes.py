"""Hard timeouts: a run hangs if it has not ended some time after its soft timeout, or after it was aborted. Only the end of its
process stops it.

Its process stops claiming. The other jobs there continue until their own timeout, jobs without a timeout for `grace` seconds. Then
the process is killed. Only after that is the run settled, as a failed attempt or as cancelled. As long as it may still have effects,
its lease is kept, so that no other worker runs the job at the same time. The other jobs that are killed with it are evicted, which
does not count as an attempt. Runs in the supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from django_delayq import clock, codec
from django_delayq.exceptions import Cancelled, SoftTimeout, UnknownTask
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger, class_name
from django_delayq.store.scripts.queue import Kind, Outcome
from django_delayq.worker import outcome
from django_delayq.worker.current import AnyTask
from django_delayq.worker.lease_table import ASK, NEVER, RUNNING, LeaseSlot, LeaseTable
from django_delayq.worker.line import Line
from django_delayq.worker.supervisor.fork import Child

logger = Logger("django_delayq.worker")

PASS = 1.0  # seconds between checks; a run that starts after one has at least five seconds, see `timeouts.hard_limit`
SHORTEST = 0.1
NO_END = float("inf")
ABORT_PATIENCE = 5.0  # seconds that an aborted run has to end, as after a short timeout
LAST_LOOK = 1.5  # seconds in which a process shows where its run hangs, before it is killed


class HangingProcesses:
    """Kills processes with hanging runs.

    1. It checks the hard deadline of every running job.
    2. It calls `replace` for a process with a run past its deadline: another process takes its slot, and it stops claiming.
    3. It kills the process when none of its other jobs has time left.
    4. After that, it returns how the hanging runs ended.

    A run that ends after all is settled by its process like any other run.
    """

    def __init__(
        self,
        *,
        lines: Sequence[Line],
        children: Callable[[], Iterable[Child]],
        replace: Callable[[Child], None],
        tasks: Sequence[str],
        find_task: Callable[[str], AnyTask],
        grace: float,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._lines = lines
        self._children = children
        self._replace = replace
        self._tasks = tasks
        self._find_task = find_task
        self._grace = grace
        self._monotonic = monotonic

    def poll(self) -> float:
        """Does one pass."""
        now = self._monotonic()
        next_at = now + PASS
        for child in list(self._children()):
            if child.leases is None or child.killed:
                continue
            held = list(child.leases.held())
            if child.aborted:
                there = {(one.row, one.turn) for one in held}
                child.aborted = {run: at for run, at in child.aborted.items() if run in there}
            child.hung = {(one.row, one.turn) for one in held if _deadline(child, one) <= now}
            if child.hung and child.hung_since is None:
                child.hung_since = now
                self._give_up(child, held, now)
            ends = [_deadline(child, one) for one in held if (one.row, one.turn) not in child.hung]
            if child.hung_since is not None:  # then jobs without a timeout must end, too
                ends = [child.hung_since + self._grace if end == NO_END else end for end in ends]
                if child.hung:
                    ends.append(child.hung_since + LAST_LOOK)
            next_at = min([next_at, *(end for end in ends if end > now)])
            if child.hung and max(ends) <= now:
                failpoint("hanging_processes.kill")
                child.kill()
                failpoint("hanging_processes.killed")
        return max(SHORTEST, next_at - now)

    def ended(self, child: Child) -> list[tuple[int, Outcome]]:
        """Returns the line and the outcome of each hanging run of a dead process."""
        if child.leases is None:
            return []
        held = [one for one in child.leases.held() if (one.row, one.turn) in child.hung]
        return [(one.line, self._item(child, child.leases, one)) for one in held]

    def _give_up(self, child: Child, held: Sequence[LeaseSlot], now: float) -> None:
        for one in held:
            if (one.row, one.turn) in child.hung:
                logger.error(
                    "%s, job %s: it has run for %.1f s and did not end %s. Its process is replaced, and is killed when its other "
                    "jobs (%d) have ended or timed out",
                    self._name(one),
                    one.id,
                    now - one.started,
                    _when(child, one),
                    len(held) - len(child.hung),
                )
        self._replace(child)

    def _name(self, held: LeaseSlot) -> str:
        return self._tasks[held.task] if held.task < len(self._tasks) else "a task"

    def _item(self, child: Child, leases: LeaseTable, held: LeaseSlot) -> Outcome:
        name, ran = self._name(held), self._monotonic() - held.started
        kind, delay = self._verdict(name, held)
        if leases.is_cancelled(held.row, held.turn):
            kind, delay = "cancel", 0
        message = f"it did not end {_when(child, held)}; its process was killed after {ran:.1f} s"
        error = class_name(Cancelled()) if (held.row, held.turn) in child.aborted else "HardTimeout"
        detail = codec.dumps({"c": error, "m": message, "p": f"hard:{name}"[:64]})
        return Outcome(id=held.id, attempt=held.attempt, fence=held.fence, kind=kind, delay_ms=delay, detail=detail)

    def _verdict(self, name: str, held: LeaseSlot) -> tuple[Kind, int]:
        if held.retry_ms == NEVER:
            return "fail", 0
        if held.retry_ms != ASK:
            return "retry", held.retry_ms
        default = self._lines[held.line].backoff
        try:
            backoff = self._find_task(name).backoff or default
        except UnknownTask:
            backoff = default
        delay = outcome.delay_ms(backoff, held.attempt, SoftTimeout("hard timeout"), default)
        return ("fail", 0) if delay is None else ("retry", delay)


def _when(child: Child, held: LeaseSlot) -> str:
    return "when it was aborted" if (held.row, held.turn) in child.aborted else "at its timeout"


def _deadline(child: Child, held: LeaseSlot) -> float:
    """When a run counts as hanging if it has not ended."""
    if held.state != RUNNING:
        return NO_END
    aborted = child.aborted.get((held.row, held.turn), NO_END)
    return min(held.hard or NO_END, max(aborted, held.started) + ABORT_PATIENCE)  # the job may have been waiting when it was aborted
