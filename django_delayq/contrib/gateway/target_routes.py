"""Jobs that end elsewhere than in a function of the project: deliveries to URLs, offers to targets. Where nobody asks for them, nothing
of the code behind them is in memory.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, cast

from django_delayq import clock, conf
from django_delayq.contrib.gateway import placement
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.placement import Proposed
from django_delayq.contrib.gateway.problems import GatewayProblem, pointer
from django_delayq.exceptions import ConfigError, TargetRefused
from django_delayq.http_settings import HttpConfig

BODIES = ("json", "text", "base64")


def deliver(call: GatewayCall) -> GatewayAnswer:
    """Puts a delivery in. Whether its host may be asked is looked at when it is, by the same guard as for all others."""
    http, queue = permit_delivery(call)
    from django_delayq.targets import delivery

    body = call.body
    options = placement.options(call, queue, "json", "text", "headers")
    content = _content(body)
    timeout = placement.duration(body["timeout"], "/timeout") if "timeout" in body else None
    if timeout is not None and clock.seconds(timeout) > http.timeout:
        raise GatewayProblem("field_value", "/timeout", cause=f"It must be at most {clock.text(http.timeout)}, as the project allows.")
    try:
        bound, kwargs = delivery.prepared(
            body["url"],
            content.get("json", delivery.UNSAID),
            content.get("data"),
            body.get("method", "POST"),
            body.get("headers"),
            body.get("secret"),
            timeout,
            body.get("redirects", 0),
            None,
            cast("Any", options),
        )
    except ConfigError as error:
        raise GatewayProblem("options", "", cause=placement.told(error)) from None
    return placement.put(call, Proposed(bound.task, options, (), kwargs, lambda *_: ""))


def permit_delivery(call: GatewayCall) -> tuple[HttpConfig, str]:
    """The settings and the queue of a delivery that may be put in."""
    http = conf.get().http
    if http is None:
        raise GatewayProblem("no_deliveries")
    from django_delayq.targets import endpoint

    queue = placement.allowed(call, http.queue)
    try:
        site = endpoint.read(call.body["url"]).site
    except TargetRefused as error:
        raise GatewayProblem("url_refused", "/url", cause=placement.told(error)) from None
    for place, name in _secrets(call.body):
        if not call.token.may_send(name, site) or (http.secrets and name not in http.secrets):
            raise GatewayProblem("secret_denied", place)
    return http, queue


def permit_offer(call: GatewayCall) -> str:
    """The queue of an offer that may be put in."""
    to = call.body["to"]
    if not call.token.allows("targets", to):
        raise GatewayProblem("target_denied", "/to")
    if to not in conf.get().targets:
        raise GatewayProblem("target_unlisted", "/to")
    from django_delayq.targets.offering import offers

    return placement.allowed(call, offers.queue)


def offer(call: GatewayCall) -> GatewayAnswer:
    """Puts an offer in, to a target that the token lists."""
    to, queue = call.body["to"], permit_offer(call)
    from django_delayq.targets.offering import offers

    options = placement.options(call, queue, "message")
    return placement.put(call, Proposed(offers, options, (call.body["message"],), {"to": to}, lambda *_: "/message"))


def _content(body: dict[str, Any]) -> dict[str, Any]:
    """What is to be sent, as `deliver` takes it."""
    given = [name for name in BODIES if name in body]
    if len(given) > 1:
        raise GatewayProblem("field_value", pointer(given[1]), cause=f"Give one of {', '.join(BODIES)}.")
    if "json" in body:
        return {"json": body["json"]}
    if "base64" not in body:
        return {"data": body.get("text")}
    try:
        return {"data": base64.b64decode(body["base64"], validate=True)}
    except (binascii.Error, ValueError):
        raise GatewayProblem("field_value", "/base64", cause="It must be base64.") from None


def _secrets(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each that is named, with its place."""
    if "secret" in body:
        yield "/secret", body["secret"]
    for header, value in body.get("headers", {}).items():
        if isinstance(value, dict):
            yield pointer("headers", header, "secret"), value["secret"]
