"""What a person gives a schedule: other dates, or, of one that is made in the admin, all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.utils.timezone import get_default_timezone_name
from django.utils.translation import gettext_lazy as _

from django_delayq import clock, codec, conf
from django_delayq.admin.forms import ReasonForm, parsed, written
from django_delayq.admin.schedule_page import POLICIES
from django_delayq.console.wording import error_text
from django_delayq.exceptions import ConfigError, DelayqError, PayloadError
from django_delayq.models import Periodic
from django_delayq.models.calendar import NAME
from django_delayq.periodic.dates import MAX_TIMEZONE, NO_PLACES, Dates, place_of
from django_delayq.periodic.declarations import check_jobs
from django_delayq.producer.task import registry
from django_delayq.text import visible

ZONES = "delayq-zones"  # the list of names that a field of a zone offers


class DatesForm(ReasonForm):
    """A cron on the clock of a zone, or a period."""

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
    every = forms.CharField(
        label=_("Or a period"),
        required=False,
        max_length=50,
        help_text=_("For example 90s, 10m, 2h or 1d. Counted from 1970 in UTC, so a day always has 24 hours."),
    )
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("The reason is kept in the history of the schedule. Other users can see it."),
    )
    field_order: Sequence[str] = ("cron", "timezone", "every", "reason")

    @property
    def zones(self) -> list[str]:
        """The names of all zones of places that this host knows."""
        return sorted(available_timezones() - NO_PLACES)

    @property
    def jitter(self) -> float | None:
        """Of the schedule that is to have these dates, in seconds."""
        return None

    def clean_timezone(self) -> str:
        """That of the settings, where none is given."""
        name = str(self.cleaned_data["timezone"]).strip() or get_default_timezone_name()
        try:
            place_of(name)
        except ConfigError as error:
            raise ValidationError(_message(error)) from None
        return name

    def clean_every(self) -> float | None:
        """Seconds."""
        text = str(self.cleaned_data["every"]).strip()
        return parsed(text) if text else None

    def clean(self) -> dict[str, Any]:
        """One of the two, and dates that come."""
        cleaned = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        cron, every = cleaned["cron"], cleaned["every"]
        if bool(cron) == (every is not None):
            raise ValidationError(_("Enter either a cron expression or a period."))
        try:
            cleaned["dates"] = found = Dates.of(
                cron, every=every, timezone=cleaned["timezone"] if cron else "UTC", jitter=self.jitter, where="dates"
            )
            if not found.fires:
                self.add_error("cron", _("The cron expression never matches a date."))
        except ConfigError as error:
            self.add_error("cron" if cron else "every", _message(error))
        return cleaned

    @property
    def stale(self) -> bool:
        """Whether somebody else has changed the schedule since the form was opened."""
        return False

    def given(self) -> dict[str, Any]:
        """As `schedules` takes them."""
        dates: Dates = self.cleaned_data["dates"]
        if dates.every_ms:
            return {"every": dates.every_ms / 1000}
        return {"cron": dates.cron, "timezone": dates.timezone}


class OverrideForm(DatesForm):
    """Other dates for a schedule, its jitter being what it is."""

    def __init__(self, row: Periodic, given: Any = None) -> None:
        self.row = row
        super().__init__(given, initial=_initial(row, override=True))

    @property
    def jitter(self) -> float | None:
        """Of a period that is shorter than it, `schedule_rows` cuts it."""
        return None


class ScheduleForm(DatesForm):
    """A schedule of the admin: new, or changed.

    Args:
        row: the one to change; None for a new one.
        masked: its arguments are hidden from this person, so they stay as they are.
    """

    name = forms.CharField(label=_("Name"), max_length=NAME, widget=forms.TextInput(attrs={"class": "vTextField"}))
    task = forms.ChoiceField(label=_("Task"))
    spread = forms.CharField(
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
    args = forms.CharField(
        label=_("Positional arguments"), required=False, widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})
    )
    kwargs = forms.CharField(
        label=_("Keyword arguments"), required=False, widget=forms.Textarea(attrs={"rows": 5, "spellcheck": "false"})
    )
    field_order: Sequence[str] = [
        "name",
        "task",
        "args",
        "kwargs",
        "cron",
        "timezone",
        "every",
        "spread",
        "missed",
        "overlap",
        "reason",
    ]

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
    def jitter(self) -> float | None:
        """What is given, in seconds."""
        found: float | None = self.cleaned_data.get("spread")
        return found

    @property
    def digest(self) -> str:
        """Tells whether somebody else has changed it since, by what this person may see; "" for a new one."""
        if self.row is None:
            return ""
        seen = [[name, self.initial[name]] for name in self.fields if name in self.initial]
        return hashlib.sha256(written(seen).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def stale(self) -> bool:
        """By the digest that went with the form."""
        return self.is_bound and self.data.get("digest", "") != self.digest

    def clean_spread(self) -> float | None:
        """Seconds."""
        text = str(self.cleaned_data["spread"]).strip()
        return parsed(text) if text else None

    def clean_name(self) -> str:
        """One that a schedule may have, and that none has."""
        name = str(self.cleaned_data["name"])
        if not name.isprintable():
            raise ValidationError(_("The name cannot contain invisible characters."))
        if Periodic.objects.using(conf.get().database).filter(name=name).exists():
            raise ValidationError(_("A schedule with this name already exists."))
        return name

    def clean_args(self) -> list[Any]:
        """A JSON list."""
        found: list[Any] = self._json("args", list, _('Enter a JSON list, such as [7, "text"].'))
        return found

    def clean_kwargs(self) -> dict[str, Any]:
        """A JSON object."""
        found: dict[str, Any] = self._json("kwargs", dict, _('Enter a JSON object, such as {"note": "text"}.'))
        return found

    def clean(self) -> dict[str, Any]:
        """Also arguments that the task takes."""
        cleaned = super().clean()
        if not self.masked and not self.errors:
            try:
                asked = {field: cleaned[field] for field in ("task", "args", "kwargs", "overlap")}
                check_jobs(Periodic(name=self.row.name if self.row else cleaned["name"], **asked))
            except DelayqError as error:
                raise ValidationError(error_text(error)) from None
        return cleaned

    def given(self) -> dict[str, Any]:
        """As `schedules` takes them."""
        names = [name for name in ("task", "args", "kwargs", "missed", "overlap") if name in self.fields]
        return {**super().given(), "jitter": self.jitter, **{name: self.cleaned_data[name] for name in names}}

    def _json(self, name: str, kind: type, otherwise: Any) -> Any:
        text = str(self.cleaned_data[name]).strip()
        if not text:
            return kind()
        try:
            value = codec.loads(text.encode("utf-8", "surrogatepass"))
        except PayloadError as error:
            raise ValidationError("%(said)s %(error)s", params={"said": otherwise, "error": error_text(error)}) from None
        if not isinstance(value, kind):
            raise ValidationError(otherwise)
        return value


def _initial(row: Periodic, *, override: bool) -> dict[str, str]:
    """Its dates as one writes them: those of people where there are any, or its owner's."""
    other = override and row.overridden
    cron = row.override_cron if other else row.cron
    every_ms = row.override_every_ms if other else row.every_ms
    zone = row.override_timezone if other else row.timezone
    return {"cron": cron, "timezone": zone if cron else "", "every": clock.text(every_ms / 1000) if every_ms else ""}


def _whole(row: Periodic) -> dict[str, str]:
    return {
        **_initial(row, override=False),
        "task": row.task,
        "spread": clock.text(row.jitter_ms / 1000) if row.jitter_ms else "",
        "missed": row.missed,
        "overlap": row.overlap,
        "args": written(row.args),
        "kwargs": written(row.kwargs),
    }


def _message(error: ConfigError) -> str:
    """What is wrong, and the way out."""
    return " ".join(visible(str(error.fields[name])) for name in ("message", "hint") if error.fields.get(name)) or error_text(error)
