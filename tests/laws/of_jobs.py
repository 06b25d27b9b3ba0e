"""Laws of jobs, from the call that schedules them to their final rows, whatever fails in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.laws.dump import HELD
from tests.laws.history import FINISHED, FOREVER, FORGETTING, HOPELESS, STEPS, WITH_REPLICAS, History, Op, Row, Run, Sees
from tests.laws.law import Findings, law

TOLERANCE = 5  # ms by which a clock may be read apart
RETRY_MS = 100  # the least delay between two attempts of any task of tests/app


@law(Sees.ROWS | Sees.RUNS)
def everything_comes_to_rest(history: History) -> Findings:
    """Something happened, and it finished before the deadline."""
    if not history.runs and not history.rows:
        yield "", "no job was there at all"
    if not history.final.quiet:
        yield "", "there was still work going on at the deadline"


# Nothing is lost


@law(Sees.CALLS | Sees.ROWS)
def nothing_acknowledged_is_lost(history: History) -> Findings:
    """Every job that a call returned has a row."""
    for op in history.ops.values():
        if op.what == "schedule" and op.answer == "ok":
            told = {job: created for job, created, _ in op.jobs}
            for job in op.ids:
                if history.kept(job) and told.get(job, False) is not False and job not in history.rows:
                    yield job, f"acknowledged by {op.id}, and there is no row of it"


@law(Sees.CALLS | Sees.ROWS)
def committed_is_never_forgotten(history: History) -> Findings:
    """The jobs of a committed transaction exist, even if the caller got no answer."""
    made = {row.op for row in history.rows.values()}
    lacking = (op for op in history.ops.values() if op.answer == "committed" and op.id not in made)
    yield from (("", f"{op.id} was committed, and has no row") for op in lacking)


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def rolled_back_schedules_nothing(history: History) -> Findings:
    """A transaction that was rolled back leaves no rows, and none of its jobs run."""
    for op in history.ops.values():
        if op.answer == "rolled":
            made = {row.id for row in history.rows.values() if row.op == op.id} | {run.job for run in history.runs if run.op == op.id}
            for job in sorted(made.union(id for id in op.ids if id in history.rows or id in history.runs_of)):
                yield job, f"scheduled by {op.id}"


@law(Sees.ROWS | Sees.REDIS)
def every_job_comes_to_its_end(history: History) -> Findings:
    """No row stays unfinished."""
    for row in history.rows.values():
        if row.state not in FINISHED:
            left = history.left(row.id)
            here = left is not None and row.id in left.jobs
            if here or history.kept(row.id):
                yield row.id, f"its row says {row.state}, it is {'still' if here else 'not'} in Redis, and nothing happens"


@law(Sees.ROWS | Sees.RUNS)
def a_success_is_a_run_that_came_to_its_end(history: History) -> Findings:
    """Every job that succeeded has at least one run that finished."""
    for row in history.rows.values():
        if row.state == "succeeded" and not any(run.how == "ok" for run in history.runs_of.get(row.id, ())):
            yield row.id, "succeeded by its row, and no run of it came to its end"


@law(Sees.ROWS | Sees.FATES)
def each_job_meets_its_fate(history: History) -> Findings:
    """If a case allows only one outcome, the job has that outcome. A job that the case cancels never runs."""
    for id, fate in history.fates.items():
        row = history.rows.get(id)
        if row is None or row.state != fate:
            yield id, f"should have {fate}: {row}"
        if fate == "cancelled" and id in history.runs_of:
            yield id, f"was cancelled, and ran: {history.runs_of[id][0]}"


@law(Sees.CALLS | Sees.ROWS | Sees.ACTS)
def every_cancel_has_a_cause(history: History) -> Findings:
    """Every cancelled job was cancelled by a user, displaced by a job with its key, or merged into the holder of its key. For ticks see
    `of_ticks`.
    """
    for row in history.rows.values():
        if row.state == "cancelled" and row.id not in history.calendar.jobs and not _may_be_cancelled(history, row):
            yield row.id, f"cancelled, and nobody asked for it: {row.error}"


def _may_be_cancelled(history: History, row: Row) -> bool:
    if any(op.what in ("cancel", "cancel_key", "cancel_batch") for op in history.changes.get(row.id, ())):
        return True
    if any(batch.cancelled for batch in history.final.batches if batch.id == row.batch):
        return True  # Redis may have lost the event with the actor
    op = history.scheduled_by.get(row.id)
    rivals = history.by_key[row.queue, row.key] if row.key else []
    merged = [id for id, other in history.rows.items() if other.holder == row.id]
    if any(op.what == "cancel" and op.perhaps for id in merged for op in history.changes.get(id, ())):
        return True
    by_key = [other for other in rivals if other.what == "cancel_key" and other.perhaps]
    if op is not None and any(other.until > op.at for other in by_key) and (history.forgot(op.at, row.id) or not row.published):
        return True  # the row has it, and Redis lost, or never had, the event with the actor
    if row.merged and op is not None and history.forgot(op.at, row.id):
        return bool(row.key)  # Redis forgot it, and its key was another's when it came back
    if row.merged:
        created = op is not None and (row.id, True) in [(id, created) for id, created, _ in op.jobs]
        behind = op is not None and op.given.get("policy") == "after"  # was in as a row, until a newer one made it needless
        return bool(row.key) and op is not None and (behind or not created)
    replaced = row.error.startswith("replaced by")
    return replaced and any(other is not op and other.given.get("policy") in ("replace", "after") for other in rivals)


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def a_merged_job_is_followed(history: History) -> Findings:
    """A job that was merged into another doesn't run. The other job has a row and wasn't merged itself."""
    for row in history.rows.values():
        op = history.scheduled_by.get(row.id)
        if not row.merged or op is None or history.forgot(op.at, row.id):
            continue
        if runs := history.runs_of.get(row.id):
            yield row.id, f"was merged into {row.holder}, and ran: {runs[0]}"
        last, seen = history.rows.get(row.holder), {row.id, row.holder}
        while last is not None and last.merged and last.holder not in seen:
            seen.add(last.holder)
            last = history.rows.get(last.holder)
        if last is None or last.merged:
            yield row.id, f"was merged into {row.holder}, and that leads to {last}"


@law(Sees.ROWS | Sees.CALLS)
def only_the_hopeless_fail(history: History) -> Findings:
    """Only three kinds of jobs fail: those whose task never succeeds, those whose worker died too often, and Redis-only jobs that Redis
    lost.
    """
    for row in history.rows.values():
        lost = not history.kept(row.id) and row.error.startswith("Redis lost this job") and history.forgot(0, row.id)
        doomed = row.task in HOPELESS or history.fates.get(row.id) == "failed"
        if row.state == "failed" and not doomed and not lost and not row.error.startswith("Poison"):
            yield row.id, f"{row.task}, {row.attempts} attempts: {row.error[:200]}"


# Not too early, not too often, not after a cancel


@law(Sees.CALLS | Sees.RUNS)
def every_run_was_scheduled(history: History) -> Findings:
    """Every job that runs was scheduled by a call or by a tick. A tick may have another job by now if Redis forgot the run."""
    known = history.scheduled_by.keys() | history.calendar.of_job.keys()
    for job in history.runs_of:
        if job not in known and not (job in history.calendar.jobs and history.forgot_runs(job)):
            yield job, "a run of a job that nobody scheduled"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def every_run_is_of_a_row(history: History) -> Findings:
    """Every job that ran has a row at the end."""
    for job, runs in history.runs_of.items():
        if job not in history.rows and history.kept(job):
            yield job, f"a run of a job that has no row: {runs[0]}"


@law(Sees.CALLS | Sees.RUNS)
def never_before_its_date(history: History) -> Findings:
    """No run starts before all the dates that the job may have had, nor before the date that the run was given."""
    for job, op in history.scheduled_by.items():
        runs = history.runs_of.get(job, [])
        for run in runs:
            if history.stepped(op.at, run.at):
                continue
            dates = [date.due for date in _dates(history, job, op, runs, run)]
            due = max(run.due, min(dates, default=0))
            if run.wall + TOLERANCE < due:
                yield job, f"attempt {run.attempt} began {due - run.wall} ms before its date"


@dataclass(frozen=True, slots=True)
class Date:
    """A due date that a job had, or may have had. `at`, `until`: when it was given, in monotonic ns."""

    due: int
    at: int
    until: int
    sure: bool


def _dates(history: History, job: str, op: Op, runs: list[Run], run: Run) -> list[Date]:
    dates: list[Date] = []
    since = 0
    if run.attempt <= 1:
        told = next((due for id, created, due in op.jobs if id == job and created and due is not None), None)
        if op.given.get("clock"):
            told = None  # of a host whose clock is wrong: its delay counts
        due = told if told is not None else op.wall + op.delay_ms
        dates.append(Date(due, op.at, op.until, op.answer == "ok"))
    else:
        before = [one for one in runs if one.attempt == run.attempt - 1 and one.how == "error" and one.until <= run.at]
        if not before:
            return []
        dates += [Date(one.wall_until + RETRY_MS, one.until, one.until, False) for one in before]
        since = min(one.at for one in before)
    for change in history.changes.get(job, ()):
        if change.what in ("reschedule", "run_now", "requeue", "edit") and change.perhaps and since <= change.until:
            due = change.wall + (change.delay_ms if change.what == "reschedule" else 0)
            dates.append(Date(due, change.at, change.until, change.done))
    if key := op.given.get("key"):
        for other in history.by_key[op.given["queue"], key]:
            if other.given.get("policy") in ("earliest", "latest") or op.given.get("policy") == "after":
                dates.append(Date(other.wall + other.delay_ms, other.at, FOREVER, False))
            if op.given.get("policy") == "after" and other is not op:  # it takes over the earlier date of what it displaces
                moves = [change for id in other.ids for change in history.changes.get(id, ()) if change.perhaps]
                dates += [Date(change.wall + change.delay_ms, change.at, FOREVER, False) for change in moves]
    dates = [date for date in dates if date.at <= run.at]
    return [date for date in dates if not any(later.sure and date.until < later.at and later.until <= run.at for later in dates)]


@law(Sees.ROWS | Sees.RUNS)
def one_attempt_succeeds(history: History) -> Findings:
    """At most one attempt of a job succeeds. Exception: after a failover to a copy without the first success, the job can run again,
    and its row can record both.
    """
    well: dict[str, list[str]] = {}
    for job, _, fence, outcome in history.final.attempts:
        if outcome == "succeeded":
            well.setdefault(job, []).append(fence)
    for job, fences in well.items():
        runs = sorted((run for run in history.runs_of.get(job, ()) if run.fence.partition("/")[0] in fences), key=lambda run: run.at)
        forgotten = all(history.rolled_over_between(one.until, other.at, job) for one, other in pairwise(runs))
        if len(fences) > 1 and not (len(runs) == len(set(fences)) and forgotten):
            yield job, f"{len(fences)} of its attempts succeeded"


@law(Sees.RUNS)
def a_fence_belongs_to_one_run(history: History) -> Findings:
    """No two runs of a job have the same fence."""
    times = Counter((run.job, run.fence) for run in history.runs)
    yield from ((job, f"{count} runs have the fence {fence}") for (job, fence), count in times.items() if count > 1)


@law(Sees.ROWS | Sees.RUNS)
def jobs_run_once_if_no_process_dies(history: History) -> Findings:
    """If replies are lost but no process dies, every call is repeated and takes effect once, so every job runs once."""
    if not history.unharmed:
        return
    yield from ((job, "a run counts as a crash, and nobody has died") for job, _, _, how in history.final.attempts if how == "crashed")
    for row in history.rows.values():
        ended = sum(run.how == "ok" for run in history.runs_of.get(row.id, ()))
        if row.state == "succeeded" and ended != 1:
            yield row.id, f"{ended} of its runs came to their end, and nobody has died"


@law(Sees.ROWS | Sees.RUNS)
def attempts_are_bounded(history: History) -> Findings:
    """The attempts that count do not exceed `max_attempts`."""
    for row in history.rows.values():
        most = max([row.attempts, *(run.attempt for run in history.runs_of.get(row.id, ()))])
        if most > row.max_attempts:
            yield row.id, f"{most} attempts of {row.max_attempts}"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def never_after_a_cancel(history: History) -> Findings:
    """After a cancel that returned done, no run starts, and the job ends as cancelled."""
    for job, changes in history.changes.items():
        for op in changes:
            if not (op.what in ("cancel", "cancel_key") and op.done):
                continue
            row = history.rows.get(job)
            forgetting = WITH_REPLICAS if history.replicated(job) else FORGETTING
            if row is not None and not row.durable and history.rolled_over(op.at, op.until, job, forgetting):
                continue  # Redis forgot the cancel, and perhaps the job, before the row had heard of it
            for run in history.runs_of.get(job, ()):
                if run.at > op.until and not history.requeued(job, op.at, run.at):
                    yield job, f"{op.id} answered done {(run.at - op.until) / 1e6:.0f} ms before it began"
            if row is not None and row.state != "cancelled" and not history.requeued(job, op.at):
                yield job, f"{op.id} answered done, and its row says {row.state}"


@law(Sees.CALLS | Sees.RUNS)
def a_cancel_by_key_means_all_of_the_key(history: History) -> Findings:
    """A cancel by key applies to every job of the key that was acknowledged before. None of those that were waiting run."""
    for (queue, key), ops in history.by_key.items():
        cancels = [op for op in ops if op.what == "cancel_key" and op.done]
        for op in ops:
            for job in op.ids if cancels and op.what == "schedule" and op.answer == "ok" else ():
                runs = history.runs_of.get(job, [])
                for cancel in cancels:
                    waited = op.until < cancel.at and not any(run.at < cancel.until for run in runs)
                    twin = history.rolled(op.at, op.until)  # perhaps: then it means one of the two
                    if waited and runs and not twin and not history.requeued(job, cancel.at):
                        after = (runs[0].at - cancel.until) / 1e6
                        yield job, f"{cancel.id} cancelled {key} of {queue}, and answered done {after:.0f} ms before it began"


@law(Sees.CALLS | Sees.ROWS)
def a_repeated_cancel_returns_done(history: History) -> Findings:
    """A repeated cancel returns done if the first one took effect."""
    for job, changes in history.changes.items():
        row = history.rows.get(job)
        if row is None or row.state != "cancelled" or row.holder or row.error.startswith(("key held by", "replaced by")):
            continue  # one that was merged or replaced answers finished
        cancels = [op for op in changes if op.what == "cancel"]
        for op in cancels:
            before = [one for one in cancels if one.perhaps and one.until < op.at]
            lost_reply = op.given.get("repeat") and any(one.id == op.id.removesuffix("r") for one in cancels)
            if op.answer == "ok" and op.reply == "finished" and (before or lost_reply) and not history.requeued(job, 0):
                yield job, f"{op.id} heard finished, and {row.error or 'a cancel'} ended it"


def _dated_by_two(history: History, one: Op, other: Op) -> bool:
    """Whether two clocks have dated their rows, so that it is unknown which is older."""
    return history.dated_by_hosts and one.given.get("clock") != other.given.get("clock")


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def after_runs_after_the_holder(history: History) -> Findings:
    """A job scheduled with "after" while its key's holder runs starts after that run. Its arguments are at least as new as the
    caller's.
    """
    for op in history.ops.values():
        told = {job: created for job, created, _ in op.jobs}
        if op.given.get("policy") != "after" or op.answer != "ok":
            continue
        for job in op.ids:
            last = job
            seen = {job}
            while told.get(job) is not False and (row := history.rows.get(last)) is not None and row.holder not in ("", *seen):
                before, last = last, row.holder
                seen.add(last)
                one, other = history.scheduled_by.get(before), history.scheduled_by.get(last)
                if one is not None and other is not None and other.until < one.at and not _dated_by_two(history, one, other):
                    yield job, f"{before} gave way to {last}, which is older"
            runs = history.runs_of.get(last, [])
            for holder in _holders(history, op):
                if runs and runs[0].at < holder.until and not history.forgot(holder.at, last):
                    yield job, f"{last} began {(holder.until - runs[0].at) / 1e6:.0f} ms before the end of {holder.job}"


def _holders(history: History, op: Op) -> Iterator[Run]:
    """The key's runs that had started before this call and succeeded after it. Each is the only run of its job: its lease was kept."""
    for other in history.by_key[op.given["queue"], op.given["key"]]:
        for job in other.ids:
            runs, row = history.runs_of.get(job, []), history.rows.get(job)
            if row is not None and row.state == "succeeded" and [run.how for run in runs] == ["ok"] and other is not op:
                yield from (run for run in runs if run.at < op.at and op.until < run.until)


# Rows say what was


@law(Sees.ROWS | Sees.REDIS | Sees.EFFECTS)
def every_failure_is_in_the_database(history: History) -> Findings:
    """Every job that failed in Redis or by its task has a row with state failed."""
    rows = history.rows
    committed = {job for job, *_ in history.final.effects if job in rows and rows[job].task == "atomic"}
    for name, left in history.final.queues.items():
        for job in left.failed:
            if job in committed and rows[job].state == "succeeded":
                continue  # its effect was there before its workers vanished too often: the row has the last word
            if job not in rows or rows[job].state != "failed":
                yield job, f"failed in {name}, row: {rows.get(job)}"
    for row in rows.values():
        if row.task in HOPELESS and row.state not in ("failed", "cancelled"):
            ended = [run for run in history.runs_of.get(row.id, ()) if run.how == "error" and run.attempt >= row.max_attempts]
            if ended and not history.requeued(row.id, ended[-1].at):
                yield row.id, f"its last attempt failed, its row says {row.state}"


@law(Sees.ROWS)
def every_row_is_published(history: History) -> Findings:
    """At the end, no row is unpublished, and no job succeeded without having been published."""
    for row in history.rows.values():
        if not row.published and (row.state == "succeeded" or (row.state == "scheduled" and row.durable)):
            yield row.id, f"its row is unpublished, and {row.state}"


@law(Sees.ROWS | Sees.REDIS)
def rows_agree_with_redis(history: History) -> Findings:
    """A job that is unfinished in Redis is unfinished in its row. A tombstone and its row agree on the outcome."""
    for row in history.rows.values():
        left = history.left(row.id)
        if left is None:
            continue
        if row.id in left.jobs and row.id not in left.failed and row.state in FINISHED:
            yield row.id, f"unfinished in Redis, {row.state} by its row"
        elif row.id in left.finished and (left.finished[row.id] % 1 >= 0.5) != (row.state == "cancelled"):
            # A tombstone of older data can show a cancel that a requeue undid. The row is right, and nothing runs again.
            op = history.scheduled_by.get(row.id)
            older = row.state == "succeeded" and op is not None and history.forgot(op.at, row.id)
            if not row.merged and not older:
                yield row.id, f"{left.state(row.id)} in Redis, {row.state} by its row"


@law(Sees.ROWS | Sees.REDIS)
def every_job_in_redis_has_a_row(history: History) -> Findings:
    """The mirror has applied every event, and every job in Redis has a row."""
    for name, left in history.final.queues.items():
        if history.final.events.get(name):
            yield "", f"{history.final.events[name]} events of {name} are not folded"
        yield from ((job, f"in Redis ({name}), and there is no row of it") for job in sorted(left.jobs.keys() - history.rows.keys()))


@law(Sees.ROWS)
def no_attempt_outlives_its_job(history: History) -> Findings:
    """No attempt is still running in its row after its job has ended."""
    for job, number, _, outcome in history.final.attempts:
        if outcome == "running" and job in history.rows and history.rows[job].state in FINISHED:
            yield job, f"{history.rows[job].state}, and its attempt {number} runs for ever"


@law(Sees.REDIS)
def a_queue_at_rest_holds_failures_only(history: History) -> Findings:
    """At the end, Redis holds only tombstones and failed jobs, and nothing that refers to other jobs."""
    for name, left in history.final.queues.items() if history.final.quiet else ():
        for what in HELD:
            if getattr(left, what):
                yield "", f"{name}: left behind in {what}: {getattr(left, what)}"
        yield from ((job, f"{name}: left behind in jobs") for job in left.jobs.keys() - left.failed.keys())


@law(Sees.BELONGINGS | Sees.ROWS)
def nothing_refers_to_a_job_without_a_row(history: History) -> Findings:
    """Attempts, events and steps belong to jobs that have a row."""
    yield from ((job, f"{table} speaks of it, and it has no row") for table, job in history.final.orphans)


@law(Sees.OPERATIONS)
def operations_come_to_their_end(history: History) -> Findings:
    """Every operation that was started has finished, and has processed each of its jobs once."""
    if len(history.final.operations) != (history.asked is not None):
        yield "", f"started for {history.asked} jobs: {history.final.operations}"
    for stage, seen, counts in history.final.operations:
        if stage != "finished" or not (history.asked or 0) <= seen == sum(counts.values()) <= len(history.rows):
            yield "", f"an operation is {stage} with {seen} jobs of {history.asked}: {counts}"


# Effects


@law(Sees.ROWS | Sees.EFFECTS)
def one_effect_of_each_step(history: History) -> Findings:
    """A job that succeeded has one effect for each step. Any other job has at most one, or none if it is atomic."""
    times = Counter((job, step) for job, _, step in history.final.effects)
    for (job, step), count in times.items():
        if count > 1 or job not in history.rows:
            yield job, f"{count} effects {step}, row: {history.rows.get(job)}"
    for row in history.rows.values():
        for step in STEPS.get(row.task, ()) if row.state in FINISHED else ():
            wanted = {1} if row.state == "succeeded" else {0} if row.task == "atomic" else {0, 1}
            if times[row.id, step] not in wanted:
                yield row.id, f"{row.task}, {row.state}, with {times[row.id, step]} effects {step}"


def _said(history: History, what: str) -> set[tuple[str, str, str]]:
    """Lines of the ledger, which is separate from the database: job, fence and step."""
    return {(job, fence, step) for kind, job, fence, step in history.ledger if kind == what}


@law(Sees.LEDGER | Sees.EFFECTS)
def every_effect_is_in_the_ledger(history: History) -> Findings:
    """Every effect in the database was written to the ledger first."""
    for job, fence, step in sorted(set(history.final.effects) - _said(history, "effect")):
        yield job, f"an effect {step} of the run {fence}, which wrote down none"


@law(Sees.LEDGER | Sees.EFFECTS)
def no_committed_effect_is_lost(history: History) -> Findings:
    """An effect whose commit a run saw is in the database, and no other run of the job saw a commit."""
    kept = _said(history, "kept")
    for job, fence, step in sorted(kept - set(history.final.effects)):
        yield job, f"the run {fence} saw its effect {step} committed, and the database does not have it"
    for (job, step), count in Counter((job, step) for job, _, step in kept).items():
        if count > 1:
            yield job, f"{count} runs of it saw their effect {step} committed"


@law(Sees.LEDGER | Sees.ROWS)
def every_success_is_in_the_ledger(history: History) -> Findings:
    """Every job that succeeded according to its row has a run whose end is in the ledger."""
    ended = {job for job, *_ in _said(history, "end")}
    for row in history.rows.values():
        if row.state == "succeeded" and row.id not in ended:
            yield row.id, "succeeded by its row, and by the ledger no run of it came to its end"
