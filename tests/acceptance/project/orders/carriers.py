"""The context that travels with each job: tenant, language, and the id of the request that scheduled it."""

from collections.abc import Generator
from contextlib import contextmanager

from django.utils import translation

from orders.surroundings import request_id, tenant


class TenantCarrier:
    name = "tenant"

    def pack(self) -> str | None:
        return tenant.get() or None

    @contextmanager
    def wrap(self, packed: str | None) -> Generator[None]:
        before = tenant.set(packed or "")
        try:
            yield
        finally:
            tenant.reset(before)


class LanguageCarrier:
    name = "language"

    def pack(self) -> str | None:
        return translation.get_language()

    @contextmanager
    def wrap(self, packed: str | None) -> Generator[None]:
        with translation.override(packed or "en"):
            yield


class RequestCarrier:
    name = "request"

    def pack(self) -> dict[str, str] | None:
        return {"id": request_id.get()} if request_id.get() else None

    @contextmanager
    def wrap(self, packed: dict[str, str] | None) -> Generator[None]:
        before = request_id.set(packed["id"] if packed else "")
        try:
            yield
        finally:
            request_id.reset(before)
