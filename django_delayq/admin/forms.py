"""What a person gives along with an action: a reason, for a reschedule a date."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import connections
from django.http import HttpRequest
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, conf
from django_delayq.admin.show import indented
from django_delayq.console.verbs import Verb
from django_delayq.models import database_clock
from django_delayq.text import visible

LONGEST_OPERATION = 30 * 24 * 3_600  # seconds


class ReasonForm(forms.Form):
    """Why."""

    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("The reason is kept with the job's events. Other users can see it."),
    )

    def date(self) -> dict[str, Any]:
        """What the verb needs besides the reason."""
        return {}


def reason_given(request: HttpRequest) -> str | None:
    """The reason that came with a button; None where it cannot be kept, which is said: then nothing is to be done."""
    form = ReasonForm(request.POST)
    if form.is_valid():
        return str(form.cleaned_data["reason"])
    messages.error(request, now("Nothing was done: %(error)s") % {"error": " ".join(map(str, form.errors["reason"]))})
    return None


class ExportForm(ReasonForm):
    """Why a list leaves the admin."""

    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=500, help_text=_("The reason is kept in the history. Other users can see it.")
    )


class RescheduleForm(ReasonForm):
    """A delay from now, or a date."""

    delay = forms.CharField(label=_("Delay from now"), required=False, help_text=_("+10m, 90s, 1h30m, 2d"))
    run_at = forms.DateTimeField(
        label=_("Or a date"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    field_order: Sequence[str] = ("delay", "run_at", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zone = visible(get_current_timezone_name())  # the browser's may be another, and the field does not say which it is
        self.fields["run_at"].help_text = now("Time zone: %(zone)s") % {"zone": zone}

    def clean_delay(self) -> float | None:
        """Seconds."""
        text = self.cleaned_data["delay"].strip()
        if not text:
            return None
        return parsed(text)

    def clean_run_at(self) -> datetime | None:
        """A date that rows and clocks hold."""
        moment: datetime | None = self.cleaned_data["run_at"]
        if moment is not None and not 0 <= clock.to_ms(moment) <= clock.LAST_MS:
            raise ValidationError(_("Enter a date between the years 1970 and 9999."))
        if moment is not None and moment < database_clock.now(connections[conf.get().database]):
            raise ValidationError(
                _("This date is in the past, so the job would run immediately. Enter a date in the future, or use “Run now”.")
            )
        return moment

    def clean(self) -> dict[str, Any]:
        """One of the two."""
        cleaned = super().clean() or self.cleaned_data
        if not self.errors and (cleaned.get("delay") is None) == (cleaned.get("run_at") is None):
            raise ValidationError(_("Enter either a delay or a date."))
        return cleaned

    def date(self) -> dict[str, Any]:
        """delay or run_at."""
        return {name: self.cleaned_data[name] for name in ("delay", "run_at") if self.cleaned_data[name] is not None}


class OperationForm(ReasonForm):
    """What an operation is given besides the jobs it is about."""

    over = forms.CharField(
        label=_("Spread over"),
        required=False,
        help_text=_(
            "For example 20m or 2h. Spreading prevents overloading the services that the jobs call. If empty, jobs "
            "run as fast as the workers can."
        ),
    )
    field_order: Sequence[str] = ("over", "reason")

    def clean_over(self) -> int | None:
        """Whole seconds."""
        text = self.cleaned_data["over"].strip()
        if not text:
            return None
        seconds = parsed(text)
        if seconds > LONGEST_OPERATION:
            raise ValidationError(_("The maximum is 30 days."))
        return round(seconds)

    def options(self) -> dict[str, Any]:
        """The date, if the verb needs one, as JSON."""
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in self.date().items()}


class RescheduleOperationForm(OperationForm, RescheduleForm):
    """The same, with a date."""

    field_order: Sequence[str] = ("delay", "run_at", "over", "reason")


def operation_form(verb: Verb, *args: Any) -> OperationForm:
    """The form that starts an operation."""
    return (RescheduleOperationForm if verb.needs_date else OperationForm)(*args)


def parsed(text: str) -> float:
    """Seconds of a duration that a person has typed; a plus before it says the same."""
    try:
        return clock.seconds(text.removeprefix("+"))
    except ValueError:
        said = _("%(text)s is not a valid duration. Use, for example, 90s, 10m, 1h30m or 2d.")
        raise ValidationError(said, params={"text": text}) from None


def form_for(verb: Verb, *args: Any, **kwargs: Any) -> ReasonForm:
    """The form of a verb."""
    return (RescheduleForm if verb.needs_date else ReasonForm)(*args, **kwargs)


class PurgeForm(ReasonForm):
    """The queue's name, typed."""

    typed = forms.CharField(label=_("Type the name of the queue"), required=False, max_length=200)
    field_order: Sequence[str] = ("typed", "reason")

    def __init__(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue = queue

    def clean_typed(self) -> str:
        """Just that."""
        typed: str = self.cleaned_data["typed"]
        if typed != self.queue:
            raise ValidationError(_("This is not the name of the queue."))
        return typed


def written(value: Any) -> str:
    """JSON as one edits it."""
    return indented(value)
