"""What the options of `@task` may be: each is read by a function of its own, which raises ConfigError for what cannot work. `where`: in
errors; None: the queue says it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from django_delayq import clock
from django_delayq.exceptions import ConfigError
from django_delayq.ladder import Ladder
from django_delayq.store.scripts.record import MAX_TASK
from django_delayq.text import did_you_mean

Backoff = Ladder | Callable[[int, BaseException], clock.Delay | None]
ObjectUrl = Callable[[Any], str | None]  # of a row, `models.Job`


def name_of(name: str | None, fn: Callable[..., Any], where: str) -> str:
    """The name of a task: as given, or that of its function."""
    if inspect.isclass(fn):
        raise ConfigError(f"{where}: a class cannot be a task, because JSON cannot store its instances. Write a function.")
    if not name and not hasattr(fn, "__qualname__"):
        raise ConfigError(f"{where}: a callable object has no name. Pass name=, or write a function.")
    found = name or f"{fn.__module__}.{fn.__qualname__}"
    if "<locals>" in found:
        raise ConfigError(f"{where}: it is defined inside a function. Move it to a module, or give it a name=.")
    if not found or len(found) > MAX_TASK or any(char.isspace() or not char.isprintable() for char in found):
        raise ConfigError(f"{where}: the name {found!r} must be 1 to {MAX_TASK} printable characters without spaces.")
    return found


def integer(value: Any, option: str, where: str) -> int:
    """A whole number as it is."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where}: {option} must be a whole number, not {value!r}.")
    return value


def attempts(value: Any, where: str) -> int | None:
    """`max_attempts`; 0: no limit, of jobs that expire."""
    if value is not None and integer(value, "max_attempts", where) < 0:
        raise ConfigError(f"{where}: max_attempts must be at least 1; or 0, for no limit, of jobs that are scheduled with expires=.")
    return None if value is None else int(value)


def backoff(value: Any, where: str) -> Backoff | None:
    """A ladder, of its text, or a function as it is."""
    if value is None or isinstance(value, Ladder):
        return value
    if isinstance(value, str):
        try:
            return Ladder(value)
        except ValueError as error:
            raise ConfigError(f"{where}: backoff: {error}.") from None
    if callable(value):
        return value  # type: ignore[no-any-return]  # what it answers is looked at when it is called
    raise ConfigError(f"{where}: backoff must be text, a Ladder, or f(attempt, exception), not {value!r}{Ladder.spelled(value)}.")


def poll(value: Any, where: str) -> Ladder | None:
    """A ladder, or that of its text."""
    if value is not None and not isinstance(value, Ladder | str):
        raise ConfigError(f"{where}: poll must be text or a Ladder, not {value!r}{Ladder.spelled(value)}.")
    try:
        return None if value is None else Ladder.of(value)
    except ValueError as error:
        raise ConfigError(f"{where}: poll: {error}.") from None


def timeout(value: Any, where: str) -> float | None:
    """Seconds of a duration."""
    if value is None:
        return None
    try:
        seconds = clock.seconds(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: timeout={error}.") from None
    if seconds <= 0:
        raise ConfigError(f"{where}: timeout must be above 0.")
    return seconds


def sensitive(value: Any, fn: Callable[..., Any], where: str) -> Collection[str]:
    """Names of parameters of the function."""
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{where}: sensitive must be a list of parameters, such as ['iban'], not {value!r}.")
    parameters = inspect.signature(fn).parameters
    for name in value:
        # A name with a slip of the pen would hide nothing. What `**kwargs` takes may be called anything.
        if name not in parameters and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            near = did_you_mean(name, parameters)
            raise ConfigError(f"{where}: sensitive names {name!r}, which is not one of its parameters{near}.")
    return value


def object_url(value: Any, where: str) -> ObjectUrl | None:
    """A function that takes the row of a job."""
    if value is not None and not callable(value):
        raise ConfigError(f"{where}: object_url must be a function that takes a job and returns a URL or None, not {value!r}.")
    found: ObjectUrl | None = value
    return found


def place(fn: Callable[..., Any]) -> str:
    """Where a function is defined."""
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
