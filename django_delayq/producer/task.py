"""Tasks: functions that a project registers with `@delayq.task`. A name in Redis is looked up here and never imported. Arguments are
compared with the annotations of the function, and an error explains why a call is not possible.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial, update_wrapper
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    ClassVar,
    Final,
    NamedTuple,
    ParamSpec,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from django.apps import apps

from django_delayq import durations
from django_delayq.exceptions import ConfigError, PayloadError, UnknownTask
from django_delayq.ladder import Ladder
from django_delayq.producer import name_format
from django_delayq.producer.name_format import NameFormat, RateFormat
from django_delayq.producer.options import NONE, OPTIONS, attempts, hint_of_keyword, hint_of_option, integer
from django_delayq.producer.schedule import Bound
from django_delayq.states import MESSAGE
from django_delayq.store.scripts.record import MAX_TASK
from django_delayq.text import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[Any, Any]")

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


Backoff = Ladder | Callable[[int, BaseException], durations.Delay | None]
ObjectUrl = Callable[[Any], str | None]  # gets the row of a job


class TaskOptions(TypedDict, total=False):
    """The options of `@task`, for type checkers."""

    name: str | None
    queue: str
    priority: int
    max_attempts: int | None
    backoff: Backoff | str | None
    poll: Ladder | str | None
    timeout: durations.Delay | None
    atomic: bool
    sensitive: Collection[str]
    on_failure: Task[..., Any] | None
    serial: str | None
    concurrency: tuple[str, int] | None
    rate: tuple[str, str] | tuple[str, str, int] | None
    fair: str | None
    object_url: ObjectUrl | None


TASK_OPTIONS: Final = tuple(TaskOptions.__annotations__)
# The other options of `@task` are read by `make_task`.
DEFAULTS: Final[Mapping[str, Any]] = {
    "queue": "default",
    "priority": 0,
    "max_attempts": None,
    "backoff": None,
    "poll": None,
    "timeout": None,
    "atomic": False,
    "on_failure": None,
    "object_url": None,
}


class Task(Bound[P, R]):
    """A registered function, either a plain function or an `async def` function. Calling a task runs the function in the current
    process. To schedule a job, use `schedule` or `using`. The options are those of `task`. `named`, `rated` and `faired` make
    names.
    """

    raises_inline: ClassVar[bool] = True  # under INLINE its error reaches the caller of schedule()
    own: ClassVar[bool] = False  # of this package: only its functions make arguments for it, since they name secrets or keys of Redis

    queue: str
    priority: int
    max_attempts: int | None
    backoff: Backoff | None
    poll: Ladder | None
    timeout: float | None
    atomic: bool
    sensitive: frozenset[str]
    on_failure: Task[..., Any] | None
    named: NameFormat | None
    rated: RateFormat | None
    faired: NameFormat | None
    object_url: ObjectUrl | None

    def __init__(self, fn: Callable[P, R], *, name: str, sensitive: Collection[str] = (), **options: Any) -> None:
        super().__init__(self, NONE)
        update_wrapper(self, fn)  # first, because it copies attributes of the function, such as a `queue` of another library
        self.fn = fn
        self.name = name
        self.sensitive = frozenset(sensitive)
        self.named = self.rated = self.faired = None
        self.rate_name = self.fair_word = ""
        for option, default in DEFAULTS.items():
            setattr(self, option, options.get(option, default))
        self.late = False  # registered after Django's set-up, so a worker may not have it
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = inspect.signature(fn)
        self.takes_any = any(one.kind is one.VAR_KEYWORD for one in self.signature.parameters.values())
        self.keywords = frozenset(name for name, one in self.signature.parameters.items() if one.kind in _NAMED)
        self._takes_all = _takes_all(self.signature)
        self._least, self._most = _positional(self.signature)
        self._named_beside = _named_beside(self.signature)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    __eq__ = object.__eq__  # tasks are equal by identity, and a Bound by its parts
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self.name,)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compares arguments with the function's signature.

        Raises:
            PayloadError: the function could not be called with them.
        """
        if self._takes_all or (not kwargs and self._least <= len(args) <= self._most):
            return
        if kwargs and len(args) < len(self._named_beside):  # `bind` is slow, and each job is checked twice
            required, allowed = self._named_beside[len(args)]
            if required <= kwargs.keys() <= allowed:
                return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise argument_error(self.name, self.signature, args, kwargs, cause=f"{error}{self._meant(kwargs)}") from None

    def check_typed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Also compares the arguments with annotations of plain types.

        Raises:
            PayloadError: the function cannot be called with them, or a type does not match.
        """
        self.check_arguments(args, kwargs)
        self._annotations.check(self.name, args, kwargs)

    def takes(self, name: str) -> frozenset[type] | None:
        """Returns the types that the annotation of a parameter allows. None: all types."""
        return self._annotations.takes(name)

    def follower(self, kwargs: Mapping[str, Any]) -> Task[..., Any] | None:
        """Returns the task to schedule when a job with these arguments has failed for good."""
        return self.on_failure

    @cached_property
    def _annotations(self) -> Annotations:
        return Annotations(self.fn, self.signature)

    def _meant(self, kwargs: Mapping[str, Any]) -> str:
        """Returns a hint for the first keyword that is not a parameter, or ""."""
        strange = next((name for name in kwargs if name not in self.keywords), None)
        meant = strange and hint_of_keyword(self.fn.__name__, strange, OPTIONS)
        return f"; {meant}" if meant else ""


class Registry:
    """The registered tasks by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self.duplicates: dict[str, list[str]] = {}
        self.followed = False  # a task has an `on_failure`

    def add(self, task: Task[Any, Any]) -> None:
        """Registers a task. If two functions have the same name, the first one stays, and a system check reports them."""
        known = self._tasks.get(task.name)
        if known is not None and place(known.fn) != place(task.fn):
            self.duplicates.setdefault(task.name, [place(known.fn)]).append(place(task.fn))
            return
        task.late = apps.ready
        self._tasks[task.name] = task
        self.followed = self.followed or task.on_failure is not None

    def get(self, name: str) -> Task[Any, Any]:
        """Returns the task with this name.

        Raises:
            UnknownTask: no such task is registered.
        """
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(code="task_unknown", name=name) from None

    def find(self, name: str) -> Task[Any, Any] | None:
        """Returns the task with this name, or None."""
        return self._tasks.get(name)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._tasks)

    def __iter__(self) -> Iterator[Task[Any, Any]]:
        return iter(list(self._tasks.values()))


registry: Final = Registry()


@overload
def task(fn: Callable[P, R], /, **options: Unpack[TaskOptions]) -> Task[P, R]: ...


@overload
def task(**options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(fn: Any = None, /, *given: Any, **options: Any) -> Any:
    """Turns a function into a task: `@task`, or `@task(queue="orders", backoff="15s 3m", timeout="30s")`.

    Args:
        name: The name that jobs use for the task. The default is the function's module and qualified name. If you change it,
            waiting jobs still have the old name.
        queue: The queue of the task's jobs.
        priority: Positive numbers are high, negative numbers are low. Due jobs with a higher priority are claimed first.
        max_attempts: The maximum number of attempts, by default the queue's. With 0 there is no limit, and each job needs `expires`.
        backoff: The delays between attempts, as text such as "15s 3m 10m" or a `Ladder`. It can also be a function that takes the
            attempt and the exception, and returns a delay, or None to fail the job. The default is the queue's setting.
        poll: The delays after each `NotYet`, as text or a `Ladder`. The default is 15s 3m 10m 30m 30m 1h 2h 6h 15h.
        timeout: The time limit for one attempt. The default is the queue's setting.
        atomic: Whether each run is one transaction on the database in `DATABASE`, which also records that the job is done. Not
            available for `async def`.
        sensitive: Parameters whose values are masked in the admin and by commands, in addition to those in `SENSITIVE`.
        on_failure: A task. If a job fails permanently, a job of this task is scheduled. It receives the failed job's id.
        serial, concurrency: A name. Jobs with the same name run one at a time, or at most as many at once as you specify. The name
            is a format string that can contain the arguments: "order:{order_id}", or ("tenant:{tenant}", 5).
        rate: How many jobs with the same name can start in a second, minute, hour or day: ("bank:{bank}", "100/m"). A third value is
            the burst: how many can start at once after a quiet time. The default is those of 100 ms, at least 1.
        fair: A word that the job shares with others, as a format string: "tenant:{tenant}". Due jobs of different words are started in
            turns, so that a word with many jobs does not hold up the others.
        object_url: A function that takes a job's row and returns a URL. The job's admin page links to this URL. The default is
            `OBJECT_URL`.

    Raises:
        ConfigError: An option is unknown or invalid, or a parameter has the same name as an option of `schedule`.
    """

    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        where = f"@task on {place(function)}"
        if isinstance(function, Task):
            raise ConfigError(f"{where}: it is already a task. Write @task once, directly above def, and @periodic above it.")
        ready = make_task(Task, function, where=where, **options)
        if ready.name == MESSAGE:
            raise ConfigError(f"{where}: the name {MESSAGE!r} is reserved for messages, which have no task. Choose another name.")
        clash = [parameter for parameter in ready.signature.parameters if parameter in OPTIONS]
        if clash:
            said = f"{where}: its parameter {clash[0]!r} is also an option of schedule(), so the two would be ambiguous."
            raise ConfigError(f"{said} Rename the parameter, for example to {clash[0]}_value.")
        registry.add(ready)
        return ready

    for name in options:
        if name not in TASK_OPTIONS:
            hint = hint_of_option(name, TASK_OPTIONS)
            raise ConfigError(f"@task: {name!r} is an unknown option{hint}. The options are: {', '.join(TASK_OPTIONS)}.")
    if fn is None:
        return decorate
    if given or not callable(fn):
        shown = given[0] if given else fn
        raise ConfigError(f'@task was given {shown!r}. Write @task or @task(queue="…"). All options are keyword arguments.')
    return decorate(fn)


_GIVEN: Final = inspect.Parameter("fn", inspect.Parameter.POSITIONAL_ONLY, default=None)
_USUAL: Final = {**dict.fromkeys(TASK_OPTIONS), **DEFAULTS, "sensitive": ()}
task.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what help() and the documentation show
    [_GIVEN, *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_USUAL[name]) for name in TASK_OPTIONS)]
)


def make_task(kind: type[T], function: Callable[..., Any], *, where: str, **options: Unpack[TaskOptions]) -> T:
    """Makes a task that is not registered yet. `where` starts the messages of errors.

    Raises:
        ConfigError: an option is not valid.
    """
    name, given = _name_of(options.get("name"), function, where), cast("Mapping[str, Any]", options)
    found = {one: _READERS[one](given[one], where) if one in _READERS else given[one] for one in DEFAULTS if one in given}
    task = kind(function, name=name, sensitive=_sensitive(options.get("sensitive", ()), function, where), **found)
    task.named = name_format.given(options.get("serial"), options.get("concurrency"), task.signature, where, task.sensitive)
    task.faired = name_format.fair(options.get("fair"), task.signature, where, task.sensitive)
    task.rated = name_format.rate(options.get("rate"), task.signature, where, task.sensitive)
    if task.atomic and task.is_async:
        raise ConfigError(
            f"{where}: atomic=True requires a synchronous function, because Django's transactions belong to a thread. Use "
            "def instead of async def."
        )
    return task


def follower_of(value: Any, where: str) -> Task[..., Any] | None:
    """Returns the task given as `on_failure`. Raises ConfigError if it is not a task that takes an id."""
    if value is None:
        return None
    if not isinstance(value, Task):
        raise ConfigError(f"{where}: on_failure must be a task defined with @delayq.task, not {value!r}.")
    if value.max_attempts == 0:
        raise ConfigError(f"{where}: {value.name} is scheduled without expires=, so it must have a maximum number of attempts.")
    try:
        value.check_typed(("id",), {})
    except PayloadError as error:
        raise ConfigError(f"{where}: on_failure is called with one argument, the id of the failed job: {error}") from None
    return value


def _name_of(name: str | None, fn: Callable[..., Any], where: str) -> str:
    """Returns the given name, or the name of the function."""
    if inspect.isclass(fn):
        raise ConfigError(f"{where}: a class cannot be a task, because JSON cannot represent its instances. Use a function.")
    if not name and not hasattr(fn, "__qualname__"):
        raise ConfigError(f"{where}: a callable object has no name. Pass name=, or use a function.")
    found = name or f"{fn.__module__}.{fn.__qualname__}"
    if "<locals>" in found:
        raise ConfigError(f"{where}: it is defined inside a function. Move it to a module, or pass name=.")
    if not found or len(found) > MAX_TASK or any(char.isspace() or not char.isprintable() for char in found):
        raise ConfigError(f"{where}: the name {found!r} must be 1 to {MAX_TASK} printable characters without spaces.")
    return found


def _backoff(value: Any, where: str) -> Backoff | None:
    if value is None or isinstance(value, Ladder):
        return value
    if isinstance(value, str):
        try:
            return Ladder(value)
        except ValueError as error:
            raise ConfigError(f"{where}: backoff: {error}.") from None
    if callable(value):
        return value  # type: ignore[no-any-return]  # its result is checked after each call
    raise ConfigError(f"{where}: backoff must be text, a Ladder, or f(attempt, exception), not {value!r}{Ladder.spelled(value)}.")


def _poll(value: Any, where: str) -> Ladder | None:
    if value is not None and not isinstance(value, Ladder | str):
        raise ConfigError(f"{where}: poll must be text or a Ladder, not {value!r}{Ladder.spelled(value)}.")
    try:
        return None if value is None else Ladder.of(value)
    except ValueError as error:
        raise ConfigError(f"{where}: poll: {error}.") from None


def read_timeout(value: Any, where: str) -> float | None:
    """Returns the seconds of a timeout, or raises ConfigError."""
    if value is None:
        return None
    try:
        seconds = durations.seconds(value)
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
        # A misspelled name would hide nothing. `**kwargs` takes any name.
        if name not in parameters and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            near = did_you_mean(name, parameters)
            raise ConfigError(f"{where}: sensitive contains {name!r}, which is not a parameter of the function{near}.")
    return value


def _object_url(value: Any, where: str) -> ObjectUrl | None:
    if value is not None and not callable(value):
        raise ConfigError(f"{where}: object_url must be a function that takes a job and returns a URL or None, not {value!r}.")
    found: ObjectUrl | None = value
    return found


def place(fn: Callable[..., Any]) -> str:
    """Returns the module and the qualified name of a function."""
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"


_READERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "priority": partial(integer, "priority"),
    "max_attempts": attempts,
    "backoff": _backoff,
    "poll": _poll,
    "timeout": read_timeout,
    "on_failure": follower_of,
    "object_url": _object_url,
}


def _takes_all(signature: inspect.Signature) -> bool:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _positional(signature: inspect.Signature) -> tuple[int, int]:
    """Returns the least and most positional arguments of a valid call. (1, 0): keyword arguments are needed."""
    least = most = 0
    for parameter in signature.parameters.values():
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            least, most = least + required, most + 1
        elif parameter.kind is parameter.VAR_POSITIONAL:
            most = sys.maxsize
        elif parameter.kind is parameter.KEYWORD_ONLY and required:
            return 1, 0
    return least, most


def _named_beside(signature: inspect.Signature) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Returns the required and the allowed keywords, by the number of positional arguments. `bind` decides all other calls."""
    found: list[tuple[frozenset[str], frozenset[str]]] = []
    parameters = signature.parameters.values()
    placed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    for number in range(len(placed) + 1):
        rest = [*placed[number:], *(one for one in parameters if one.kind is one.KEYWORD_ONLY)]
        required = frozenset(one.name for one in rest if one.default is one.empty)
        found.append((required, frozenset(one.name for one in rest if one.kind in _NAMED)))
    return found


def _by_name(name: str) -> Task[Any, Any]:
    return registry.get(name)


# The exact types that an annotation allows. As in Python, an int is allowed for a float, and a bool for an int.
_TAKES: Final[Mapping[Any, frozenset[type]]] = {
    str: frozenset({str}),
    bool: frozenset({bool}),
    int: frozenset({int, bool}),
    float: frozenset({float, int, bool}),
    list: frozenset({list}),
    dict: frozenset({dict}),
    None: frozenset({NoneType}),
    NoneType: frozenset({NoneType}),
}
# For values of other types, the codec has better error messages.
PLAIN: Final = frozenset[type]().union(*_TAKES.values())


class TypedParameter(NamedTuple):
    """A parameter with an annotation of plain types."""

    name: str
    takes: frozenset[type]
    says: str


class Annotations:
    """The annotations of one function. They are read lazily, because a module can define their names below the function."""

    def __init__(self, fn: Callable[..., Any], signature: inspect.Signature) -> None:
        self._placed: list[TypedParameter | None] = []
        self._named: dict[str, TypedParameter] = {}
        self._understood: dict[str, TypedParameter] = {}
        self._rest: TypedParameter | None = None  # of *args
        self._others: TypedParameter | None = None  # of **kwargs
        known = getattr(inspect.unwrap(fn), "__globals__", {})
        for one in signature.parameters.values():
            found = _understood(one, known)
            if found is not None:
                self._understood[one.name] = found
            if one.kind is one.VAR_POSITIONAL:
                self._rest = found
            elif one.kind is one.VAR_KEYWORD:
                self._others = found
            else:
                if one.kind is not one.KEYWORD_ONLY:
                    self._placed.append(found)
                if found is not None and one.kind is not one.POSITIONAL_ONLY:
                    self._named[one.name] = found
        self._names = {name for name, one in signature.parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}

    def takes(self, name: str) -> frozenset[type] | None:
        """Returns the types that the annotation of a parameter allows; None: all types. For `*rest`, the types of each item."""
        found = self._understood.get(name)
        return found.takes if found else None

    def check(self, task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compares arguments with the annotations. `task`: its name, for the error. The error contains no values.

        Raises:
            PayloadError: an argument has another type.
        """
        for number, value in enumerate(args):
            self._look(task, self._placed[number] if number < len(self._placed) else self._rest, "", value)
        for name, value in kwargs.items():
            self._look(task, self._named.get(name) if name in self._names else self._others, name, value)

    def _look(self, task: str, parameter: TypedParameter | None, name: str, value: object) -> None:
        kind = type(value)
        if parameter is not None and kind not in parameter.takes and kind in PLAIN:
            given = "None" if value is None else kind.__name__
            raise PayloadError(code="argument_type", task=task, argument=name or parameter.name, annotation=parameter.says, given=given)


def _understood(one: inspect.Parameter, known: dict[str, Any]) -> TypedParameter | None:
    if one.annotation is one.empty:
        return None
    try:
        # One by one, because a name that is imported only for type checkers must not hide the others.
        hint = get_type_hints(SimpleNamespace(__annotations__={one.name: one.annotation}), known)[one.name]
    except Exception:  # any expression; a type checker reports mistakes
        return None
    takes = _takes(hint)
    if takes is None:
        return None
    if one.default is not one.empty:
        takes |= {type(one.default)}  # `note: str = None`
    return TypedParameter(
        one.name, takes, one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)
    )


def _takes(hint: Any) -> frozenset[type] | None:
    origin = get_origin(hint)
    if origin is Union or origin is UnionType:
        parts = [_takes(part) for part in get_args(hint)]
        return None if None in parts else frozenset[type]().union(*(part for part in parts if part))
    try:
        return _TAKES.get(origin or hint)
    except TypeError:  # an annotation that cannot be hashed
        return None


def argument_error(
    task: str, signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object], *, cause: str
) -> PayloadError:
    """Returns the error for arguments that do not match the signature. `cause`: the message of Python."""
    code, argument = _mismatch(signature, args, kwargs)
    written = [one.replace(annotation=_bare(one.annotation)) for one in signature.parameters.values()]
    shown = str(signature.replace(parameters=written, return_annotation=_bare(signature.return_annotation)))
    return PayloadError(code=code, task=task, signature=shown, cause=cause, argument=argument)


class _Bare(str):
    """An annotation that is kept as text, to be shown as it was written and not as text in quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _bare(annotation: object) -> object:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _mismatch(signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[str, str]:
    """Returns the error code and the argument of the first mistake, in the order of Python."""
    every = signature.parameters.values()
    kinds = {one.kind for one in every}
    placed = [one for one in every if one.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for one in placed[: len(args)]:
        if one.name in kwargs and one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            return "argument_twice", one.name
    if len(args) > len(placed) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return "argument_surplus", ""
    named = [one for one in every if one.kind is inspect.Parameter.KEYWORD_ONLY]
    for one in (*placed[len(args) :], *named):
        given = one.name in kwargs
        if given and one.kind is inspect.Parameter.POSITIONAL_ONLY:
            return "arguments", one.name
        if not given and one.default is inspect.Parameter.empty:
            return "argument_missing", one.name
    taken = {one.name for one in (*placed, *named) if one.kind is not inspect.Parameter.POSITIONAL_ONLY}
    strange = [name for name in kwargs if name not in taken]
    if strange and inspect.Parameter.VAR_KEYWORD not in kinds:
        return "argument_unknown", strange[0]
    return "arguments", ""
