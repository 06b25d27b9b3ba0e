"""Laws of every queue at every moment, of every change between two moments, and of the sequence of its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from django_delayq.states import TRANSITIONS, State
from django_delayq.store.scripts.events import Item
from tests.laws.dump import BANDS, WAITING, Dump, record_of, run_of
from tests.laws.history import History, Look, Sees
from tests.laws.law import Findings, law
from tests.laws.story import ENDS, NOBODY, QUEUE_KINDS, STARTS, TELLS, UNFINISHED, Chapter, Page, Place, is_abort

MOVES = frozenset((move.before, move.after, move.script) for move in TRANSITIONS)
FAILED_OR_CANCELLED: tuple[Place, ...] = (State.FAILED, State.CANCELLED)

# At every moment


@law(Sees.QUEUES)
def a_job_is_in_one_place(history: History) -> Findings:
    """Every job of a queue waits in the priority band of its record, is leased, or has failed. Everything that waits has a record."""
    for dump in (look.after for look in history.moments):
        homes = [*WAITING, "leases", "failed"]
        for id in dump.jobs.keys() | {id for home in homes for id in getattr(dump, home)}:
            found = [home for home in homes if id in getattr(dump, home)]
            if id not in dump.jobs:
                yield id, f"stands in {found} and has no record"
            elif len(found) != 1:
                yield id, f"stands in {found or 'no place'}; a job is in exactly one"
            elif found[0] in BANDS and record_of(dump.jobs[id]).band != found[0]:
                yield id, f"waits in {found[0]}, its record says {record_of(dump.jobs[id]).band}"


@law(Sees.QUEUES)
def a_lease_belongs_to_a_run(history: History) -> Findings:
    """A job has a lease if and only if it has a run with a fence. Every run belongs to an unfinished job and names the job's priority
    band.
    """
    for look in history.moments:
        dump = look.after
        fenced = {id for id, run in dump.runs.items() if run_of(run).fence}
        yield from ((id, "has a lease and no run") for id in dump.leases.keys() - dump.runs.keys())
        yield from ((id, "has a fence and no lease") for id in fenced - dump.leases.keys())
        for id, value in dump.runs.items():
            if dump.state(id) not in UNFINISHED:
                yield id, f"has a run and is {dump.state(id)}"
                continue
            record = record_of(dump.jobs[id])
            letter = record.band[0].upper() if record.key else record.band[0]
            if run_of(value).band != letter and not (id in look.keyless and run_of(value).band == record.band[0]):
                yield id, f"its run says band {run_of(value).band}, its record {letter}"


@law(Sees.QUEUES)
def a_key_is_held_by_its_unfinished_job(history: History) -> Findings:
    """The holder of a key is unfinished, and every unfinished job holds its key."""
    for look in history.moments:
        dump = look.after
        for key, id in dump.keys.items():
            if dump.state(id) not in UNFINISHED:
                yield id, f"holds the key {key!r} and is {dump.state(id)}"
        for id, record in dump.jobs.items():
            key = record_of(record).key
            if key and id not in dump.failed and id not in look.keyless and dump.keys.get(key) != id:
                yield id, f"is unfinished and does not hold its key {key!r}"


@law(Sees.QUEUES)
def a_name_has_no_more_holders_than_allowed(history: History) -> Findings:
    """A job holds its name if and only if it has a lease. No name has more holders than allowed. A job that waits for a name, or for
    the turn of its fair word, has that name or word, and waits once.
    """
    for look in history.moments:
        dump = look.after
        names = {id: shared for id in dump.names if (shared := dump.shared(id)) and shared.text}
        holders = [(name.decode(), id.decode()) for name, _, id in (one.partition(b"\0") for one in dump.holders) if name[:1] != b"\3"]
        yield from ((id, "holds a name and has no lease") for _, id in holders if id not in dump.leases)
        yield from ((id, "has a lease and does not hold its name") for id in (dump.leases.keys() & names) - {id for _, id in holders})
        for name, count in Counter(name for name, _ in holders).items():
            most = max((one.most for one in names.values() if one.text == name), default=1)
            if count > most and name not in look.crowded:
                yield "", f"{count} hold the name {name!r}, of which {most} may"
        waiting = [one.rpartition(b"\0")[2].decode() for one in dump.waiters]
        if sorted(waiting) != sorted(dump.blocked):
            yield "", f"{sorted(waiting)} wait in order, {sorted(dump.blocked)} by date"
        for line, id in _lines(dump):
            if line[0] > "\3" and (id not in names or names[id].text != line):
                yield id, f"waits for the name {line!r} and does not have it"


@law(Sees.QUEUES)
def every_job_that_waits_for_a_name_is_called(history: History) -> Findings:
    """If a job is first in line for a name, the name has as many holders as allowed, or another of its jobs is in a priority band. When
    that holder or job ends, the waiting job is called.
    """
    for dump in (look.after for look in history.moments):
        names = {id: shared for id in dump.names if (shared := dump.shared(id)) and shared.text}
        held = Counter(one.partition(b"\0")[0].decode() for one in dump.holders)
        for_token = {one.rpartition(b"\0")[2].decode() for one in dump.waiters if one[:1] == b"\2"}  # each is the next of its name
        in_bands = {names[id].text for ids in (*map(dump.band, BANDS), for_token) for id in ids if id in names}
        seen: set[bytes] = set()
        for one in dump.waiters:  # the first of each name
            name, id = one.partition(b"\0")[0], one.rpartition(b"\0")[2].decode()
            if (
                name[:1] > b"\3"
                and name not in seen
                and id in names
                and held[name.decode()] < names[id].most
                and name.decode() not in in_bands
            ):
                yield id, f"waits for the name {name.decode()!r}, which nobody holds, and nobody will call it"
            seen.add(name)


@law(Sees.QUEUES)
def every_held_job_returns(history: History) -> Findings:
    """A job that a pause holds has the word of that pause. The pause is in force or its jobs return; unless it has no end, `opens` has
    the date of the next return. A job that waits for a token has that rate, and `opens` has the date of the next token.
    """
    for dump in (look.after for look in history.moments):
        held = {id for id, date in dump.blocked.items() if date < 0}
        for line, id in _lines(dump):
            word = line.lstrip("\1\2") if line[0] < "\3" else line
            if (word != line) != (id in held):
                yield id, f"waits in the line {line!r}, and is {'held' if id in held else 'not held'} by its date"
            elif line[0] == "\2":
                shared = dump.shared(id)
                if shared is None or shared.rate is None or shared.rate.text != word:
                    yield id, f"waits for the rate {word!r}, and has {shared}"
                elif line not in dump.opens:
                    yield id, f"waits for the rate {word!r}, and nobody will return it"
            elif word != line:
                if word not in _words(dump, id):
                    yield id, f"is held by {word}, and has {_words(dump, id)}"
                if word not in dump.pauses:
                    yield id, f"is held by {word}, which is not paused, and nobody will return it"
                elif dump.pauses[word] != "0" and line not in dump.opens:
                    yield id, f"is held by {word}, which ends, and nobody will return it"


@law(Sees.CHANGES | Sees.SCRIPT)
def held_jobs_return_in_order(history: History) -> Findings:
    """A claim puts back the first jobs that a pause holds: higher priorities first, then earlier dates."""
    for look in (look for look in history.looks if look.script == "claim"):
        there = {(line, id) for line, id in _lines(look.after) if line[0] == "\1"}
        passed = dict[str, str]()  # the first job of each line that stays
        for line, id in _lines(look.before or Dump()):
            if (line, id) in there:
                passed.setdefault(line, id)
            elif line in passed:
                yield id, f"returned before {passed[line]}"


@law(Sees.QUEUES)
def each_fair_word_has_one_job_in_a_band(history: History) -> Findings:
    """One job of each fair word and priority has the turn: it is in its band, or waits for a token. The others wait in its line. Only
    those that a concurrency name has let go are in the band as well.
    """
    for dump in (look.after for look in history.moments):
        turns = [(line.decode(), id.decode()) for line, _, id in (one.partition(b"\0") for one in dump.holders) if line[:1] == b"\3"]
        lines = _lines(dump)
        for line, count in Counter(line for line, _ in turns).items():
            if count > 1:
                yield "", f"{count} jobs have the turn of {line!r}"
        for line, id in turns:
            if line != _fair_line(dump, id):
                yield id, f"has the turn of {line!r}, and its line is {_fair_line(dump, id)!r}"
            if id in dump.blocked and not any(other[0] == "\2" for other, one in lines if one == id):
                yield id, f"has the turn of {line!r} and waits"
        for id in (id for band in BANDS for id in dump.band(band)):
            line, shared = _fair_line(dump, id), dump.shared(id)
            if line and shared and not shared.text and (line, id) not in turns:
                yield id, f"is in a band without the turn of {line!r}"
        for line, id in lines:
            if line[0] == "\3":
                if line != _fair_line(dump, id):
                    yield id, f"waits in the line {line!r}, and its line is {_fair_line(dump, id)!r}"
                elif line not in dict(turns):
                    yield id, f"waits for the turn of {line!r}, which no job has, and nobody will call it"


def _fair_line(dump: Dump, id: str) -> str:
    """The line of a job's fair word; "" without one."""
    shared = dump.shared(id)
    if shared is None or not shared.fair or id not in dump.jobs:
        return ""
    rank = BANDS.index(record_of(dump.jobs[id]).band) + 1
    return f"\3{rank}{shared.fair}" + (f"\2{shared.rate.text}" if shared.rate else "")


def _lines(dump: Dump) -> list[tuple[str, str]]:
    """The jobs that wait in lines, in order, each after its line."""
    return [(one.partition(b"\0")[0].decode(), one.rpartition(b"\0")[2].decode()) for one in dump.waiters]


def _words(dump: Dump, id: str) -> list[str]:
    """The words by which a job can be paused."""
    record = record_of(dump.jobs[id]) if id in dump.jobs else None
    words = [f"task:{record.task}", *([f"scope:{record.scope}"] if record.scope else [])] if record else []
    shared = dump.shared(id)
    return words + ([f"name:{shared.text}"] if shared and shared.text else [])


@law(Sees.CHANGES | Sees.SCRIPT)
def no_paused_job_is_claimed(history: History) -> Findings:
    """No run begins while its queue, or a word of its job, is paused."""
    for look in history.looks:
        before = look.before or Dump()
        for entry in look.entries:
            ends = {word: float(value) for word, value in before.pauses.items() if value[0] != "r"}
            paused = {word for word, end in ends.items() if end == 0 or end > entry.at_ms}
            end = float(before.meta.get("paused_until", "0"))
            whole = "paused" in before.meta and (end == 0 or end > entry.at_ms)
            for item in (item for item in entry.items if item.kind == "claimed"):
                if whole:
                    yield item.fields[0], "was claimed while its queue was paused"
                if found := paused.intersection(_words(before, item.fields[0])):
                    yield item.fields[0], f"was claimed while {found} was paused"


@law(Sees.QUEUES)
def no_run_is_beyond_the_last_attempt(history: History) -> Findings:
    """Redis counts no more attempts than the record allows."""
    for dump in (look.after for look in history.moments):
        for id, value in dump.runs.items():
            most = record_of(dump.jobs[id]).max_attempts if id in dump.jobs else 0
            if run_of(value).attempt > most:
                yield id, f"is at attempt {run_of(value).attempt} of {most}"


@law(Sees.QUEUES)
def nothing_refers_to_ended_jobs(history: History) -> Findings:
    """Only removed jobs have tombstones. Only running jobs have cancel requests and progress. A poll count belongs to a run."""
    for look in history.moments:
        dump = look.after
        yield from ((id, f"has a tombstone and is {dump.state(id)}") for id in dump.finished.keys() & dump.jobs.keys())
        yield from ((id, "has a cancel request and does not run") for id in dump.cancels.keys() - dump.leases.keys() - look.noted)
        yield from ((id, "has progress and does not run") for id in dump.progress.keys() - dump.leases.keys())
        yield from ((id, "has asked and has no run") for id in dump.asks.keys() - dump.runs.keys())


# Laws of every change


def _stories(look: Look) -> dict[str, list[Item]]:
    stories: dict[str, list[Item]] = {}
    for item in (item for entry in look.entries for item in entry.items):
        if item.kind not in QUEUE_KINDS:
            stories.setdefault(item.fields[0], []).append(item)
    return stories


@law(Sees.CHANGES)
def every_change_has_an_event(history: History) -> Findings:
    """No job changes without an event."""
    for look in history.looks:
        before, after, stories = look.before or Dump(), look.after, _stories(look)
        for id in (before.jobs.keys() | after.jobs.keys()) - stories.keys():
            forgotten = look.forgetting and before.state(id) is State.FAILED and id not in after.jobs
            if _situation(before, id) != _situation(after, id) and not forgotten:
                yield id, f"went from {_situation(before, id)} to {_situation(after, id)} without an event"


def _situation(dump: Dump, id: str) -> tuple[object, ...]:
    """The parts of a job that cannot change without an event. A lease extension, progress and the lifetime of a tombstone need none."""
    if id not in dump.jobs:
        return (None,)
    return dump.state(id), dump.due(id), dump.failed.get(id), dump.runs.get(id), id in dump.cancels, dump.jobs[id]


@law(Sees.CHANGES)
def events_lead_to_the_state_of_the_job(history: History) -> Findings:
    """Each event of a job is possible in the state before it, and the last one leads to the job's state now."""
    for look in history.looks:
        for id, story in _stories(look).items():
            yield from ((id, text) for text in _follow(id, story, look))


def _follow(id: str, story: list[Item], look: Look) -> Iterator[str]:
    before = look.before or Dump()
    place = before.state(id)
    for item in story:
        if item.kind == "cancel_requested":
            again = id in before.cancels and (not is_abort(item) or before.cancels[id].startswith("\1"))
            may_run = place in (State.RUNNING, None) or (place is State.SCHEDULED and id in look.noted)
            if not may_run or again:
                yield f"is {place}, and got another cancel request"
        elif item.kind == "merged":
            if place is not None:
                yield f"is {place}, and was merged into another job"
            place = State.CANCELLED
        elif item.kind == "restored":
            by_row = item.fields[4] == "-"
            if place is not None and (by_row or place not in UNFINISHED):
                yield f"is {place}, and was {'restored' if by_row else 'adopted'}"
            place = State.SCHEDULED if by_row and len(item.fields) == 5 else State.RUNNING
        elif item.kind == "dropped":
            if place not in (*UNFINISHED, State.FAILED):
                yield f"is {place}, and was dropped"
            place = None
        elif item.kind == "aside":
            yield f"was set aside: {item.body.decode(errors='replace')}"
            return
        else:
            owned = id in before.runs and bool(run_of(before.runs[id]).fence)
            if place not in STARTS[item.kind] or (item.kind == "claimed" and place is State.RUNNING and owned):
                yield f"is {place}, and its event says {item.kind}"
            place = TELLS[item.kind][0]
    ends: set[Place] = {place}
    if look.forgetting and place in ("ended", State.SUCCEEDED, State.CANCELLED, State.FAILED):
        ends |= {None, "ended"}
    if look.after.state(id) not in ends:
        yield f"is {look.after.state(id)}; its events {[item.kind for item in story]} end in {place}"


@law(Sees.CHANGES | Sees.SCRIPT)
def every_move_is_in_the_table(history: History) -> Findings:
    """Every change that a script makes to a job is a row of TRANSITIONS. Exception: tidy removes ended jobs."""
    for look in history.looks:
        before, after, script = look.before or Dump(), look.after, look.script
        told = {id for id, story in _stories(look).items() if any(item.kind != "cancel_requested" for item in story)}
        for id in told.union(before.jobs, after.jobs, before.finished, after.finished):
            was, now = before.state(id), after.state(id)
            if script == "cancel" and was is now is State.CANCELLED:
                continue  # reported again
            forgotten = was is None and script == "requeue"  # the caller knows the previous state
            starts = FAILED_OR_CANCELLED if forgotten or was == "ended" else (was,)
            ends = FAILED_OR_CANCELLED if now == "ended" else (now,)
            if (was != now or id in told) and not any((start, end, script) in MOVES for start in starts for end in ends):
                yield id, f"was taken by {script} from {was} to {now}, which is not in the table of moves"


# Laws of the sequence of events


def _pages(history: History, *kinds: str) -> Iterator[tuple[Page, Chapter]]:
    """The events of these kinds, or all events, each with the state of its job before it."""
    for look in history.looks:
        yield from ((page, page.known or Chapter()) for page in look.pages if not kinds or page.item.kind in kinds)


@law(Sees.STORY)
def events_follow_from_each_other(history: History) -> Findings:
    """Each event fits the state that the previous one left. A cancel is requested once, and an abort once more, for a job that is
    running. It can also be requested for a job that is due and may have started in the previous epoch, even if the job was restored
    with another date since.
    """
    for page, known in _pages(history):
        if page.item.kind == "cancel_requested":
            again = known.aborted if is_abort(page.item) else known.asked
            held = known.due <= max(page.entry.at_ms, page.brought_back)
            may_run = known.place is State.RUNNING or (known.place is State.SCHEDULED and held)
            if not may_run or again:  # the events of a job that Redis lacks are unknown
                yield page.id, f"{page}: it is {known.place}, asked before: {known.asked}"
        elif page.item.kind != "restored" and known.place not in STARTS[page.item.kind]:
            yield page.id, f"{page}: it is {known.place}"


@law(Sees.STORY)
def a_claim_counts_one_attempt(history: History) -> Findings:
    """A claim adds one to the last attempt that counted, and leaves the number of crashes unchanged."""
    for page, known in _pages(history, "claimed"):
        attempt, crashes, _ = page.run
        if attempt != known.attempt + 1 or crashes != known.crashes:
            yield page.id, f"{page}: attempt {attempt}, crashes {crashes}, after {known}"


@law(Sees.STORY)
def no_claim_before_the_date(history: History) -> Findings:
    """No job is claimed before its date, to the millisecond."""
    for page, known in _pages(history, "claimed"):
        if page.entry.at_ms < known.due:
            yield page.id, f"{page}: {known.due - page.entry.at_ms} ms before its date"


@law(Sees.STORY)
def only_the_holder_of_the_lease_ends_a_run(history: History) -> Findings:
    """An event that ends a run has the run's fence and attempt. An event without a fence ends a job that is not running."""
    for page, known in _pages(history, *ENDS):
        attempt, _, fence = page.run
        if fence == NOBODY:
            if known.place is State.RUNNING and known.fence:
                yield page.id, f"{page}: it runs, and was ended as if it did not"
        elif fence != known.fence or attempt != known.attempt:
            yield page.id, f"{page}: ended by attempt {attempt} of {fence}, which is not {known}"


@law(Sees.STORY)
def crashes_are_counted(history: History) -> Findings:
    """A run whose worker died adds one crash. No other run does. One crash more than allowed makes the job poison."""
    for page, known in _pages(history, *ENDS):
        _, crashes, fence = page.run
        poison = page.item.kind == "failed" and b'"poison-crashes"' in page.item.body
        vanished = page.item.kind == "crashed" or poison or b"its worker vanished" in page.item.body
        if fence != NOBODY and crashes != known.crashes + vanished:
            yield page.id, f"{page}: {crashes} crashes after {known}"
        if poison != (crashes > history.max_crashes) and vanished and page.item.kind != "cancelled":
            yield page.id, f"{page}: {crashes} crashes of at most {history.max_crashes}"


@law(Sees.STORY)
def each_poll_is_counted(history: History) -> Findings:
    """Each poll adds one to the job's poll count, whatever happens in between. Only a requeue resets it."""
    for page, known in _pages(history, "snoozed"):
        asks = page.asks
        if asks is not None and known.asks is not None and asks != known.asks + 1:
            yield page.id, f"{page}: has asked {asks} times, after {known}"


@law(Sees.STORY)
def a_run_with_a_cancel_request_is_the_last(history: History) -> Findings:
    """A run with a cancel request is not followed by another run."""
    for page, known in _pages(history, "retried", "snoozed", "crashed"):
        if known.asked:
            yield page.id, f"{page}: its cancel was requested"


@law(Sees.STORY)
def a_restored_job_keeps_its_progress(history: History) -> Findings:
    """A restored job has the state that its row or its worker reports, and never an earlier state than before."""
    for page, known in _pages(history, "restored"):
        _, attempt, crashes = map(int, page.item.fields[1:4])
        if known.place in UNFINISHED and (attempt < known.attempt or crashes < known.crashes):
            yield page.id, f"{page}: attempt {attempt}, crashes {crashes}, after {known}"
