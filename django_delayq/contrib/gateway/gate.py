"""The way of a request, in this order: method, token, rate, verb, body, what was answered before, the handler. What is raised there is
an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
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
from django_delayq.contrib.gateway import idempotency, intake, json_schemas, rate_limit
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.problems import GatewayProblem
from django_delayq.contrib.gateway.routes import Route
from django_delayq.logger import Logger
from django_delayq.producer.async_api import in_thread
from django_delayq.store.error_replies import StoreRefused

logger: Final = Logger("django_delayq.gateway")
View = Callable[..., Any]  # of a response, or of what is awaited for one
RETRY_AFTER: Final = {"Retry-After": "5"}
PATIENCE: Final = 60.0  # seconds for which a request may wait where that holds no thread
PATIENCE_OF_A_THREAD: Final = 2.0  # the same under WSGI
REFUSED: Final = (GatewayProblem, DriverError)


def view(routes: Mapping[str, Route]) -> View:
    """The view of one address, with what it does by method. An answer needs the commit, so it opens no transaction in any database."""
    if any(route.waits for route in routes.values()):
        return for_programs(_waiting(routes))

    def answer(request: HttpRequest, **path: str) -> HttpResponse:
        try:
            return _answer(routes, request, path).response()
        except REFUSED as error:
            return _refusal(error).response()

    return for_programs(answer)


def _waiting(routes: Mapping[str, Route]) -> View:
    """A view that may take its time: it is a coroutine, so that under ASGI a request that waits holds up no other one."""

    async def answer(request: HttpRequest, **path: str) -> HttpResponse:
        try:
            handle, call = await in_thread(_let_in, routes, request, path)
            try:
                found: GatewayAnswer = await handle(call)
            except DOWN as error:
                raise _store_away(error) from error
        except REFUSED as error:
            found = _refusal(error)
        return found.response()

    return answer


def for_programs(view: View) -> View:
    """A view without cookies and sessions: no login, no CSRF; and in no transaction."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return csrf_exempt(login_not_required(view))


def _answer(routes: Mapping[str, Route], request: HttpRequest, path: Mapping[str, str]) -> GatewayAnswer:
    route, token = _admitted(routes, request)
    call = GatewayCall(token=token, body={}, path=path, query={}, job=ids.new(), again=False)
    if route.body is None:
        return _carried_out(route, replace(call, query=intake.query(request, route.query)))
    raw = intake.raw_body(request)
    key = idempotency.read(request.headers.get(idempotency.HEADER))
    call = replace(call, body=intake.json_body(raw), key=key)
    json_schemas.check(route.body, call.body)
    if key is None:
        return _settled(route, call)
    fingerprint = idempotency.fingerprint(str(request.method), request.get_full_path(), raw)

    def carry_out(job: UUID, again: bool) -> GatewayAnswer:
        return _settled(route, replace(call, job=job, again=again))

    def permit() -> None:
        try:
            route.permit(call)
        except DOWN as error:
            raise _away("store_away", error) from error

    return idempotency.once(token, key, fingerprint, carry_out, permit)


def _admitted(routes: Mapping[str, Route], request: HttpRequest) -> tuple[Route, Token]:
    method = "GET" if request.method == "HEAD" else str(request.method)
    route = routes.get(method)
    if route is None:
        raise GatewayProblem("method", headers={"Allow": ", ".join(sorted(routes))}, method=method[:20])
    token = intake.token(request)
    rate_limit.count(token)
    if not token.allows("verbs", route.verb):
        raise GatewayProblem("verb_denied", verb=route.verb)
    return route, token


def _let_in(
    routes: Mapping[str, Route], request: HttpRequest, path: Mapping[str, str]
) -> tuple[Callable[[GatewayCall], Any], GatewayCall]:
    """What is looked at before a request may wait. No connection of a database is kept while it does."""
    route, token = _admitted(routes, request)
    if request.headers.get(idempotency.HEADER) is not None:  # else who sends it takes himself for safe
        raise GatewayProblem("idempotency_unkept")
    body = intake.json_body(intake.raw_body(request))
    json_schemas.check(route.body or {}, body)
    patience = PATIENCE if isinstance(request, ASGIRequest) else PATIENCE_OF_A_THREAD
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
    return route.handle, GatewayCall(token=token, body=body, path=path, query={}, job=ids.new(), again=False, patience=patience)


def _settled(route: Route, call: GatewayCall) -> GatewayAnswer:
    """The answer, also where that is a refusal; but for those that leave open what has happened."""
    try:
        return _carried_out(route, call)
    except GatewayProblem as problem:
        if problem.status >= 500:
            raise
        return GatewayAnswer.of(problem)


def _carried_out(route: Route, call: GatewayCall) -> GatewayAnswer:
    try:
        found: GatewayAnswer = route.handle(call)
        return found
    except DOWN as error:
        raise _store_away(error) from error
    except DriverError as error:
        raise _away("database_away", error, *([call.job] if route.puts_in else [])) from error


def _refusal(error: Exception) -> GatewayAnswer:
    return GatewayAnswer.of(error if isinstance(error, GatewayProblem) else _away("database_away", error))


def _store_away(error: Exception) -> GatewayProblem:
    """The answer does not name a job that was refused: it does not exist."""
    if isinstance(error, StoreRefused) and error.nothing_done:
        return _away("store_refused", error)
    return _away("store_away", error, *getattr(error, "jobs", ()))


def _away(code: str, error: Exception, *jobs: UUID) -> GatewayProblem:
    """What cannot be reached, and why, is for the log only: addresses of servers are nothing for others."""
    logger.warning("A request was answered with 503: %s", error)
    return GatewayProblem(code, headers=RETRY_AFTER, more={"job": ids.short(jobs[0])} if jobs else {})
