"""What a person does to jobs in the admin: carried out one by one, told with every answer, and logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.models import CHANGE
from django.db.models import Model
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import ngettext

from django_delayq import clock, conf, ids
from django_delayq.console import verbs
from django_delayq.console.verbs import Verb, apply
from django_delayq.console.wording import error_text
from django_delayq.exceptions import DelayqError
from django_delayq.models import Event, Job
from django_delayq.producer.outbox import rows
from django_delayq.states import Change

MOST: Final = 1000  # jobs per request: each is one round trip, and a request should end
MOST_NAMED: Final = 5  # jobs that a message names


@dataclass(slots=True)
class Report:
    """How many jobs got each answer, and the jobs that got an error, by its text."""

    counts: Counter[Change] = field(default_factory=Counter)
    errors: dict[str, list[str]] = field(default_factory=dict)

    def tell(self, request: HttpRequest, verb: Verb) -> None:
        """A message with every count, and one for each error."""
        parts = [str(verb.answers[change]) % {"count": self.counts[change]} for change in Change if self.counts[change]]
        if parts:
            level = messages.SUCCESS if set(self.counts) == {Change.DONE} else messages.WARNING
            messages.add_message(request, level, capfirst(", ".join(parts)) + ".")
        for error, jobs in self.errors.items():
            text = ngettext(
                "%(count)d job was not changed (%(jobs)s): %(error)s",
                "%(count)d jobs were not changed (%(jobs)s): %(error)s",
                len(jobs),
            )
            named = ", ".join(jobs[:MOST_NAMED]) + ", …" * (len(jobs) > MOST_NAMED)
            messages.error(request, text % {"count": len(jobs), "jobs": named, "error": error})


def actor(request: HttpRequest) -> str:
    """Who acts, for the events."""
    return f"admin:{request.user.get_username()}"


def carry_out(request: HttpRequest, verb: Verb, jobs: Iterable[Job], *, reason: str, **date: Any) -> Report:
    """Does it to each job, and logs it where it had an effect."""
    report, named = Report(), {job.pk: job for job in jobs}
    touched: list[Job] = []
    for id, answer in apply(verb.act, [(job.pk, job.queue) for job in named.values()], actor=actor(request), reason=reason, **date):
        if isinstance(answer, DelayqError):
            report.errors.setdefault(error_text(answer), []).append(ids.short(id))
            continue
        report.counts[answer] += 1
        if answer in verb.effects:
            touched.append(named[id])
    log(request, Job, [(str(job.pk), str(job)) for job in touched], _sentence(verb, reason))
    return report


def log(request: HttpRequest, model: type[Model], objects: Iterable[tuple[str, str]], sentence: str, flag: int = CHANGE) -> None:
    """See `verbs.write_admin_log`: for who asks."""
    verbs.write_admin_log(request.user.pk, model, objects, sentence, flag)


def note(request: HttpRequest, kind: str, reason: str, *, of: Job | None = None, **detail: Any) -> None:
    """An event that passes through no script of Redis: of a worker or an operation, which are no job's and no queue's; or `of` a job,
    to which nothing was done.
    """
    told: Any = detail
    Event.objects.using(conf.get().database).create(
        job=of,
        queue=of.queue if of else "",
        at=clock.now(),
        kind=kind,
        actor=rows.clean(actor(request), 200),
        reason=rows.clean(reason),
        detail=told,
        stream_id=f"row:{ids.new().hex}",
    )


def _sentence(verb: Verb, reason: str) -> str:
    return f"{verb.label}: {reason}" if reason else str(verb.label)
