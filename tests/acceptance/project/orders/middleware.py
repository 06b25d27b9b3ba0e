"""Reads tenant, language and request id from a request, for sync and async views."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any, cast

from django.http import HttpRequest, HttpResponseBase
from django.utils import translation
from django.utils.decorators import sync_and_async_middleware

from orders.surroundings import request_id, tenant

Sync = Callable[[HttpRequest], HttpResponseBase]
Async = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@contextmanager
def inside(request: HttpRequest) -> Generator[None]:
    before = tenant.set(request.headers.get("X-Tenant", "")), request_id.set(request.headers.get("X-Request-Id", ""))
    with translation.override(translation.get_language_from_request(request)):
        yield
    tenant.reset(before[0])
    request_id.reset(before[1])


@sync_and_async_middleware
def surroundings(get_response: Any) -> Sync | Async:
    if iscoroutinefunction(get_response):

        async def for_async(request: HttpRequest) -> HttpResponseBase:
            with inside(request):
                return await cast(Async, get_response)(request)

        return for_async

    def for_sync(request: HttpRequest) -> HttpResponseBase:
        with inside(request):
            return cast(Sync, get_response)(request)

    return for_sync
