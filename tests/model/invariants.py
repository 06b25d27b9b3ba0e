"""What holds of every queue at every moment, and of every change between two moments.

Nothing here knows the model: a campaign holds the dump of a queue under real workers against the same rules. Each function
returns sentences about what is wrong; an empty list is good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from django_delayq.states import TRANSITIONS, State
from django_delayq.store.events import Entry, Item
from tests.model.dump import LANES, Dump, record_of, run_of

Place = State | str | None

# Which verbs of TRANSITIONS an event tells of, and where the job is after it.
TELLS: Final[dict[str, tuple[State, tuple[str, ...]]]] = {
    "scheduled": (State.SCHEDULED, ("schedule",)),
    "rescheduled": (State.SCHEDULED, ("reschedule",)),
    "claimed": (State.RUNNING, ("claim",)),
    "crashed": (State.SCHEDULED, ("crash",)),
    "succeeded": (State.SUCCEEDED, ("ack",)),
    "retried": (State.SCHEDULED, ("retry",)),
    "snoozed": (State.SCHEDULED, ("snooze", "evict", "park")),
    "failed": (State.FAILED, ("fail", "crash", "expire")),
    "cancelled": (State.CANCELLED, ("cancel", "purge", "replace")),
    "requeued": (State.SCHEDULED, ("requeue",)),
    "expired": (State.CANCELLED, ("expire",)),
}
STARTS: Final[dict[str, set[Place]]] = {
    kind: {move.before for move in TRANSITIONS if move.verb in verbs and move.after is after} for kind, (after, verbs) in TELLS.items()
}
STARTS["requeued"] |= {None, "ended"}  # a caller vouches, from the database, for what Redis has forgotten
STARTS["cancelled"] |= {State.CANCELLED}  # told once more to a row that has not heard of it
MOVES: Final = frozenset((move.before, move.after, move.script) for move in TRANSITIONS)
FAILED_OR_CANCELLED: Final[tuple[Place, ...]] = (State.FAILED, State.CANCELLED)
ENDED: Final[tuple[Place, ...]] = ("ended", State.SUCCEEDED, State.CANCELLED)
QUEUE_KINDS: Final = frozenset({"paused", "resumed", "purged"})


def broken(dump: Dump, *, keyless: Set[str] = frozenset(), noted: Set[str] = frozenset()) -> list[str]:
    """What is wrong with a queue as it stands. `keyless`: jobs that were adopted when another job had their key; `noted`: those whose
    cancel was asked for when Redis did not have them.
    """
    return [*_places(dump), *_runs(dump, keyless), *_keys(dump, keyless), *_attempts(dump), *_leftovers(dump, noted)]


def _places(dump: Dump) -> Iterable[str]:
    homes = [*LANES, "leases", "failed"]
    for id in dump.jobs.keys() | {id for home in homes for id in getattr(dump, home)}:
        found = [home for home in homes if id in getattr(dump, home)]
        if id not in dump.jobs:
            yield f"{id} stands in {found} and has no record"
        elif len(found) != 1:
            yield f"{id} stands in {found or 'no place'}; a job is in exactly one"
        elif found[0] in LANES and record_of(dump.jobs[id]).lane != found[0]:
            yield f"{id} waits in {found[0]}, its record says {record_of(dump.jobs[id]).lane}"


def _runs(dump: Dump, keyless: Set[str]) -> Iterable[str]:
    fenced = {id for id, run in dump.runs.items() if run_of(run).fence}
    yield from (f"{id} has a lease and no run" for id in dump.leases.keys() - dump.runs.keys())
    yield from (f"{id} has a fence and no lease" for id in fenced - dump.leases.keys())
    for id, value in dump.runs.items():
        if dump.state(id) not in (State.SCHEDULED, State.RUNNING):
            yield f"{id} has a run and is {dump.state(id)}"
            continue
        record = record_of(dump.jobs[id])
        letter = record.lane[0].upper() if record.key else record.lane[0]
        if run_of(value).lane != letter and not (id in keyless and run_of(value).lane == record.lane[0]):
            yield f"{id}: its run says lane {run_of(value).lane}, its record {letter}"


def _keys(dump: Dump, keyless: Set[str]) -> Iterable[str]:
    for key, id in dump.keys.items():
        if dump.state(id) not in (State.SCHEDULED, State.RUNNING):
            yield f"the key {key!r} is held by {id}, which is {dump.state(id)}"
    for id, record in dump.jobs.items():
        key = record_of(record).key
        if key and id not in dump.failed and id not in keyless and dump.keys.get(key) != id:
            yield f"{id} is unfinished and does not hold its key {key!r}"


def _attempts(dump: Dump) -> Iterable[str]:
    for id, value in dump.runs.items():
        most = record_of(dump.jobs[id]).max_attempts if id in dump.jobs else 0
        if run_of(value).attempt > most:
            yield f"{id} is at attempt {run_of(value).attempt} of {most}"


def _leftovers(dump: Dump, noted: Set[str]) -> Iterable[str]:
    yield from (f"{id} has a tombstone and is {dump.state(id)}" for id in dump.finished.keys() & dump.jobs.keys())
    yield from (f"{id} has a cancel request and does not run" for id in dump.cancels.keys() - dump.leases.keys() - noted)
    yield from (f"{id} has progress and does not run" for id in dump.progress.keys() - dump.leases.keys())


def untold(before: Dump, after: Dump, entries: Sequence[Entry], *, forgetting: bool = False) -> list[str]:
    """What is wrong with a change: `entries` are all between the two dumps. `forgetting`: tidy may have run in between."""
    stories: dict[str, list[Item]] = {}
    wrong = []
    for item in (item for entry in entries for item in entry.items):
        if item.kind not in QUEUE_KINDS:
            stories.setdefault(item.fields[0], []).append(item)
    for id in before.jobs.keys() | after.jobs.keys() | stories.keys():
        story = stories.get(id, [])
        if not story:
            if _situation(before, id) != _situation(after, id) and not (forgetting and _forgotten(before, after, id)):
                wrong.append(f"{id} went from {_situation(before, id)} to {_situation(after, id)} without an event")
            continue
        wrong += _follow(id, story, before, after, forgetting)
    return wrong


def unlisted(before: Dump, after: Dump, entries: Sequence[Entry], script: str) -> list[str]:
    """What one call of `script` did, between the two dumps, that is no row of TRANSITIONS; tidy apart, which forgets what has ended."""
    items = [item for entry in entries for item in entry.items]
    told = {item.fields[0] for item in items if item.kind not in QUEUE_KINDS and item.kind != "cancel_requested"}
    wrong = []
    for id in told.union(before.jobs, after.jobs, before.finished, after.finished):
        was, now = before.state(id), after.state(id)
        if script == "cancel" and was is now is State.CANCELLED:
            continue  # told once more
        forgotten = was is None and script == "requeue"  # what it was, the caller knows
        starts = FAILED_OR_CANCELLED if forgotten or was == "ended" else (was,)
        ends = FAILED_OR_CANCELLED if now == "ended" else (now,)
        if (was != now or id in told) and not any((start, end, script) in MOVES for start in starts for end in ends):
            wrong.append(f"{script} took {id} from {was} to {now}, which is not in the table of moves")
    return wrong


def _situation(dump: Dump, id: str) -> tuple[object, ...]:
    """What an event must tell of; extending a lease, progress, and how long a tombstone stands need none."""
    if id not in dump.jobs:
        return (None,)
    return dump.state(id), dump.due(id), dump.failed.get(id), dump.runs.get(id), id in dump.cancels, dump.jobs[id]


def _forgotten(before: Dump, after: Dump, id: str) -> bool:
    return before.state(id) is State.FAILED and id not in after.jobs


def _follow(id: str, story: Sequence[Item], before: Dump, after: Dump, forgetting: bool) -> Iterable[str]:
    """Goes through a job's events from where it was; yields those that cannot be, and an end that is not where it is."""
    place = before.state(id)
    for item in story:
        if item.kind == "cancel_requested":
            if place not in (State.RUNNING, None) or id in before.cancels:
                yield f"{id} is {place}, and got another cancel request"
        elif item.kind == "merged":
            if place is not None:
                yield f"{id} is {place}, and was merged into another job"
            place = State.CANCELLED
        elif item.kind == "restored":
            by_row = item.fields[4] == "-"
            if place is not None and (by_row or place not in (State.SCHEDULED, State.RUNNING)):
                yield f"{id} is {place}, and was {'restored' if by_row else 'adopted'}"
            place = State.SCHEDULED if by_row and len(item.fields) == 5 else State.RUNNING
        elif item.kind == "dropped":
            if place not in (State.SCHEDULED, State.RUNNING, State.FAILED):
                yield f"{id} is {place}, and was dropped"
            place = None
        elif item.kind == "aside":
            yield f"{id} was set aside: {item.body.decode(errors='replace')}"
            return
        else:
            owned = id in before.runs and bool(run_of(before.runs[id]).fence)
            if place not in STARTS[item.kind] or (item.kind == "claimed" and place is State.RUNNING and owned):
                yield f"{id} is {place}, and its event says {item.kind}"
            place = TELLS[item.kind][0]
    ends: set[Place] = {place}
    if forgetting and place in ("ended", State.SUCCEEDED, State.CANCELLED, State.FAILED):
        ends |= {None, "ended"}
    if after.state(id) not in ends:
        yield f"{id} is {after.state(id)}; its events {[item.kind for item in story]} end in {place}"
