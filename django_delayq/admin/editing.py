"""Edit and requeue, and schedule a copy. Both show the changed arguments before they do anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.models import ADDITION
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import conf, ids
from django_delayq.admin import argument_forms
from django_delayq.admin.argument_forms import CopyForm, EditForm
from django_delayq.admin.readonly import ReadOnlyAdmin, actor, log, note, tell
from django_delayq.console import masking
from django_delayq.exceptions import DelayqError, KeyTaken
from django_delayq.models import Job, Periodic
from django_delayq.producer import edit, lookup
from django_delayq.producer.task import registry
from django_delayq.states import DELIVERY, FINISHED, OFFER, REQUEUEABLE, Change, State
from django_delayq.text import visible

MOST_WORK: Final = 5_000_000  # of a comparison: about a second, for 3,000 different lines or 340 equal ones
ANSWERS = {
    Change.DONE: _("The job was requeued with the new arguments."),
    Change.CONFLICT: _(
        "Nothing was changed: the job has changed in the meantime, another job has the key, or the mirror has not caught up yet."
    ),
    Change.RUNNING: _("Nothing was changed: the job is already running."),
    Change.FINISHED: _("Nothing was changed: the job has already succeeded."),
    Change.UNKNOWN: _("Nothing was changed: the job no longer exists."),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes, line by line: mark, text and look (added, removed or same). `too_large`: the texts were not compared, so the old
    lines are above the new ones.
    """

    lines: list[dict[str, str]]
    too_large: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act with other arguments. `states`: of jobs that allow it; `again`: it schedules a new job; `carry_out`: does it, adds a
    message, and returns the id of the job to show.
    """

    title: Promise
    says: Promise
    button: Promise
    refused: Promise
    form: type[EditForm]
    states: frozenset[State]
    again: bool
    carry_out: Callable[[HttpRequest, Job, EditForm], UUID]

    def possible(self, job: Job, sensitive: bool) -> bool:
        """Whether the job is in a suitable state and its task accepts arguments from users. `sensitive`: the user sees them all."""
        known = registry.find(job.task)
        own = known.own if known else job.task in (DELIVERY, OFFER)
        taken = not own and (known is not None or not self.again)
        return taken and State(job.state) in self.states and (sensitive or self._leaves(job))

    def _leaves(self, job: Job) -> bool:
        """Whether the user can do the act without the hidden arguments. They stay the same, so each argument needs a field, and an edit
        needs a visible one.
        """
        if not masked(job):
            return True
        found = argument_forms.arguments_of(job, sensitive=False)
        return found is not None and (self.again or any(each.hidden is None for each in found))


def page(admin: ReadOnlyAdmin, request: HttpRequest, job: Job, act: Act) -> HttpResponse:
    """Shows the form, then the changes, then carries out the act. "Back" leads to the form with its values."""
    sensitive = admin.allows(request, "view_sensitive")
    edit.upgrade(job)
    if not act.possible(job, sensitive):
        messages.error(request, str(act.refused))
        return HttpResponseRedirect(admin.address("delayq_job_change", job.pk))
    given = request.method == "POST"
    form = act.form(job, request.POST if given else None, sensitive=sensitive)
    changed = given and request.POST.get("digest") != form.digest
    good = given and form.is_valid() and not changed
    back = "back" in request.POST
    if good and not back and ("confirmed" in request.POST or not form.changes):
        return HttpResponseRedirect(_page_of(admin, request, job, act.carry_out(request, job, form)))
    return admin.page(
        request,
        "admin/delayq/job/edit.html",
        act.title,
        status=400 if given and not good else 200,
        act=act,
        job=job,
        form=form,
        changed=changed,
        difference=difference(form.before, form.after) if good and not back else None,
        signature=signature(job) if form.arguments is None else "",
        drawn=request.POST.get("drawn") or ids.short(ids.new()),
    )


def _page_of(admin: ReadOnlyAdmin, request: HttpRequest, job: Job, id: UUID) -> str:
    """Returns the URL of the new job, or of the present one if the new one is not visible yet."""
    found = admin.get_queryset(request).filter(pk=id).first() if id != job.pk else None
    shown = found if found is not None and admin.has_view_permission(request, found) else job
    return admin.address("delayq_job_change", shown.pk)


def masked(job: Job | Periodic) -> bool:
    """Whether any of its arguments is masked. A value that equals the mask counts as masked."""
    args, kwargs = masking.without_mask(job.args), masking.without_mask(job.kwargs)
    version = job.version if isinstance(job, Job) else masking.UPGRADED
    return masking.arguments(job.task, args, kwargs, version=version) != (args, kwargs)


def signature(job: Job) -> str:
    """Returns the signature of its task, or "" if the task is not registered."""
    found = registry.find(job.task)
    return f"{job.task}{found.signature}" if found else ""


def difference(before: str, after: str) -> Difference:
    """Compares two texts. The work has a bound because difflib takes cubic time for equal lines."""
    old, new = before.splitlines(), after.splitlines()
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    alike = Counter(a)
    too_large = (len(a) + sum(alike[line] for line in b)) * min(len(a), len(b)) > MOST_WORK
    blocks = [] if too_large else SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()[:-1]
    found: list[dict[str, str]] = []

    def add(mark: str, look: str, lines: Sequence[str]) -> None:
        found.extend({"mark": mark, "text": visible(line), "look": look} for line in lines)

    x = y = 0
    for i, j, size in [(0, 0, head), *((head + i, head + j, size) for i, j, size in blocks), (len(old) - tail, len(new) - tail, tail)]:
        add("-", "removed", old[x:i])
        add("+", "added", new[y:j])
        x, y = i + size, j + size
        add(" ", "same", old[i:x])
    return Difference(found, too_large)


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """Counts the lines that both begin with."""
    return next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _edit(request: HttpRequest, job: Job, form: EditForm) -> UUID:
    reason = form.cleaned_data["reason"]
    try:
        change = edit.edit_and_requeue(
            job.pk, form.cleaned_data["args"], form.cleaned_data["kwargs"], actor=actor(request), reason=reason
        )
    except DelayqError as error:
        messages.error(request, form.told(error))
        return job.pk
    if change is Change.DONE:
        log(request, Job, [(str(job.pk), str(job))], now("Edit and requeue"), reason)
    tell(request, change is Change.DONE, ANSWERS[change])
    return job.pk


def _copy(request: HttpRequest, job: Job, form: EditForm) -> UUID:
    """Schedules the copy. The form contains its id, so a form that is sent twice makes one copy."""
    given, said = form.cleaned_data, now("Schedule a copy")
    try:
        id = ids.parse(request.POST.get("drawn", ""))
    except ValueError:
        messages.error(request, now("Nothing was scheduled because the form was incomplete. Try again."))
        return job.pk
    before = lookup.row_in_any(id, conf.get().queue(job.queue).served if job.queue in conf.get().queues else ())
    if before is not None:
        messages.warning(request, now("This copy has already been scheduled."))
        return before.record.id
    try:
        made = edit.schedule_copy(
            job, given["args"], given["kwargs"], id=id, delay=given["delay"] or 0.0, actor=actor(request), reason=given["reason"]
        )
    except KeyTaken as error:
        text = now("Nothing was scheduled: the job %(holder)s has the key %(key)s and has not ended.")
        messages.error(request, text % {"holder": ids.short(error.holder), "key": visible(job.key)})
        return job.pk
    except DelayqError as error:
        messages.error(request, form.told(error))
        return job.pk
    sentence = f"{said}: {given['reason']}" if given["reason"] else said
    note(request, "copied", given["reason"], of=job, copy=made.short_id)
    log(request, Job, [(str(job.pk), str(job))], f"{sentence} ({made.short_id})")
    log(request, Job, [(str(made.id), f"{job.task} {made.short_id}")], sentence, flag=ADDITION)
    messages.success(request, now("The copy %(job)s was scheduled.") % {"job": made.short_id})
    return made.id


EDIT: Final = Act(
    title=_("Edit and requeue"),
    says=_(
        "The job is requeued with the arguments that you enter. It becomes due immediately and gets all its attempts "
        "again. The task stays the same."
    ),
    button=_("Requeue with these arguments"),
    refused=_(
        "This job cannot be edited: it has not failed, its task does not accept arguments from users, or you do "
        "not have permission to view its arguments."
    ),
    form=EditForm,
    states=REQUEUEABLE,
    again=False,
    carry_out=_edit,
)
COPY: Final = Act(
    title=_("Schedule a copy"),
    says=_(
        "This schedules a new job of the same task, with its own id and all attempts. The new job has the same queue, "
        "key and meta as this job."
    ),
    button=_("Schedule with these arguments"),
    refused=_(
        "This job cannot be copied: it has not ended, its task does not accept arguments from users, or you do "
        "not have permission to view its arguments."
    ),
    form=CopyForm,
    states=FINISHED,
    again=True,
    carry_out=_copy,
)
