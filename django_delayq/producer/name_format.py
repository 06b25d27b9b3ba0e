"""The options `serial`, `concurrency`, `rate` and `fair`: a format over the arguments of a task makes the name that jobs share."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from string import Formatter
from typing import Any, Final, NamedTuple

from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.job_meta import MAX_NAME, MOST, MOST_TOKENS, Quota, Rate, SharedName, is_text, scoped
from django_delayq.text import cut, did_you_mean

_NAMED: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
_NOWHERE: Final = -1  # the place of a keyword-only parameter
_SCOPE: Final = -2  # instead of a place: the scope of the job
_KINDS: Final = (str, int, float)


class Piece(NamedTuple):
    """A literal text and the parameter after it ("": none), with its position among the positional parameters and its default."""

    text: str
    parameter: str = ""
    place: int = _NOWHERE
    default: Any = None


class NameFormat:
    """`"order:{order_id}"` over the parameters of one function; `option` names the option in errors.

    Args:
        most: how many jobs of a name hold a lease at a time.
    """

    __slots__ = ("most", "option", "pieces", "text")

    def __init__(self, text: str, most: int, option: str, pieces: tuple[Piece, ...]) -> None:
        self.text, self.most, self.option, self.pieces = text, most, option, pieces

    def made(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str, scope: str) -> str:
        """The name of a job of a scope with these arguments, which the task accepts. `serial` names are within the scope; for others
        the format decides.

        Raises:
            PayloadError: the name would be empty, too long, or contain characters that a name cannot have; or an argument is neither
                a text nor a number.
        """
        said = ""
        for text, parameter, place, default in self.pieces:
            said += text
            if not parameter:
                continue
            if place == _SCOPE:
                said += scope
                continue
            value = args[place] if 0 <= place < len(args) else kwargs.get(parameter, default)
            if not isinstance(value, _KINDS):
                raise PayloadError(
                    f"{where}: {self.option}={self.text!r} contains {parameter}, which is {cut(repr(value))}. A name can only "
                    "contain text and numbers. Pass a different value"
                    f"{'.' if self.option in ('rate', 'fair') else ', or set another format for this job with task.using(serial=…).'}"
                )
            said += str(value)
        if not is_text(said):
            what = "is empty" if not said else f"has {len(said)} characters" if len(said) > MAX_NAME else "holds a control character"
            raise PayloadError(
                f"{where}: with these arguments, {self.option}={self.text!r} creates a name that {what}: {cut(repr(said))}. "
                f"A name must have 1 to {MAX_NAME} printable characters. Use a shorter argument, such as an id."
            )
        return scoped(scope, said) if self.option == "serial" else said


class RateFormat(NamedTuple):
    """The format of a rate's name, and the pace that is its default."""

    format: NameFormat
    pace: Quota


class Naming(NamedTuple):
    """The formats of a task: of the concurrency name, of the rate and of the fair word, or some of them."""

    named: NameFormat | None
    rated: RateFormat | None
    faired: NameFormat | None

    def name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str, scope: str) -> SharedName:
        """The name, the rate and the fair word of a job with these arguments. Raises: as `NameFormat.made`."""
        text, most = (self.named.made(args, kwargs, where, scope), self.named.most) if self.named else ("", 0)
        rate = Rate(self.rated.format.made(args, kwargs, where, scope), self.rated.pace) if self.rated else None
        return SharedName(text, most, rate, self.faired.made(args, kwargs, where, scope) if self.faired else "")


def naming(named: NameFormat | None, rated: RateFormat | None, faired: NameFormat | None) -> Naming | None:
    """These formats; None if there is none."""
    return Naming(named, rated, faired) if named or rated or faired else None


def fair(value: Any, signature: inspect.Signature, where: str, sensitive: Collection[str] = ()) -> NameFormat | None:
    """The format of the option `fair`.

    Raises:
        ConfigError: it is not valid.
    """
    return None if value is None else _format(value, 0, "fair", signature, where, sensitive)


def rate(value: Any, signature: inspect.Signature, where: str, sensitive: Collection[str] = ()) -> RateFormat | None:
    """The format of the option `rate`.

    Raises:
        ConfigError: it is not valid.
    """
    if value is None:
        return None
    pace = Quota.read(*value[1:]) if isinstance(value, tuple | list) and 2 <= len(value) <= 3 else None
    if pace is None:
        raise ConfigError(
            f"{where}: rate must be a name, a number per unit (s, m, h or d) and optionally a burst of 1 to {MOST_TOKENS:,}, such as "
            f"('bank:{{bank}}', '100/m') or ('bank:{{bank}}', '100/m', 10), not {value!r}."
        )
    return RateFormat(_format(value[0], 0, "rate", signature, where, sensitive), pace)


def given(
    serial: Any, concurrency: Any, signature: inspect.Signature, where: str, sensitive: Collection[str] = ()
) -> NameFormat | None:
    """The format of the two options; None if neither is given.

    Raises:
        ConfigError: both are given, or one of them is not valid.
    """
    if serial is None and concurrency is None:
        return None
    if serial is not None and concurrency is not None:
        raise ConfigError(
            f"{where}: pass serial or concurrency, not both, because a job has only one name. serial is the same as "
            "concurrency with a limit of 1."
        )
    if serial is not None:
        return _format(serial, 1, "serial", signature, where, sensitive)
    if not isinstance(concurrency, tuple | list) or len(concurrency) != 2:
        raise ConfigError(
            f"{where}: concurrency must be a name and the number of jobs that can run at once, such as "
            f"('tenant:{{tenant}}', 5), not {concurrency!r}."
        )
    text, most = concurrency
    if type(most) is not int or not 1 <= most <= MOST:
        raise ConfigError(
            f"{where}: concurrency={concurrency!r}: the number of jobs at a time must be a whole number from 1 to {MOST:,}."
        )
    return _format(text, most, "concurrency", signature, where, sensitive)


def _format(text: Any, most: int, option: str, signature: inspect.Signature, where: str, sensitive: Collection[str]) -> NameFormat:
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{where}: {option} must be a name as text, such as 'order:{{order_id}}', not {text!r}.")
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"{where}: {option}={text!r} is not a valid format: {error}. To write a literal brace, double it.") from None
    known = {name: one for name, one in signature.parameters.items() if one.kind in _NAMED}
    positional = [name for name, one in known.items() if one.kind is not one.KEYWORD_ONLY]
    pieces = []
    for literal, field, spec, conversion in parsed:
        if field is None:
            pieces.append(Piece(literal))
            continue
        if spec or conversion or (field not in known and any(char in field for char in ".[")):
            raise ConfigError(
                f"{where}: {option}={text!r} contains {{{field}}}, which is not just the name of a parameter. Write only "
                "the name. To write a literal brace, double it."
            )
        if field == "scope" and field not in known:
            pieces.append(Piece(literal, field, _SCOPE))
            continue
        if field not in known:
            near = did_you_mean(field, known)
            has = f"Its parameters are: {', '.join(known)}." if known else "It has none."
            raise ConfigError(f"{where}: {option}={text!r} names {field!r}, which is not a parameter of the task{near}. {has}")
        if field in sensitive:
            raise ConfigError(
                f"{where}: {option}={text!r} contains {field!r}, which is sensitive, but names are displayed. Use another parameter."
            )
        default = known[field].default
        place = positional.index(field) if field in positional else _NOWHERE
        pieces.append(Piece(literal, field, place, None if default is inspect.Parameter.empty else default))
    longest = sum(len(piece.text) for piece in pieces)
    if longest > MAX_NAME or not all(is_text(piece.text) for piece in pieces if piece.text):
        raise ConfigError(f"{where}: {option}={text!r} creates names with control characters or with more than {MAX_NAME} characters.")
    return NameFormat(text, most, option, tuple(pieces))
