"""Putting a delivery in: `deliver`, which checks all that can be known now, and makes it a job of the task `django_delayq.deliver`."""

from __future__ import annotations

import base64
import json as json_text
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final, Unpack

from django_delayq import clock, conf
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.http_settings import SIGNING, HttpConfig
from django_delayq.producer import task_options
from django_delayq.producer.async_api import in_thread, like, refuse_loop
from django_delayq.producer.job import Job
from django_delayq.producer.options import UntimedOptions, date, templates
from django_delayq.producer.schedule import Bound
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, follower_of
from django_delayq.targets import endpoint
from django_delayq.targets.delivery_run import delivery
from django_delayq.targets.webhook import HEADERS
from django_delayq.text import did_you_mean

METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET", "HEAD")
CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
OURS: Final = frozenset({*HEADERS, "host", "content-length", "transfer-encoding", "connection", "accept-encoding", "expect", "upgrade"})
MOST_REDIRECTS: Final = 10
WHERE: Final = "deliver()"
EXTRA: Final = 'pip install "django-delayq[http]"'
UNSAID: Final[Any] = type("Unsaid", (), {"__repr__": lambda _: "none"})()  # since None is JSON, too


def header_secret(name: str, *, prefix: str = "") -> dict[str, str]:
    """The value of a header that is a secret in `DELAYQ["HTTP"]["SECRETS"]`, after a prefix such as `"Bearer "`. The job has only the
    name of the secret.
    """
    return {"secret": name, "prefix": prefix} if prefix else {"secret": name}


def deliver(
    url: str,
    *,
    json: Any = UNSAID,
    data: str | bytes | None = None,
    method: str = "POST",
    headers: Mapping[str, str | Mapping[str, str]] | None = None,
    secret: str | None = None,
    timeout: clock.Delay | None = None,
    redirects: int = 0,
    on_failure: Task[..., Any] | None = None,
    **options: Unpack[UntimedOptions],
) -> Job:
    """Schedules an HTTP request, which workers send and retry until the host answers 2xx:
    `deliver("https://partner.example/hook", json={"order": 7}, delay="10m", secret="partner")`.

    Args:
        url: an http or https URL without user and password.
        json, data: the body: a JSON value, or text or bytes. All attempts send the same bytes.
        method: POST, PUT, PATCH, DELETE, GET or HEAD.
        headers: a dict of text, or of `header_secret("partner-token")` for secrets. `Authorization`, `Proxy-Authorization` and `Cookie`
            must be secrets.
        secret: a name in `DELAYQ["HTTP"]["SECRETS"]`, which signs each attempt by the Standard Webhooks.
        timeout: the limit of a whole attempt, with its redirects; None: `DELAYQ["HTTP"]["TIMEOUT"]`.
        redirects: how many 307 and 308 redirects are followed. Any other redirect is a failed attempt.
        on_failure: a task. When the delivery has failed for good, a job of that task is scheduled, with the id of the delivery.
        options: those of `schedule`, except timeout.

    Raises:
        TargetRefused: the URL is not valid. The address of its host is checked when the request is sent.
        ConfigError: an option is not valid, `DELAYQ["HTTP"]` is not set, or urllib3 is not installed.
        PayloadError, PayloadTooLarge, QueueUnknown, KeyTaken, StoreUnavailable, SynchronousOnlyOperation: as `schedule`.
    """
    refuse_loop("delayq.adeliver(…)")
    bound, arguments = prepared(url, json, data, method, headers, secret, timeout, redirects, on_failure, options)
    return bound.schedule(**arguments)


@like(deliver)
async def adeliver(
    url: str,
    *,
    json: Any = UNSAID,
    data: str | bytes | None = None,
    method: str = "POST",
    headers: Mapping[str, str | Mapping[str, str]] | None = None,
    secret: str | None = None,
    timeout: clock.Delay | None = None,
    redirects: int = 0,
    on_failure: Task[..., Any] | None = None,
    **options: Unpack[UntimedOptions],
) -> Job:
    """Async version of `deliver`. It commits by itself."""
    # In a thread, since it may ask Redis for the time.
    bound, arguments = await in_thread(prepared, url, json, data, method, headers, secret, timeout, redirects, on_failure, options)
    return await bound.aschedule(**arguments)


def prepared(
    url: str,
    json: Any,
    data: str | bytes | None,
    method: str,
    headers: Mapping[str, str | Mapping[str, str]] | None,
    secret: str | None,
    timeout: clock.Delay | None,
    redirects: int,
    on_failure: Task[..., Any] | None,
    options: UntimedOptions,
) -> tuple[Bound[..., Any], dict[str, Any]]:
    """The task with its options, and the arguments of the job. What is usual is left out of these. Raises: see `deliver`."""
    config = _config()
    to = endpoint.read(url)
    if method not in METHODS:
        raise ConfigError(f"{WHERE}: method={method!r} must be one of {', '.join(METHODS)}.")
    if type(redirects) is not int or not 0 <= redirects <= MOST_REDIRECTS:
        raise ConfigError(f"{WHERE}: redirects={redirects!r} must be a whole number from 0 to {MOST_REDIRECTS}.")
    body, kind = _body(json, data)
    sent = _headers(headers or {}, config)
    if kind and not any(name.lower() == "content-type" for name in sent):
        sent["Content-Type"] = kind
    if secret is not None:
        _check_secret(secret, config, signs=True)
    bound = delivery.using(**options)
    made = bound.options
    delay_ms, due_ms = date(made.delay, made.run_at, WHERE)
    if delay_ms is not None:
        due_ms = stores.now_ms(templates.get(delivery, made, None).queue.name) + delay_ms
    arguments = {"headers": sent, "secret": secret, "within": task_options.timeout(timeout, WHERE), "redirects": redirects, **body}
    if follower := follower_of(on_failure, WHERE):
        arguments["on_failure"] = follower.name
    return bound, {
        "url": to.url,
        **({} if method == "POST" else {"method": method}),
        **{name: value for name, value in arguments.items() if value},
        "since": due_ms,
        "host": to.host,
    }


def _config() -> HttpConfig:
    config = conf.get().http
    if config is None:
        raise ConfigError(
            'DELAYQ["HTTP"] is not set, so workers cannot deliver.',
            hint='Write "HTTP": {} into DELAYQ.',
        )
    if find_spec("urllib3") is None:
        raise ConfigError("Deliveries need the package urllib3.", hint=f"Install it: {EXTRA}")
    return config


def _body(json: Any, data: str | bytes | None) -> tuple[dict[str, str], str]:
    """As arguments of the job, and its Content-Type."""
    if json is not UNSAID:
        if data is not None:
            raise ConfigError(f"{WHERE}: give json or data, not both.")
        try:
            return {"body": json_text.dumps(json, ensure_ascii=False, allow_nan=False, separators=(",", ":"))}, "application/json"
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"{WHERE}: json cannot be written as JSON: {error}") from None
    if data is None:
        return {}, ""
    if isinstance(data, str):
        return {"body": data}, "text/plain; charset=utf-8"
    if isinstance(data, bytes):
        return {"body64": base64.b64encode(data).decode()}, "application/octet-stream"
    raise ConfigError(f"{WHERE}: data must be text or bytes, not {type(data).__name__}. For JSON values, use json=.")


def _headers(given: Mapping[str, Any], config: HttpConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"{WHERE}: headers names {name!r}, which is not a valid header name.")
        if name.lower() in OURS or name.lower() in map(str.lower, found):
            raise ConfigError(f"{WHERE}: the header {name} is set by the delivery, or given twice. Remove it.")
        if isinstance(value, Mapping):
            found[name] = _named(name, value, config)
        elif not isinstance(value, str) or not value.isprintable() or not value.isascii():
            raise ConfigError(f"{WHERE}: the value of the header {name} must be text of visible ASCII characters, or a secret's name.")
        elif name.lower() in CREDENTIALS:
            raise ConfigError(
                f"{WHERE}: the header {name} must not contain its value, because the value would be stored with the job in readable "
                f"form.",
                hint=f'Put it into DELAYQ["HTTP"]["SECRETS"], and name it: headers={{"{name}": header_secret("…")}}.',
            )
        else:
            found[name] = value
    return found


def _named(header: str, value: Mapping[str, Any], config: HttpConfig) -> dict[str, str]:
    prefix = value.get("prefix", "")
    if (
        not {"secret"} <= value.keys() <= {"secret", "prefix"}
        or not isinstance(prefix, str)
        or not (prefix + "x").isprintable()
        or not prefix.isascii()
    ):
        raise ConfigError(f'{WHERE}: the value of the header {header} must be text, or {{"secret": name, "prefix": text}}.')
    _check_secret(value["secret"], config, signs=False)
    return header_secret(value["secret"], prefix=prefix)


def _check_secret(name: Any, config: HttpConfig, *, signs: bool) -> None:
    """Where this process knows any, it knows all; else the workers do."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{WHERE}: the name of a secret must be text, its key in DELAYQ['HTTP']['SECRETS'].")
    if not config.secrets:
        return
    if name not in config.secrets:
        near = did_you_mean(name, config.secrets)
        raise ConfigError(f"{WHERE}: DELAYQ['HTTP']['SECRETS'] has no secret {name!r}{near}.", hint="Add it there.")
    if signs and not all(value.startswith(SIGNING) for value in config.secrets[name]):
        raise ConfigError(f"{WHERE}: the secret {name!r} cannot sign.", hint=f"Secrets for signing begin with {SIGNING}.")
