"""The timeline of a job: attempts, events and future dates in order, and the differences between Redis and the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.dateparse import parse_datetime
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now

from django_delayq import clock, conf
from django_delayq.admin.badges import badge, indented, word
from django_delayq.console import masking, why_not_yet
from django_delayq.console.wording import death, duration, second
from django_delayq.exceptions import QueueUnknown, UnknownTask
from django_delayq.ladder import Ladder
from django_delayq.models import Attempt, Event, Job
from django_delayq.producer.outbox.jobs import EDITED
from django_delayq.producer.task import registry
from django_delayq.states import DELIVERY, FAIL_CLASS, FINISHED, MESSAGE, NO_LIMIT, PARKED, UNFINISHED, AttemptOutcome, EventKind, State
from django_delayq.store.reads.inspector import JobView
from django_delayq.text import CUT, visible

MOST_FRAMES: Final = 12  # frames shown one by one; the whole text has the others
STEPS: Final = 8  # of a ladder, shown one by one
TRACEBACK_HEAD: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_FOREIGN: Final = re.compile(
    r"[/\\](site-packages|dist-packages)[/\\]|[/\\]lib(64)?[/\\]python\d|^<|[/\\]django_delayq[/\\]worker[/\\]"
)


@dataclass(frozen=True, slots=True)
class Frame:
    place: str
    code: str


@dataclass(frozen=True, slots=True)
class Trace:
    """`frames`: those of the project, the innermost first; `text`: all of it."""

    frames: list[Frame]
    text: str

    def __bool__(self) -> bool:
        return bool(self.text)


def read_traceback(text: str) -> Trace:
    """Parses a traceback. Only frames of the last exception count. They end at its message, which may look like frames and can come
    from the caller of the task.
    """
    lines = text.split("\n")
    begins = max((number for number, line in enumerate(lines) if line == TRACEBACK_HEAD), default=len(lines))
    stack = list(_stack_lines(lines[begins + 1 :]))
    frames = []
    for line, code in zip(stack, [*stack[1:], ""], strict=False):
        found = _FRAME.fullmatch(line)
        if found and not _FOREIGN.search(found["file"]):
            place = f"{found['file']}:{found['line']} {found['name']}"
            frames.append(Frame(visible(place), visible(code.strip()) if code.startswith("    ") else ""))
    return Trace(frames[::-1][:MOST_FRAMES], visible(text))


def _stack_lines(lines: Iterable[str]) -> Iterator[str]:
    ahead = iter(lines)
    for line in ahead:
        if CUT.fullmatch(line):
            next(ahead, "")  # the rest of a line whose beginning was cut
        elif line.startswith("  "):
            yield line
        else:
            return


ONE_LINE = 80  # characters
SHORT = 120  # characters of a column
MOST_SHOWN = 50_000  # characters of arguments, of a result
MOST = 200  # attempts, and events: a job that is snoozed every second has thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress that a task has reported."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswer:
    """The response of a host to a delivery. `ms`: after the request; `text`: the first 2 KB; `wait`: the pause that it asked for, or
    "".
    """

    status: int
    ms: int
    text: str
    wait: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the timeline. `who`: the worker of an attempt, the actor of an event; `delta`: since the previous line; `ahead`: it
    is in the future, `at` is None if its date is uncertain, and `about` is None if it cannot be estimated.
    """

    at: datetime | None
    what: str
    state: str = ""
    who: str = ""
    delta: str = ""
    took: str = ""
    text: str = ""
    trace: Trace | None = None
    answer: HostAnswer | None = None
    progress: Progress | None = None
    ahead: bool = False
    about: datetime | None = None

    @property
    def long(self) -> bool:
        """Whether the text is too long for a column."""
        return len(self.text) > SHORT

    @property
    def spreads(self) -> bool:
        """Whether it needs the whole width: a traceback, a response or a long text."""
        return self.trace is not None or bool(self.answer and self.answer.text) or self.long


def of(job: Job, view: JobView | None, *, sensitive: bool = False) -> tuple[list[Moment], bool]:
    """Returns the latest moments, oldest first, then the future ones, and whether older ones are left out."""
    attempts = list(Attempt.objects.filter(job_id=job.pk).order_by("-id")[: MOST + 1])
    events = list(Event.objects.filter(job_id=job.pk).order_by("-id")[: MOST + 1])
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
    """Returns the state to show. For unfinished jobs it is that of Redis, because the mirror may be behind. A message is held, not
    running.
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
    """Returns the date in Redis if the job waits there, because rows hear of a reschedule later."""
    return clock.from_ms(view.date_ms) if view is not None and view.state == "scheduled" else job.run_at


def late(job: Job, view: JobView | None) -> float:
    """Returns for how many seconds the job has been due, or 0 if it does not wait."""
    if view is None:
        return job.late
    return max(0.0, (view.now_ms - view.date_ms) / 1000) if view.state == "scheduled" else 0.0


def behind(job: Job, view: JobView | None) -> bool:
    """Whether Redis has newer data than the rows."""
    if view is None or job.state in FINISHED or job.unresolved:
        return False
    return view.state == "finished" or State(view.state) != State(job.state)


def pretty(value: Any, most: int = MOST_SHOWN) -> str:
    """Returns JSON on one line if it fits, cut to a length that a page can show."""
    line = visible(json.dumps(value, ensure_ascii=False))
    if len(line) <= ONE_LINE:
        return line
    text = visible(indented(value))
    if len(text) <= most:
        return text
    return f"{text[:most]}\n{now('… and %(count)d more characters') % {'count': len(text) - most}}"


def progress_of(view: JobView | None) -> Progress | None:
    """Returns the progress of a running job."""
    done, _, total = (view.progress if view else "").partition("/")
    if not done.isdigit() or not total.isdigit() or not int(total):
        return None
    return Progress(done=min(int(done), int(total)), total=int(total))


def _beginning(job: Job, events: Iterable[Event]) -> list[Moment]:
    found = [Moment(at=job.created_at, what=now("accepted"))]
    again = any(event.kind == EventKind.REQUEUED for event in events)  # then `published` is about that
    if job.published and not again:
        text = now("committed and published to Redis") if job.durable else now("in Redis")
        # The clocks of Redis and the database may differ, and one of them counts whole milliseconds.
        found.append(Moment(at=max(job.published, job.created_at), what=now("published"), text=text))
    return found


def _due(job: Job, view: JobView | None, latest: list[Attempt]) -> list[Moment]:
    """Returns the date of the last or next run. Earlier dates were overwritten."""
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
        trace=read_traceback(run.traceback) if run.traceback and not answer else None,
        progress=progress_of(view) if running and run.outcome == AttemptOutcome.RUNNING else None,
    )


def _answer(job: Job, run: Attempt, sensitive: bool) -> HostAnswer | None:
    """Returns the response to a delivery, from its error or from the result of the job."""
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
    """Returns the previous arguments of an edit, masked unless the user may view them."""
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
    """Returns the final state if an attempt led to it. A cancellation or an expiry has its own event."""
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
    """Whether the job runs and was cancelled, so it is not retried."""
    return bool(view.cancel_by) if view else job.cancel_requested and job.state == State.RUNNING


def _ahead(job: Job, view: JobView | None) -> list[Moment]:
    """Returns the next run, and the following steps of the ladder."""
    if job.state not in UNFINISHED or job.unresolved or (view is not None and view.state not in UNFINISHED):
        return []
    scheduled = view.state == "scheduled" if view else job.state == State.SCHEDULED
    made = view.attempt if view else job.attempts
    found: list[Moment] = []
    about: datetime | None = clock.now()  # the next run, or the end of this one; then each attempt that follows an immediate failure
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
    steps, more = attempts_ahead(job, made)
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
    except OverflowError:  # a ladder can lead beyond the year 9999
        return None


def _asking(job: Job, view: JobView | None) -> list[Moment]:
    """Returns the next poll if the condition is still not met."""
    found, text = why_not_yet.polls(job, view), now("if the condition is still not met")
    if found is None or found.ladder is None:
        return []
    if found.next_wait is None:
        return [Moment(at=None, what=now("failed"), text=text, ahead=True)]
    return [Moment(at=None, what=word(AttemptOutcome.ASKED), delta=f"+{duration(found.next_wait)}", text=text, ahead=True)]


def _here(moment: datetime) -> datetime:
    return moment.astimezone(get_current_timezone())


@dataclass(frozen=True, slots=True)
class LadderStep:
    """A future attempt, `wait` seconds after the previous one fails; None if a function of the task decides."""

    attempt: int
    wait: float | None


def attempts_ahead(job: Job, made: int) -> tuple[list[LadderStep], int]:
    """Returns the first attempts after attempt `made`, and the number of attempts after those."""
    left = max(0, job.max_attempts - made)
    shown = min(left, STEPS)
    found = _ladder_of(job)
    if found is None:
        return [LadderStep(made + n, None) for n in range(1, shown + 1)], left - shown
    waits = found.steps(made + shown)[made - 1 :] if made else found.steps(shown)
    return [LadderStep(made + n, waits[n - 1]) for n in range(1, shown + 1)], left - shown


def _ladder_of(job: Job) -> Ladder | None:
    """Returns the ladder of the job, its task or its queue; None for a function."""
    try:
        if text := (job.options or {}).get("backoff"):
            return Ladder(text)
    except (ValueError, TypeError):
        pass
    try:
        own: Any = registry.get(job.task).backoff
    except UnknownTask:
        own = None
    if own is not None:
        return own if isinstance(own, Ladder) else None
    try:
        return conf.get().queue(job.queue).backoff
    except QueueUnknown:
        return conf.get().backoff
