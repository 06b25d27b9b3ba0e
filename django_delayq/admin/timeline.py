"""What happened to a job and what lies ahead of it, in order: attempts, events and dates side by side; and where Redis and the rows
differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now

from django_delayq import clock
from django_delayq.admin import ladder_ahead, tracebacks
from django_delayq.admin.show import badge, duration, indented, second, visible, word
from django_delayq.console import asks, masking
from django_delayq.mirror.outbox import EDITED
from django_delayq.models import Attempt, Event, Job
from django_delayq.states import FINISHED, NO_LIMIT, UNFINISHED, AttemptOutcome, EventKind, State
from django_delayq.store.inspector import JobView

ONE_LINE = 80  # characters
MOST_SHOWN = 50_000  # characters of arguments, of a result
MOST = 200  # attempts, and as many events: a job that is snoozed every second has thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a task has said of itself."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the timeline. `who`: the worker of an attempt, the actor of an event; `delta`: since the line before; `ahead`: it has
    not come yet, and `at` is None where nobody can tell when.
    """

    at: datetime | None
    what: str
    state: str = ""
    who: str = ""
    delta: str = ""
    took: str = ""
    text: str = ""
    trace: tracebacks.Trace | None = None
    progress: Progress | None = None
    ahead: bool = False


def of(job: Job, view: JobView | None, *, sensitive: bool = False) -> tuple[list[Moment], bool]:
    """The latest moments, oldest first, then what lies ahead; and whether older ones are left out."""
    using = job._state.db
    attempts = list(Attempt.objects.using(using).filter(job_id=job.pk).order_by("-id")[: MOST + 1])
    events = list(Event.objects.using(using).filter(job_id=job.pk).order_by("-id")[: MOST + 1])
    past = [
        *_beginning(job, events),
        *_due(job, view, attempts[:1]),
        *(_attempt(run, view) for run in reversed(attempts[:MOST])),
        *(_event(job, event, sensitive) for event in reversed(events[:MOST])),
        *_end(job, attempts[:1]),
    ]
    ordered = _with_deltas(sorted(past, key=lambda moment: moment.at or job.created_at))
    return [*ordered, *_ahead(job, view)], max(len(attempts), len(events)) > MOST


def state_of(job: Job, view: JobView | None) -> str:
    """The state to show: Redis' word for a job that the rows call unfinished, since the mirror may be a moment behind."""
    if job.state in UNFINISHED and view is not None and view.state != "finished":
        if view.state == "scheduled":
            if view.date_ms <= view.now_ms:
                return "due"
            return "retrying" if view.attempt else "scheduled"
        return view.state
    return job.derived


def behind(job: Job, view: JobView | None) -> bool:
    """Whether Redis has moved on and the rows have not heard of it yet."""
    if view is None or job.state in FINISHED:
        return False
    return view.state == "finished" or State(view.state) != State(job.state)


def pretty(value: Any) -> str:
    """JSON for a person: on one line if it fits, and not more of it than a page bears."""
    line = visible(json.dumps(value, ensure_ascii=False))
    if len(line) <= ONE_LINE:
        return line
    text = visible(indented(value))
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}\n{now('… and %(count)d characters more') % {'count': len(text) - MOST_SHOWN}}"


def progress_of(view: JobView | None) -> Progress | None:
    """How far a running job says it is."""
    done, _, total = (view.progress if view else "").partition("/")
    if not done.isdigit() or not total.isdigit() or not int(total):
        return None
    return Progress(done=min(int(done), int(total)), total=int(total))


def _beginning(job: Job, events: Iterable[Event]) -> list[Moment]:
    found = [Moment(at=job.created_at, what=now("accepted"))]
    again = any(event.kind == EventKind.REQUEUED for event in events)  # then `published` speaks of that
    if job.published and not again:
        text = now("committed, and published to Redis") if job.durable else now("in Redis")
        # Redis' clock and the database's may differ, and one of them counts in whole milliseconds.
        found.append(Moment(at=max(job.published, job.created_at), what=now("published"), text=text))
    return found


def _due(job: Job, view: JobView | None, latest: list[Attempt]) -> list[Moment]:
    """The date of the run that came last, or comes next if it has passed; dates before were overwritten by it."""
    if job.state == State.SCHEDULED and (view is None or view.state == "scheduled"):
        date = clock.from_ms(view.date_ms) if view else job.run_at
        passed = date <= clock.now()
    else:
        date, passed = job.run_at, bool(latest) and job.run_at <= latest[0].started_at
    return [Moment(at=max(date, job.created_at), what=now("due"))] if passed else []


def _attempt(run: Attempt, view: JobView | None) -> Moment:
    took = (run.finished_at - run.started_at).total_seconds() if run.finished_at else None
    error = ": ".join(part for part in (run.error_class, run.message) if part)
    running = view is not None and view.state == "running" and view.fence == run.fence
    if running and view is not None and not run.finished_at:
        error = now("under a lease until %(time)s") % {"time": f"{_here(clock.from_ms(view.date_ms)):%H:%M:%S}"}
    return Moment(
        at=run.started_at,
        what=now("attempt %(number)d") % {"number": run.number},
        state=badge(run.outcome),
        who=visible(run.worker),
        took=duration(took) if took is not None else "",
        text=visible(error),
        trace=tracebacks.read(run.traceback) if run.traceback else None,
        progress=progress_of(view) if running and run.outcome == AttemptOutcome.RUNNING else None,
    )


def _event(job: Job, event: Event, sensitive: bool) -> Moment:
    """Of other arguments it says what they were, masked unless one may see it."""
    given = event.detail if sensitive else masking.detail(job.task, event.detail)
    what, detail = word(event.kind), dict(given) if isinstance(given, dict) else {}
    if event.kind == EDITED:
        what, before = now("edited"), json.dumps([detail.get("args"), detail.get("kwargs")], ensure_ascii=False)
        text = " · ".join(filter(None, (event.reason, now("The arguments were: %(before)s") % {"before": before})))
        return Moment(at=event.at, what=what, who=visible(event.actor), text=visible(text))
    if detail.pop("abort", None):
        what = now("abort requested")
    moved = parse_datetime(str(detail.pop("run_at", "")))
    if moved is not None:
        if event.kind == EventKind.RESCHEDULED and moved <= event.at:
            what = now("run now")
        else:
            detail = {now("run at"): second(moved), **detail}
    told = (f"{name}: {value}" for name, value in detail.items())
    text = " · ".join(part for part in (event.reason, *told) if part)
    return Moment(at=event.at, what=what, who=visible(event.actor), text=visible(text))


def _end(job: Job, latest: list[Attempt]) -> list[Moment]:
    """The final state, where an attempt led to it; a cancel or an expiry is an event of its own."""
    if job.state not in (State.SUCCEEDED, State.FAILED) or job.finished_at is None:
        return []
    text = now("no attempt is left") if job.state == State.FAILED and job.attempts >= job.max_attempts else ""
    return [
        Moment(
            at=max(job.finished_at, latest[0].started_at if latest else job.finished_at),
            what=word(job.state),
            who=visible(job.worker),
            text=text,
        )
    ]


def _with_deltas(moments: list[Moment]) -> list[Moment]:
    found: list[Moment] = []
    for moment in moments:
        last = found[-1].at if found else None
        since = (moment.at - last).total_seconds() if moment.at and last else None
        found.append(replace(moment, delta=f"+{duration(since)}" if since is not None else ""))
    return found


def _ahead(job: Job, view: JobView | None) -> list[Moment]:
    """The next run, and the steps of the ladder behind it."""
    if job.state not in UNFINISHED or (view is not None and view.state not in UNFINISHED):
        return []
    scheduled = view.state == "scheduled" if view else job.state == State.SCHEDULED
    made = view.attempt if view else job.attempts
    found: list[Moment] = []
    if scheduled:
        date = clock.from_ms(view.date_ms) if view else job.run_at
        wait = (date - clock.now()).total_seconds()
        made += 1
        what = now("attempt %(number)d") % {"number": made}
        if wait > 0:
            found = [Moment(at=date, what=now("due"), delta=now("in %(duration)s") % {"duration": duration(wait)}, ahead=True)]
        found.append(Moment(at=None, what=what, ahead=True))
    found += _asking(job, view)
    steps, more = ladder_ahead.ladder(job, made)
    for step in steps:
        text = now("if attempt %(number)d fails") % {"number": step.attempt - 1}
        wait_text = f"+{duration(step.wait)}" if step.wait is not None else ""
        what = now("attempt %(number)d") % {"number": step.attempt}
        if step.wait is None:
            text = now("%(text)s, at a date that its task's own rule gives") % {"text": text}
        found.append(Moment(at=None, what=what, delta=wait_text, text=text, ahead=True))
    if job.max_attempts == NO_LIMIT and job.expires_at is not None:
        text = now("tried until it expires, at %(date)s") % {"date": second(job.expires_at)}
        return [*found, Moment(at=None, what=now("failed"), text=text, ahead=True)]
    if more:
        found.append(Moment(at=None, what=now("and %(count)d more attempts") % {"count": more}, ahead=True))
    text = now("if attempt %(number)d fails") % {"number": job.max_attempts}
    found.append(Moment(at=None, what=now("failed"), text=text, ahead=True))
    return found


def _asking(job: Job, view: JobView | None) -> list[Moment]:
    """What comes if a job that has asked before hears once more that it is not yet."""
    found, text = asks.of(job, view), now("if the answer is still: not yet")
    if found is None or found.ladder is None:
        return []
    if found.next_wait is None:
        return [Moment(at=None, what=now("failed"), text=text, ahead=True)]
    return [Moment(at=None, what=word(AttemptOutcome.ASKED), delta=f"+{duration(found.next_wait)}", text=text, ahead=True)]


def _here(moment: datetime) -> datetime:
    return moment.astimezone(get_current_timezone())
