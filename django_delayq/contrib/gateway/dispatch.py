"""Takes a request to its view. In this order: method, token, rate limit, verb, body, stored response, view.

A GatewayProblem that is raised on the way becomes the response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import Error as DriverError
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from django_delayq import ids
from django_delayq.console.overview import DOWN
from django_delayq.contrib.gateway import idempotency, parsing, tokens
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.parsing import Schema
from django_delayq.contrib.gateway.responses import GatewayAnswer, GatewayProblem
from django_delayq.logger import Logger
from django_delayq.producer.async_api import in_thread
from django_delayq.store.connection.error_replies import StoreRefused

logger: Final = Logger("django_delayq.gateway")
View = Callable[..., Any]  # returns a response, or an awaitable of one
RETRY_AFTER: Final = {"Retry-After": "5"}
LONGEST_WAIT_ASGI: Final = 60.0  # seconds that a pull may wait; under ASGI it blocks no thread
LONGEST_WAIT_WSGI: Final = 2.0
REJECTED: Final = (GatewayProblem, DriverError)
# Error codes of all operations, of those with a body, and of those that accept or reject an Idempotency-Key.
COMMON_CODES: Final = (
    *("token_missing", "token_invalid", "verb_denied", "method", "rate"),
    *("limit_away", "store_away", "store_refused", "database_away"),
)
BODY_CODES: Final = (
    *("length_unknown", "body_lost", "json", "body_size"),
    *("body_type", "field_unknown", "field_type", "field_value"),
)
KEY_CODES: Final = ("idempotency_key", "in_progress", "idempotency_reused")
NO_KEY_CODES: Final = ("idempotency_unkept",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCall:
    """A request that passed the checks. `job`: the id for a job that it schedules; `again`: an earlier attempt may have carried it out,
    in part or completely; `key`: its `Idempotency-Key`; `longest_wait`: how many seconds it may wait.
    """

    token: Token
    body: dict[str, Any]
    path: Mapping[str, str]
    query: Mapping[str, str]
    job: UUID
    again: bool
    key: str | None = None
    longest_wait: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation. `needs`: the verb that the token needs, if it is not the name; `path`: relative to the gateway, with `{names}`;
    `body`: its schema, or None for a GET; `check`: raises if the token lacks a permission, also before a stored response is sent
    again; `answers`: description and schema by status; `problems`: its own error codes; `waits`: `view` is a coroutine, and no
    response is stored.
    """

    name: str
    path: str
    summary: str
    view: Callable[[GatewayCall], Any]
    answers: Mapping[int, tuple[str, Schema]]
    needs: str = ""
    body: Schema | None = None
    check: Callable[[GatewayCall], object] = lambda call: None
    problems: tuple[str, ...] = ()
    query: Mapping[str, Schema] = field(default_factory=dict)
    waits: bool = False

    @property
    def verb(self) -> str:
        """The verb that the token needs."""
        return self.needs or self.name

    @property
    def method(self) -> str:
        """GET without a body, otherwise POST."""
        return "GET" if self.body is None else "POST"

    @property
    def codes(self) -> tuple[str, ...]:
        """All its error codes."""
        body = BODY_CODES if self.body is not None else ()
        keys = KEY_CODES if self.accepts_key else NO_KEY_CODES if self.waits else ()
        return (*COMMON_CODES, *body, *keys, *(("query",) if self.query else ()), *self.problems)

    @property
    def accepts_key(self) -> bool:
        """Whether it accepts an `Idempotency-Key`."""
        return self.body is not None and not self.waits


def view(routes: Mapping[str, Route]) -> View:
    """The Django view of one path, for these routes by method. It opens no transaction: a response needs the commit."""
    if any(route.waits for route in routes.values()):
        return without_session(_waiting_view(routes))

    def answer(request: HttpRequest, **path: str) -> HttpResponse:
        try:
            return _answer(routes, request, path).response()
        except REJECTED as error:
            return _rejection(error).response()

    return without_session(answer)


def _waiting_view(routes: Mapping[str, Route]) -> View:
    """A coroutine: under ASGI, a request that waits does not block others."""

    async def answer(request: HttpRequest, **path: str) -> HttpResponse:
        try:
            handle, call = await in_thread(_prepare_wait, routes, request, path)
            try:
                found: GatewayAnswer = await handle(call)
            except DOWN as error:
                raise _store_unavailable(error) from error
        except REJECTED as error:
            found = _rejection(error)
        return found.response()

    return answer


def without_session(view: View) -> View:
    """A view without login, CSRF check and transaction."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return csrf_exempt(login_not_required(view))


def _answer(routes: Mapping[str, Route], request: HttpRequest, path: Mapping[str, str]) -> GatewayAnswer:
    route, token = _admit(routes, request)
    call = GatewayCall(token=token, body={}, path=path, query={}, job=ids.new(), again=False)
    if route.body is None:
        return _run(route, replace(call, query=parsing.query(request, route.query)))
    raw = parsing.raw_body(request)
    key = idempotency.valid_key(request.headers.get(idempotency.HEADER))
    call = replace(call, body=parsing.json_body(raw), key=key)
    parsing.check(route.body, call.body)
    if key is None:
        return _final_answer(route, call)
    fingerprint = idempotency.fingerprint(str(request.method), request.get_full_path(), raw)

    def check() -> None:
        try:
            route.check(call)
        except DOWN as error:
            raise _unavailable("store_away", error) from error

    return idempotency.once(
        token, key, fingerprint, lambda job, again: _final_answer(route, replace(call, job=job, again=again)), check
    )


def _admit(routes: Mapping[str, Route], request: HttpRequest) -> tuple[Route, Token]:
    method = "GET" if request.method == "HEAD" else str(request.method)
    route = routes.get(method)
    if route is None:
        raise GatewayProblem("method", headers={"Allow": ", ".join(sorted(routes))}, method=method[:20])
    token = tokens.authenticate(request)
    tokens.count_request(token)
    if not token.allows("verbs", route.verb):
        raise GatewayProblem("verb_denied", verb=route.verb)
    return route, token


def _prepare_wait(
    routes: Mapping[str, Route], request: HttpRequest, path: Mapping[str, str]
) -> tuple[Callable[[GatewayCall], Any], GatewayCall]:
    """Checks a request before it may wait, and closes the database connections, which it does not need while it waits."""
    route, token = _admit(routes, request)
    if request.headers.get(idempotency.HEADER) is not None:  # otherwise the client would rely on it
        raise GatewayProblem("idempotency_unkept")
    body = parsing.json_body(parsing.raw_body(request))
    parsing.check(route.body or {}, body)
    longest = LONGEST_WAIT_ASGI if isinstance(request, ASGIRequest) else LONGEST_WAIT_WSGI
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
    return route.view, GatewayCall(token=token, body=body, path=path, query={}, job=ids.new(), again=False, longest_wait=longest)


def _final_answer(route: Route, call: GatewayCall) -> GatewayAnswer:
    """The answer, or the problem as an answer. Raises problems of status 5xx, because the request may have been carried out."""
    try:
        return _run(route, call)
    except GatewayProblem as problem:
        if problem.status >= 500:
            raise
        return GatewayAnswer.of(problem)


def _run(route: Route, call: GatewayCall) -> GatewayAnswer:
    try:
        found: GatewayAnswer = route.view(call)
        return found
    except DOWN as error:
        raise _store_unavailable(error) from error
    except DriverError as error:
        raise _unavailable("database_away", error, *([call.job] if 201 in route.answers else [])) from error


def _rejection(error: Exception) -> GatewayAnswer:
    return GatewayAnswer.of(error if isinstance(error, GatewayProblem) else _unavailable("database_away", error))


def _store_unavailable(error: Exception) -> GatewayProblem:
    """Names the job unless Redis refused it: then the job does not exist."""
    if isinstance(error, StoreRefused) and error.nothing_done:
        return _unavailable("store_refused", error)
    return _unavailable("store_away", error, *getattr(error, "jobs", ()))


def _unavailable(code: str, error: Exception, *jobs: UUID) -> GatewayProblem:
    """The reason goes only to the log, because it contains the addresses of servers."""
    logger.warning("The gateway responded with 503: %s", error)
    return GatewayProblem(code, headers=RETRY_AFTER, more={"job": ids.short(jobs[0])} if jobs else {})
