"""The judge: reads a history and says what should not have happened. Pure: no server, no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.campaign.history import FOREVER, History, Op, QueueLeft, Run

TOLERANCE = 5  # ms by which a clock may be read apart
RETRY_MS = 100  # the least delay between two attempts of any of the campaign's tasks
FINISHED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that should not have happened."""

    kind: str
    job: str
    text: str


@dataclass(frozen=True, slots=True)
class Date:
    """A due date that a job had, or may have had. `at`, `until`: when it was given, in monotonic ns."""

    due: int
    at: int
    until: int
    sure: bool


class Case:
    """A history with its indexes. Made once, read by every check."""

    def __init__(self, history: History, *, keeps_all: bool = True) -> None:
        self.history = history
        self.final = history.final
        self.keeps_all = keeps_all  # whether Redis keeps all that it has acknowledged, whatever happens
        self.runs: dict[str, list[Run]] = {}
        for run in history.runs:
            self.runs.setdefault(run.job, []).append(run)
        self.schedules: dict[str, Op] = {}
        self.changes: dict[str, list[Op]] = defaultdict(list)
        self.by_key: dict[tuple[str, str], list[Op]] = defaultdict(list)
        for op in history.ops.values():
            for id in op.ids:
                self.schedules[id] = op
            if "job" in op.given:
                self.changes[op.given["job"]].append(op)
            if op.given.get("key"):
                self.by_key[op.given.get("queue", "default"), op.given["key"]].append(op)
        for row in self.final.rows.values():
            if row.op in history.ops:
                self.schedules[row.id] = history.ops[row.op]
        for run in history.runs:
            if run.op in history.ops:
                self.schedules[run.job] = history.ops[run.op]
        for _, job, actor in self.final.acts:
            op = history.ops.get(actor)
            followed = op is not None and op.what == "cancel" and op.given["job"] != job  # it had been merged into this one
            if op is not None and (followed or op.what == "cancel_key"):
                self.changes[job].append(op)

    def left(self, job: str) -> QueueLeft | None:
        """What Redis holds of the queue of that job."""
        row = self.final.rows.get(job)
        op = self.schedules.get(job)
        name = row.queue if row else op.given.get("queue", "default") if op else "default"
        return self.final.queues.get(name)

    def requeued(self, job: str, after: int, before: int = FOREVER) -> bool:
        """Whether a requeue of it may have taken effect in between."""
        return any(op.what == "requeue" and op.perhaps and op.until > after and op.at < before for op in self.changes.get(job, []))


def lost(case: Case) -> Iterator[Violation]:
    """What was acknowledged, or is committed, and never came to an end that somebody asked for."""
    for op in case.history.ops.values():
        if op.what == "schedule" and op.answer == "ok":
            told = {job: created for job, created, _ in op.jobs}
            for job in op.ids:
                kept = case.keeps_all or op.given.get("queue") != "redis"
                if kept and told.get(job, False) is not False and job not in case.final.rows:
                    yield Violation("lost", job, f"acknowledged by {op.id}, and there is no row of it")
    for row in case.final.rows.values():
        left = case.left(row.id)
        if row.state not in FINISHED:
            here = left is not None and row.id in left.jobs
            if here or case.keeps_all or row.durable:
                where = "still in Redis" if here else "not in Redis"
                yield Violation("lost", row.id, f"its row says {row.state}, it is {where}, and nothing happens")
        elif row.state == "succeeded" and not any(run.how == "ok" for run in case.runs.get(row.id, [])):
            yield Violation("lost", row.id, "succeeded by its row, and no run of it came to its end")
        elif row.state == "cancelled" and not _may_be_cancelled(case, row.id):
            yield Violation("lost", row.id, f"cancelled, and nobody asked for it: {row.error}")


def _may_be_cancelled(case: Case, job: str) -> bool:
    row = case.final.rows[job]
    if any(op.what in ("cancel", "cancel_key") for op in case.changes.get(job, [])):
        return True
    op = case.schedules.get(job)
    rivals = case.by_key[row.queue, row.key] if row.key else []
    merged = [id for id, other in case.final.rows.items() if other.holder == job]
    if any(op.what == "cancel" and op.perhaps for id in merged for op in case.changes.get(id, [])):
        return True
    by_key = [other for other in rivals if other.what == "cancel_key" and other.perhaps]
    if op is not None and any(other.until > op.at for other in by_key) and (case.history.forgot(op.at) or not row.published):
        return True  # the row noted it, and Redis forgot, or never had, the event that says who it was
    if row.error.startswith("key held by") and op is not None and case.history.forgot(op.at):
        return bool(row.key)  # Redis forgot it, and its key was another's when it came back
    if row.error.startswith("key held by"):
        created = op is not None and (job, True) in [(id, created) for id, created, _ in op.jobs]
        behind = op is not None and op.given.get("policy") == "after"  # was in as a row, until a newer one made it needless
        return bool(row.key) and op is not None and (behind or not created)
    replaced = row.error.startswith("replaced by")
    return replaced and any(other is not op and other.given.get("policy") in ("replace", "after") for other in rivals)


def failed_without_cause(case: Case) -> Iterator[Violation]:
    """Only the hopeless fail, and those whose workers vanished too often."""
    for row in case.final.rows.values():
        lost = not row.durable and row.error.startswith("Redis lost this job") and case.history.forgot(0)
        if row.state == "failed" and row.task != "hopeless" and not lost and not row.error.startswith("Poison"):
            yield Violation("failed without cause", row.id, f"{row.task}, {row.attempts} attempts: {row.error[:200]}")


def ran_though_rolled_back(case: Case) -> Iterator[Violation]:
    """A transaction that was rolled back schedules nothing."""
    for op in case.history.ops.values():
        if op.answer == "rolled":
            for job in op.ids:
                if case.runs.get(job) or job in case.final.rows:
                    yield Violation("ran though rolled back", job, f"scheduled by {op.id}")


def early(case: Case) -> Iterator[Violation]:
    """A run before every date that the job may have had."""
    for job, runs in case.runs.items():
        op = case.schedules.get(job)
        if op is None:
            yield Violation("early", job, "a run of a job that nobody scheduled")
            continue
        for run in runs:
            if case.history.stepped(op.at, run.at):
                continue
            dates = _dates(case, job, op, runs, run)
            if dates and run.wall + TOLERANCE < min(date.due for date in dates):
                first = min(date.due for date in dates)
                yield Violation("early", job, f"attempt {run.attempt} began {first - run.wall} ms before its date")


def _dates(case: Case, job: str, op: Op, runs: list[Run], run: Run) -> list[Date]:
    dates: list[Date] = []
    since = 0
    if run.attempt <= 1:
        told = next((due for id, created, due in op.jobs if id == job and created and due is not None), None)
        if op.given.get("clock"):
            told = None  # of a host whose clock is wrong: its delay counts
        due = told if told is not None else op.wall + _delay_ms(op)
        dates.append(Date(due, op.at, op.until, op.answer == "ok"))
    else:
        before = [one for one in runs if one.attempt == run.attempt - 1 and one.how == "error" and one.until <= run.at]
        if not before:
            return []
        dates += [Date(one.wall_until + RETRY_MS, one.until, one.until, False) for one in before]
        since = min(one.at for one in before)
    for change in case.changes.get(job, []):
        if change.what in ("reschedule", "run_now", "requeue") and change.perhaps and since <= change.until:
            due = change.wall + (_delay_ms(change) if change.what == "reschedule" else 0)
            dates.append(Date(due, change.at, change.until, change.done))
    if key := op.given.get("key"):
        for other in case.by_key[op.given["queue"], key]:
            if other.given.get("policy") in ("earliest", "latest") or op.given.get("policy") == "after":
                dates.append(Date(other.wall + _delay_ms(other), other.at, FOREVER, False))
            if op.given.get("policy") == "after" and other is not op:  # it takes over the earlier date of what it displaces
                moves = [change for id in other.ids for change in case.changes.get(id, []) if change.perhaps]
                dates += [Date(change.wall + _delay_ms(change), change.at, FOREVER, False) for change in moves]
    dates = [date for date in dates if date.at <= run.at]
    return [date for date in dates if not any(later.sure and date.until < later.at and later.until <= run.at for later in dates)]


def _delay_ms(op: Op) -> int:
    return int(op.given.get("delay", 0) * 1000)


def double_settled(case: Case) -> Iterator[Violation]:
    """Two attempts of one job that both ended it well; but for an end that the copy which took over did not have. If the row had not
    heard of it by then, the job ran again, and the row may hear of both.
    """
    well: dict[str, set[str]] = {}
    for job, _, fence, outcome in case.final.attempts:
        if outcome == "succeeded":
            well.setdefault(job, set()).add(fence)
    for job, fences in well.items():
        runs = sorted((run for run in case.runs.get(job, ()) if run.fence.partition("/")[0] in fences), key=lambda run: run.at)
        forgotten = all(case.history.rolled_over_between(one.until, other.at) for one, other in pairwise(runs))
        if len(fences) > 1 and not (len(runs) == len(fences) and forgotten):
            yield Violation("double-settled", job, f"{len(fences)} of its attempts succeeded")


def ran_after_cancel(case: Case) -> Iterator[Violation]:
    """A run that began after a cancel had answered done; or an end other than cancelled."""
    for job, changes in case.changes.items():
        for op in changes:
            if not (op.what in ("cancel", "cancel_key") and op.done):
                continue
            row = case.final.rows.get(job)
            if row is not None and not row.durable and case.history.rolled_over(op.at, op.until):
                continue  # Redis forgot the cancel, and perhaps the job, before the row had heard of it
            for run in case.runs.get(job, ()):
                if run.at > op.until and not case.requeued(job, op.at, run.at):
                    after = (run.at - op.until) / 1e6
                    yield Violation("run after cancel", job, f"{op.id} answered done {after:.0f} ms before it began")
            if row is not None and row.state != "cancelled" and not case.requeued(job, op.at):
                yield Violation("run after cancel", job, f"{op.id} answered done, and its row says {row.state}")


def ran_after_cancel_by_key(case: Case) -> Iterator[Violation]:
    """A cancel by key means every job of that key that was acknowledged before: none of those that waited runs."""
    for (queue, key), ops in case.by_key.items():
        cancels = [op for op in ops if op.what == "cancel_key" and op.done]
        for op in ops:
            for job in op.ids if cancels and op.what == "schedule" and op.answer == "ok" else ():
                runs = case.runs.get(job, [])
                for cancel in cancels:
                    waited = op.until < cancel.at and not any(run.at < cancel.until for run in runs)
                    if waited and runs and not case.requeued(job, cancel.at):
                        after = (runs[0].at - cancel.until) / 1e6
                        text = f"{cancel.id} cancelled {key} of {queue}, and answered done {after:.0f} ms before it began"
                        yield Violation("run after cancel", job, text)


def false_answers(case: Case) -> Iterator[Violation]:
    """Who asks again for a cancel that has taken effect, hears that it is done."""
    for job, changes in case.changes.items():
        row = case.final.rows.get(job)
        if row is None or row.state != "cancelled" or row.holder or row.error.startswith(("key held by", "replaced by")):
            continue  # one that was merged or replaced answers finished
        cancels = [op for op in changes if op.what == "cancel"]
        for op in cancels:
            before = [one for one in cancels if one.perhaps and one.until < op.at]
            lost_reply = op.given.get("repeat") and any(one.id == op.id.removesuffix("r") for one in cancels)
            if op.answer == "ok" and op.reply == "finished" and (before or lost_reply) and not case.requeued(job, 0):
                yield Violation("false answer", job, f"{op.id} heard finished, and {row.error or 'a cancel'} ended it")


def not_once_more(case: Case) -> Iterator[Violation]:
    """Who schedules "after" a running job has a run behind that one, with arguments that are not older than his own."""
    for op in case.history.ops.values():
        told = {job: created for job, created, _ in op.jobs}
        if op.given.get("policy") != "after" or op.answer != "ok":
            continue
        for job in op.ids:
            last = job
            seen = {job}
            while told.get(job) is not False and (row := case.final.rows.get(last)) is not None and row.holder not in ("", *seen):
                before, last = last, row.holder
                seen.add(last)
                one, other = case.schedules.get(before), case.schedules.get(last)
                if one is not None and other is not None and other.until < one.at:
                    yield Violation("not once more", job, f"{before} gave way to {last}, which is older")
            runs = case.runs.get(last, [])
            for holder in _holders(case, op):
                if runs and runs[0].at < holder.until and not case.history.forgot(holder.at):
                    ahead = (holder.until - runs[0].at) / 1e6
                    yield Violation("not once more", job, f"{last} began {ahead:.0f} ms before the end of {holder.job}")


def _holders(case: Case, op: Op) -> Iterator[Run]:
    """Runs of its key that had begun before this call, and ended well behind it: the only ones of their jobs, so no lease was lost."""
    for other in case.by_key[op.given["queue"], op.given["key"]]:
        for job in other.ids:
            runs, row = case.runs.get(job, []), case.final.rows.get(job)
            if row is not None and row.state == "succeeded" and [run.how for run in runs] == ["ok"] and other is not op:
                yield from (run for run in runs if run.at < op.at and op.until < run.until)


def too_many_attempts(case: Case) -> Iterator[Violation]:
    """Attempts that count are at most `max_attempts`."""
    for row in case.final.rows.values():
        most = max((run.attempt for run in case.runs.get(row.id, ())), default=0)
        if max(most, row.attempts) > row.max_attempts:
            yield Violation("too many attempts", row.id, f"{max(most, row.attempts)} of {row.max_attempts}")


def failure_not_recorded(case: Case) -> Iterator[Violation]:
    """Failed in Redis, or by what its task did, and not in the database."""
    rows = case.final.rows
    committed = {job for job, _ in case.final.effects if job in rows and rows[job].task == "atomic"}
    for name, left in case.final.queues.items():
        for job in left.failed:
            if job in committed and rows[job].state == "succeeded":
                continue  # its effect was there before its workers vanished too often: the row has the last word
            if job not in rows or rows[job].state != "failed":
                yield Violation("failure not recorded", job, f"failed in {name}, row: {rows.get(job)}")
    for row in rows.values():
        if row.task == "hopeless" and row.state not in ("failed", "cancelled"):
            ended = [run for run in case.runs.get(row.id, []) if run.how == "error" and run.attempt >= row.max_attempts]
            if ended and not case.requeued(row.id, ended[-1].at):
                yield Violation("failure not recorded", row.id, f"its last attempt failed, its row says {row.state}")


def not_converged(case: Case) -> Iterator[Violation]:
    """What the mirror has written down differs from what Redis says in the end."""
    rows = case.final.rows
    for row in rows.values():
        left = case.left(row.id)
        if row.state == "scheduled" and not row.published and row.durable:
            yield Violation("mirror not converged", row.id, "its row is unpublished")
        if left is None:
            continue
        alive = row.id in left.jobs and row.id not in left.failed
        if alive and row.state in FINISHED:
            yield Violation("mirror not converged", row.id, f"unfinished in Redis, {row.state} by its row")
        elif row.id in left.finished and left.finished[row.id] != (row.state == "cancelled"):
            merged = row.state == "cancelled" and row.error.startswith("key held by")
            # A tombstone of older data may tell of a cancel which a requeue took back; the row is right, nothing runs again.
            op = case.schedules.get(row.id)
            older = row.state == "succeeded" and op is not None and case.history.forgot(op.at)
            if not merged and not older:
                ended = "cancelled" if left.finished[row.id] else "not cancelled"
                yield Violation("mirror not converged", row.id, f"{ended} in Redis, {row.state} by its row")
    for name, left in case.final.queues.items():
        if left.events:
            yield Violation("mirror not converged", "", f"{left.events} events of {name} are not folded")
        for job in sorted(left.jobs - rows.keys()):
            yield Violation("mirror not converged", job, f"in Redis ({name}), and there is no row of it")
    for job, number, _, outcome in case.final.attempts:
        if outcome == "running" and job in rows and rows[job].state in FINISHED:
            yield Violation("mirror not converged", job, f"{rows[job].state}, and its attempt {number} runs for ever")


def keys_leaked(case: Case) -> Iterator[Violation]:
    """Something in Redis that speaks of a job which is no more."""
    for name, left in case.final.queues.items():
        unfinished = left.jobs - left.failed
        for key, job in left.keys.items():
            if job not in unfinished:
                yield Violation("leaked", job, f"{name}: the key {key} points to it")
        for what, found in (
            ("schedule", left.lanes.keys()),
            ("leases", left.leases),
            ("runs", left.runs),
            ("cancels", left.cancels),
            ("progress", left.progress),
        ):
            for job in sorted(found - unfinished):
                yield Violation("leaked", job, f"{name}: {what} speaks of it")
        for job in sorted(unfinished - left.lanes.keys() - left.leases):
            yield Violation("leaked", job, f"{name}: its record is there, and neither a date nor a lease")


def doubled_effects(case: Case) -> Iterator[Violation]:
    """An atomic job that succeeded has one effect, any other none; a job in steps has one, or none if it never came so far."""
    times = Counter(job for job, _ in case.final.effects)
    for row in case.final.rows.values():
        if row.task not in ("atomic", "stepwise") or row.state not in FINISHED:
            continue
        wanted = {1} if row.state == "succeeded" else {0} if row.task == "atomic" else {0, 1}
        if times[row.id] not in wanted:
            yield Violation("doubled effect", row.id, f"{row.task}, {row.state}, with {times[row.id]} effects")


def ledger_differs(case: Case) -> Iterator[Violation]:
    """What the ledger says of effects and of ends, and the database does not: it is judged by more than its own word."""
    said: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for what, job, fence in case.history.ledger:
        said[what].add((job, fence))
    rows = set(case.final.effects)
    for job, fence in sorted(rows - said["effect"]):
        yield Violation("effect of nobody", job, f"the database has an effect of the run {fence}, which wrote down none")
    for job, fence in sorted(said["kept"] - rows):
        yield Violation("lost effect", job, f"the run {fence} saw its effect committed, and the database does not have it")
    times = Counter(job for job, _ in said["kept"])
    for job, count in times.items():
        if count > 1:
            yield Violation("doubled effect", job, f"{count} runs of it saw their effect committed")
    ended = {job for job, _ in said["end"]}
    for row in case.final.rows.values():
        if row.state == "succeeded" and row.id not in ended:
            yield Violation("lost", row.id, "succeeded by its row, and by the ledger no run of it came to its end")


def same_fence_twice(case: Case) -> Iterator[Violation]:
    """A fence belongs to one run."""
    times = Counter((run.job, run.fence) for run in case.history.runs)
    for (job, fence), count in times.items():
        if count > 1:
            yield Violation("same fence twice", job, f"{count} runs bear the fence {fence}")


def not_quiet(case: Case) -> Iterator[Violation]:
    """The campaign has to come to rest, and something has to happen before."""
    if not case.history.runs:
        yield Violation("not quiet", "", "no job has run at all")
    if not case.final.quiet:
        yield Violation("not quiet", "", "there was still work going on at the deadline")


CHECKS: tuple[Callable[[Case], Iterator[Violation]], ...] = (
    not_quiet,
    lost,
    failed_without_cause,
    ran_though_rolled_back,
    early,
    double_settled,
    ran_after_cancel,
    ran_after_cancel_by_key,
    false_answers,
    not_once_more,
    too_many_attempts,
    failure_not_recorded,
    not_converged,
    keys_leaked,
    doubled_effects,
    ledger_differs,
    same_fence_twice,
)


def judge(case: Case) -> list[Violation]:
    """Everything that every check finds."""
    return [violation for check in CHECKS for violation in check(case)]
