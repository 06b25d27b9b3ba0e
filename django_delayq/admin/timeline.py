"""What happened to a job and what lies ahead of it, in order: attempts, events and dates side by side; and where Redis and the rows
differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now

from django_delayq import clock
from django_delayq.admin import ladder_ahead, tracebacks
from django_delayq.admin.show import badge, indented, word
from django_delayq.console import masking, why_not_yet
from django_delayq.console.wording import death, duration, second
from django_delayq.models import Attempt, Event, Job
from django_delayq.producer.outbox.jobs import EDITED
from django_delayq.states import DELIVERY, FAIL_CLASS, FINISHED, MESSAGE, NO_LIMIT, PARKED, UNFINISHED, AttemptOutcome, EventKind, State
from django_delayq.store.reads.inspector import JobView
from django_delayq.text import visible

ONE_LINE = 80  # characters
SHORT = 120  # characters that a column bears
MOST_SHOWN = 50_000  # characters of arguments, of a result
MOST = 200  # attempts, and as many events: a job that is snoozed every second has thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a task has said of itself."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswer:
    """What a host has said to an attempt of a delivery: `ms` after it was asked; `text` is the first 2 KB; `wait`: it has asked for
    that pause, "" for none.
    """

    status: int
    ms: int
    text: str
    wait: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the timeline. `who`: the worker of an attempt, the actor of an event; `delta`: since the line before; `ahead`: it has
    not come yet, `at` is None where that is not sure, and `about` where nobody can even guess.
    """

    at: datetime | None
    what: str
    state: str = ""
    who: str = ""
    delta: str = ""
    took: str = ""
    text: str = ""
    trace: tracebacks.Trace | None = None
    answer: HostAnswer | None = None
    progress: Progress | None = None
    ahead: bool = False
    about: datetime | None = None

    @property
    def long(self) -> bool:
        """Whether its text is more than a column bears."""
        return len(self.text) > SHORT

    @property
    def spreads(self) -> bool:
        """Whether something of it needs the whole width: a traceback, an answer, a long text."""
        return self.trace is not None or bool(self.answer and self.answer.text) or self.long


def of(job: Job, view: JobView | None, *, sensitive: bool = False) -> tuple[list[Moment], bool]:
    """The latest moments, oldest first, then what lies ahead; and whether older ones are left out."""
    using = job._state.db
    attempts = list(Attempt.objects.using(using).filter(job_id=job.pk).order_by("-id")[: MOST + 1])
    events = list(Event.objects.using(using).filter(job_id=job.pk).order_by("-id")[: MOST + 1])
    past = [
        *_beginning(job, events),
        *_due(job, view, attempts[:1]),
        *(_attempt(job, run, view, sensitive) for run in reversed(attempts[:MOST])),
        *(_event(job, event, sensitive) for event in reversed(events[:MOST])),
        *_end(job, attempts[:1]),
    ]
    ordered = _with_deltas(sorted(past, key=lambda moment: moment.at or job.created_at))
    return [*ordered, *_ahead(job, view)], max(len(attempts), len(events)) > MOST


def state_of(job: Job, view: JobView | None) -> str:
    """The state to show: Redis' word for a job that the rows call unfinished, since the mirror may be a moment behind. A message does
    not run: it is held.
    """
    state = _state_of(job, view)
    return "held" if state == State.RUNNING and job.task == MESSAGE else state


def _state_of(job: Job, view: JobView | None) -> str:
    if job.state in UNFINISHED and not job.unresolved and view is not None and view.state != "finished":
        if view.state == "scheduled":
            if view.date_ms <= view.now_ms:
                return "due"
            return "parked" if job.fingerprint in PARKED else "retrying" if view.attempt else "scheduled"
        return view.state
    return job.derived


def run_date(job: Job, view: JobView | None) -> datetime:
    """When it is due, by Redis' word where it waits there: the rows hear of a reschedule later."""
    return clock.from_ms(view.date_ms) if view is not None and view.state == "scheduled" else job.run_at


def late(job: Job, view: JobView | None) -> float:
    """For how many seconds it has been due; 0 where it does not wait."""
    if view is None:
        return job.late
    return max(0.0, (view.now_ms - view.date_ms) / 1000) if view.state == "scheduled" else 0.0


def behind(job: Job, view: JobView | None) -> bool:
    """Whether Redis has moved on and the rows have not heard of it yet."""
    if view is None or job.state in FINISHED or job.unresolved:
        return False
    return view.state == "finished" or State(view.state) != State(job.state)


def pretty(value: Any, most: int = MOST_SHOWN) -> str:
    """JSON for a person: on one line if it fits, and not more of it than a page bears."""
    line = visible(json.dumps(value, ensure_ascii=False))
    if len(line) <= ONE_LINE:
        return line
    text = visible(indented(value))
    if len(text) <= most:
        return text
    return f"{text[:most]}\n{now('… and %(count)d more characters') % {'count': len(text) - most}}"


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
        text = now("committed and published to Redis") if job.durable else now("in Redis")
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


def _attempt(job: Job, run: Attempt, view: JobView | None, sensitive: bool) -> Moment:
    took = (run.finished_at - run.started_at).total_seconds() if run.finished_at else None
    died = death(run.problem)
    kind = "" if run.error_class == FAIL_CLASS and run.message else run.error_class
    error = ": ".join(part for part in (kind, run.message) if part)
    if died:
        error = died if run.outcome == AttemptOutcome.CRASHED else f"{error}. {died}"
    running = view is not None and view.state == "running" and view.fence == run.fence
    if running and view is not None and not run.finished_at:
        text = now("held until %(time)s") if job.task == MESSAGE else now("leased until %(time)s")
        error = text % {"time": f"{_here(clock.from_ms(view.date_ms)):%H:%M:%S}"}
    answer = _answer(job, run, sensitive)
    held = job.task == MESSAGE and run.outcome == AttemptOutcome.RUNNING
    return Moment(
        at=run.started_at,
        what=now("attempt %(number)d") % {"number": run.number},
        state=badge("held" if held else run.outcome),
        who=visible(run.worker),
        took=duration(took) if took is not None else "",
        text="" if answer else visible(error),
        answer=answer,
        trace=tracebacks.read(run.traceback) if run.traceback and not answer else None,
        progress=progress_of(view) if running and run.outcome == AttemptOutcome.RUNNING else None,
    )


def _answer(job: Job, run: Attempt, sensitive: bool) -> HostAnswer | None:
    """Of an attempt of a delivery that was answered: by its error, or by the result of the job."""
    if job.task != DELIVERY:
        return None
    if run.outcome == AttemptOutcome.SUCCEEDED:
        told, wait_ms = job.result, None
    else:
        problem = run.problem if isinstance(run.problem, dict) else {}
        told, wait_ms = problem.get("fields"), problem.get("wait_ms")
    if not isinstance(told, dict) or type(told.get("status")) is not int:
        return None
    told = told if sensitive else masking.value(told, masking.names_of(DELIVERY))
    ms = told["ms"] if type(told.get("ms")) is int else 0
    wait = duration(wait_ms / 1000) if type(wait_ms) is int else ""
    return HostAnswer(status=told["status"], ms=ms, text=visible(str(told.get("answer") or "")), wait=wait)


def _event(job: Job, event: Event, sensitive: bool) -> Moment:
    """Of other arguments it says what they were, masked unless one may see it."""
    given = event.detail if sensitive else masking.detail(job.task, event.detail)
    what, detail = word(event.kind), dict(given) if isinstance(given, dict) else {}
    if event.kind == EDITED:
        what, before = now("edited"), json.dumps([detail.get("args"), detail.get("kwargs")], ensure_ascii=False)
        text = " · ".join(filter(None, (event.reason, now("Previous arguments: %(before)s") % {"before": before})))
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
    text = now("no attempts left") if job.state == State.FAILED and job.attempts >= job.max_attempts else ""
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


def to_stop(job: Job, view: JobView | None) -> bool:
    """Whether it runs, and somebody has cancelled it: then it is not retried."""
    return bool(view.cancel_by) if view else job.cancel_requested and job.state == State.RUNNING


def _ahead(job: Job, view: JobView | None) -> list[Moment]:
    """The next run, and the steps of the ladder behind it."""
    if job.state not in UNFINISHED or job.unresolved or (view is not None and view.state not in UNFINISHED):
        return []
    scheduled = view.state == "scheduled" if view else job.state == State.SCHEDULED
    made = view.attempt if view else job.attempts
    found: list[Moment] = []
    about: datetime | None = clock.now()  # the next run, or the end of this one; then each attempt behind it, if it fails at once
    if to_stop(job, view):
        return [Moment(at=None, what=now("cancelled"), text=now("unless attempt %(number)d succeeds") % {"number": made}, ahead=True)]
    if scheduled:
        date = clock.from_ms(view.date_ms) if view else job.run_at
        wait = (date - clock.now()).total_seconds()
        made += 1
        what = now("attempt %(number)d") % {"number": made}
        if wait > 0:
            found = [Moment(at=date, what=now("due"), delta=now("in %(duration)s") % {"duration": duration(wait)}, ahead=True)]
            about = date
        found.append(Moment(at=None, what=what, ahead=True))
    found += _asking(job, view)
    steps, more = ladder_ahead.ladder(job, made)
    for step in steps:
        text = now("if attempt %(number)d fails") % {"number": step.attempt - 1}
        wait_text = f"+{duration(step.wait)}" if step.wait is not None else ""
        about = _later(about, step.wait)
        what = now("attempt %(number)d") % {"number": step.attempt}
        if step.wait is None:
            text = now("%(text)s, at a date set by the task's own retry rule") % {"text": text}
        found.append(Moment(at=None, what=what, delta=wait_text, text=text, ahead=True, about=about))
    if job.max_attempts == NO_LIMIT and job.expires_at is not None:
        text = now("retried until it expires, at %(date)s") % {"date": second(job.expires_at)}
        return [*found, Moment(at=None, what=now("failed"), text=text, ahead=True)]
    if more:
        found.append(Moment(at=None, what=now("and %(count)d more attempts") % {"count": more}, ahead=True))
    text = now("if attempt %(number)d fails") % {"number": job.max_attempts}
    found.append(Moment(at=None, what=now("failed"), text=text, ahead=True))
    return found


def _later(moment: datetime | None, seconds: float | None) -> datetime | None:
    if moment is None or seconds is None:
        return None
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:  # a ladder may lead beyond the year 9999
        return None


def _asking(job: Job, view: JobView | None) -> list[Moment]:
    """What comes if a job that has asked before hears once more that it is not yet."""
    found, text = why_not_yet.polls(job, view), now("if the condition is still not met")
    if found is None or found.ladder is None:
        return []
    if found.next_wait is None:
        return [Moment(at=None, what=now("failed"), text=text, ahead=True)]
    return [Moment(at=None, what=word(AttemptOutcome.ASKED), delta=f"+{duration(found.next_wait)}", text=text, ahead=True)]


def _here(moment: datetime) -> datetime:
    return moment.astimezone(get_current_timezone())
