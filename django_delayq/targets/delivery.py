"""Deliveries: `deliver` schedules an HTTP request as a job of the task `django_delayq.deliver`, and a worker runs one attempt of it."""

from __future__ import annotations

import base64
import json as json_text
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from random import uniform
from typing import Any, Final, Unpack

from django.core.checks import CheckMessage, Tags, register

from django_delayq import clock, conf, durations
from django_delayq.exceptions import ConfigError, Fail, PayloadError, Retry, Snooze, SoftTimeout, TargetRefused
from django_delayq.findings import check_message
from django_delayq.producer.async_api import in_thread, like, refuse_loop
from django_delayq.producer.job import Job
from django_delayq.producer.options import UntimedOptions, date, templates
from django_delayq.producer.schedule import Bound
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, follower_of, make_task, read_timeout, registry
from django_delayq.setting_readers import SIGNING, HttpConfig
from django_delayq.states import DELIVERY
from django_delayq.targets import addresses, answers, webhook
from django_delayq.targets.addresses import REFUSED, Endpoint
from django_delayq.targets.answers import BUSY, KEPT, WITHHELD, DeliveryFailed, Reply
from django_delayq.targets.circuits import HostHeld, circuits
from django_delayq.targets.webhook import HEADERS
from django_delayq.text import clean, did_you_mean
from django_delayq.worker.current import CurrentJob, running

METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET", "HEAD")
CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
OURS: Final = frozenset({*HEADERS, "host", "content-length", "transfer-encoding", "connection", "accept-encoding", "expect", "upgrade"})
MOST_REDIRECTS: Final = 10
WHERE: Final = "deliver()"
EXTRA: Final = 'pip install "django-delayq[http]"'
UNSAID: Final[Any] = type("Unsaid", (), {"__repr__": lambda _: "none"})()  # None is JSON, too
Secrets = dict[str, tuple[str, ...]]
NAME: Final = DELIVERY
LONGEST_HOLD_MS: Final = 3 * 86_400_000  # after the first date of a job; then it is sent, and the attempt counts
AHEAD: Final = 0.8  # share of the remaining time of a run
UNREADY_PAUSE: Final = 60.0  # about how many seconds a job waits for a worker that can deliver
SENT: Final = {"User-Agent": "django-delayq", "Accept-Encoding": "identity"}
HELD: Final = {
    "open": "{target} has failed several times in a row in this process, so deliveries to it pause",
    "busy": "{target} already gets the maximum number of concurrent requests",
}
INSIDE = ("metadata", "this host", "loopback", "link-local")


def header_secret(name: str, *, prefix: str = "") -> dict[str, str]:
    """Returns a header value that refers to a secret in `DELAYQ["HTTP"]["SECRETS"]`, after a prefix such as `"Bearer "`. The job
    contains only the name of the secret.
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
    timeout: durations.Delay | None = None,
    redirects: int = 0,
    on_failure: Task[..., Any] | None = None,
    **options: Unpack[UntimedOptions],
) -> Job:
    """Schedules an HTTP request. Workers retry it until the response is 2xx: `deliver("https://partner.example/hook", json={"order":
    7}, delay="10m", secret="partner")`.

    Args:
        url: An http or https URL without a username and password.
        json, data: The body, either as a JSON value, or as a string or bytes. All attempts send the same bytes. If you use `data`,
            set the `Content-Type` in `headers`.
        method: POST, PUT, PATCH, DELETE, GET or HEAD.
        headers: A dict. Each value is a string or `header_secret("partner-token")`. `Authorization`, `Proxy-Authorization` and
            `Cookie` require `header_secret()`.
        secret: The name of a secret in `DELAYQ["HTTP"]["SECRETS"]` that signs each attempt, as defined by Standard Webhooks.
        timeout: The time limit for a whole attempt, including redirects but not the DNS lookup. The default is
            `DELAYQ["HTTP"]["TIMEOUT"]`.
        redirects: How many 307 and 308 redirects to follow, up to 10. For any other redirect, the attempt fails.
        on_failure: A task to schedule if the delivery fails permanently. It receives the job's id.
        options: The options of `schedule`, except timeout.

    Raises:
        TargetRefused: The URL is invalid. The address of its host is checked later, when the request is sent.
        ConfigError: An option is invalid, `DELAYQ["HTTP"]` isn't set, or urllib3 isn't installed.
        PayloadError, PayloadTooLarge, QueueUnknown, KeyTaken, StoreUnavailable, SynchronousOnlyOperation: See `schedule`.
    """
    refuse_loop("delayq.adeliver(…)")
    given: dict[str, Any] = {"json": json, "data": data, "method": method, "headers": headers, "secret": secret, "timeout": timeout}
    bound, arguments = prepared(url, **given, redirects=redirects, on_failure=on_failure, **options)
    return bound.schedule(**arguments)


@like(deliver)
async def adeliver(url: str, **given: Any) -> Job:
    """Async version of `deliver`. It uses its own transaction."""
    bound, arguments = await in_thread(partial(prepared, url, **given))  # in a thread, because it may ask Redis for the time
    return await bound.aschedule(**arguments)


def prepared(
    url: str,
    *,
    json: Any = UNSAID,
    data: str | bytes | None = None,
    method: str = "POST",
    headers: Mapping[str, str | Mapping[str, str]] | None = None,
    secret: str | None = None,
    timeout: durations.Delay | None = None,
    redirects: int = 0,
    on_failure: Task[..., Any] | None = None,
    **options: Unpack[UntimedOptions],
) -> tuple[Bound[..., Any], dict[str, Any]]:
    """The task with its options, and the arguments of the job, without default values. Arguments: see `deliver`."""
    config = _config()
    to = addresses.read_url(url)
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
    arguments = {"headers": sent, "secret": secret, "within": read_timeout(timeout, WHERE), "redirects": redirects, **body}
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
        raise ConfigError('DELAYQ["HTTP"] is not set, so workers cannot deliver.', hint='Add "HTTP": {} to DELAYQ.')
    if find_spec("urllib3") is None:
        raise ConfigError("Deliveries require the package urllib3.", hint=f"Install it: {EXTRA}")
    return config


def _body(json: Any, data: str | bytes | None) -> tuple[dict[str, str], str]:
    """The body as arguments of the job, and its Content-Type."""
    if json is not UNSAID:
        if data is not None:
            raise ConfigError(f"{WHERE}: pass either json or data, not both.")
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
            raise ConfigError(f"{WHERE}: headers contains {name!r}, which is not a valid header name.")
        if name.lower() in OURS or name.lower() in map(str.lower, found):
            raise ConfigError(f"{WHERE}: the header {name} is set automatically, or was passed twice. Remove it.")
        if isinstance(value, Mapping):
            found[name] = _header_from_secret(name, value, config)
        elif not isinstance(value, str) or not value.isprintable() or not value.isascii():
            raise ConfigError(f"{WHERE}: the value of the header {name} must be text of visible ASCII characters, or a secret's name.")
        elif name.lower() in CREDENTIALS:
            raise ConfigError(
                f"{WHERE}: the header {name} cannot contain a literal value, because it would be stored with the job in plain text.",
                hint=f'Add the value to DELAYQ["HTTP"]["SECRETS"], and refer to it by name: headers={{"{name}": header_secret("…")}}.',
            )
        else:
            found[name] = value
    return found


def _header_from_secret(header: str, value: Mapping[str, Any], config: HttpConfig) -> dict[str, str]:
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
    """A process without secrets leaves the check to the worker."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{WHERE}: the name of a secret must be text, and a key of DELAYQ['HTTP']['SECRETS'].")
    if not config.secrets:
        return
    if name not in config.secrets:
        near = did_you_mean(name, config.secrets)
        raise ConfigError(f"{WHERE}: DELAYQ['HTTP']['SECRETS'] has no secret {name!r}{near}.", hint="Add it there.")
    if signs and not all(value.startswith(SIGNING) for value in config.secrets[name]):
        raise ConfigError(f"{WHERE}: the secret {name!r} cannot sign.", hint=f"Secrets for signing begin with {SIGNING}.")


class Delivery(Task[..., Any]):
    """The task. Its default queue is that of `DELAYQ["HTTP"]`."""

    own = True

    def follower(self, kwargs: Mapping[str, Any]) -> Task[..., Any] | None:
        """The `on_failure` task of a delivery, looked up by its name."""
        return registry.find(str(kwargs.get("on_failure", "")))

    @property
    def queue(self) -> str:
        """The queue in the current settings."""
        http = conf.get().http
        return http.queue if http else "default"

    @queue.setter
    def queue(self, value: str) -> None:
        pass  # the settings decide


def attempt(
    url: str,
    *,
    method: str = "POST",
    headers: Mapping[str, Any] | None = None,
    body: str | None = None,
    body64: str | None = None,
    secret: str | None = None,
    within: float | None = None,
    redirects: int = 0,
    since: int = 0,
    host: str = "",
    on_failure: str = "",
) -> dict[str, Any]:
    """Sends the request once. `body64`: a body of bytes; `within`: the timeout in seconds; `since`: the first date of the job, in ms;
    `host`: the host of the URL, so that people can search for it; `on_failure`: the name of a task, for the mirror.

    Returns `status`, `ms`, `size`, `answer` (the first 2 KB) and `complete` (whether that is the whole answer). `answer` is empty if
    the
    request contained a secret, because the host may have sent it back.
    """
    job = running(f"the task {NAME}")
    now_ms = clock.to_ms(job.now)
    held_enough = now_ms - since > LONGEST_HOLD_MS
    try:
        config = conf.get().http
        if config is None or find_spec("urllib3") is None:
            raise DeliveryFailed(code="unready", target="")
        secrets = _secrets(headers or {}, secret, config)
    except DeliveryFailed as error:
        if held_enough:
            raise
        raise Snooze(_jittered(UNREADY_PAUSE), str(error)) from None
    content = base64.b64decode(body64) if body64 is not None else (body or "").encode()
    request_headers = _headers_for(headers or {}, secrets, secret, job.short_id, content, now_ms // 1000)
    # Whether the host can send a secret back: one in a header, in the query of a signed URL, or for the proxy. A signature has none.
    withholds = any(not isinstance(value, str) for value in (headers or {}).values()) or "?" in url or "@" in (config.proxy or "")
    try:
        to = addresses.read_url(url)
        with circuits.visit(to.place, config, now_ms=now_ms, forced=held_enough) as visit:
            limit, left = within or config.timeout, job.time_left
            if left is not None:  # otherwise the run times out, and the request is repeated although the host may have accepted it
                limit = min(limit, AHEAD * left)
            send = clients.get(config).send
            try:
                answer: Reply = send(to, method, content, request_headers, within=limit, redirects=redirects, withholds=withholds)
            except (DeliveryFailed, SoftTimeout):
                visit.well = False
                raise
            visit.well = answer.status not in BUSY
            if not visit.well:
                visit.failed_url = to.path
    except HostHeld as held:
        raise Snooze(held.seconds, HELD[held.code].format(target=to.place)) from None
    except TargetRefused as error:
        raise Fail(str(error)) from error.with_traceback(None)
    except (DeliveryFailed, SoftTimeout) as error:
        # Without the traceback: frames of urllib3 contain the headers, and error trackers send local variables.
        raise error.with_traceback(None) from None
    return _outcome(answer, to, config, redirects, job, withholds)


def _headers_for(
    headers: Mapping[str, Any], secrets: Secrets, secret: str | None, id: str, body: bytes, stamp: int
) -> Callable[[bool], Mapping[str, str]]:
    """The headers of this attempt. Another host, to which a redirect leads, gets none that contains a secret."""
    given = {name.lower() for name in headers}
    plain = {name: value for name, value in SENT.items() if name.lower() not in given}
    plain |= {name: value for name, value in headers.items() if isinstance(value, str)}
    own = {name: value.get("prefix", "") + secrets[value["secret"]][0] for name, value in headers.items() if not isinstance(value, str)}
    if secret is not None:
        signed = webhook.signatures(id, stamp, body, secrets[secret])
        own |= dict(zip(webhook.HEADERS, (id, str(stamp), signed), strict=True))
    return lambda same: {**plain, **own} if same else plain


def _secrets(headers: Mapping[str, Any], secret: str | None, config: HttpConfig) -> Secrets:
    """The secrets of the request, each with all its values."""
    names = [value["secret"] for value in headers.values() if not isinstance(value, str)]
    found: Secrets = {}
    for name in [*names, *([secret] if secret is not None else [])]:
        if name not in config.secrets or (name == secret and not all(one.startswith(SIGNING) for one in config.secrets[name])):
            raise DeliveryFailed(code="secret", target="", secret=name)
        found[name] = config.secrets[name]
    return found


def _outcome(answer: Reply, to: Endpoint, config: HttpConfig, redirects: int, job: CurrentJob, withholds: bool) -> dict[str, Any]:
    kept: dict[str, Any] = {"status": answer.status, "ms": answer.ms, "size": answer.size, "answer": ""}
    if not withholds:
        kept["answer"] = clean(answer.body.decode("utf-8", "replace").encode()[:KEPT].decode("utf-8", "ignore"))
    if 200 <= answer.status < 300:
        return {**kept, "complete": answer.complete and not withholds}
    if 300 <= answer.status < 400:
        error = DeliveryFailed(code="redirect", target=to.place, redirects=redirects, **kept)
    else:
        text = (WITHHELD.format(target=to.place, **kept),) if withholds else ()
        error = DeliveryFailed(*text, code="answer", target=to.place, **kept)
    if answer.status in config.gone:
        raise Fail(f"{to.place} answered {answer.status}, which is permanent") from error
    delay = answers.wait(answer.retry_after, answer.date, job.now) if answer.retry_after else None
    if delay is None:
        raise error
    if job.expires_at is not None:
        delay = min(delay, max(0.0, (job.expires_at - job.now).total_seconds()))
    raise Retry(delay, f"{to.place} asked for {durations.text(delay)}") from error


def _jittered(seconds: float) -> float:
    return seconds * uniform(0.5, 1.5)


class _Clients:
    """The client of this process. The first delivery creates it, with the current settings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: tuple[int, HttpConfig | None, Any] = (0, None, None)

    def get(self, config: HttpConfig) -> Any:
        with self._lock:
            pid, of, client = self._made
            if of is not config or pid != os.getpid():
                from django_delayq.targets.client import Client  # only this needs urllib3

                client = Client(config)
                self._made = (os.getpid(), config, client)
            return client

    def close(self) -> None:
        with self._lock:
            if self._made[2] is not None:
                self._made[2].close()
            self._made = (0, None, None)


clients: Final = _Clients()
delivery: Final = make_task(Delivery, attempt, where=f"the task {NAME}", name=NAME)
registry.add(delivery)
registry.followed = True


@register(Tags.compatibility)
def check_delivery(**_: Any) -> list[CheckMessage]:
    """Checks that urllib3 is installed."""
    if conf.problems() or conf.get().http is None or find_spec("urllib3") is not None:
        return []
    return [check_message("E037")]


@register(Tags.security, deploy=True)
def check_allowed(**_: Any) -> list[CheckMessage]:
    """Checks that ALLOW contains no network that is rarely meant."""
    http = None if conf.problems() else conf.get().http
    found = []
    for network in http.allow if http is not None else ():
        kinds = [kind for kind, one in REFUSED if kind in INSIDE and one.version == network.version and one.overlaps(network)]
        if kinds:
            text = (
                f"DELAYQ['HTTP']['ALLOW'] lists {network}, so deliveries may reach addresses of the kind {kinds[0]!r}: anyone who can "
            )
            found.append(check_message("W021", f"{text}choose a URL can call the servers there and read their answers."))
    return found
