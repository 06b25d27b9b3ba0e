"""Carriers propagate context with a job, such as the tenant, the language, the request id or the trace. Watchers observe each call that
schedules jobs; integrations such as traces use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache, wraps
from typing import Any, Final, Protocol, runtime_checkable

from django.utils.module_loading import import_string

from django_delayq import conf
from django_delayq.exceptions import ConfigError
from django_delayq.logger import Logger
from django_delayq.producer.commit import Plan
from django_delayq.states import CARRIED

logger = Logger("django_delayq.producer")
OURS: Final = "django_delayq."  # prefix of the names of watchers


@runtime_checkable
class Carrier(Protocol):
    """A class in `DELAYQ["CARRIERS"]`. Each process makes one instance, without arguments. The job stores the context under the
    attribute `name`, or under the name of the class. You can move the class to another module, but do not rename it while jobs wait.
    """

    def pack(self) -> Any:
        """Returns the context of the job as JSON, or None. Called by `schedule`."""

    def wrap(self, packed: Any) -> AbstractContextManager[object]:
        """Returns the context manager for one run, called in the thread or coroutine of the run. `packed` is the result of `pack`, or
        None. An exception ends the run as if the task had raised it.
        """


class Call:
    """One call of `schedule`, or of `schedule_many` (`many`), for which `task` and `queue` are "". `plans` has the jobs that have
    passed all checks so far.
    """

    __slots__ = ("many", "plans", "queue", "task")

    def __init__(self, task: str = "", queue: str = "", *, many: bool = False) -> None:
        self.task = task
        self.queue = queue
        self.many = many
        self.plans: list[Plan] = []


class Watcher(Protocol):
    """Observes such calls, in the thread of the caller. Its exceptions are logged and change nothing.

    The job stores the context under `name`, as for a carrier. It starts with `OURS`. Do not change it while jobs wait.
    """

    name: str

    def begins(self, call: Call) -> Any:
        """Called before the checks. `ends` gets the result."""

    def pack(self) -> Any:
        """Called for each job. Returns the context of the job as JSON, or None."""

    def ends(self, call: Call, begun: Any, error: BaseException | None) -> None:
        """Called at the end of each call. The jobs are in Redis or in the open transaction, or there is an error."""


watchers: Final[dict[str, Watcher]] = {}


def pack(meta: dict[str, Any] | None, scope: str) -> dict[str, Any] | None:
    """Returns `meta` of a job with the context that all carriers and watchers pack now, by name. If `SCOPE` names a carrier, the scope
    of the job is its context, because a command or a token can choose it.
    """
    found: dict[str, Any] = {}
    for watcher in tuple(watchers.values()):
        with _harmless(watcher):
            if (context := watcher.pack()) is not None:
                found[watcher.name] = context
    config = conf.get()
    for name, carrier in load(config.carriers):
        packed = scope if scope and name == config.scope else carrier.pack()
        if packed is not None:
            found[name] = packed
    return {**(meta or {}), CARRIED: found} if found else meta


def propagated_context(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the context that the job has, by the name of the carrier. `meta`: as stored with the job."""
    found = (meta or {}).get(CARRIED)
    return found if isinstance(found, dict) else {}


def missing(meta: Mapping[str, Any] | None) -> list[str]:
    """Returns the carriers that packed context for the job and that this process does not have. Without them the task would run in
    another context, such as that of another tenant. Watchers only observe, so a job can run without them.
    """
    carried = propagated_context(meta)
    if not carried:
        return []
    known = {name for name, _ in load(conf.get().carriers)}
    return sorted(name for name in carried if name not in known and not name.startswith(OURS))


def wrapped(fn: Callable[..., Any], meta: Mapping[str, Any], is_async: bool) -> Callable[..., Any]:
    """Wraps the function of a task in all carriers, the first one outermost. `meta`: as stored with the job."""
    carriers = load(conf.get().carriers)
    if not carriers:
        return fn
    carried = propagated_context(meta)

    def enter(stack: ExitStack) -> None:
        for name, carrier in carriers:
            stack.enter_context(carrier.wrap(carried.get(name)))

    if is_async:

        @wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                enter(stack)
                return await fn(*args, **kwargs)

        return run_async

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            enter(stack)
            return fn(*args, **kwargs)

    return run


@lru_cache(maxsize=8)
def load(paths: Sequence[str]) -> tuple[tuple[str, Carrier], ...]:
    """Imports carriers by dotted path. Returns them with their names.

    Raises:
        ConfigError: a path cannot be imported or is not a carrier, or two carriers have the same name.
    """
    found: dict[str, Carrier] = {}
    for path in paths:
        where = f'DELAYQ["CARRIERS"]: {path!r}'
        try:
            kind = import_string(path)
        except ImportError as error:
            raise ConfigError(f"{where} cannot be imported: {error}.", hint="Use the dotted path to a class.") from error
        carrier = kind() if isinstance(kind, type) else kind
        if not isinstance(carrier, Carrier):
            raise ConfigError(f"{where} is not a carrier.", hint="Add the methods pack(self) and wrap(self, packed).")
        name = str(getattr(carrier, "name", "") or type(carrier).__name__)
        if name in found:
            raise ConfigError(f"{where} has the same name as another carrier: {name!r}.", hint="Set the attribute name of one of them.")
        found[name] = carrier
    return tuple(found.items())


def add_watcher(watcher: Watcher) -> None:
    """Adds a watcher. A second call has no effect."""
    watchers[watcher.name] = watcher


def remove_watcher(name: str) -> None:
    """Removes a watcher."""
    watchers.pop(name, None)


@contextmanager
def watched(call: Call) -> Iterator[Call]:
    """Informs the watchers about the start of a call, and in reverse order about its end."""
    begun: list[tuple[Watcher, Any]] = []
    for watcher in tuple(watchers.values()):
        with _harmless(watcher):
            begun.append((watcher, watcher.begins(call)))
    error: BaseException | None = None
    try:
        yield call
    except BaseException as raised:
        error = raised
        raise
    finally:
        for watcher, state in reversed(begun):
            with _harmless(watcher):
                watcher.ends(call, state, error)


@contextmanager
def _harmless(watcher: Watcher) -> Iterator[None]:
    try:
        yield
    except Exception:
        logger.exception("%s failed while a job was scheduled; scheduling continues", type(watcher).__name__)
