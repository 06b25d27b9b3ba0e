"""Edit and requeue: other arguments for a failed or cancelled job, shown as a difference before anything happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq.admin import diff
from django_delayq.admin.forms import EditForm
from django_delayq.admin.report import actor, log
from django_delayq.admin.show import visible
from django_delayq.console import masking
from django_delayq.console.error_texts import worded
from django_delayq.exceptions import DelayqError, UnknownTask
from django_delayq.models import Job, Periodic
from django_delayq.producer import edit
from django_delayq.producer.task import registry
from django_delayq.states import REQUEUEABLE, Change, State

ANSWERS = {
    Change.DONE: _("Requeued with other arguments."),
    Change.CONFLICT: _("Nothing was changed: somebody was faster, another job holds the key, or the mirror has not caught up yet."),
    Change.RUNNING: _("Nothing was changed: it runs already."),
    Change.FINISHED: _("Nothing was changed: it has succeeded."),
    Change.UNKNOWN: _("Nothing was changed: nobody knows this job any more."),
}


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of the difference. `look`: added, removed, or same; the mark before the text says it too."""

    mark: str
    text: str
    look: str


def possible(job: Job, *, sensitive: bool) -> bool:
    """Whether its row is that of a job to edit, of which nothing is masked: one could only save the mask. `sensitive`: nothing is."""
    return State(job.state) in REQUEUEABLE and (sensitive or not masked(job))


def masked(job: Job | Periodic) -> bool:
    """Whether the page hides any of its arguments, whatever they are: one that is itself the mask is hidden too."""
    args, kwargs = _without_mask(job.args), _without_mask(job.kwargs)
    return masking.arguments(job.task, args, kwargs) != (args, kwargs)


def _without_mask(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_mask(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_mask(inner) for inner in value]
    return None if value == masking.MASK else value


def signature(job: Job) -> str:
    """What its task takes; "" for one that is not here."""
    try:
        return f"{job.task}{registry.get(job.task).signature}"
    except UnknownTask:
        return ""


def difference(form: EditForm) -> list[DiffLine]:
    """What changes, line by line."""
    looks = {"+": "added", "-": "removed", " ": "same"}
    return [DiffLine(mark, visible(text), looks[mark]) for mark, text in diff.lines(form.before, form.after)]


def carry_out(request: HttpRequest, job: Job, form: EditForm) -> None:
    """Does it, logs it, and says what became of it."""
    reason = form.cleaned_data["reason"]
    try:
        change = edit.edit_and_requeue(
            job.pk, form.cleaned_data["args"], form.cleaned_data["kwargs"], actor=actor(request), reason=reason
        )
    except DelayqError as error:
        messages.error(request, worded(error))
        return
    if change is Change.DONE:
        said = now("Edit and requeue")
        log(request, Job, [(str(job.pk), str(job))], f"{said}: {reason}" if reason else said)
    messages.add_message(request, messages.SUCCESS if change is Change.DONE else messages.WARNING, ANSWERS[change])
