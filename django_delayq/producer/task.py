"""Tasks: functions that a project has registered by `@delayq.task`. A name in Redis is looked up here, and never imported."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, update_wrapper
from typing import Any, ClassVar, Final, ParamSpec, TypeVar, overload

from django.apps import apps

from django_delayq import clock
from django_delayq.exceptions import ConfigError, PayloadError, UnknownTask
from django_delayq.ladder import Ladder
from django_delayq.producer import migration_hints, name_format, task_options
from django_delayq.producer.annotations import Annotations
from django_delayq.producer.argument_error import argument_error
from django_delayq.producer.name_format import NameFormat
from django_delayq.producer.options import NONE, OPTIONS
from django_delayq.producer.schedule import Bound
from django_delayq.producer.task_options import Backoff, ObjectUrl
from django_delayq.states import MESSAGE

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[Any, Any]")


class Task(Bound[P, R]):
    """A registered function, plain or `async def`. A call runs it in this process. `schedule` and `using` put a job into a queue. The
    options are those of `task`; `named` makes the concurrency name that jobs share.
    """

    raises_inline: ClassVar[bool] = True  # under INLINE its error reaches the caller of schedule()
    own: ClassVar[bool] = False  # of this package: only its functions make arguments for it, since they name secrets or keys of Redis

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
        poll: Ladder | None = None,
        atomic: bool = False,
        sensitive: Collection[str] = (),
        on_failure: Task[..., Any] | None = None,
        named: NameFormat | None = None,
        object_url: ObjectUrl | None = None,
    ) -> None:
        super().__init__(self, NONE)
        update_wrapper(self, fn)  # before the rest: it also copies what the function carries, a `queue` of another library, say
        self.fn = fn
        self.name = name
        self.queue = queue
        self.priority = priority
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.poll = poll
        self.timeout = timeout
        self.atomic = atomic
        self.sensitive = frozenset(sensitive)
        self.on_failure = on_failure
        self.named = named
        self.object_url = object_url
        self.late = False  # it was registered after Django's set-up, so that a worker may not have it
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = inspect.signature(fn)
        self.takes_any = any(one.kind is one.VAR_KEYWORD for one in self.signature.parameters.values())
        self.keywords = frozenset(name for name, one in self.signature.parameters.items() if one.kind in _NAMED)
        self._takes_all = _takes_all(self.signature)
        self._least, self._most = _positional(self.signature)
        self._named_beside = _named_beside(self.signature)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    __eq__ = object.__eq__  # a task is one thing; what is bound to options is equal by its parts
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
        if kwargs and len(args) < len(self._named_beside):  # `bind` takes microseconds, and each job is checked twice
            required, allowed = self._named_beside[len(args)]
            if required <= kwargs.keys() <= allowed:
                return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise argument_error(self.name, self.signature, args, kwargs, cause=f"{error}{self._meant(kwargs)}") from None

    def check_typed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The same, and compares them with what its annotations say, as far as these name plain types.

        Raises:
            PayloadError: the function could not be called with them, or not as it says.
        """
        self.check_arguments(args, kwargs)
        self._annotations.check(self.name, args, kwargs)

    def takes(self, name: str) -> frozenset[type] | None:
        """The types that the annotation of that parameter lets in; None where it lets in everything."""
        return self._annotations.takes(name)

    def follower(self, kwargs: Mapping[str, Any]) -> Task[..., Any] | None:
        """Of which task a job is scheduled when one with these arguments has failed for good."""
        return self.on_failure

    @cached_property
    def _annotations(self) -> Annotations:
        return Annotations(self.fn, self.signature)

    def _meant(self, kwargs: Mapping[str, Any]) -> str:
        """What the first keyword that no parameter bears may have meant."""
        strange = next((name for name in kwargs if name not in self.keywords), None)
        meant = strange and migration_hints.of_keyword(self.fn.__name__, strange, OPTIONS)
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
        if known is not None and task_options.place(known.fn) != task_options.place(task.fn):
            self.duplicates.setdefault(task.name, [task_options.place(known.fn)]).append(task_options.place(task.fn))
            return
        task.late = apps.ready
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
    poll: Ladder | str | None = None,
    timeout: clock.Delay | None = None,
    atomic: bool = False,
    sensitive: Collection[str] = (),
    on_failure: Task[..., Any] | None = None,
    serial: str | None = None,
    concurrency: tuple[str, int] | None = None,
    object_url: ObjectUrl | None = None,
) -> Task[P, R]: ...


@overload
def task(
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Backoff | str | None = None,
    poll: Ladder | str | None = None,
    timeout: clock.Delay | None = None,
    atomic: bool = False,
    sensitive: Collection[str] = (),
    on_failure: Task[..., Any] | None = None,
    serial: str | None = None,
    concurrency: tuple[str, int] | None = None,
    object_url: ObjectUrl | None = None,
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
    poll: Ladder | str | None = None,
    timeout: clock.Delay | None = None,
    atomic: bool = False,
    sensitive: Collection[str] = (),
    on_failure: Task[..., Any] | None = None,
    serial: str | None = None,
    concurrency: tuple[str, int] | None = None,
    object_url: ObjectUrl | None = None,
    **unknown: Any,
) -> Any:
    """Makes a function a task: `@task`, or `@task(queue="orders", backoff="15s 3m", timeout="30s")`.

    Args:
        name: how jobs name the task; None: module and qualified name of the function. Jobs that wait keep the old name.
        queue: the queue of its jobs.
        priority: above 0 high, 0 normal, below 0 low. Due jobs with a higher priority are claimed first.
        max_attempts: how many attempts a job has before it fails; None: that of the queue. With 0 there is no limit, and each job
            needs `expires`.
        backoff: the delays between attempts, as text such as "15s 3m 10m" or a `Ladder`; or a function of the attempt and the
            exception that returns a delay, or None to fail. None: that of the queue.
        poll: the delays after each `NotYet`, as text or a `Ladder`; None: 15s 3m 10m 30m 30m 1h 2h 6h 15h.
        timeout: the time limit of one attempt; None: that of the queue.
        atomic: the run and the end of the job are one transaction on the database in `DATABASE`. Not for `async def`.
        sensitive: names of parameters whose values are masked in the admin and in commands, in addition to those in `SENSITIVE`.
        on_failure: a task. When a job has failed for good, a job of that task is scheduled, with the id of the failed job as argument.
        serial, concurrency: a name of which one job, or so many jobs, run at the same time. The name is a format over the arguments:
            "order:{order_id}", or ("tenant:{tenant}", 5).
        object_url: a function that gets the row of a job and returns the URL to which the page of the job in the admin links;
            None: `OBJECT_URL`.

    Raises:
        ConfigError: an option is unknown or not valid, or a parameter of the function has the name of an option of `schedule`.
    """

    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        where = f"@task on {task_options.place(function)}"
        if isinstance(function, Task):
            raise ConfigError(f"{where}: it is already a task. Write @task once, directly above def, and @periodic above it.")
        ready = made(
            Task,
            function,
            where=where,
            name=name,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            backoff=backoff,
            poll=poll,
            timeout=timeout,
            atomic=atomic,
            sensitive=sensitive,
            on_failure=on_failure,
            serial=serial,
            concurrency=concurrency,
            object_url=object_url,
        )
        if ready.name == MESSAGE:
            raise ConfigError(f"{where}: the name {MESSAGE!r} is reserved for messages, which have no task. Choose another name.")
        clash = [parameter for parameter in ready.signature.parameters if parameter in OPTIONS]
        if clash:
            said = f"{where}: its parameter {clash[0]!r} is also an option of schedule(), so the two would be ambiguous."
            raise ConfigError(f"{said} Rename the parameter, for example to {clash[0]}_value.")
        registry.add(ready)
        return ready

    if unknown:
        strange = next(iter(unknown))
        meant = migration_hints.of_option(strange, _TASK_OPTIONS)
        raise ConfigError(f"@task: {strange!r} is an unknown option{meant}. The options are: {', '.join(_TASK_OPTIONS)}.")
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
    poll: Any = None,
    timeout: Any = None,
    atomic: bool = False,
    sensitive: Any = (),
    on_failure: Any = None,
    serial: Any = None,
    concurrency: Any = None,
    object_url: Any = None,
) -> T:
    """A task that is not registered yet. `where`: in errors.

    Raises:
        ConfigError: an option cannot work.
    """
    task = kind(
        function,
        name=task_options.name_of(name, function, where),
        queue=queue,
        priority=task_options.integer(priority, "priority", where),
        max_attempts=task_options.attempts(max_attempts, where),
        backoff=task_options.backoff(backoff, where),
        poll=task_options.poll(poll, where),
        timeout=task_options.timeout(timeout, where),
        atomic=atomic,
        sensitive=task_options.sensitive(sensitive, function, where),
        on_failure=follower_of(on_failure, where),
        object_url=task_options.object_url(object_url, where),
    )
    task.named = name_format.given(serial, concurrency, task.signature, where, task.sensitive)
    if atomic and task.is_async:
        raise ConfigError(
            f"{where}: atomic=True needs a plain function, because transactions in Django belong to a thread. Write def instead of "
            f"async def."
        )
    return task


_TASK_OPTIONS: Final = tuple(name for name, one in inspect.signature(task).parameters.items() if one.kind is one.KEYWORD_ONLY)


def follower_of(value: Any, where: str) -> Task[..., Any] | None:
    """What was given as `on_failure`, or ConfigError: it is no task, or not one that takes an id."""
    if value is None:
        return None
    if not isinstance(value, Task):
        raise ConfigError(f"{where}: on_failure must be a task, made by @delayq.task, not {value!r}.")
    if value.max_attempts == 0:
        raise ConfigError(f"{where}: on_failure is scheduled without expires=, so {value.name} needs a limit of attempts.")
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
        elif parameter.kind is parameter.VAR_POSITIONAL:
            most = sys.maxsize
        elif parameter.kind is parameter.KEYWORD_ONLY and required:
            return 1, 0
    return least, most


def _named_beside(signature: inspect.Signature) -> list[tuple[frozenset[str], frozenset[str]]]:
    """By the number of positional arguments: the names that must be given besides, and those that may. `bind` decides about others."""
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
