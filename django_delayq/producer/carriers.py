"""Carriers propagate context with a job, such as the tenant, the language, the request id or the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache, wraps
from typing import Any, Protocol, runtime_checkable

from django.utils.module_loading import import_string

from django_delayq import conf
from django_delayq.exceptions import ConfigError
from django_delayq.producer import watchers
from django_delayq.states import CARRIED


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


def pack(meta: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns `meta` of a job with the context that all carriers and watchers pack now, by name."""
    found = watchers.packed() if watchers.watchers else {}
    for name, carrier in load(conf.get().carriers):
        packed = carrier.pack()
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
    return sorted(name for name in carried if name not in known and not name.startswith(watchers.OURS))


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
            raise ConfigError(f"{where} cannot be imported: {error}.", hint="Write the dotted path of a class.") from error
        carrier = kind() if isinstance(kind, type) else kind
        if not isinstance(carrier, Carrier):
            raise ConfigError(f"{where} is not a carrier.", hint="Give it the methods pack(self) and wrap(self, packed).")
        name = str(getattr(carrier, "name", "") or type(carrier).__name__)
        if name in found:
            raise ConfigError(f"{where} has the name {name!r} of another carrier.", hint="Give one of them an attribute name.")
        found[name] = carrier
    return tuple(found.items())
