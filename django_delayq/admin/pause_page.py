"""The page of pauses in the admin: what is paused, by whom and why; pause a queue, a task, a scope or a name, and resume it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq.admin.forms import MomentField, ReasonForm, reason_field
from django_delayq.admin.readonly import actor, log, tell
from django_delayq.console.moments import parse_start
from django_delayq.exceptions import DelayqError
from django_delayq.job_meta import shown
from django_delayq.models import Pause, Queue, database
from django_delayq.producer import outbox, queues
from django_delayq.producer.queues import PauseReply
from django_delayq.text import visible

SHOWN: Final = 5  # on the dashboard
KINDS: Final = (("queue", _("Queue")), ("task", _("Task")), ("scope", _("Scope")), ("name", _("Concurrency name")))


class PauseForm(ReasonForm):
    """What to pause, and until when."""

    kind = forms.ChoiceField(label=_("Pause"), choices=KINDS)
    word = forms.CharField(label=_("Name"), max_length=200, strip=False)
    until = MomentField(
        parse_start,
        label=_("Until"),
        help_text=_("If empty, until you resume it."),
        widget=forms.TextInput(attrs={"placeholder": "+2h"}),
    )
    reason = reason_field(_("The reason is kept in the history. Other users can see it."))
    field_order = ("kind", "word", "until", "reason")

    def clean_until(self) -> Any:
        """Checks that the date is in the future."""
        if (until := self.cleaned_data["until"]) is not None and until < database.now():
            raise ValidationError(_("Enter a date in the future."))
        return until


class ResumeForm(ReasonForm):
    """What to resume, and how fast its jobs return."""

    kind = forms.ChoiceField(choices=KINDS)
    word = forms.CharField(max_length=280, strip=False)
    pace = forms.CharField(required=False)


def rows(words: Iterable[Pause] | None = None, *, names: bool) -> list[dict[str, Any]]:
    """The pauses, oldest first. `names`: the user may see concurrency names, because most of them name customers."""
    found = []
    for row in outbox.pauses.of_pauses(words):
        kind, _colon, name = row.word.partition(":")
        found.append(
            {
                "kind": kind,
                "label": dict(KINDS)[kind],
                "name": "" if kind == "name" and not names else visible(shown(name)),
                "word": name,
                "at": row.paused_at,
                "until": row.until,
                "by": visible(row.paused_by),
                "why": visible(row.paused_why),
                "missing": ", ".join(row.missing.split()),
            }
        )
    return sorted(found, key=lambda row: (row["at"] is None, row["at"] or 0))


def on_dashboard(words: Iterable[Pause], *, names: bool) -> dict[str, Any]:
    """The first pauses of tasks, scopes and names, and the number of the others. A queue shows its own pause."""
    found = [row for row in rows(words, names=names) if row["at"] and row["kind"] != "queue"]
    return {"pauses": found[:SHOWN], "more_pauses": max(0, len(found) - SHOWN)}


def act(request: HttpRequest, form: PauseForm | ResumeForm) -> bool:
    """Pauses or resumes what a valid form names. Returns False if that was refused, which the form then shows."""
    given = form.cleaned_data
    which: dict[str, Any] = outbox.pauses.options_of(f"{given['kind']}:{given['word']}")
    how: dict[str, Any] = {name: given[name] for name in ("until", "pace") if given.get(name)}
    change = queues.pause if isinstance(form, PauseForm) else queues.resume
    try:
        reply = change(**which, **how, actor=actor(request), reason=given["reason"])
    except DelayqError as error:
        form.add_error(None, visible(str(error)))
        return False
    name = visible(shown(given["word"]))
    if isinstance(form, PauseForm):
        log(request, Queue, [(given["word"], name)], "pause", given["reason"])
        text = now("Paused: %(name)s. Jobs that are still running: %(running)d.") % {"name": name, "running": reply.running}
    else:
        log(request, Queue, [(given["word"], name)], "resume", given["reason"])
        text = now("Resumed: %(name)s.") % {"name": name}
    tell(request, reply.changed, text)
    tell_unconfirmed(request, reply)
    return True


def tell_unconfirmed(request: HttpRequest, reply: PauseReply) -> None:
    """Tells the user which partitions a pause or a resume has not reached yet."""
    if reply.unconfirmed:
        parts = ", ".join(reply.unconfirmed)
        text = now("These partitions cannot be reached. Workers repeat this until they can: %(parts)s.") % {"parts": parts}
        tell(request, False, text)
