"""The page of a job: row, state in Redis, timeline, explanation, related jobs, arguments and result. The list shows some of these, too.

The timeline has attempts, events and future dates in order.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.timezone import get_current_timezone, get_current_timezone_name
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf, ids
from django_delayq.admin.badges import allowed, badge, indented, word
from django_delayq.console import job_links, masking, why_not_yet
from django_delayq.console.masking import MASK
from django_delayq.console.overview import DOWN
from django_delayq.console.selection import customer_of
from django_delayq.console.wording import cut, death, duration, error_text, second
from django_delayq.ladder import Ladder
from django_delayq.models import Attempt, Event, Job
from django_delayq.producer.outbox.jobs import EDITED
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import (
    DELIVERY,
    FAIL_CLASS,
    FINISHED,
    MESSAGE,
    NO_LIMIT,
    PARKED,
    UNFINISHED,
    AttemptOutcome,
    EndingKind,
    EventKind,
    State,
)
from django_delayq.store.reads.inspector import JobView
from django_delayq.text import CUT, visible

RELATED: Final = 10  # jobs with the same key
AHEAD: Final = 3  # future lines before the others are folded
DISPLACED: Final[dict[str, Promise]] = {  # the relation to the job that displaced this one
    EndingKind.MERGED: _("this job was merged into it because both have the same key"),
    EndingKind.REPLACED: _("it replaced this job"),
}


def gather(request: HttpRequest, job: Job, jobs: QuerySet[Job], *, sensitive: bool) -> dict[str, Any]:
    """Returns the context of the page, without the buttons. `jobs`: those that can be listed as related; `sensitive`: do not mask."""
    views, trouble = live([job])
    view = views.get(job.pk)
    try:
        why = why_not_yet.sentences(why_not_yet.of(job, view, trouble))
    except DOWN as error:
        why, trouble = "", trouble or error_text(error)
    by = job.merged_into if job.ending in DISPLACED else None
    moments, cut = timeline(job, view, sensitive=sensitive)
    past = [moment for moment in moments if not moment.ahead]
    ahead = moments[len(past) :]
    near = AHEAD if len(ahead) > AHEAD + 1 else len(ahead)  # one line is not worth a fold
    return {
        "job": job,
        "original": job,
        "live": view,
        "trouble": trouble,
        "why": why,
        "error": visible(job.error),
        "key": visible(job.key),
        "then": ids.short(UUID(job.follow_up)) if isinstance(job.follow_up, str) else "",
        "at_most": duration(job.at_most) if job.at_most else "",
        "partition": ids.partition(job.pk) if job.queue in conf.get().partitions else None,
        "place": visible(stores.places.of(job.queue, ids.partition(job.pk)).where) if job.queue in conf.get().partitions else "",
        "state": badge(state_of(job, view)),
        "allowed": allowed(job.max_attempts),
        "asked": why_not_yet.poll_progress(job, view),
        "message": job.task == MESSAGE,
        "held": clock.from_ms(view.date_ms) if view and view.state == "running" and job.task == MESSAGE else None,
        "to_stop": to_stop(job, view),
        "run_at": run_date(job, view),
        "late": duration(late) if (late := lateness(job, view)) >= 1 else "",
        "moments": moments,
        "near": [*past, *ahead[:near]],
        "later": ahead[near:],
        "links": job_links.of(job),
        "zone": now("Time zone: %(zone)s") % {"zone": visible(get_current_timezone_name())},
        "cut": cut,
        "behind": behind(job, view),
        "over": job.state == State.SUCCEEDED,  # a job can leave every other state
        "progress": progress_of(view),
        "related": [
            (other, badge(other.derived), DISPLACED[job.ending or ""] if other.pk == by else "") for other in related(job, jobs, by)
        ],
        "raw": visible(view.raw.decode("utf-8", "backslashreplace")) if view and request.user.is_superuser else "",
        **_carried(job, sensitive),
    }


def state_in_charge(job: Job, view: JobView | None) -> str:
    """Returns the state that decides which buttons are shown: that of Redis, unless the row is unresolved."""
    if job.unresolved:
        return job.derived
    return State(view.state) if view and view.state in set(State) else State(job.state)


def related(job: Job, jobs: QuerySet[Job], by: UUID | None) -> list[Job]:
    """Returns the newest jobs with the same key. The job that displaced this one comes first."""
    if not job.key:
        return []
    same = jobs.filter(queue=job.queue, key=job.key).exclude(pk=job.pk)
    same = same.defer("args", "kwargs", "options", "result", "error")
    if by is None:
        return list(same.order_by("-pk")[:RELATED])
    return [*same.filter(pk=by), *same.exclude(pk=by).order_by("-pk")[:RELATED]]


def _carried(job: Job, sensitive: bool) -> dict[str, Any]:
    args, kwargs = masking.arguments(job.task, job.args, job.kwargs, sensitive=sensitive)
    meta = masking.attached(job.task, job.meta, sensitive=sensitive)
    return {
        "arguments": arguments_shown(job.task, args, kwargs),
        "meta": pretty(meta) if meta else "",
        "customer": customer_of(meta),
        "result": result_shown(masking.result(job.task, job.result, sensitive=sensitive)),
    }


def live(jobs: Iterable[Job]) -> tuple[dict[UUID, JobView], str]:
    """Returns the unfinished jobs as Redis has them, and an error if it could not be reached."""
    by_queue: dict[str, list[UUID]] = defaultdict(list)
    known = conf.get().queues
    for job in jobs:
        if job.state in UNFINISHED and job.queue in known and not job.far:
            by_queue[job.queue].append(job.pk)
    try:
        views, missing = stores.from_each(
            by_queue, lambda reach: [view for queue, jobs in by_queue.items() for view in stores.inspector(reach).jobs(queue, jobs)]
        )
    except DOWN as error:
        return {}, error_text(error)
    return {view.id: view for view in views if view is not None}, error_text(missing.first) if missing else ""


MOST_LINES: Final = 100
LONGEST_TYPE: Final = 100  # characters


@dataclass(frozen=True, slots=True)
class NamedValue:
    """One value. `name`: its parameter, its number, or "" for a single value; `kind`: the annotation, else the type of the value, or ""
    if it is masked and has no annotation.
    """

    name: str
    kind: str
    text: str

    @property
    def long(self) -> bool:
        """Whether the text may scroll, so it needs keyboard focus."""
        return len(self.text) > 300


def arguments_shown(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[NamedValue]:
    """Returns the lines of the arguments, which are already masked."""
    known = registry.find(task)
    parameters = known.signature.parameters if known else {}
    return _lines([*_by_place(task, args, parameters), *_by_name(kwargs, parameters)], now("… and %(count)d more arguments"))


def result_shown(value: Any) -> list[NamedValue]:
    """Returns the lines of a result, which is already masked. An object has a line per name."""
    if value is None:
        return []
    if isinstance(value, dict) and value:
        return _lines([(str(name), _type_name(inner), inner) for name, inner in value.items()], now("… and %(count)d more values"))
    return _lines([("", _type_name(value), value)], "")


def _by_place(task: str, args: Sequence[Any], parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, str, Any]]:
    if task == MESSAGE and len(args) == 1:
        yield now("body"), _type_name(args[0]), args[0]
        return
    places = [one for one in parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    rest = next((one for one in parameters.values() if one.kind is one.VAR_POSITIONAL), None)
    for number, value in enumerate(args):
        if number < len(places):
            yield places[number].name, annotation(places[number]) or _type_name(value), value
        elif rest is not None:
            yield f"{rest.name}[{number - len(places)}]", annotation(rest) or _type_name(value), value
        else:
            yield str(number + 1), _type_name(value), value


def _by_name(kwargs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, str, Any]]:
    rest = next((one for one in parameters.values() if one.kind is one.VAR_KEYWORD), None)
    for name, value in kwargs.items():
        one = parameters.get(name, rest)
        yield name, (annotation(one) if one else "") or _type_name(value), value


def annotation(parameter: inspect.Parameter) -> str:
    """Returns the annotation as in the source, cut if long, or ""."""
    said = "" if parameter.annotation is parameter.empty else parameter.annotation
    return cut(visible(said if isinstance(said, str) else inspect.formatannotation(said)), LONGEST_TYPE)


def _type_name(value: Any) -> str:
    return "" if value == MASK else type(value).__name__


def _lines(found: Sequence[tuple[str, str, Any]], more: str) -> list[NamedValue]:
    """Limits the number of lines and their total length."""
    room, shown = MOST_SHOWN, []
    for name, kind, value in found[:MOST_LINES]:
        text = MASK if value == MASK else pretty(value, room)
        room = max(ONE_LINE, room - len(text))
        shown.append(NamedValue(visible(name), kind, text))
    if len(found) > MOST_LINES:
        shown.append(NamedValue("", "", more % {"count": len(found) - MOST_LINES}))
    return shown


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
class Moment:
    """One line of the timeline. `who`: the worker of an attempt, the actor of an event; `delta`: since the previous line; `ahead`: it
    is in the future, `at` is None if its date is uncertain, and `about` is None if it cannot be estimated.
    """

    what: str
    at: datetime | None = None
    state: str = ""
    who: str = ""
    delta: str = ""
    took: str = ""
    text: str = ""
    trace: Trace | None = None
    answer: dict[str, Any] | None = None
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
        return self.trace is not None or bool(self.answer and self.answer["text"]) or self.long


def timeline(job: Job, view: JobView | None, *, sensitive: bool = False) -> tuple[list[Moment], bool]:
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
    state = job.derived
    if job.state in UNFINISHED and not job.unresolved and view is not None and view.state != "finished":
        state = view.state
        if state == "scheduled":
            waits = "parked" if job.fingerprint in PARKED else "retrying" if view.attempt else "scheduled"
            state = "due" if view.date_ms <= view.now_ms else waits
    return "held" if state == State.RUNNING and job.task == MESSAGE else state


def run_date(job: Job, view: JobView | None) -> datetime:
    """Returns the date in Redis if the job waits there, because rows hear of a reschedule later."""
    return clock.from_ms(view.date_ms) if view is not None and view.state == "scheduled" else job.run_at


def lateness(job: Job, view: JobView | None) -> float:
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
        error = text % {"time": f"{clock.from_ms(view.date_ms).astimezone(get_current_timezone()):%H:%M:%S}"}
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


def _answer(job: Job, run: Attempt, sensitive: bool) -> dict[str, Any] | None:
    """Returns the response of a host to a delivery, from its error or from the result of the job. `ms`: after the request; `text`: the
    first 2 KB; `wait`: the pause that it asked for, or "".
    """
    if job.task != DELIVERY:
        return None
    if run.outcome == AttemptOutcome.SUCCEEDED:
        told, wait_ms = job.result, None
    else:
        problem = run.problem if isinstance(run.problem, dict) else {}
        told, wait_ms = problem.get("fields"), problem.get("wait_ms")
    if not isinstance(told, dict) or type(told.get("status")) is not int:
        return None
    told = masking.detail(DELIVERY, told, sensitive=sensitive)
    ms = told["ms"] if type(told.get("ms")) is int else 0
    wait = duration(wait_ms / 1000) if type(wait_ms) is int else ""
    return {"status": told["status"], "ms": ms, "text": visible(str(told.get("answer") or "")), "wait": wait}


def _event(job: Job, event: Event, sensitive: bool) -> Moment:
    """Returns the previous arguments of an edit, masked unless the user may view them."""
    given = masking.detail(job.task, event.detail, sensitive=sensitive)
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
    at = max([job.finished_at, *(run.started_at for run in latest)])
    return [Moment(at=at, what=word(job.state), who=visible(job.worker), text=text)]


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
        return [Moment(what=now("cancelled"), text=now("unless attempt %(number)d succeeds") % {"number": made}, ahead=True)]
    if scheduled:
        date = clock.from_ms(view.date_ms) if view else job.run_at
        wait = (date - clock.now()).total_seconds()
        made += 1
        what = now("attempt %(number)d") % {"number": made}
        if wait > 0:
            found = [Moment(at=date, what=now("due"), delta=now("in %(duration)s") % {"duration": duration(wait)}, ahead=True)]
            about = date
        found.append(Moment(what=what, ahead=True))
    found += _asking(job, view)
    steps, more = attempts_ahead(job, made)
    for step in steps:
        text = now("if attempt %(number)d fails") % {"number": step.attempt - 1}
        wait_text = f"+{duration(step.wait)}" if step.wait is not None else ""
        about = _later(about, step.wait)
        what = now("attempt %(number)d") % {"number": step.attempt}
        if step.wait is None:
            text = now("%(text)s, at a date set by the task's own retry rule") % {"text": text}
        found.append(Moment(what=what, delta=wait_text, text=text, ahead=True, about=about))
    if job.max_attempts == NO_LIMIT and job.expires_at is not None:
        text = now("retried until it expires, at %(date)s") % {"date": second(job.expires_at)}
        return [*found, Moment(what=now("failed"), text=text, ahead=True)]
    if more:
        found.append(Moment(what=now("and %(count)d more attempts") % {"count": more}, ahead=True))
    text = now("if attempt %(number)d fails") % {"number": job.max_attempts}
    found.append(Moment(what=now("failed"), text=text, ahead=True))
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
        return [Moment(what=now("failed"), text=text, ahead=True)]
    return [Moment(what=word(AttemptOutcome.ASKED), delta=f"+{duration(found.next_wait)}", text=text, ahead=True)]


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
    waits: Sequence[float | None] = [None] * shown
    if found is not None:
        waits = found.steps(made + shown)[made - 1 :] if made else found.steps(shown)
    return [LadderStep(made + n, waits[n - 1]) for n in range(1, shown + 1)], left - shown


def _ladder_of(job: Job) -> Ladder | None:
    """Returns the ladder of the job, its task or its queue; None for a function."""
    try:
        if text := (job.options or {}).get("backoff"):
            return Ladder(text)
    except (ValueError, TypeError):
        pass
    task, config = registry.find(job.task), conf.get()
    queue: Any = config.queues.get(job.queue, config)
    own: Any = task.backoff if task else None
    found = queue.backoff if own is None else own
    return found if isinstance(found, Ladder) else None
