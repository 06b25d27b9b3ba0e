"""The way of a request, in this order: method, token, rate, verb, body, what was answered before, the handler. What is raised there is
an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.contrib.auth.decorators import login_not_required
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

logger: Final = Logger("django_delayq.gateway")
View = Callable[..., HttpResponse]
RETRY_AFTER: Final = {"Retry-After": "5"}


def view(routes: Mapping[str, Route]) -> View:
    """The view of one address, with what it does by method. An answer needs the commit, so it opens no transaction in any database."""

    def answer(request: HttpRequest, **path: str) -> HttpResponse:
        try:
            found = _answer(routes, request, path)
        except GatewayProblem as problem:
            found = GatewayAnswer.of(problem)
        except DriverError as error:
            found = GatewayAnswer.of(_away("database_away", error))
        return found.response()

    return for_programs(answer)


def for_programs(view: View) -> View:
    """A view without cookies and sessions: no login, no CSRF; and in no transaction."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return csrf_exempt(login_not_required(view))


def _answer(routes: Mapping[str, Route], request: HttpRequest, path: Mapping[str, str]) -> GatewayAnswer:
    method = "GET" if request.method == "HEAD" else str(request.method)
    route = routes.get(method)
    if route is None:
        raise GatewayProblem("method", headers={"Allow": ", ".join(sorted(routes))}, method=method[:20])
    token = intake.token(request)
    rate_limit.count(token)
    if not token.allows("verbs", route.verb):
        raise GatewayProblem("verb_denied", verb=route.verb)
    if route.body is None:
        return _carried_out(route, token, path, intake.query(request, route.query), {}, ids.new(), False)
    raw = intake.raw_body(request)
    key = idempotency.read(request.headers.get(idempotency.HEADER))
    body = intake.json_body(raw)
    json_schemas.check(route.body, body)
    carry_out = partial(_settled, route, token, path, body)
    if key is None:
        return carry_out(ids.new(), False)
    return idempotency.once(token, key, idempotency.fingerprint(method, request.get_full_path(), raw), carry_out)


def _settled(route: Route, token: Token, path: Mapping[str, str], body: dict[str, Any], job: UUID, again: bool) -> GatewayAnswer:
    """The answer, also where that is a refusal; but for those that leave open what has happened."""
    try:
        return _carried_out(route, token, path, {}, body, job, again)
    except GatewayProblem as problem:
        if problem.status >= 500:
            raise
        return GatewayAnswer.of(problem)


def _carried_out(
    route: Route, token: Token, path: Mapping[str, str], query: Mapping[str, str], body: dict[str, Any], job: UUID, again: bool
) -> GatewayAnswer:
    try:
        return route.handle(GatewayCall(token=token, body=body, path=path, query=query, job=job, again=again))
    except DOWN as error:
        raise _away("store_away", error, *getattr(error, "jobs", ())) from error
    except DriverError as error:
        raise _away("database_away", error, *([job] if route.verb == "schedule" else [])) from error


def _away(code: str, error: Exception, *jobs: UUID) -> GatewayProblem:
    """What cannot be reached, and why, is for the log only: addresses of servers are nothing for others."""
    logger.warning("A request was answered with 503: %s", error)
    return GatewayProblem(code, headers=RETRY_AFTER, more={"job": ids.short(jobs[0])} if jobs else {})
