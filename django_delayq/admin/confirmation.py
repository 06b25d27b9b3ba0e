"""The page that asks for confirmation before an action, with one line per job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as now

from django_delayq.admin.badges import badge
from django_delayq.admin.forms import ReasonForm
from django_delayq.admin.readonly import ReadOnlyAdmin
from django_delayq.console import masking
from django_delayq.console.verbs import Verb
from django_delayq.console.wording import cut, task_name
from django_delayq.models import Job
from django_delayq.text import visible

EXAMPLES: Final = 20  # jobs on the page
LONGEST: Final = 100  # characters of arguments, of an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The line of one job. `label` names the date."""

    job: Job
    state: SafeString | str
    task: str
    key: str
    arguments: str
    error: str
    label: str
    date: datetime


def examples(jobs: Sequence[Job], *, sensitive: bool) -> list[Example]:
    """Returns the lines of the first EXAMPLES jobs. `sensitive`: do not mask."""
    shown = jobs[:EXAMPLES]
    if not shown:
        return []
    rows = Job.objects.filter(pk__in=[job.pk for job in shown]).values_list("pk", "args", "kwargs")
    given = {pk: (args, kwargs) for pk, args, kwargs in rows}
    return [_example(job, *given.get(job.pk, ([], {})), sensitive=sensitive) for job in shown]


def page(
    admin: ReadOnlyAdmin,
    request: HttpRequest,
    verb: Verb,
    form: ReasonForm,
    jobs: Sequence[Job],
    *,
    hidden: Sequence[tuple[str, str]],
    back: str,
    alone: bool = False,
) -> HttpResponse:
    """Asks for confirmation. `hidden`: fields of the form; `back`: the URL of the cancel link; `alone`: the action starts on a job
    page.
    """
    keep = (now("Keep the job") if verb.danger else now("Back to the job")) if alone else verb.keep
    context = admin.page_context(
        request,
        verb.label,
        verb=verb,
        form=form,
        question=verb.asked if alone else verb.question,
        examples=examples(jobs, sensitive=admin.allows(request, "view_sensitive")),
        more=max(0, len(jobs) - EXAMPLES),
        confirm=verb.confirmed(len(jobs)),
        keep=keep,
        hidden=[("confirmed", "1"), *hidden],
        back=back,
    )
    return TemplateResponse(request, "admin/delayq/job/ask.html", context)


def _example(job: Job, args: Any, kwargs: Any, *, sensitive: bool) -> Example:
    if not sensitive:
        args, kwargs = masking.arguments(job.task, args, kwargs)
    given = masking.by_name(job.task, args or (), kwargs or {})
    return Example(
        job=job,
        state=badge(job.derived),
        task=task_name(job.task),
        key=visible(job.key),
        arguments=_short(", ".join(f"{name}={_json(value)}" if name else _json(value) for name, value in given)),
        error=_short(job.error.strip().split("\n", 1)[0]),
        label=now("finished") if job.finished_at else now("run at"),
        date=job.finished_at or job.run_at,
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    return cut(visible(text[: 10 * LONGEST]), LONGEST)
