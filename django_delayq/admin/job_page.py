"""Builds the context of a job page: row, state in Redis, timeline, explanation, related jobs, arguments and result."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf, ids
from django_delayq.admin import timeline
from django_delayq.admin.badges import allowed, badge
from django_delayq.admin.listing import live
from django_delayq.console import job_links, masking, why_not_yet
from django_delayq.console.masking import MASK
from django_delayq.console.overview import DOWN
from django_delayq.console.wording import cut, duration, error_text
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import MESSAGE, EndingKind, State
from django_delayq.store.reads.inspector import JobView
from django_delayq.text import visible

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
            yield places[number].name, _kind(places[number], value), value
        elif rest is not None:
            yield f"{rest.name}[{number - len(places)}]", _kind(rest, value), value
        else:
            yield str(number + 1), _type_name(value), value


def _by_name(kwargs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, str, Any]]:
    rest = next((one for one in parameters.values() if one.kind is one.VAR_KEYWORD), None)
    for name, value in kwargs.items():
        one = parameters.get(name, rest)
        yield name, _type_name(value) if one is None else _kind(one, value), value


def _kind(parameter: inspect.Parameter, value: Any) -> str:
    return annotation(parameter) or _type_name(value)


def annotation(parameter: inspect.Parameter) -> str:
    """Returns the annotation as in the source, cut if long, or ""."""
    said = "" if parameter.annotation is parameter.empty else parameter.annotation
    return cut(visible(said if isinstance(said, str) else inspect.formatannotation(said)), LONGEST_TYPE)


def _type_name(value: Any) -> str:
    return "" if value == MASK else type(value).__name__


def _lines(found: Sequence[tuple[str, str, Any]], more: str) -> list[NamedValue]:
    """Limits the number of lines and their total length."""
    room, shown = timeline.MOST_SHOWN, []
    for name, kind, value in found[:MOST_LINES]:
        text = MASK if value == MASK else timeline.pretty(value, room)
        room = max(timeline.ONE_LINE, room - len(text))
        shown.append(NamedValue(visible(name), kind, text))
    if len(found) > MOST_LINES:
        shown.append(NamedValue("", "", more % {"count": len(found) - MOST_LINES}))
    return shown


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
    by = displaced_by(job)
    moments, cut = timeline.of(job, view, sensitive=sensitive)
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
        "partition": ids.partition(job.pk) if job.queue in conf.get().partitions else None,
        "place": visible(stores.places.of(job.queue, ids.partition(job.pk)).where) if job.queue in conf.get().partitions else "",
        "state": badge(timeline.state_of(job, view)),
        "allowed": allowed(job.max_attempts),
        "asked": why_not_yet.poll_progress(job, view),
        "message": job.task == MESSAGE,
        "held": clock.from_ms(view.date_ms) if view and view.state == "running" and job.task == MESSAGE else None,
        "to_stop": timeline.to_stop(job, view),
        "run_at": timeline.run_date(job, view),
        "late": duration(late) if (late := timeline.late(job, view)) >= 1 else "",
        "moments": moments,
        "near": [*past, *ahead[:near]],
        "later": ahead[near:],
        "links": job_links.of(job),
        "zone": now("Time zone: %(zone)s") % {"zone": visible(get_current_timezone_name())},
        "cut": cut,
        "behind": timeline.behind(job, view),
        "over": job.state == State.SUCCEEDED,  # a job can leave every other state
        "progress": timeline.progress_of(view),
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


def displaced_by(job: Job) -> UUID | None:
    """Returns the job that merged or replaced this one."""
    return job.merged_into if job.ending in DISPLACED else None


def _carried(job: Job, sensitive: bool) -> dict[str, Any]:
    if sensitive:
        args, kwargs, meta, result = job.args, job.kwargs, job.meta, job.result
    else:
        args, kwargs = masking.arguments(job.task, job.args, job.kwargs)
        meta, result = (
            masking.attached(job.task, job.meta),
            masking.result(job.task, job.result),
        )
    return {
        "arguments": arguments_shown(job.task, args, kwargs),
        "meta": timeline.pretty(meta) if meta else "",
        "result": result_shown(result),
    }
