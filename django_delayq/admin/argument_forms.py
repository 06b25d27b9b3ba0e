"""Forms for other arguments of a job: a field for each parameter of its task, or JSON if the arguments do not fit the task."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.forms import BoundField
from django.utils.functional import Promise
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import codec
from django_delayq.admin.badges import indented
from django_delayq.admin.forms import DurationField, JSONArgumentsField, ReasonForm
from django_delayq.admin.job_page import annotation
from django_delayq.console import masking
from django_delayq.console.wording import cut, error_text, format_error
from django_delayq.exceptions import DelayqError, PayloadError, StoreUnavailable
from django_delayq.models import Job
from django_delayq.producer import edit
from django_delayq.producer.task import registry
from django_delayq.states import MESSAGE
from django_delayq.text import visible

TEXT, NUMBER, DATA, TRUE, FALSE, NONE, LEFT = "text", "number", "json", "true", "false", "none", "left"  # how a value is given
WRITTEN: Final = (TEXT, NUMBER, DATA)  # with a text input
LABELS: Final[Mapping[str, str | Promise]] = MappingProxyType(
    {TEXT: _("text"), NUMBER: _("number"), DATA: "JSON", TRUE: _("yes (True)"), FALSE: _("no (False)"), NONE: _("no value (None)")}
)
CONSTANTS: Final[Mapping[str, bool | None]] = MappingProxyType({TRUE: True, FALSE: False, NONE: None})
LONGEST_DEFAULT: Final = 60  # characters
ABSENT: Final = object()  # the value of a parameter that is not given
BODY: Final = inspect.Signature([inspect.Parameter("body", inspect.Parameter.POSITIONAL_ONLY)])  # of a message
MANY: Final = {inspect.Parameter.VAR_POSITIONAL: frozenset({list}), inspect.Parameter.VAR_KEYWORD: frozenset({dict})}
Given = tuple[list[Any], dict[str, Any]]  # args and kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One parameter and its value. `takes`: the types of its annotation, None for any; `value`: ABSENT if it is not given; `placed`:
    given by position; `hidden`: the masked value if this user may not see it, else None.
    """

    parameter: inspect.Parameter
    takes: frozenset[type] | None
    value: Any
    placed: bool
    hidden: Any = None

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def label(self) -> str:
        """The name, with the stars of *args and **kwargs."""
        one = self.parameter
        return f"{'*' if one.kind is one.VAR_POSITIONAL else '**' if one.kind is one.VAR_KEYWORD else ''}{self.name}"

    @property
    def says(self) -> str:
        """The annotation and the default, as in the source."""
        one = self.parameter
        default = "" if one.default is one.empty else f" = {self.default}"
        return f"{annotation(one)}{default}".strip()

    @property
    def default(self) -> str:
        return cut(visible(repr(self.parameter.default)), LONGEST_DEFAULT)

    @property
    def optional(self) -> bool:
        return self.parameter.default is not self.parameter.empty

    @property
    def many(self) -> bool:
        """Whether this is *args or **kwargs."""
        return self.parameter.kind in MANY

    @property
    def ways(self) -> list[str]:
        """The ways to give a value: those of the annotation, and the present one."""
        found = _ways(self.takes)
        if self.way not in (*found, LEFT):
            found.append(self.way)
        return [*found, LEFT] if self.optional or self.value is ABSENT else found

    @property
    def way(self) -> str:
        """The way in which the present value is given."""
        value = self.value
        if value is ABSENT:
            return LEFT
        if isinstance(value, str):
            return TEXT if _plain(value) else DATA
        if self.takes is None:
            return DATA
        if value is None or isinstance(value, bool):
            return {True: TRUE, False: FALSE, None: NONE}[value]
        return NUMBER if isinstance(value, int | float) else DATA

    @property
    def text(self) -> str:
        """The text of the input."""
        if self.way not in WRITTEN:
            return ""
        return str(self.value) if self.way == TEXT else indented(self.value)

    def label_of(self, way: str) -> str:
        if way != LEFT:
            return str(LABELS[way])
        return now("default: %(value)s") % {"value": self.default} if self.optional else now("not given")

    def read(self, way: str, text: str) -> Any:
        """Returns the value that was entered. An untouched field keeps its value, however the browser sends it.

        Raises:
            ValidationError: the value is invalid.
        """
        text = text.replace("\r\n", "\n")
        if (way, text) == (self.way, self.text):
            return self.value
        if way not in WRITTEN:
            if text in ("", self.text):
                return ABSENT if way == LEFT else CONSTANTS[way]
            way = self._meant(way)
        if way == TEXT:
            return self._checked(text)
        return self._checked(self._number(text) if way == NUMBER else self._data(text))

    def _meant(self, way: str) -> str:
        """Returns the way of a text that was entered while a constant is selected: the only input, if the selection was not touched."""
        boxes = [each for each in self.ways if each in WRITTEN]
        if way == self.way and len(boxes) == 1:
            return boxes[0]
        raise ValidationError(
            now("You entered a value but selected “%(way)s”. Select %(ways)s, or clear the field.")
            % {"way": self.label_of(way), "ways": " / ".join(map(self.label_of, boxes))}
        )

    def _number(self, text: str) -> int | float:
        try:
            value = self._loaded(text)
        except ValidationError:
            value = None
        whole = self.takes is not None and float not in self.takes and type(self.value) is not float
        if type(value) is int or (type(value) is float and not whole):
            return value
        raise ValidationError(_("Enter a whole number, such as 7.") if whole else _("Enter a number, such as 7 or 0.5."))

    def _data(self, text: str) -> Any:
        value = self._loaded(text)
        if self.takes is not None and type(value) not in (*self.takes, type(self.value)):
            given = "None" if value is None else type(value).__name__
            says = _names(self.takes) if self.many else annotation(self.parameter)
            fields = {"argument": self.label, "annotation": says, "given": given}
            raise ValidationError(format_error("argument_type", fields))
        return value

    def _loaded(self, text: str) -> Any:
        try:
            return codec.loads(text.encode("utf-8", "surrogatepass"))
        except PayloadError as error:
            raise ValidationError(error_text(error)) from None

    def _checked(self, value: Any) -> Any:
        try:
            codec.check(value, self.name)
        except PayloadError as error:
            raise ValidationError(error_text(error)) from None
        return value


def arguments_of(job: Job, *, sensitive: bool) -> list[Argument] | None:
    """Returns the parameters of the task with their values. None if the task is not registered, or does not accept the arguments of the
    job. `sensitive`: do not mask.
    """
    known = registry.find(job.task)
    signature = BODY if job.task == MESSAGE else known.signature if known else None
    if signature is None:
        return None
    given = _bound(signature, job.args, job.kwargs)
    if given is None:
        return None
    hidden = {} if sensitive else _hidden(job, signature)
    places = [one.name for one in signature.parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return [
        Argument(
            parameter=one,
            takes=MANY[one.kind] if one.kind in MANY else known.takes(one.name) if known else None,
            value=given.get(one.name, ABSENT),
            placed=one.name in places[: len(job.args)],
            hidden=hidden.get(one.name),
        )
        for one in signature.parameters.values()
    ]


def together(found: Sequence[tuple[Argument, Any]], job: Job) -> Given:
    """Returns args and kwargs with these values. Values stay positional or named, as in the job, where possible.

    Raises:
        ValidationError: a value is missing before positional ones, or is given twice. Its dict is by name.
    """
    args: list[Any] = []
    named: dict[str, Any] = {}
    beyond: Sequence[Any] = next((value for each, value in found if each.parameter.kind is each.parameter.VAR_POSITIONAL), [])
    gap = ""  # the first parameter without a value; later ones are passed by name
    for each, value in found:
        kind = each.parameter.kind
        if kind is each.parameter.VAR_POSITIONAL:
            args += value
        elif kind is each.parameter.VAR_KEYWORD:
            taken = {one.name for one, _ in found if not one.many and one.parameter.kind is not one.parameter.POSITIONAL_ONLY}
            twice = next((name for name in value if name in taken), None)
            if twice is not None:
                raise ValidationError({each.name: format_error("argument_twice", {"argument": twice})})
            named |= value
        elif kind is each.parameter.KEYWORD_ONLY:
            named |= {} if value is ABSENT else {each.name: value}
        elif value is ABSENT:
            if beyond:
                raise ValidationError({each.name: _("This field is required because arguments after it are positional.")})
            gap = gap or each.name
        elif not gap and (each.placed or beyond or kind is each.parameter.POSITIONAL_ONLY):
            args.append(value)
        elif kind is each.parameter.POSITIONAL_ONLY:
            raise ValidationError({gap: _("This field is required because arguments after it are positional.")})
        else:
            gap = gap or each.name
            named[each.name] = value
    return args, {name: named[name] for name in (*(name for name in job.kwargs if name in named), *named)}


def _bound(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns values by parameter, including *args and **kwargs, or None if they do not fit."""
    try:
        found = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return None
    for one in signature.parameters.values():
        if one.kind is one.VAR_POSITIONAL:
            found[one.name] = list(found.get(one.name, ()))
        elif one.kind is one.VAR_KEYWORD:
            found.setdefault(one.name, {})
    return found


def _hidden(job: Job, signature: inspect.Signature) -> dict[str, Any]:
    """Returns the masked values by name. A value that equals the mask counts as masked."""
    bare = masking.without_mask(job.args), masking.without_mask(job.kwargs)
    before = _bound(signature, *bare) or {}
    after = _bound(signature, *masking.arguments(job.task, *bare, version=job.version)) or {}
    shown = _bound(signature, *masking.arguments(job.task, job.args, job.kwargs, version=job.version)) or {}
    names = masking.names_of(job.task)
    return {
        name: masking.MASK if name in names else shown[name]
        for name in signature.parameters
        if name in names or before.get(name) != after.get(name)
    }


def _ways(takes: frozenset[type] | None) -> list[str]:
    """Returns the ways to give values of these types."""
    if takes is None:
        return [TEXT, DATA]
    fits = {
        TEXT: str in takes,
        NUMBER: bool(takes & {int, float}),
        DATA: bool(takes & {list, dict}),
        TRUE: bool in takes and int not in takes,  # `int` accepts True too, but a form should not offer it
        FALSE: bool in takes and int not in takes,
        NONE: NoneType in takes,
    }
    return [way for way, fitting in fits.items() if fitting]


def _plain(text: str) -> bool:
    """Whether a browser returns this text unchanged from an input."""
    return all(letter.isprintable() or letter in "\n\t" for letter in text) and not text.startswith("\n")


def _names(takes: frozenset[type]) -> str:
    return " | ".join(sorted("None" if each is NoneType else each.__name__ for each in takes))


HIDDEN: Final = _("The task or its queue does not accept these arguments. You do not have permission to view some of them.")

ONE_LINE: Final = 80  # characters of a one-line input
MOST_LINES: Final = 12  # of a textarea
_PLAIN: Final = {"spellcheck": "false", "autocomplete": "off"}


class EditForm(ReasonForm):
    """Edits the arguments of a job.

    Args:
        sensitive: the user may see masked values. Otherwise they stay the same.
    """

    field_order: Sequence[str] = ("args", "kwargs", "reason")

    def __init__(self, job: Job, given: Any = None, *, sensitive: bool) -> None:
        self.job = job
        self.arguments = arguments_of(job, sensitive=sensitive)
        super().__init__(given)
        own = dict(_fields(self.arguments) if self.arguments is not None else _boxes(job))
        self.fields = {**own, **self.fields}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The arguments one by one; empty if they are edited as JSON. `box`: the text input or None; `way`: the select of ways or None;
        `hidden`: the masked value of an argument that stays the same.
        """
        found = []
        for each in self.arguments or ():
            box, way = (self[name] if name in self.fields else None for name in (_box(each), _way(each)))
            hidden = "" if each.hidden is None else _shown(each.hidden)
            errors = [str(error) for field in (box, way) if field is not None for error in field.errors]
            found.append({"argument": each, "box": box, "way": way, "hidden": hidden, "errors": errors})
        return found

    @property
    def others(self) -> list[BoundField]:
        """The fields that belong to no argument."""
        own = {name for each in self.arguments or () for name in (_box(each), _way(each))}
        return [field for field in self if field.name not in own]

    @property
    def misfits(self) -> bool:
        """Whether the task is registered but does not accept the present arguments."""
        return self.arguments is None and registry.find(self.job.task) is not None

    def clean(self) -> dict[str, Any]:
        """Checks that the task accepts the arguments and that they have changed."""
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
        """Refuses unchanged arguments."""
        if not self.changes:
            raise ValidationError(_("The arguments have not changed. To run the job again with the same arguments, requeue it."))

    @property
    def changes(self) -> bool:
        """Whether the arguments have changed."""
        given = [self.cleaned_data["args"], self.cleaned_data["kwargs"]]
        return codec.dumps(given) != codec.dumps([self.job.args, self.job.kwargs])

    @property
    def before(self) -> str:
        """The present arguments, as this user sees them."""
        if self.arguments is None:
            return f"{indented(self.job.args)}\n{indented(self.job.kwargs)}"
        return _by_name((each, each.value) for each in self.arguments)

    @property
    def after(self) -> str:
        """The new arguments, as this user sees them."""
        if self.arguments is None:
            return f"{indented(self.cleaned_data['args'])}\n{indented(self.cleaned_data['kwargs'])}"
        return _by_name(self.cleaned_data["read"])

    @property
    def digest(self) -> str:
        """A digest that detects changes by other users, of what this user sees."""
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
            cleaned["args"], cleaned["kwargs"] = together(found, self.job)
        except ValidationError as error:
            for name, complaints in error.message_dict.items():
                self.add_error(self._place(name), complaints)
        cleaned["read"] = found

    def _complain(self, error: DelayqError) -> None:
        """Adds an error to its field, without revealing hidden values."""
        name = str(error.fields.get("argument", ""))
        said = self.told(error, name)
        self.add_error(None if said == HIDDEN else self._place(name), said)

    def told(self, error: DelayqError, argument: str = "") -> Any:
        """Returns the text of an error about the arguments, or about one of them. It reveals neither a hidden value nor its length."""
        hidden = [each.name for each in self.arguments or () if each.hidden is not None]
        about = argument in hidden or not argument
        return HIDDEN if hidden and about and not isinstance(error, StoreUnavailable) else error_text(error)

    def _place(self, name: str) -> str | None:
        """Returns the name of the field of an argument, or None for the whole form."""
        return next((field for field in (f"value-{name}", f"as-{name}") if field in self.fields), None)


class CopyForm(EditForm):
    """Schedules a copy of a job, with the same arguments or others."""

    delay = DurationField(
        label=_("Delay from now"),
        required=False,
        help_text=_("For example +10m, 90s, 1h30m or 2d. If empty, the job is due immediately."),
    )
    field_order: Sequence[str] = ("args", "kwargs", "delay", "reason")

    def check_change(self) -> None:
        """A copy can have the same arguments."""


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
    for name, kind, label, rows in (("args", list, _("Positional arguments"), 6), ("kwargs", dict, _("Keyword arguments"), 10)):
        widget = forms.Textarea(attrs={**_PLAIN, "rows": rows})
        yield name, JSONArgumentsField(kind, label=label, initial=indented(getattr(job, name)), widget=widget)


def _by_name(found: Any) -> str:
    shown = {each.label: value if each.hidden is None else each.hidden for each, value in found if value is not ABSENT}
    return indented(shown)


def _shown(value: Any) -> str:
    return visible(value if isinstance(value, str) else indented(value))
