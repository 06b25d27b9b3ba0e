"""Tasks: functions that a project has registered by `@delayq.task`. A name in Redis is looked up here, and never imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property, update_wrapper
from typing import Any, Final, ParamSpec, TypeVar, overload

from django_delayq import clock
from django_delayq.exceptions import ConfigError, PayloadError, UnknownTask
from django_delayq.ladder import Ladder
from django_delayq.producer import equivalents
from django_delayq.producer.annotations import Annotations
from django_delayq.producer.options import NONE, OPTIONS
from django_delayq.producer.schedule import Bound
from django_delayq.record import MAX_TASK
from django_delayq.refusal import misfit
from django_delayq.text import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[Any, Any]")
Backoff = Ladder | Callable[[int, BaseException], clock.Delay | None]


class Task(Bound[P, R]):
    """A registered function. Calling it runs it here and now; `schedule` and `using(...)` put a job into a queue.

    Args:
        fn: the function, plain or `async def`.
        name: how jobs name it; its module and qualified name by default. Renaming it orphans the jobs that wait.
        queue, priority, max_attempts, timeout: for its jobs, unless the job says otherwise; None: what the queue says.
        backoff: ladder, or `f(attempt, exception) -> delay or None` (None: fail now); None: what the queue says.
        atomic: the run and the settling of the job's row are one transaction on `DELAYQ["DATABASE"]`: what a run writes there
            happens once, however often the job is delivered.
        sensitive: names of parameters that are masked wherever people look, beside those in `DELAYQ["SENSITIVE"]`.
        on_failure: the task of which a job is scheduled, with the id as its argument, when one of this has failed for good.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str,
        queue: str,
        priority: int,
        max_attempts: int | None,
        backoff: Backoff | None,
        timeout: float | None,
        atomic: bool = False,
        sensitive: Collection[str] = (),
        on_failure: Task[..., Any] | None = None,
    ) -> None:
        super().__init__(self, NONE)
        update_wrapper(self, fn)  # before the rest: it also copies what the function carries, a `queue` of another library, say
        self.fn = fn
        self.name = name
        self.queue = queue
        self.priority = priority
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.timeout = timeout
        self.atomic = atomic
        self.sensitive = frozenset(sensitive)
        self.on_failure = on_failure
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = inspect.signature(fn)
        self.takes_any = any(one.kind is one.VAR_KEYWORD for one in self.signature.parameters.values())
        self.keywords = frozenset(name for name, one in self.signature.parameters.items() if one.kind in _NAMED)
        self._takes_all = _takes_all(self.signature)
        self._least, self._most = _positional(self.signature)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    __eq__ = object.__eq__  # a task is one thing; what is bound to options is equal by its parts
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self.name,)

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compares arguments with the function's signature.

        Raises:
            PayloadError: the function could not be called with them.
        """
        if self._takes_all or (not kwargs and self._least <= len(args) <= self._most):
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise misfit(self.name, self.signature, args, kwargs, cause=f"{error}{self._meant(kwargs)}") from None

    def check_typed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The same, and compares them with what its annotations say, as far as these name plain types.

        Raises:
            PayloadError: the function could not be called with them, or not as it says.
        """
        self.check_arguments(args, kwargs)
        self._annotations.check(self.name, args, kwargs)

    def follower(self, kwargs: Mapping[str, Any]) -> Task[..., Any] | None:
        """Of which task a job is scheduled when one with these arguments has failed for good."""
        return self.on_failure

    @cached_property
    def _annotations(self) -> Annotations:
        return Annotations(self.fn, self.signature)

    def _meant(self, kwargs: Mapping[str, Any]) -> str:
        """What the first keyword that no parameter bears may have meant."""
        strange = next((name for name in kwargs if name not in self.keywords), None)
        meant = strange and equivalents.of_keyword(self.fn.__name__, strange, OPTIONS)
        return f"; {meant}" if meant else ""


class Registry:
    """The registered tasks by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self.duplicates: dict[str, list[str]] = {}
        self.followed = False  # a task has an `on_failure`

    def add(self, task: Task[Any, Any]) -> None:
        """Registers a task. Two functions of one name are reported by a system check; the first one stays."""
        known = self._tasks.get(task.name)
        if known is not None and _place(known.fn) != _place(task.fn):
            self.duplicates.setdefault(task.name, [_place(known.fn)]).append(_place(task.fn))
            return
        self._tasks[task.name] = task
        self.followed = self.followed or task.on_failure is not None

    def get(self, name: str) -> Task[Any, Any]:
        """The task of that name.

        Raises:
            UnknownTask: none is registered.
        """
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(code="task_unknown", name=name) from None

    def find(self, name: str) -> Task[Any, Any] | None:
        """The task of that name; None if none is registered."""
        return self._tasks.get(name)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._tasks)

    def __iter__(self) -> Iterator[Task[Any, Any]]:
        return iter(list(self._tasks.values()))


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
registry: Final = Registry()


@overload
def task(
    fn: Callable[P, R],
    /,
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Backoff | str | None = None,
    timeout: clock.Delay | None = None,
    atomic: bool = False,
    sensitive: Collection[str] = (),
    on_failure: Task[..., Any] | None = None,
) -> Task[P, R]: ...


@overload
def task(
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Backoff | str | None = None,
    timeout: clock.Delay | None = None,
    atomic: bool = False,
    sensitive: Collection[str] = (),
    on_failure: Task[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    fn: Any = None,
    /,
    *given: Any,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Backoff | str | None = None,
    timeout: clock.Delay | None = None,
    atomic: bool = False,
    sensitive: Collection[str] = (),
    on_failure: Task[..., Any] | None = None,
    **unknown: Any,
) -> Any:
    """Makes a function a task: `@task`, or `@task(queue="orders", backoff="15s 3m", timeout="30s")`.

    Raises:
        ConfigError: an option cannot work or is unknown, or the function's parameter bears the name of an option of `schedule`.
    """

    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        where = f"@task on {_place(function)}"
        if isinstance(function, Task):
            raise ConfigError(f"{where}: it is a task already. Write @task once, right above def, and @periodic above it.")
        ready = made(
            Task,
            function,
            where=where,
            name=name,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            backoff=backoff,
            timeout=timeout,
            atomic=atomic,
            sensitive=sensitive,
            on_failure=on_failure,
        )
        clash = [parameter for parameter in ready.signature.parameters if parameter in OPTIONS]
        if clash:
            raise ConfigError(
                f"{where}: its parameter {clash[0]!r} is also an option of schedule(), so the two could not be told apart. "
                f"Rename the parameter, for example to {clash[0]}_value."
            )
        registry.add(ready)
        return ready

    if unknown:
        strange = next(iter(unknown))
        meant = equivalents.of_option(strange, _TASK_OPTIONS)
        raise ConfigError(f"@task: {strange!r} is no option{meant}. The options are: {', '.join(_TASK_OPTIONS)}.")
    if fn is None:
        return decorate
    if given or not callable(fn):
        shown = given[0] if given else fn
        raise ConfigError(f'@task was given {shown!r}. Write @task or @task(queue="…"); every option has a name.')
    return decorate(fn)


def made(
    kind: type[T],
    function: Callable[..., Any],
    *,
    where: str,
    name: str | None = None,
    queue: str = "default",
    priority: Any = 0,
    max_attempts: Any = None,
    backoff: Any = None,
    timeout: Any = None,
    atomic: bool = False,
    sensitive: Any = (),
    on_failure: Any = None,
) -> T:
    """A task that is not registered yet. `where`: in errors.

    Raises:
        ConfigError: an option cannot work.
    """
    task = kind(
        function,
        name=_name(name, function, where),
        queue=queue,
        priority=_integer(priority, "priority", where),
        max_attempts=_attempts(max_attempts, where),
        backoff=_backoff(backoff, where),
        timeout=_timeout(timeout, where),
        atomic=atomic,
        sensitive=_sensitive(sensitive, function, where),
        on_failure=follower_of(on_failure, where),
    )
    if atomic and task.is_async:
        raise ConfigError(
            f"{where}: atomic=True needs a plain function, since Django's transactions belong to a thread. "
            "Write def in place of async def."
        )
    return task


_TASK_OPTIONS: Final = tuple(name for name, one in inspect.signature(task).parameters.items() if one.kind is one.KEYWORD_ONLY)


def _name(name: str | None, fn: Callable[..., Any], where: str) -> str:
    if inspect.isclass(fn):
        raise ConfigError(f"{where}: a class is no task, since JSON does not have what a call of it gives. Write a function.")
    if not name and not hasattr(fn, "__qualname__"):
        raise ConfigError(f"{where}: an object that can be called has no name of its own. Give it a name=, or write a function.")
    found = name or f"{fn.__module__}.{fn.__qualname__}"
    if "<locals>" in found:
        raise ConfigError(f"{where}: it is defined inside a function. Move it to a module, or give it a name=.")
    if not found or len(found) > MAX_TASK or any(char.isspace() or not char.isprintable() for char in found):
        raise ConfigError(f"{where}: the name {found!r} must be 1 to {MAX_TASK} printable characters without spaces.")
    return found


def _integer(value: Any, option: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where}: {option} must be a whole number, not {value!r}.")
    return value


def _attempts(value: Any, where: str) -> int | None:
    if value is not None and _integer(value, "max_attempts", where) < 1:
        raise ConfigError(f"{where}: max_attempts must be at least 1.")
    return None if value is None else int(value)


def _backoff(value: Any, where: str) -> Backoff | None:
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


def _timeout(value: Any, where: str) -> float | None:
    if value is None:
        return None
    try:
        seconds = clock.seconds(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: timeout={error}.") from None
    if seconds <= 0:
        raise ConfigError(f"{where}: timeout must be above 0.")
    return seconds


def _sensitive(value: Any, fn: Callable[..., Any], where: str) -> Collection[str]:
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{where}: sensitive must be a list of parameters, such as ['iban'], not {value!r}.")
    parameters = inspect.signature(fn).parameters
    for name in value:
        # A name with a slip of the pen would hide nothing. What `**kwargs` takes may be called anything.
        if name not in parameters and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            near = did_you_mean(name, parameters)
            raise ConfigError(f"{where}: sensitive names {name!r}, which is no parameter of it{near}.")
    return value


def follower_of(value: Any, where: str) -> Task[..., Any] | None:
    """What was given as `on_failure`, or ConfigError: it is no task, or not one that takes an id."""
    if value is None:
        return None
    if not isinstance(value, Task):
        raise ConfigError(f"{where}: on_failure must be a task, made by @delayq.task, not {value!r}.")
    try:
        value.check_typed(("id",), {})
    except PayloadError as error:
        raise ConfigError(f"{where}: on_failure is called with one argument, the id of the failed job: {error}") from None
    return value


def _takes_all(signature: inspect.Signature) -> bool:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _positional(signature: inspect.Signature) -> tuple[int, int]:
    """How many positional arguments surely suffice, at least and at most; (1, 0) where the names of some matter."""
    least = most = 0
    for parameter in signature.parameters.values():
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            least, most = least + required, most + 1
        elif parameter.kind is parameter.KEYWORD_ONLY and required:
            return 1, 0
    return least, most


def _place(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"


def _by_name(name: str) -> Task[Any, Any]:
    return registry.get(name)
