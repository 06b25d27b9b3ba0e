"""What the list of jobs shows of each, by view: a job that runs has other things to tell than one that has failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.db.models import Case, F, QuerySet, When
from django.db.models.functions import Length
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock
from django_delayq.admin import timeline
from django_delayq.admin.show import allowed, badge
from django_delayq.console import masking, why_not_yet
from django_delayq.console.wording import breakable, cut, dated, duration, moment, task_name, zoned
from django_delayq.models import Job
from django_delayq.states import State
from django_delayq.text import visible

NAME_SHOWN: Final = 80  # characters of a task or a key in the list
ERROR_SHOWN: Final = 70  # characters of an error in the list
ARGUMENTS_READ: Final = 4000  # characters of JSON: longer ones are not fetched for a list, since a page has fifty jobs
ARGUMENTS_SHOWN: Final = 80  # characters of all arguments together
VALUE_SHOWN: Final = 40  # characters of one of them
TOLD: Final = 1000  # characters in what appears when the mouse rests

_JOB: Final = ("state_now", "task_shown", "arguments_shown", "key_shown", "queue_shown")
_ENDED: Final = (*_JOB, "finished_shown", "took_shown", "attempts_made")
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "": (*_JOB, "run_at_and_late", "attempts_made", "last_error"),
    "due": (*_JOB, "run_at_and_late", "attempts_made", "last_error"),
    "scheduled": (*_JOB, "run_at_and_late", "attempts_made"),
    "running": (*_JOB, "running_for", "progress_shown", "worker_shown", "attempts_made"),
    "retrying": (*_JOB, "run_at_and_late", "attempts_made", "last_error"),
    "failed": (*_ENDED, "last_error"),
    "cancelled": (*_JOB, "finished_shown", "attempts_made", "last_error"),
    "succeeded": _ENDED,
    "parked": (*_JOB, "run_at_and_late", "attempts_made", "last_error"),
    "unpublished": (*_JOB, "run_at_and_late", "attempts_made"),
    "far": (*_JOB, "run_at_and_late"),
    "unresolved": (*_JOB, "run_at_and_late", "attempts_made", "last_error"),
}


class JobColumns:
    """The columns, as Django's admin calls them: each takes a job of the list. `live` is what Redis knows of it, `carried` its
    arguments, `schedule` what has brought it; `JobList` puts them there.
    """

    @admin.display(description=_("state"))
    def state_now(self, job: Job) -> str:
        """The state, by Redis' word where there is one."""
        return badge(timeline.state_of(job, getattr(job, "live", None)))

    @admin.display(description=_("task"))
    def task_shown(self, job: Job) -> str:
        """The task's name, without characters that only pretend."""
        return _named(task_name(job.task))

    @admin.display(description=_("arguments"))
    def arguments_shown(self, job: Job) -> str:
        """By name and short; all of it, up to a bound, where the mouse rests."""
        carried: Carried | None = getattr(job, "carried", None)
        return carried.shown() if carried is not None else "-"

    @admin.display(description=_("key"))
    def key_shown(self, job: Job) -> str:
        """The key, without characters that only pretend; the schedule that has brought it."""
        schedule = getattr(job, "schedule", "")
        shown = _named(visible(job.key))
        return format_html('{} <span class="delayq-soft">{} {}</span>', shown, now("schedule"), schedule) if schedule else shown or "-"

    @admin.display(description=_("queue"))
    def queue_shown(self, job: Job) -> str:
        """The queue's name, likewise."""
        return visible(job.queue)

    @admin.display(description=_("run at"), ordering="run_at")
    def run_at_and_late(self, job: Job) -> str:
        """To the second, in the time zone of the admin; and how far off that is, or for how long it has been due."""
        view = getattr(job, "live", None)
        date, seconds = timeline.run_date(job, view), timeline.late(job, view)
        if seconds < 1:
            return moment(date)
        late = now("%(duration)s late") % {"duration": duration(seconds)}
        return format_html('{} <span class="delayq-error">{}</span>', dated(date), late)

    @admin.display(description=_("running for"))
    def running_for(self, job: Job) -> str:
        """Since its start; a dash where the row does not know yet that it runs."""
        if job.state != State.RUNNING or job.started_at is None:
            return "-"
        return format_html('<span title="{}">{}</span>', zoned(job.started_at), duration(_whole(clock.now(), job.started_at)))

    @admin.display(description=_("progress"))
    def progress_shown(self, job: Job) -> str:
        """What the task says of it."""
        view = getattr(job, "live", None)
        told = timeline.progress_of(view)
        if told is None:
            return visible(view.progress) or "-" if view else "-"
        bar = '<progress max="{}" value="{}" aria-label="{}"></progress> {}/{}'
        return format_html(bar, told.total, told.done, now("progress"), told.done, told.total)

    @admin.display(description=_("worker"))
    def worker_shown(self, job: Job) -> str:
        """The thread that runs it, or has run it last."""
        return breakable(job.worker) or "-"

    @admin.display(description=_("finished"), ordering="finished_at")
    def finished_shown(self, job: Job) -> str:
        """When it ended, and how long ago."""
        return moment(job.finished_at) if job.finished_at else "-"

    @admin.display(description=_("took"))
    def took_shown(self, job: Job) -> str:
        """How long its last run took."""
        if job.finished_at is None or job.started_at is None or job.ending:  # one that expired ended while it waited
            return "-"
        return duration(max(0.0, (job.finished_at - job.started_at).total_seconds()))

    @admin.display(description=_("attempts"), ordering="attempts")
    def attempts_made(self, job: Job) -> str:
        """Made and allowed, and how often it has asked."""
        crashes = f" +{job.crashes}\u2009✗" if job.crashes else ""
        text = f"{job.attempts}/{allowed(job.max_attempts)}{crashes}"
        return ", ".join(filter(None, (text, why_not_yet.poll_count(job, getattr(job, "live", None)))))

    @admin.display(description=_("last error"))
    def last_error(self, job: Job) -> str:
        """Its first line."""
        line = visible(job.error.strip().split("\n", 1)[0])
        look = "delayq-soft" if job.state == State.CANCELLED else "delayq-error"  # there it is the reason of a person
        return (
            format_html('<span class="{}" title="{}">{}</span>', look, line[:TOLD], breakable(cut(line, ERROR_SHOWN))) if line else "-"
        )


class Carried:
    """A job's arguments, as a list shows them: masked already, or too long to have been fetched."""

    __slots__ = ("arguments", "size")

    def __init__(self, arguments: Sequence[tuple[str, Any]], size: int) -> None:
        self.arguments, self.size = arguments, size

    def shown(self) -> str:
        """As markup."""
        if self.size > ARGUMENTS_READ:
            return format_html('<span class="delayq-soft">{}</span>', now("%(size)d KB") % {"size": max(1, self.size // 1000)})
        if not self.arguments:
            return "-"
        texts = [(name, visible(json.dumps(value, ensure_ascii=False))) for name, value in self.arguments]
        whole = ", ".join(f"{name}={text}" if name else text for name, text in texts)
        short = ", ".join(f"{name}={cut(text, VALUE_SHOWN)}" if name else cut(text, VALUE_SHOWN) for name, text in texts)
        return format_html('<span title="{}">{}</span>', cut(whole, TOLD), breakable(cut(short, ARGUMENTS_SHOWN)))


def carried(rows: QuerySet[Job], jobs: Iterable[Job]) -> dict[UUID, Carried]:
    """The arguments of these jobs, masked whoever looks, in one query that fetches none that is long."""
    size = Length("args") + Length("kwargs")
    short = {name: Case(When(size__lte=ARGUMENTS_READ, then=F(name))) for name in ("args", "kwargs")}
    named = rows.order_by().filter(pk__in=[job.pk for job in jobs]).annotate(size=size)
    found = {}
    for pk, task, length, args, kwargs in named.values_list("pk", "task", "size", short["args"], short["kwargs"]):
        found[pk] = Carried(masking.by_name(task, *masking.arguments(task, args or [], kwargs or {})), length)
    return found


def _named(name: str) -> SafeString:
    """A name, cut where it is long; then all of it where the mouse rests."""
    short = breakable(cut(name, NAME_SHOWN))
    return short if len(name) <= NAME_SHOWN else format_html('<span title="{}">{}</span>', name, short)


def _whole(later: datetime, earlier: datetime) -> float:
    """Seconds between, whole ones from one second on: a page that is asked again should not change for less."""
    seconds = max(0.0, (later - earlier).total_seconds())
    return float(int(seconds)) if seconds >= 1 else seconds
