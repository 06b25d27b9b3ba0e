"""Tasks: functions that a project registers with `@delayq.task`. A name in Redis is looked up here and never imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial, update_wrapper
from typing import (
    Any,
    ClassVar,
    Final,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from django.apps import apps

from django_delayq import durations
from django_delayq.exceptions import ConfigError, PayloadError, UnknownTask, UnknownVersion
from django_delayq.job_meta import version_in
from django_delayq.ladder import Ladder
from django_delayq.producer import name_format
from django_delayq.producer.name_format import NameFormat, Naming, RateFormat
from django_delayq.producer.options import NONE, OPTIONS, attempts, hint_of_keyword, hint_of_option, integer
from django_delayq.producer.schedule import Bound
from django_delayq.producer.signatures import NAMED, Annotations, argument_error, named_beside, positional, takes_all
from django_delayq.states import MESSAGE
from django_delayq.store.scripts.record import MAX_TASK
from django_delayq.text import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[Any, Any]")

Backoff = Ladder | Callable[[int, BaseException], durations.Delay | None]
ObjectUrl = Callable[[Any], str | None]  # gets the row of a job
Upgrade = Callable[..., Mapping[str, Any]]  # gets the arguments of one version, and returns those of the next by name


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
    object_url: ObjectUrl | None
    aliases: Collection[str]
    version: int
    upgrade: Mapping[int, Upgrade]


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
    "aliases": (),
    "version": 1,
    "upgrade": {},
}


class Task(Bound[P, R]):
    """A registered function, either a plain function or an `async def` function. Calling a task runs the function in the current
    process. To schedule a job, use `schedule` or `using`. The options are those of `task`. `named` and `rated` make names.
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
    object_url: ObjectUrl | None
    aliases: tuple[str, ...]
    version: int
    upgrade: Mapping[int, Upgrade]

    def __init__(self, fn: Callable[P, R], *, name: str, sensitive: Collection[str] = (), **options: Any) -> None:
        super().__init__(self, NONE)
        update_wrapper(self, fn)  # first, because it copies attributes of the function, such as a `queue` of another library
        self.fn = fn
        self.name = name
        self.sensitive = frozenset(sensitive)
        self.named, self.rated, self.rate_name = None, None, ""
        for option, default in DEFAULTS.items():
            setattr(self, option, options.get(option, default))
        self.late = False  # registered after Django's set-up, so a worker may not have it
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = inspect.signature(fn)
        self.takes_any = any(one.kind is one.VAR_KEYWORD for one in self.signature.parameters.values())
        self.keywords = frozenset(name for name, one in self.signature.parameters.items() if one.kind in NAMED)
        self._takes_all = takes_all(self.signature)
        self._least, self._most = positional(self.signature)
        self._named_beside = named_beside(self.signature)

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

    def understood(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Mapping[str, Any] | None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Returns the arguments of a job with this meta, upgraded to this version of the task.

        Raises:
            UnknownVersion: the job has a newer version, or there is no upgrade from its version.
            PayloadError: the function could not be called with them.
        """
        version = version_in(meta)
        if version != self.version:
            if version not in self.upgrade:
                raise UnknownVersion(code="task_version", task=self.name, version=version, known=self.version)
            for number in range(version, self.version):
                try:
                    args, kwargs = [], dict(self.upgrade[number](*args, **kwargs))
                except Exception as error:
                    raise UnknownVersion(code="task_upgrade", task=self.name, version=number, cause=type(error).__name__) from error
        self.check_arguments(args, kwargs)
        return args, kwargs

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

    @property
    def naming(self) -> Naming | None:
        """The formats of its name and its rate."""
        return name_format.naming(self.named, self.rated)

    @cached_property
    def _annotations(self) -> Annotations:
        return Annotations(self.fn, self.signature)

    def _meant(self, kwargs: Mapping[str, Any]) -> str:
        """Returns a hint for the first keyword that is not a parameter, or ""."""
        strange = next((name for name in kwargs if name not in self.keywords), None)
        meant = strange and hint_of_keyword(self.fn.__name__, strange, OPTIONS)
        return f"; {meant}" if meant else ""


class Registry:
    """The registered tasks by name and by alias."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self.duplicates: dict[str, list[str]] = {}
        self.followed = False  # a task has an `on_failure`

    def add(self, task: Task[Any, Any]) -> None:
        """Registers a task. If two functions have the same name, the first one stays, and a system check reports them."""
        if not self._is_free(task.name, task):
            return
        task.late = apps.ready
        for name in (task.name, *task.aliases):
            if name == task.name or self._is_free(name, task):
                self._tasks[name] = task
        self.followed = self.followed or task.on_failure is not None

    def _is_free(self, name: str, task: Task[Any, Any]) -> bool:
        known = self._tasks.get(name)
        if known is not None and place(known.fn) != place(task.fn):
            self.duplicates.setdefault(name, [place(known.fn)]).append(place(task.fn))
            return False
        return True

    def get(self, name: str) -> Task[Any, Any]:
        """Returns the task with this name or alias.

        Raises:
            UnknownTask: no such task is registered.
        """
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(code="task_unknown", name=name) from None

    def find(self, name: str) -> Task[Any, Any] | None:
        """Returns the task with this name or alias, or None."""
        return self._tasks.get(name)

    def spellings(self, name: str) -> tuple[str, ...]:
        """Returns all names that jobs of this task have: first its own name, then its aliases. A name that is not registered stands for
        itself. Whatever selects jobs by task asks this function.
        """
        found = self._tasks.get(name)
        return (name,) if found is None else (found.name, *found.aliases)

    def names(self) -> list[str]:
        """All names, sorted, without aliases."""
        return sorted(task.name for task in self)

    def __iter__(self) -> Iterator[Task[Any, Any]]:
        return iter([task for name, task in self._tasks.items() if name == task.name])


registry: Final = Registry()


@overload
def task(fn: Callable[P, R], /, **options: Unpack[TaskOptions]) -> Task[P, R]: ...


@overload
def task(**options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(fn: Any = None, /, *given: Any, **options: Any) -> Any:
    """Turns a function into a task: `@task`, or `@task(queue="orders", backoff="15s 3m", timeout="30s")`.

    Args:
        name: The name that jobs use for the task. The default is the function's module and qualified name. If you change it, add
            the old name to `aliases`.
        queue: The queue of the task's jobs.
        priority: A positive number is high, 0 is normal, and a negative number is low. Due jobs with a higher priority are claimed
            first.
        max_attempts: The maximum number of attempts before a job fails. The default is the queue's setting. With 0, there is no
            limit, and each job needs `expires`.
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
        object_url: A function that takes a job's row and returns a URL. The job's admin page links to this URL. The default is
            `OBJECT_URL`.
        aliases: Earlier names of the task, which waiting jobs still have.
        version: The version of the arguments. Increase it if waiting jobs have arguments that the function would misunderstand.
        upgrade: A function for each earlier version. It takes the arguments of that version, and returns a dict with the arguments
            of the next version by name: {1: lambda order_id: {"order_id": order_id, "amount": None}}.

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
    task.rated = name_format.rate(options.get("rate"), task.signature, where, task.sensitive)
    if task.upgrade and sorted(task.upgrade) != [*range(min(task.upgrade), task.version)]:
        raise ConfigError(f"{where}: upgrade must have a function for each version up to {task.version - 1}, such as {{1: f}}.")
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
    return _checked_name(found, where)


def _checked_name(name: Any, where: str) -> str:
    good = isinstance(name, str) and 1 <= len(name) <= MAX_TASK
    if not good or any(char.isspace() or not char.isprintable() for char in name):
        raise ConfigError(f"{where}: the name {name!r} must be 1 to {MAX_TASK} printable characters without spaces.")
    return str(name)


def _aliases(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ConfigError(f"{where}: aliases must be a list of names, such as ['orders.close'], not {value!r}.")
    return tuple(_checked_name(name, where) for name in value)


def _version(value: Any, where: str) -> int:
    if integer("version", value, where) < 1:
        raise ConfigError(f"{where}: version must be at least 1.")
    return int(value)


def _upgrade(value: Any, where: str) -> Mapping[int, Upgrade]:
    if not isinstance(value, Mapping) or any(type(number) is not int or number < 1 for number in value):
        raise ConfigError(f"{where}: upgrade must be a dict with a function for each earlier version, such as {{1: f}}, not {value!r}.")
    for one in value.values():
        if not callable(one) or inspect.iscoroutinefunction(one):
            raise ConfigError(f"{where}: upgrade contains {one!r}, which is not a function without async.")
    return dict(value)


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
    "aliases": _aliases,
    "version": _version,
    "upgrade": _upgrade,
}


def _by_name(name: str) -> Task[Any, Any]:
    return registry.get(name)
