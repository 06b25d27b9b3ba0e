"""A carrier that tests name in their settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

TENANT: ContextVar[str | None] = ContextVar("tenant", default=None)
seen: list[tuple[str, object]] = []


class Tenant:
    """Carries the tenant, and notes what was wrapped."""

    def pack(self) -> object:
        return TENANT.get()

    @contextmanager
    def wrap(self, packed: str | None) -> Iterator[None]:
        token = TENANT.set(packed)
        seen.append(("in", packed))
        try:
            yield
        finally:
            seen.append(("out", packed))
            TENANT.reset(token)


class Customer(Tenant):
    """Carries the customer."""

    name = "customer"


class Broken(Tenant):
    """Cannot unpack."""

    def wrap(self, packed: str | None) -> object:
        raise LookupError(f"no tenant {packed}")
