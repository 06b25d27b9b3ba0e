"""The final observations of the sample project: the records of its processes, the content of the database and of Redis, and whether
all work has finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Max, Min

from django_delayq import clock, ids
from django_delayq.job_meta import scoped
from django_delayq.models import Attempt, Event, Job, Operation, Pause, Periodic, Tick
from django_delayq.models import Step as OnceStep
from django_delayq.states import PERIODIC
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys, tag
from tests.app.record import lines
from tests.laws import dump as dumps
from tests.laws.almanac import CREATED, DECLARED, ENDLESS, OFF, ON, RETIRED, Calendar, Pass, Plan, TickSeen, Turn
from tests.laws.history import FaultSeen, Final, History, Op, Row, Run, Sees, Step

Select = Callable[[str], Sequence[tuple[Any, ...]]]
JOB, ATTEMPT, EVENT, STEP, OPERATION, PAUSE = (each._meta.db_table for each in (Job, Attempt, Event, OnceStep, Operation, Pause))
EFFECT = "app_effect"  # of tests/app/models.py, which can be loaded in its own project only
# Columns of a job, in the order of Row. Words after a dot need no quotes in any database.
COLUMNS = "j.id, j.args, j.task, j.queue, j.key, j.scope, j.state, j.attempts, j.max_attempts, j.crashes, j.published, j.durable, "
COLUMNS += "j.error"


def ask(what: str) -> Sequence[tuple[Any, ...]]:
    """Asks the database of this process."""
    connection.close_if_unusable_or_obsolete()
    with connection.cursor() as cursor:
        cursor.execute(what)
        return cursor.fetchall()


def restless(select: Select, places: Places, queues: Iterable[Keys]) -> str:
    """The work that is not finished, or ""."""
    for keys in queues:
        redis = places.of(keys.queue, keys.partition)
        counts = {name: redis.execute("ZCARD", keys[name]) for name in (*dumps.BANDS, "leases")}
        counts["events"] = redis.execute("XLEN", keys["events"])
        if any(counts.values()):
            return f"{tag(keys.queue, keys.partition)} in Redis: {counts}"
    # If Redis loses a cancelled job before its event is read, its row never records that it was published.
    unpublished = "published is null and state not in ('cancelled', 'failed')"
    unfinished = "durable and state in ('scheduled', 'running')"
    decided = "coalesce(ending, '') != 'unknown'"  # a person decides what becomes of an unresolved row
    dates = ((JOB, "run_at"), (STEP, "at"), (OPERATION, "finished_at"))
    old = " union all ".join(f"select 1 from {table} where {date} < '2020-01-01'" for table, date in dates)
    for what, count in (
        ("rows are unfinished or unpublished", f"select count(*) from {JOB} where ({unpublished} or {unfinished}) and {decided}"),
        ("operations are not finished", f"select count(*) from {OPERATION} where stage != 'finished'"),
        ("pauses or rates are not confirmed", f"select count(*) from {PAUSE} where missing != ''"),
        ("rows should have been pruned", f"select count(*) from ({old}) as old"),
    ):
        ((found,),) = select(count)
        if found:
            return f"{found} {what}"
    return ""


def left(select: Select, places: Places, queues: Iterable[Keys], *, quiet: bool = True) -> Final:
    """Reads all that is left."""
    alone = "select '{0}', job_id from {0} where job_id is not null and job_id not in (select id from {1})"
    final = Final(quiet=quiet)
    for found in select(f"select {COLUMNS}, j.merged_into from {JOB} j"):
        row = _row(*found)
        final.rows[row.id] = row
    final.attempts = [(_hex(job), *rest) for job, *rest in select(f"select job_id, number, fence, outcome from {ATTEMPT} order by id")]
    acts = select(f"select kind, job_id, actor from {EVENT} where job_id is not null order by id")
    final.acts = [(kind, _hex(job), actor) for kind, job, actor in acts]
    final.effects = [(_hex(job), *rest) for job, *rest in select(f"select job, fence, step from {EFFECT}")]
    final.operations = [(stage, seen, _json(counts)) for stage, seen, counts in select(f"select stage, seen, counts from {OPERATION}")]
    final.orphans = [(t, _hex(job)) for table in (ATTEMPT, EVENT, STEP) for t, job in select(alone.format(table, JOB))]
    for keys in queues:
        redis, part = places.of(keys.queue, keys.partition), tag(keys.queue, keys.partition)
        final.queues[part] = dumps.read(redis, keys).renamed(_full)
        final.events[part] = redis.execute("XLEN", keys["events"])
    return final


def _row(id: Any, args: Any, task: str, *rest: Any) -> Row:
    queue, key, scope, state, attempts, most, crashes, published, durable, error, holder = rest
    args = _json(args)
    return Row(
        id=_hex(id),
        op=args[0] if args else "",
        task=task.rpartition(".")[2],
        queue=queue,
        key=scoped(scope, key),
        scope=scope,
        state=state,
        attempts=attempts,
        max_attempts=most,
        crashes=crashes,
        published=published is not None,
        durable=bool(durable),
        error=error,
        holder=_hex(holder) if holder else "",
    )


def _hex(id: Any) -> str:
    return UUID(str(id)).hex


def _full(short: str) -> str:
    """The id as rows and recorders write it."""
    try:
        return ids.full(short).hex
    except ValueError:
        return short


def _json(found: Any) -> Any:
    return json.loads(found) if isinstance(found, str | bytes) else found


def history(folder: Path, final: Final, sees: Sees) -> History:
    """The records in that folder, with the final state."""
    found = History(sees=sees, final=final)
    for line in lines(folder, "web-*.jsonl"):
        _op(found.ops, line)
    open_runs: dict[tuple[str, str, str], Run] = {}
    for path in folder.glob("runs-*.jsonl"):
        for line in lines(folder, path.name):
            _run(found.runs, open_runs, path.name, line)
    found.runs.sort(key=lambda run: run.at)
    found.ledger = [(line["what"], line["job"], line["fence"], line["step"]) for line in lines(folder, "ledger-*.jsonl")]
    found.answers = [(line["job"], line["asked"], line["heard"]) for line in lines(folder, "answers-*.jsonl")]
    found.faults = [
        FaultSeen(**{name: line[name] for name in ("kind", "at", "since", "until", "detail", "alone")}, parts=tuple(line["parts"]))
        for line in lines(folder, "faults.jsonl")
    ]
    found.steps = [Step(at=line["before"], until=line["t"], offset=line["offset"]) for line in lines(folder, "clock.jsonl")]
    _by_redis_clock(found)
    found.calendar = _calendar(folder)
    return found


def _calendar(folder: Path) -> Calendar:
    """The records of schedules made by processes; `calendar_left` reads the tables."""
    found = Calendar()
    for line in (line for version in ("old", "new") for line in lines(folder, f"plans-{version}-*.jsonl")[:1]):
        found.plans[line["version"]] = {name: Plan(**plan) for name, plan in line["plans"].items()}
    for path in folder.glob("passes-*.jsonl"):
        for line in lines(folder, path.name):
            found.passes.append(Pass(who=path.name, version=line["version"], what=line["say"], at=line["since"], until=line["w"]))
    return found


def dates_left() -> dict[str, tuple[int, int]]:
    """The earliest and latest time in each column that records an event, in ms."""
    columns = [
        *((Job, name) for name in ("created_at", "published", "started_at", "finished_at")),
        *((Attempt, name) for name in ("started_at", "finished_at")),
        *((model, "at") for model in (Event, OnceStep)),
        (Tick, "written_at"),
    ]
    found = {}
    for model, name in columns:
        first, last = model.objects.aggregate(first=Min(name), last=Max(name)).values()
        if first is not None:
            found[f"{model.__name__.lower()}.{name}"] = clock.to_ms(first), clock.to_ms(last)
    return found


def calendar_left() -> tuple[list[TickSeen], list[Turn], dict[str, tuple[str, int]]]:
    """Ticks, turns, and of which tick each job says it is, by the tables."""
    at = clock.to_ms
    mine = Job.objects.filter(task__startswith="tests.app.schedules.")
    ended = {id: at(when) for id, when in mine.filter(finished_at__isnull=False).values_list("id", "finished_at")}
    ticks = [
        TickSeen(
            name=name,
            at=at(when),
            run_at=at(run_at),
            written=at(written),
            fate=fate,
            job=job.hex if job else "",
            ended=ended.get(job, ENDLESS),
        )
        for name, when, run_at, written, fate, job in Tick.objects.filter(by_hand=False).values_list(
            "schedule__name", "at", "run_at", "written_at", "fate", "job_id"
        )
    ]
    turns = [Turn(name=name, kind=CREATED, at=at(when)) for name, when in Periodic.objects.values_list("name", "created_at")]
    turns += [
        Turn(name=detail["schedule"], kind=kind, at=at(when), dates=detail.get("dates", ""), reason=reason)
        for kind, when, detail, reason in Event.objects.filter(kind__in=(OFF, ON, DECLARED, RETIRED))
        .order_by("id")
        .values_list("kind", "at", "detail", "reason")
    ]
    jobs = {}
    for id, options in mine.values_list("id", "options"):
        told = options["meta"][PERIODIC]
        jobs[id.hex] = told["name"], at(datetime.fromisoformat(told["tick"]))
    return ticks, turns, jobs


def _by_redis_clock(history: History) -> None:
    for op in history.ops.values():
        op.wall += min(0, _offset(history.steps, op.at))
    for run in history.runs:
        run.real = run.wall
        run.wall += _offset(history.steps, run.at)
        run.wall_until += _offset(history.steps, run.until)


def _offset(steps: list[Step], at: int) -> int:
    return next((step.offset for step in reversed(steps) if step.until <= at), 0)


def _op(ops: dict[str, Op], line: dict[str, Any]) -> None:
    id, say = line["op"], line["say"]
    if say == "invoked":
        given = {name: value for name, value in line.items() if name not in ("t", "w", "op", "say", "what")}
        ops[id] = Op(id=id, what=line["what"], at=line["t"], wall=line["w"], given=given)
        return
    op = ops[id]
    if say == "ids":
        op.ids = line["ids"]
        return
    op.until, op.answer, op.reply = line["t"], say, line.get("reply", "")
    op.jobs = [(job, created, due) for job, created, due in line.get("jobs", [])]
    if not op.ids:
        op.ids = [job for job, created, _ in op.jobs if created is not False]


def _run(runs: list[Run], still: dict[tuple[str, str, str], Run], file: str, line: dict[str, Any]) -> None:
    place = (line["job"], line["fence"], file)
    if line["run"] == "began":
        told = {name: line[name] for name in ("job", "fence", "op", "task", "attempt", "due", "pid")}
        still[place] = Run(**told, at=line["t"], wall=line["w"])
        if "tick" in line:
            still[place].tick = line["schedule"], clock.to_ms(datetime.fromisoformat(line["tick"]))
        if "name" in line:
            still[place].name, still[place].turn = line["name"], line["turn"] or 0
        runs.append(still[place])
    elif (run := still.pop(place, None)) is not None:
        run.until, run.wall_until, run.how = line["t"], line["w"], line["how"]
