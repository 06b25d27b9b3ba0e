"""The scope of the current call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SCOPE: ContextVar[str] = ContextVar("scope", default="")


def current() -> str:
    """The function that SCOPE names."""
    return _SCOPE.get()


@contextmanager
def of(scope: str) -> Iterator[None]:
    """Calls inside belong to this scope."""
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def within(text: str) -> str:
    """The key or name for the laws, which know no scopes."""
    return f"{current()}/{text}" if current() and text else text
