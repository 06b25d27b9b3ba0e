"""Hard timeouts: a run that has not ended a while after its soft timeout is settled as a failed attempt, and its process
replaced, since nothing else stops a thread that does not listen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from django_delayq import clock, codec
from django_delayq.exceptions import SoftTimeout, UnknownTask
from django_delayq.failpoints import failpoint
from django_delayq.store.queue import Outcome, QueueStore, SettleItem
from django_delayq.worker import retry
from django_delayq.worker.children import Child
from django_delayq.worker.executor import AnyTask
from django_delayq.worker.holdings import ASK, NEVER, RUNNING, Held, Holdings
from django_delayq.worker.lines import Line

logger = logging.getLogger("django_delayq.worker")

PASS = 1.0  # seconds between looks; a run that begins behind one has five seconds at least, see `timeouts.hard_limit`
SHORTEST = 0.1


class Deadlines:
    """1. Looks at every running job's hard deadline. 2. Settles one that is past it: retried along its ladder, or failed.
    3. Calls `replace` for its process, which then ends in order, or is killed.
    """

    def __init__(
        self,
        *,
        lines: Sequence[Line],
        stores: Sequence[QueueStore],
        children: Callable[[], Iterable[Child]],
        replace: Callable[[Child], None],
        tasks: Sequence[str],
        find_task: Callable[[str], AnyTask],
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._lines = lines
        self._stores = stores
        self._children = children
        self._replace = replace
        self._tasks = tasks
        self._find_task = find_task
        self._monotonic = monotonic
        self._ended: set[tuple[int, int, int]] = set()

    def poll(self) -> float:
        """One pass.

        Raises:
            StoreUnavailable: Redis is away; the next pass tries again.
        """
        now = self._monotonic()
        there, next_at = set(), now + PASS
        for child in list(self._children()):
            if child.holdings is None:
                continue
            for held in child.holdings.held():
                place = child.pid, held.row, held.turn
                if held.state != RUNNING or not held.hard:
                    continue
                if held.hard > now:
                    next_at = min(next_at, held.hard)
                else:
                    there.add(place)
                    if place not in self._ended:
                        self._end(child, child.holdings, held, now)
                        self._ended.add(place)
        self._ended &= there
        return max(SHORTEST, next_at - now)

    def _end(self, child: Child, holdings: Holdings, held: Held, now: float) -> None:
        name = self._tasks[held.task] if held.task < len(self._tasks) else "a task"
        message = f"it ran for {now - held.started:.1f} s and did not end at its timeout; its process is replaced"
        kind, delay = self._verdict(name, held)
        if holdings.is_cancelled(held.row, held.turn):
            kind, delay = "cancel", 0
        started_ms = clock.wall_ms() - round((now - held.started) * 1000)
        detail = codec.dumps(
            {"s": started_ms, "f": clock.wall_ms(), "c": "HardTimeout", "m": message, "p": f"hard:{name}"[:64]}
        )
        item = SettleItem(
            id=held.id, attempt=held.attempt, fence=held.fence, outcome=kind, delay_ms=delay, detail=detail
        )
        line = self._lines[held.line]
        failpoint("deadlines.settle")
        self._stores[held.line].settle([item], worker=child.worker, max_crashes=line.max_crashes)
        failpoint("deadlines.settled")
        logger.error("%s, job %s: %s", name, held.id, message)
        self._replace(child)

    def _verdict(self, name: str, held: Held) -> tuple[Outcome, int]:
        if held.retry_ms == NEVER:
            return "fail", 0
        if held.retry_ms != ASK:
            return "retry", held.retry_ms
        default = self._lines[held.line].backoff
        try:
            backoff = self._find_task(name).backoff or default
        except UnknownTask:
            backoff = default
        delay = retry.delay_ms(backoff, held.attempt, SoftTimeout("hard timeout"), default)
        return ("fail", 0) if delay is None else ("retry", delay)
