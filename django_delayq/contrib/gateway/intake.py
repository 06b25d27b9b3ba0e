"""What is read of a request: its token, its body, its query. Nothing is believed, and no more is read than is taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.http import HttpRequest

from django_delayq import codec, conf
from django_delayq.contrib.gateway import tokens
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.problems import GatewayProblem
from django_delayq.exceptions import PayloadError

LEAST_LIMIT: Final = 262_144  # bytes of a body that is always taken
ESCAPED: Final = 6  # bytes of JSON that one may take: \u0041


def body_limit() -> int:
    """How large a body may be: the largest payload of a queue, however its JSON is written, and something for the rest."""
    largest = max(queue.max_payload for queue in conf.get().queues.values())
    return max(LEAST_LIMIT, ESCAPED * largest + 65_536)


def token(request: HttpRequest) -> Token:
    """Who sends it.

    Raises:
        GatewayProblem: token_missing, token_invalid.
    """
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not sent.strip():
        raise GatewayProblem("token_missing", headers={"WWW-Authenticate": "Bearer"})
    found = tokens.find(sent.strip())
    if found is None:
        raise GatewayProblem("token_invalid", headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
    return found


def raw_body(request: HttpRequest) -> bytes:
    """Its bytes; none of them is read if there are said to be too many, and not all if there are.

    Raises:
        GatewayProblem: length_unknown, body_size, body_type, body_lost.
    """
    limit = body_limit()
    said = request.META.get("CONTENT_LENGTH") or "0"
    if not (said.isascii() and said.isdigit() and len(said) < 19):
        raise GatewayProblem("length_unknown")
    if int(said) > limit:
        raise GatewayProblem("body_size", limit=limit)
    try:
        raw = request.read(limit + 1)
    except OSError as error:  # the client has gone
        raise GatewayProblem("body_lost") from error
    if len(raw) > limit:
        raise GatewayProblem("body_size", limit=limit)
    if not raw and "Transfer-Encoding" in request.headers:
        raise GatewayProblem("length_unknown")  # under WSGI Django reads no body without a length: what it asks for would be left out
    charset = request.content_params.get("charset", "utf-8") if request.content_params else "utf-8"
    if request.content_type != "application/json" or charset.lower() not in ("utf-8", "utf8", "us-ascii"):
        raise GatewayProblem("body_type", headers={"Accept": "application/json"})
    return raw


def json_body(raw: bytes) -> dict[str, Any]:
    """The object in a body; none is one without members.

    Raises:
        GatewayProblem: json, field_type.
    """
    try:
        found = codec.loads(raw) if raw.strip() else {}
    except PayloadError as error:
        at = {name: error.fields[name] for name in ("line", "column") if name in error.fields}
        raise GatewayProblem("json", more=at, cause=str(error.fields.get("cause", ""))[:200]) from None
    if not isinstance(found, dict):
        raise GatewayProblem("field_type", "", expected="object")
    return found


def query(request: HttpRequest, names: Iterable[str]) -> dict[str, str]:
    """The parameters of its address, of which each must stand there once.

    Raises:
        GatewayProblem: query.
    """
    found = {}
    for name in names:
        given = request.GET.getlist(name)
        if len(given) != 1 or not given[0]:
            raise GatewayProblem("query", name=name)
        found[name] = given[0]
    return found
