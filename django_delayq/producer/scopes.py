"""The scope of a job, such as its tenant. Keys, serial names and locks of two scopes never meet. `schedule` computes the scope
once, and the job keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

from django.utils.module_loading import import_string

from django_delayq import codec, conf
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.producer import carriers
from django_delayq.store.scripts.record import validate_scope

_chosen: Final[ContextVar[str | None]] = ContextVar("scope", default=None)


def in_force() -> str:
    """The scope of this call: the one of the block `chosen`, else what `SCOPE` returns, or "" without it.

    Raises:
        ConfigError: `SCOPE` does not return text that can be a scope.
    """
    config, scope = conf.get(), _chosen.get()
    if scope is not None:
        return scope
    return "" if config.scope is None else valid(load(config.scope, config.carriers)(), "DELAYQ['SCOPE']")


@contextmanager
def chosen(scope: str | None) -> Iterator[None]:
    """Calls in the block have this scope; None changes nothing.

    Raises:
        ConfigError: it cannot be a scope, or the settings have no `SCOPE`.
    """
    if scope is not None and conf.get().scope is None:
        raise ConfigError(f'scope={scope!r}: jobs have no scopes, because DELAYQ["SCOPE"] is not set.')
    token = _chosen.set(None if scope is None else valid(scope, f"scope={scope!r}"))
    try:
        yield
    finally:
        _chosen.reset(token)


def of_call(scope: str | None) -> str:
    """The scope that a caller has passed, or else the one in force.

    Raises:
        ConfigError: it cannot be a scope.
    """
    return in_force() if scope is None else valid(scope, f"scope={scope!r}")


def valid(value: Any, where: str) -> str:
    """The value as a scope; None is "".

    Raises:
        ConfigError: it cannot be a scope.
    """
    try:
        return validate_scope("" if value is None else value)
    except PayloadError as error:
        raise ConfigError(f"{where}: {error}.") from None


def has_packed(scope: str, payload: bytes) -> bool:
    """Whether a carrier has packed the scope for the job with this payload. So jobs that were scheduled before `SCOPE` was set
    show their scope.
    """
    try:
        carried = carriers.propagated_context(codec.decode_payload(payload)[2].get("meta"))
    except PayloadError:
        return False
    named = conf.get().scope
    return carried[named] == scope if named in carried else scope in carried.values()


@lru_cache(maxsize=8)
def load(path: str, paths: Sequence[str]) -> Callable[[], Any]:
    """The function of `SCOPE`: the one at this dotted path, or the `pack` of the carrier with this name.

    Raises:
        ConfigError: there is neither.
    """
    for name, carrier in carriers.load(paths):
        if name == path:
            return carrier.pack
    hint = "Use the name of a class in CARRIERS, or the dotted path to a function that returns text."
    try:
        found = import_string(path)
    except ImportError as error:
        raise ConfigError(f'DELAYQ["SCOPE"]: {path!r} cannot be imported: {error}.', hint=hint) from error
    if isinstance(found, type) or not callable(found):
        raise ConfigError(f'DELAYQ["SCOPE"]: {path!r} is not a function.', hint=hint)
    function: Callable[[], Any] = found
    return function
