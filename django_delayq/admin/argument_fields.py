"""The arguments of a job as a form asks for them, one parameter of its task each: what may stand there, and what was written there."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.utils.functional import Promise
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import codec
from django_delayq.admin.arguments import annotation
from django_delayq.admin.show import indented
from django_delayq.console import masking
from django_delayq.console.wording import cut, error_text, format_error
from django_delayq.exceptions import PayloadError
from django_delayq.models import Job
from django_delayq.producer.task import registry
from django_delayq.states import MESSAGE
from django_delayq.text import visible

TEXT, NUMBER, DATA, TRUE, FALSE, NONE, LEFT = "text", "number", "json", "true", "false", "none", "left"  # how a value is given
WRITTEN: Final = (TEXT, NUMBER, DATA)  # in a box; the others are chosen
LABELS: Final[Mapping[str, str | Promise]] = MappingProxyType(
    {TEXT: _("text"), NUMBER: _("number"), DATA: "JSON", TRUE: _("yes (True)"), FALSE: _("no (False)"), NONE: _("no value (None)")}
)
CONSTANTS: Final[Mapping[str, bool | None]] = MappingProxyType({TRUE: True, FALSE: False, NONE: None})
LONGEST_DEFAULT: Final = 60  # characters
ABSENT: Final = object()  # in place of the value of a parameter that is not given
BODY: Final = inspect.Signature([inspect.Parameter("body", inspect.Parameter.POSITIONAL_ONLY)])  # of a message
Given = tuple[list[Any], dict[str, Any]]  # arguments by place, and by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What a job has for one parameter. `takes`: the types that its annotation names, None for any; `value`: ABSENT where it has none;
    `placed`: it is given by place; `hidden`: what a person sees who may not see the value, and who leaves it as it is; None: all of it
    may be seen.
    """

    parameter: inspect.Parameter
    takes: frozenset[type] | None
    value: Any
    placed: bool
    hidden: Any = None

    @property
    def name(self) -> str:
        """What the function calls it."""
        return self.parameter.name

    @property
    def label(self) -> str:
        """The same with the stars of what takes many."""
        one = self.parameter
        return f"{'*' if one.kind is one.VAR_POSITIONAL else '**' if one.kind is one.VAR_KEYWORD else ''}{self.name}"

    @property
    def says(self) -> str:
        """Its annotation and its default, as the function has them."""
        one = self.parameter
        default = "" if one.default is one.empty else f" = {self.default}"
        return f"{annotation(one)}{default}".strip()

    @property
    def default(self) -> str:
        """As Python writes it."""
        return cut(visible(repr(self.parameter.default)), LONGEST_DEFAULT)

    @property
    def optional(self) -> bool:
        """Whether the function does without it."""
        return self.parameter.default is not self.parameter.empty

    @property
    def many(self) -> bool:
        """Whether it is all that no other parameter takes."""
        return self.parameter.kind in (self.parameter.VAR_POSITIONAL, self.parameter.VAR_KEYWORD)

    @property
    def ways(self) -> list[str]:
        """How it may be given: as its annotation says, and as it is given now."""
        found = _ways(self.takes)
        if self.way not in (*found, LEFT):
            found.append(self.way)
        return [*found, LEFT] if self.optional or self.value is ABSENT else found

    @property
    def way(self) -> str:
        """How it is given now."""
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
        """What stands in its box."""
        if self.way not in WRITTEN:
            return ""
        return str(self.value) if self.way == TEXT else indented(self.value)

    def label_of(self, way: str) -> str:
        """What that way is called."""
        if way != LEFT:
            return str(LABELS[way])
        return now("default: %(value)s") % {"value": self.default} if self.optional else now("not given")

    def read(self, way: str, text: str) -> Any:
        """The value that was written, or chosen; the one that it has where neither was touched, however a browser sends that.

        Raises:
            ValidationError: that is no such value.
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
        """The way of a value that was written though another one stands chosen: the only one that there is, if nobody has chosen."""
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


def of(job: Job, *, sensitive: bool) -> list[Argument] | None:
    """The parameters of its task with what the job has for each; None where the task is not known here, or what the job has fits no
    longer. `sensitive`: with what is masked for others.
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
            takes=_types(one, known.takes(one.name) if known else None),
            value=given.get(one.name, ABSENT),
            placed=one.name in places[: len(job.args)],
            hidden=hidden.get(one.name),
        )
        for one in signature.parameters.values()
    ]


def together(found: Sequence[tuple[Argument, Any]], job: Job) -> Given:
    """The arguments of a job with these values, by place and by name as it has them now, as far as that goes.

    Raises:
        ValidationError: one is left out behind which others are given by place, or given twice. Its dict is by name.
    """
    args: list[Any] = []
    named: dict[str, Any] = {}
    beyond: Sequence[Any] = next((value for each, value in found if each.parameter.kind is each.parameter.VAR_POSITIONAL), [])
    gap = ""  # the parameter from which on arguments by place are no longer possible
    for each, value in found:
        kind = each.parameter.kind
        if kind is each.parameter.VAR_POSITIONAL:
            args += value
        elif kind is each.parameter.VAR_KEYWORD:
            twice = next((name for name in value if _takes_name(found, name)), None)
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


def _takes_name(found: Sequence[tuple[Argument, Any]], name: str) -> bool:
    """Whether a parameter of its own takes what is given by that name."""
    return any(each.name == name and not each.many and each.parameter.kind is not each.parameter.POSITIONAL_ONLY for each, _ in found)


def _bound(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Values by parameter, lists and objects of the rest among them; None where they do not fit."""
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
    """By name, what is shown of each parameter of which something is masked. A value that is itself the mask is masked, too."""
    bare = masking.without_mask(job.args), masking.without_mask(job.kwargs)
    before, after = _bound(signature, *bare) or {}, _bound(signature, *masking.arguments(job.task, *bare)) or {}
    shown = _bound(signature, *masking.arguments(job.task, job.args, job.kwargs)) or {}
    names = masking.names_of(job.task)
    return {
        name: masking.MASK if name in names else shown[name]
        for name in signature.parameters
        if name in names or before.get(name) != after.get(name)
    }


def _types(one: inspect.Parameter, takes: frozenset[type] | None) -> frozenset[type] | None:
    if one.kind is one.VAR_POSITIONAL:
        return frozenset({list})
    return frozenset({dict}) if one.kind is one.VAR_KEYWORD else takes


def _ways(takes: frozenset[type] | None) -> list[str]:
    """How values of these types are given; in JSON all are."""
    if takes is None:
        return [TEXT, DATA]
    fits = {
        TEXT: str in takes,
        NUMBER: bool(takes & {int, float}),
        DATA: bool(takes & {list, dict}),
        TRUE: bool in takes and int not in takes,  # an annotation of a number lets them in, and nobody means them
        FALSE: bool in takes and int not in takes,
        NONE: NoneType in takes,
    }
    return [way for way, fitting in fits.items() if fitting]


def _plain(text: str) -> bool:
    """Whether a box of a browser gives a text back as it is."""
    return all(letter.isprintable() or letter in "\n\t" for letter in text) and not text.startswith("\n")


def _names(takes: frozenset[type]) -> str:
    return " | ".join(sorted("None" if each is NoneType else each.__name__ for each in takes))
