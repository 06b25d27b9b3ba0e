"""What follows the end of a job, whatever its cause: the signal `job_ended`, and the job of `on_failure`.

The signal is sent after the rows are committed and before the events are trimmed. So each end is sent at least once: after a crash in
between, the ends of events that were not trimmed are sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from django_delayq import clock, ids, signals
from django_delayq.exceptions import DelayqError
from django_delayq.logger import Logger
from django_delayq.mirror.fold import EXPIRED, detail_of, item_job
from django_delayq.models import Job as Row
from django_delayq.models import database
from django_delayq.producer import carriers, outbox
from django_delayq.producer.job import Job
from django_delayq.producer.options import Options
from django_delayq.producer.outbox.follow_ups import DueRow
from django_delayq.producer.schedule import plan
from django_delayq.producer.task import Task, registry
from django_delayq.states import FINISHED, MESSAGE, EndCause, EventKind, State
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST, Entry, EventLog, Item

logger = Logger("django_delayq.mirror")

PATIENCE: Final = 5.0  # seconds that the receivers of one end may take
LEFT: Final = 60.0  # seconds for which receivers that took longer are not called

STATES: Final = {
    EventKind.SUCCEEDED: State.SUCCEEDED,
    EventKind.FAILED: State.FAILED,
    EventKind.ASIDE: State.FAILED,
    EventKind.CANCELLED: State.CANCELLED,
    EventKind.EXPIRED: State.CANCELLED,
}
# The cause for a class in the detail of a failure. Other classes are errors of tasks.
_CLASSES: Final = {EXPIRED: EndCause.EXPIRED, "HardTimeout": EndCause.TIMEOUT, "Poison": EndCause.POISON}
CRASHES: Final = "poison-crashes"

PAGE: Final = 200  # entries per read
CHUNK: Final = 500  # ends whose rows are read at once: a page may have 40,000, and SQLite takes 999 variables in its older builds

CallWithin = Callable[[Callable[[], None], float], bool]


class End(NamedTuple):
    """The end of a job."""

    id: UUID
    state: State
    cause: EndCause


def call_directly(call: Callable[[], None], _seconds: float) -> bool:
    """Calls it without a time limit."""
    call()
    return True


class JobEndedSender:
    """Sends the ends of one queue.

    Args:
        call_within: calls a function, waits at most so many seconds, and returns whether it came back. The caller passes it because the
            mirror has no threads.
    """

    def __init__(self, log: EventLog, queue: str, call_within: CallWithin) -> None:
        self._log = log
        self._queue = queue
        self._call_within = call_within
        self._again = True
        self._left_until = 0.0

    def send(self, entries: Sequence[Entry], since: str) -> None:
        """Sends the signal for each job that these entries end, with the state of its row now. First it sends it for the entries up
        to `since` that were folded and perhaps not sent: by an earlier mirror, or by this one when the database or Redis failed.
        Call it if there is a receiver.

        Raises:
            StoreUnavailable, DatabaseError: the next call sends the rest.
        """
        again, self._again = self._again, True  # stays True until everything is sent
        after = FIRST
        while again and (page := [entry for entry in self._log.read(after, PAGE) if position(entry.id) <= position(since)]):
            self._send(list(_ends(page)))
            after = page[-1].id
        self._send(list(_ends(entries)))
        self._again = False

    def _send(self, ends: list[End]) -> None:
        rows: dict[UUID, Row] = {}
        for place, end in enumerate(ends):
            if place % CHUNK == 0:
                chunk = [one.id for one in ends[place : place + CHUNK]]
                rows = {row.pk: row for row in Row.objects.filter(pk__in=chunk)}
            row = rows.get(end.id)
            if row is not None and row.state not in FINISHED:
                continue  # the job is not over: it was requeued meanwhile, or restored
            if clock.monotonic() < self._left_until:
                logger.warning(
                    "queue %s: job_ended was not sent for some jobs (%d), because receivers are too slow",
                    self._queue,
                    len(ends) - place,
                )
                return
            if not self._call_within(lambda end=end, row=row: self._call(end, row), PATIENCE):  # type: ignore[misc]  # bound per turn
                self._left_until = clock.monotonic() + LEFT
                logger.error(
                    "the receivers of job_ended took longer than %g s for job %s, so they are not called for a minute", PATIENCE, end.id
                )

    def _call(self, end: End, row: Row | None) -> None:
        task, key = (row.task, row.key) if row is not None else ("", "")
        job = Job(id=end.id, queue=self._queue, task=task, key=key)
        state = State(row.state) if row is not None else end.state
        cause = end.cause if state is end.state else EndCause(state.value)
        sender = registry.find(task)
        for receiver, error in signals.job_ended.send_robust(sender=sender, job=job, row=row, state=state, cause=cause):
            if isinstance(error, Exception):
                logger.error("a receiver of job_ended failed for job %s: %r", end.id, receiver, exc_info=error)


def _ends(entries: Sequence[Entry]) -> Iterator[End]:
    for entry in entries:
        for item in entry.items:
            state = STATES.get(item.kind)  # type: ignore[call-overload]  # a kind is the text of one
            id = item_job(item) if state is not None else None
            if id is not None:
                yield End(id, state, _cause(EventKind(item.kind), item))


def _cause(kind: EventKind, item: Item) -> EndCause:
    if kind is EventKind.SUCCEEDED:
        return EndCause.SUCCEEDED
    if kind is EventKind.EXPIRED:
        return EndCause.EXPIRED
    if kind is EventKind.ASIDE:
        return EndCause.POISON
    detail = detail_of(item.body)
    if kind is EventKind.CANCELLED:
        return EndCause.REPLACED if item.fields[3:4] == ("-",) and "r" in detail else EndCause.CANCELLED
    if detail.get("p") == CRASHES:
        return EndCause.CRASHED
    return _CLASSES.get(str(detail.get("c")), EndCause.FAILED)


def schedule_followers(failed: Sequence[tuple[UUID, Entry]]) -> list[DueRow]:
    """`@task(on_failure=other)`: a job that fails for good schedules a job of the other task. It does so by a row in the same
    transaction that writes the failure; the relay publishes it. `failed`: pairs of a job and the entry by which it failed for good.

    The id is derived from the failed job's id and the event's id, so folding an end again adds no second row. The row has the
    propagated context of the failed job. The process of the mirror has no tenant or language of its own, and a carrier that raises
    without one would stop the mirror. Returns the new rows.
    """
    written: list[DueRow] = []
    for start in range(0, len(failed) if registry.followed else 0, CHUNK):
        chunk = failed[start : start + CHUNK]
        rows = list(Row.objects.filter(pk__in={id for id, _ in chunk}).only("task", "options", "kwargs"))
        for row in rows:
            if row.task != MESSAGE and registry.find(row.task) is None:
                said = "job %s has failed, and its task %s is not known in this process. If it has an on_failure, that is not scheduled"
                logger.warning(said, row.short_id, row.task)
        followers = {
            row.pk: (follower, carriers.propagated_context((row.options or {}).get("meta")))
            for row in rows
            if (task := registry.find(row.task)) is not None and (follower := task.follower(row.kwargs or {})) is not None
        }
        wanted: dict[UUID, tuple[Task[..., Any], UUID, dict[str, Any]]] = {}
        for id, entry in chunk:
            if id in followers:
                follower, carried = followers[id]
                wanted[ids.derived(f"{id} {entry.id}", entry.at_ms)] = follower, id, carried
        there = set(Row.objects.filter(pk__in=list(wanted)).values_list("pk", flat=True)) if wanted else set()
        for id, (follower, job, carried) in wanted.items():
            if id in there:
                continue
            try:
                planned = plan(follower, Options(durability="outbox"), (str(job),), {}, database.alias(), id, carried)
            except DelayqError as error:  # for example, its queue is gone; the failure must be written anyway
                logger.error("job %s has failed, and %s cannot be scheduled for it: %s", job, follower.name, error)
                continue
            outbox.jobs.insert([planned])
            written.append(DueRow(planned.queue, planned.id))
    return written
