"""The forms by which a person gives a job other arguments: a field for each parameter of its task, or JSON where that cannot be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.forms import BoundField
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import codec
from django_delayq.admin import argument_fields
from django_delayq.admin.argument_fields import ABSENT, DATA, LEFT, NUMBER, WRITTEN, Argument
from django_delayq.admin.forms import ReasonForm, parsed
from django_delayq.admin.show import indented
from django_delayq.console.wording import error_text
from django_delayq.exceptions import DelayqError, PayloadError, StoreUnavailable
from django_delayq.models import Job
from django_delayq.producer import edit
from django_delayq.producer.task import registry
from django_delayq.text import visible

HIDDEN: Final = _("The task or its queue does not accept these arguments. You are not allowed to see some of them.")

ONE_LINE: Final = 80  # characters of a text for which a box of one line is enough
MOST_LINES: Final = 12  # of a box
_PLAIN: Final = {"spellcheck": "false", "autocomplete": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRow:
    """One argument, as the page shows it. `box`: where it is written; `way`: where one chooses what it is; None where there is nothing
    to write, or to choose. `hidden`: what is shown of one that stays as it is.
    """

    argument: Argument
    box: BoundField | None
    way: BoundField | None
    hidden: str

    @property
    def errors(self) -> list[str]:
        """Of both."""
        return [str(error) for field in (self.box, self.way) if field is not None for error in field.errors]


class EditForm(ReasonForm):
    """Other arguments for a job.

    Args:
        sensitive: this person sees what is masked for others. Who does not leaves it as it is.
    """

    field_order: Sequence[str] = ("args", "kwargs", "reason")

    def __init__(self, job: Job, given: Any = None, *, sensitive: bool) -> None:
        self.job = job
        self.arguments = argument_fields.of(job, sensitive=sensitive)
        super().__init__(given)
        own = dict(_fields(self.arguments) if self.arguments is not None else _boxes(job))
        self.fields = {**own, **self.fields}

    @property
    def rows(self) -> list[ParameterRow]:
        """The arguments one by one; none where they are written as JSON."""
        return [
            ParameterRow(
                argument=each,
                box=self[_box(each)] if _box(each) in self.fields else None,
                way=self[_way(each)] if _way(each) in self.fields else None,
                hidden="" if each.hidden is None else _shown(each.hidden),
            )
            for each in self.arguments or ()
        ]

    @property
    def others(self) -> list[BoundField]:
        """The fields that are no arguments of their own."""
        own = {name for each in self.arguments or () for name in (_box(each), _way(each))}
        return [field for field in self if field.name not in own]

    @property
    def misfits(self) -> bool:
        """Whether the task is known here, and does not take what the job has."""
        return self.arguments is None and registry.find(self.job.task) is not None

    def clean_args(self) -> list[Any]:
        """A JSON list."""
        args: list[Any] = self._json("args", list, _('Enter a JSON list, such as [7, "text"].'))
        return args

    def clean_kwargs(self) -> dict[str, Any]:
        """A JSON object."""
        kwargs: dict[str, Any] = self._json("kwargs", dict, _('Enter a JSON object, such as {"note": "text"}.'))
        return kwargs

    def clean(self) -> dict[str, Any]:
        """Something that the task takes, and other than what it had."""
        cleaned = super().clean() or self.cleaned_data
        if self.arguments is not None:
            self._read(self.arguments, cleaned)
        if not self.errors:
            try:
                edit.check(self.job.task, self.job.queue, cleaned["args"], cleaned["kwargs"])
            except DelayqError as error:
                self._complain(error)
            else:
                self.check_change()
        return cleaned

    def check_change(self) -> None:
        """Refuses arguments that it has."""
        if not self.changes:
            raise ValidationError(_("The arguments are unchanged. To run the job again with the same arguments, requeue it."))

    @property
    def changes(self) -> bool:
        """Whether they are others."""
        given = [self.cleaned_data["args"], self.cleaned_data["kwargs"]]
        return codec.dumps(given) != codec.dumps([self.job.args, self.job.kwargs])

    @property
    def before(self) -> str:
        """The arguments that it has, as far as this person sees them."""
        if self.arguments is None:
            return f"{indented(self.job.args)}\n{indented(self.job.kwargs)}"
        return _by_name((each, each.value) for each in self.arguments)

    @property
    def after(self) -> str:
        """Those that it is to have, likewise."""
        if self.arguments is None:
            return f"{indented(self.cleaned_data['args'])}\n{indented(self.cleaned_data['kwargs'])}"
        return _by_name(self.cleaned_data["read"])

    @property
    def digest(self) -> str:
        """Tells whether somebody else has changed them since, as far as this person sees them."""
        return hashlib.sha256(self.before.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _read(self, arguments: Sequence[Argument], cleaned: dict[str, Any]) -> None:
        if any(name not in self.data for name in self.fields if name.startswith(("value-", "as-"))):
            raise ValidationError(_("The form was incomplete. Try again."))
        found = []
        for each in arguments:
            if each.hidden is not None:
                found.append((each, each.value))
            elif not {_box(each), _way(each)} & {*self.errors}:
                try:
                    found.append((each, each.read(cleaned.get(_way(each), each.ways[0]), cleaned.get(_box(each), ""))))
                except ValidationError as error:
                    self.add_error(self._place(each.name), error)
        if self.errors:
            return
        try:
            cleaned["args"], cleaned["kwargs"] = argument_fields.together(found, self.job)
        except ValidationError as error:
            for name, complaints in error.message_dict.items():
                self.add_error(self._place(name), complaints)
        cleaned["read"] = found

    def _complain(self, error: DelayqError) -> None:
        """At the field that an error is about, without saying what of it is hidden."""
        name = str(error.fields.get("argument", ""))
        said = self.told(error, name)
        self.add_error(None if said == HIDDEN else self._place(name), said)

    def told(self, error: DelayqError, argument: str = "") -> Any:
        """What an error says of arguments of which some may be hidden from this person, or of one of them: neither a hidden value, nor
        how long it is.
        """
        hidden = [each.name for each in self.arguments or () if each.hidden is not None]
        about = argument in hidden or not argument
        return HIDDEN if hidden and about and not isinstance(error, StoreUnavailable) else error_text(error)

    def _place(self, name: str) -> str | None:
        """The field of an argument; None for the form as a whole."""
        return next((field for field in (f"value-{name}", f"as-{name}") if field in self.fields), None)

    def _json(self, name: str, kind: type, otherwise: Any) -> Any:
        try:
            value = codec.loads(self.cleaned_data[name].encode("utf-8", "surrogatepass"))
        except PayloadError as error:
            raise ValidationError("%(said)s %(error)s", params={"said": otherwise, "error": error_text(error)}) from None
        if not isinstance(value, kind):
            raise ValidationError(otherwise)
        return value


class CopyForm(EditForm):
    """A job once more: with the arguments that it had, or with others."""

    delay = forms.CharField(
        label=_("Delay from now"),
        required=False,
        help_text=_("For example +10m, 90s, 1h30m or 2d. If empty, the job is due immediately."),
    )
    field_order: Sequence[str] = ("args", "kwargs", "delay", "reason")

    def clean_delay(self) -> float:
        """Seconds."""
        text = self.cleaned_data["delay"].strip()
        return parsed(text) if text else 0.0

    def check_change(self) -> None:
        """The same ones are welcome."""


def _box(argument: Argument) -> str:
    return f"value-{argument.name}"


def _way(argument: Argument) -> str:
    return f"as-{argument.name}"


def _fields(arguments: Sequence[Argument]) -> Iterator[tuple[str, forms.Field]]:
    for each in arguments:
        if each.hidden is not None:
            continue
        ways = each.ways
        if any(way in WRITTEN for way in ways):
            yield _box(each), forms.CharField(label=each.label, required=False, strip=False, initial=each.text, widget=_widget(each))
        if len(ways) > 1 or ways[0] not in WRITTEN:
            label = now("About %(name)s") % {"name": each.label}
            choices = [(way, each.label_of(way)) for way in ways]
            select = forms.Select(attrs={"aria-label": label})
            yield _way(each), forms.ChoiceField(label=label, choices=choices, initial=each.way, widget=select)


def _widget(argument: Argument) -> forms.Widget:
    text, ways = argument.text, argument.ways
    lines = text.count("\n") + 1 + len(text) // ONE_LINE
    if lines == 1 and argument.way != DATA and DATA not in ways[:1]:
        numbers = NUMBER in ways and not {*ways} - {NUMBER, LEFT}
        return forms.TextInput(attrs={**_PLAIN, "class": "vTextField", **({"inputmode": "decimal"} if numbers else {})})
    return forms.Textarea(attrs={**_PLAIN, "rows": min(MOST_LINES, lines + 1)})


def _boxes(job: Job) -> Iterator[tuple[str, forms.Field]]:
    for name, label, rows in (("args", _("Positional arguments"), 6), ("kwargs", _("Keyword arguments"), 10)):
        widget = forms.Textarea(attrs={**_PLAIN, "rows": rows})
        yield name, forms.CharField(label=label, initial=indented(getattr(job, name)), widget=widget)


def _by_name(found: Any) -> str:
    shown = {each.label: value if each.hidden is None else each.hidden for each, value in found if value is not ABSENT}
    return indented(shown)


def _shown(value: Any) -> str:
    return visible(value if isinstance(value, str) else indented(value))
