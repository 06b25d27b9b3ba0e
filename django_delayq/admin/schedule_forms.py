"""Forms for schedules: override the dates of one, or add and change one in the admin."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.utils.functional import Promise
from django.utils.timezone import get_default_timezone_name
from django.utils.translation import gettext_lazy as _

from django_delayq import durations
from django_delayq.admin.badges import indented
from django_delayq.admin.forms import DurationField, JSONArgumentsField, ReasonForm, reason_field
from django_delayq.console.wording import error_text
from django_delayq.exceptions import ConfigError, DelayqError
from django_delayq.models import Periodic
from django_delayq.models.periodic import NAME
from django_delayq.periodic.dates import MAX_TIMEZONE, NO_PLACES, Dates, place_of
from django_delayq.periodic.declarations import check_jobs
from django_delayq.periodic.schedule_rows import dates_of
from django_delayq.producer.task import registry
from django_delayq.text import visible

POLICIES: Final[dict[str, dict[str, Promise]]] = {
    "missed": {
        "skip": _("skip: missed ticks create no jobs"),
        "once": _("once: only the latest missed tick creates a job"),
        "all": _("all: every missed tick creates a job, at most 100"),
    },
    "overlap": {
        "allow": _("allow: runs may overlap"),
        "skip": _("skip: a tick does not run if another run is still in progress"),
        "wait": _("wait: a run waits until the previous run has ended"),
    },
}
ZONES = "delayq-zones"  # id of the datalist of time zones


class DatesForm(ReasonForm):
    """Asks for a cron expression with its time zone, or for a period."""

    cron = forms.CharField(
        label=_("Cron"),
        required=False,
        max_length=NAME,
        help_text=_("Minute, hour, day of month, month, day of week. For example, 0 3 * * * is every day at 03:00."),
        widget=forms.TextInput(attrs={"class": "vTextField", "spellcheck": "false", "autocomplete": "off"}),
    )
    timezone = forms.CharField(
        label=_("Time zone"),
        required=False,
        max_length=MAX_TIMEZONE,
        help_text=_("The time zone of the cron expression, such as Europe/Berlin."),
        widget=forms.TextInput(attrs={"class": "vTextField", "list": ZONES, "autocomplete": "off"}),
    )
    every = DurationField(
        label=_("Or a period"),
        required=False,
        max_length=50,
        help_text=_("For example 90s, 10m, 2h or 1d. Counted from 1970 in UTC, so a day always has 24 hours."),
    )
    reason = reason_field(_("The reason is kept in the history of the schedule. Other users can see it."))
    field_order: Sequence[str] = ("cron", "timezone", "every", "reason")

    @property
    def zones(self) -> list[str]:
        """The names of all time zones of this host."""
        return sorted(available_timezones() - NO_PLACES)

    def clean_timezone(self) -> str:
        """Uses the time zone of the settings if the field is empty."""
        name = str(self.cleaned_data["timezone"]).strip() or get_default_timezone_name()
        try:
            place_of(name)
        except ConfigError as error:
            raise ValidationError(_message(error)) from None
        return name

    def clean(self) -> dict[str, Any]:
        """Requires either a cron expression or a period, and dates in the future."""
        cleaned = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        cron, every = cleaned["cron"], cleaned["every"]
        if bool(cron) == (every is not None):
            raise ValidationError(_("Enter either a cron expression or a period."))
        try:
            cleaned["dates"] = found = Dates.of(
                cron, every=every, timezone=cleaned["timezone"] if cron else "UTC", jitter=cleaned.get("spread"), where="dates"
            )
            if not found.fires:
                self.add_error("cron", _("The cron expression never matches a date."))
        except ConfigError as error:
            self.add_error("cron" if cron else "every", _message(error))
        return cleaned

    @property
    def stale(self) -> bool:
        """Whether another user has changed the schedule since the form was opened."""
        return False

    def given(self) -> dict[str, Any]:
        """The options for `schedules`."""
        dates: Dates = self.cleaned_data["dates"]
        if dates.every_ms:
            return {"every": dates.every_ms / 1000}
        return {"cron": dates.cron, "timezone": dates.timezone}


class OverrideForm(DatesForm):
    """Other dates for a schedule. Its jitter stays; `schedule_rows` cuts it for a shorter period."""

    def __init__(self, row: Periodic, given: Any = None) -> None:
        self.row = row
        super().__init__(given, initial=_initial(row, override=True))


class ScheduleForm(DatesForm):
    """Adds or changes a schedule of the admin.

    Args:
        row: the schedule to change; None for a new one.
        masked: the user may not see its arguments, so they stay the same.
    """

    name = forms.CharField(label=_("Name"), max_length=NAME, widget=forms.TextInput(attrs={"class": "vTextField"}))
    task = forms.ChoiceField(label=_("Task"))
    spread = DurationField(
        label=_("Jitter"),
        required=False,
        max_length=50,
        help_text=_(
            "For example 5m. Each job becomes due at a random time after its tick, up to this long, so that the jobs "
            "do not all start at once."
        ),
    )
    missed = forms.ChoiceField(label=_("Missed ticks"), choices=list(POLICIES["missed"].items()), initial="once")
    overlap = forms.ChoiceField(label=_("Overlap"), choices=list(POLICIES["overlap"].items()), initial="allow")
    args = JSONArgumentsField(
        list, label=_("Positional arguments"), required=False, widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})
    )
    kwargs = JSONArgumentsField(
        dict, label=_("Keyword arguments"), required=False, widget=forms.Textarea(attrs={"rows": 5, "spellcheck": "false"})
    )
    field_order: Sequence[str] = ("name", "task", "args", "kwargs", *DatesForm.field_order[:3], "spread", "missed", "overlap", "reason")

    def __init__(self, given: Any = None, *, row: Periodic | None = None, masked: bool = False) -> None:
        self.row, self.masked = row, masked
        super().__init__(given, initial=_whole(row) if row else {"args": "[]", "kwargs": "{}"})
        names = [name for name in registry.names() if not registry.get(name).own]
        tasks: Any = self.fields["task"]
        tasks.choices = [("", "---------"), *((name, visible(name)) for name in names)]
        if row is not None:
            del self.fields["name"]
        if masked:
            del self.fields["args"], self.fields["kwargs"], self.fields["task"]

    @property
    def digest(self) -> str:
        """A digest that detects changes by other users, of what this user sees; "" for a new schedule."""
        if self.row is None:
            return ""
        seen = [[name, self.initial[name]] for name in self.fields if name in self.initial]
        return hashlib.sha256(indented(seen).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def stale(self) -> bool:
        return self.is_bound and self.data.get("digest", "") != self.digest

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if not name.isprintable():
            raise ValidationError(_("The name cannot contain invisible characters."))
        if Periodic.objects.filter(name=name).exists():
            raise ValidationError(_("A schedule with this name already exists."))
        return name

    def clean(self) -> dict[str, Any]:
        """Checks that the task accepts the arguments."""
        cleaned = super().clean()
        if not self.masked and not self.errors:
            try:
                asked = {field: cleaned[field] for field in ("task", "args", "kwargs", "overlap")}
                check_jobs(Periodic(name=self.row.name if self.row else cleaned["name"], **asked))
            except DelayqError as error:
                raise ValidationError(error_text(error)) from None
        return cleaned

    def given(self) -> dict[str, Any]:
        """The options for `schedules`."""
        names = [name for name in ("task", "args", "kwargs", "missed", "overlap") if name in self.fields]
        return {**super().given(), "jitter": self.cleaned_data["spread"], **{name: self.cleaned_data[name] for name in names}}


def _initial(row: Periodic, *, override: bool) -> dict[str, str]:
    """Returns the initial values of the dates: the overridden ones if wanted, or the schedule's own."""
    dates = dates_of(row) if override else Dates(row.cron, row.every_ms, row.timezone, row.jitter_ms)
    every = durations.text(dates.every_ms / 1000) if dates.every_ms else ""
    return {"cron": dates.cron, "timezone": dates.timezone if dates.cron else "", "every": every}


def _whole(row: Periodic) -> dict[str, str]:
    return {
        **_initial(row, override=False),
        "task": row.task,
        "spread": durations.text(row.jitter_ms / 1000) if row.jitter_ms else "",
        "missed": row.missed,
        "overlap": row.overlap,
        "args": indented(row.args),
        "kwargs": indented(row.kwargs),
    }


def _message(error: ConfigError) -> str:
    """Returns the message and the hint of an error."""
    return " ".join(visible(str(error.fields[name])) for name in ("message", "hint") if error.fields.get(name)) or error_text(error)
