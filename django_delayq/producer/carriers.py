"""Carriers: what travels with a job besides its arguments, such as tenant, language, request id or trace."""

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
    """A class that `DELAYQ["CARRIERS"]` names, made once per process, without arguments. Its attribute `name`, else the name of the
    class, says in the job whose luggage it is; so a class may move to another module, but not change its name while jobs wait.
    """

    def pack(self) -> Any:
        """Called by `schedule`. What is to travel with the job, as JSON; None: nothing."""

    def wrap(self, packed: Any) -> AbstractContextManager[object]:
        """Called for each run, in its thread or coroutine: what the run happens inside of. `packed`: what `pack` gave, or None.
        What it raises ends the run as if the task had raised it.
        """


def pack(meta: dict[str, Any] | None) -> dict[str, Any] | None:
    """Meta of a job, with what all carriers of the project, and all watchers, pack now, by name."""
    found = watchers.packed() if watchers.watchers else {}
    for name, carrier in load(conf.get().carriers):
        packed = carrier.pack()
        if packed is not None:
            found[name] = packed
    return {**(meta or {}), CARRIED: found} if found else meta


def luggage(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a job carries, by the name of the carrier. `meta`: of the job, as it travels."""
    found = (meta or {}).get(CARRIED)
    return found if isinstance(found, dict) else {}


def missing(meta: Mapping[str, Any] | None) -> list[str]:
    """The carriers whose luggage a job has and which this process does not. Without them its task would run in another context, such as
    that of another tenant. Watchers only follow a job: it runs without them.
    """
    carried = luggage(meta)
    if not carried:
        return []
    known = {name for name, _ in load(conf.get().carriers)}
    return sorted(name for name in carried if name not in known and not name.startswith(watchers.OURS))


def wrapped(fn: Callable[..., Any], meta: Mapping[str, Any], is_async: bool) -> Callable[..., Any]:
    """The function of a task inside all carriers, the first one outermost. `meta`: of the job, as it travels."""
    carriers = load(conf.get().carriers)
    if not carriers:
        return fn
    carried = luggage(meta)

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
    """The carriers of these dotted paths, with their names.

    Raises:
        ConfigError: a path leads nowhere, or to what is no carrier, or two have one name.
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
