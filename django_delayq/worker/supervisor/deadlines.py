"""Hard timeouts: a run that has not ended a while after its soft timeout, or after it was aborted, is deaf, and nothing but the end of
its process stops it.

Its process claims no more. The other jobs there go on until their own timeout, those without one for `grace` seconds, then it is
killed. Not before that the deaf run is settled, as a failed attempt, or as cancelled: as long as it may still do something, its lease
is kept, so that nobody else runs the job beside it. Who had to be killed with it is evicted, which counts nothing.
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

PASS = 1.0  # seconds between looks; a run that begins behind one has five seconds at least, see `timeouts.hard_limit`
SHORTEST = 0.1
NO_END = float("inf")
ABORT_PATIENCE = 5.0  # seconds that an aborted run has to end, as behind a short timeout
LAST_LOOK = 1.5  # seconds in which a process shows where its deaf run hangs, before it is killed


class Deadlines:
    """1. Looks at every running job's hard deadline. 2. Calls `replace` for a process with a run past it: another takes its slot, and
    it claims no more. 3. Kills it when none of its other jobs has time left. 4. Says, once it is dead, how its deaf runs ended. A run
    that ends after all is settled by its process, as any other.
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
        """One pass."""
        now = self._monotonic()
        next_at = now + PASS
        for child in list(self._children()):
            if child.leases is None or child.killed:
                continue
            held = list(child.leases.held())
            if child.aborted:
                there = {(one.row, one.turn) for one in held}
                child.aborted = {run: at for run, at in child.aborted.items() if run in there}
            child.deaf = {(one.row, one.turn) for one in held if _deadline(child, one) <= now}
            if child.deaf and child.deaf_since is None:
                child.deaf_since = now
                self._give_up(child, held, now)
            ends = [self._ends_at(child, one) for one in held if (one.row, one.turn) not in child.deaf]
            if child.deaf and child.deaf_since is not None:
                ends.append(child.deaf_since + LAST_LOOK)
            next_at = min([next_at, *(end for end in ends if end > now)])
            if child.deaf and max(ends) <= now:
                failpoint("deadlines.kill")
                child.kill()
                failpoint("deadlines.killed")
        return max(SHORTEST, next_at - now)

    def ended(self, child: Child) -> list[tuple[int, Outcome]]:
        """What becomes of the deaf runs of a process that is dead: line, and how to settle it."""
        if child.leases is None:
            return []
        held = [one for one in child.leases.held() if (one.row, one.turn) in child.deaf]
        return [(one.line, self._item(child, child.leases, one)) for one in held]

    def _ends_at(self, child: Child, held: LeaseSlot) -> float:
        """When a job is to have ended in any case; without a deaf neighbour, never, unless it has a deadline."""
        deadline = _deadline(child, held)
        if deadline == NO_END and child.deaf_since is not None:
            return child.deaf_since + self._grace
        return deadline

    def _give_up(self, child: Child, held: Sequence[LeaseSlot], now: float) -> None:
        for one in held:
            if (one.row, one.turn) in child.deaf:
                logger.error(
                    "%s, job %s: it has run for %.1f s and did not end %s. Its process is replaced, and is killed when its other "
                    "jobs (%d) have ended or timed out",
                    self._name(one),
                    one.id,
                    now - one.started,
                    _when(child, one),
                    len(held) - len(child.deaf),
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
    """When a run is deaf if it has not ended."""
    if held.state != RUNNING:
        return NO_END
    aborted = child.aborted.get((held.row, held.turn), NO_END)
    return min(held.hard or NO_END, max(aborted, held.started) + ABORT_PATIENCE)  # it may have waited when it was aborted
