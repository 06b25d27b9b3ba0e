"""The task `django_delayq.deliver`: one attempt of a delivery, and what its answer means for the job."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from random import uniform
from typing import Any, Final

from django_delayq import clock, conf
from django_delayq.exceptions import Fail, Retry, Snooze, SoftTimeout, TargetRefused
from django_delayq.http_settings import SIGNING, HttpConfig
from django_delayq.producer.task import Task, made, registry
from django_delayq.states import DELIVERY
from django_delayq.targets import answers, endpoint, webhook
from django_delayq.targets.answers import BUSY, KEPT, WITHHELD, DeliveryFailed, Reply, failure
from django_delayq.targets.circuits import HostHeld, Visit, circuits
from django_delayq.targets.endpoint import Endpoint
from django_delayq.text import clean
from django_delayq.worker.current import CurrentJob, running

Secrets = dict[str, tuple[str, ...]]

NAME: Final = DELIVERY
LONGEST_HOLD_MS: Final = 3 * 86_400_000  # behind the first date of a job; then it is tried, and its attempts count
AHEAD: Final = 0.8  # of the time that a run has left
UNREADY_PAUSE: Final = 60.0  # seconds, about which a job waits for a worker that has what it needs
SENT: Final = {"User-Agent": "django-delayq", "Accept-Encoding": "identity"}


class Delivery(Task[..., Any]):
    """The task. Its jobs go to the queue of `DELAYQ["HTTP"]` unless they say otherwise."""

    own = True

    def follower(self, kwargs: Mapping[str, Any]) -> Task[..., Any] | None:
        """That of the delivery, by its name; names are looked up, never imported."""
        return registry.find(str(kwargs.get("on_failure", "")))

    @property
    def queue(self) -> str:
        """As the settings say now."""
        http = conf.get().http
        return http.queue if http else "default"

    @queue.setter
    def queue(self, value: str) -> None:
        pass  # the settings are asked


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
    """Sends it once. `body64`: of bytes that are no text; `within`: seconds; `since`: the first date of the job, in ms; `host`: that of
    the URL, for people who look for it; `on_failure`: the name of a task, for the mirror.

    Returns `status`, `ms`, `size`, `answer` (its first 2 KB) and `complete` (whether that is all). `answer` is empty if the request
    contained a secret, since the host may have sent that back.
    """
    job = running(f"the task {NAME}")
    now_ms = clock.to_ms(job.now)
    held_enough = now_ms - since > LONGEST_HOLD_MS
    try:
        config = _config()
        wanted = _wanted(headers or {}, secret, config)
    except DeliveryFailed as error:
        if held_enough:
            raise
        raise Snooze(_about(UNREADY_PAUSE), str(error)) from None
    content = base64.b64decode(body64) if body64 is not None else (body or "").encode()
    said = _Headers(headers or {}, wanted, secret, job.short_id, content, now_ms // 1000)
    withholds = _sends_secret(url, headers or {}, config)
    try:
        to = endpoint.read(url)
        with circuits.visit(to.place, config, now_ms=now_ms, forced=held_enough) as visit:
            answer = _sent(visit, to, method, content, said, config, within or config.timeout, redirects, job, withholds)
    except HostHeld as held:
        raise Snooze(held.seconds, HELD[held.code].format(target=to.place)) from None
    except TargetRefused as error:
        raise Fail(str(error)) from error.with_traceback(None)
    except (DeliveryFailed, SoftTimeout) as error:
        # Not from where it was raised: frames of urllib3 have the headers, and tools that report errors show what frames have.
        raise error.with_traceback(None) from None
    return _judged(answer, to, config, redirects, job, withholds)


HELD: Final = {
    "open": "{target} has failed several times in a row in this process, so deliveries to it pause",
    "busy": "{target} already gets the maximum number of concurrent requests",
}


class _Headers:
    """The headers of this attempt: for the host itself all of them, for another one none that a secret has made."""

    def __init__(self, headers: Mapping[str, Any], wanted: Secrets, secret: str | None, id: str, body: bytes, stamp: int) -> None:
        given = {name.lower() for name in headers}
        self._plain = {name: value for name, value in SENT.items() if name.lower() not in given}
        self._plain |= {name: value for name, value in headers.items() if isinstance(value, str)}
        self._own = {
            name: value.get("prefix", "") + wanted[value["secret"]][0] for name, value in headers.items() if not isinstance(value, str)
        }
        if secret is not None:
            signed = webhook.signatures(id, stamp, body, wanted[secret])
            self._own |= dict(zip(webhook.HEADERS, (id, str(stamp), signed), strict=True))

    def __call__(self, same: bool) -> Mapping[str, str]:
        return {**self._plain, **self._own} if same else self._plain


def _config() -> HttpConfig:
    config = conf.get().http
    if config is None or find_spec("urllib3") is None:
        raise failure("unready", "")
    return config


def _wanted(headers: Mapping[str, Any], secret: str | None, config: HttpConfig) -> Secrets:
    """The secrets that are named, each with all of its values."""
    names = [value["secret"] for value in headers.values() if not isinstance(value, str)]
    found: Secrets = {}
    for name in [*names, *([secret] if secret is not None else [])]:
        if name not in config.secrets or (name == secret and not all(one.startswith(SIGNING) for one in config.secrets[name])):
            raise failure("secret", "", secret=name)
        found[name] = config.secrets[name]
    return found


def _sent(
    visit: Visit,
    to: Endpoint,
    method: str,
    body: bytes,
    headers: _Headers,
    config: HttpConfig,
    within: float,
    redirects: int,
    job: CurrentJob,
    withholds: bool,
) -> Reply:
    client, left = clients.get(config), job.time_left
    if left is not None:  # else the run is ended, which repeats what the host may have taken, and its process, if it hangs
        within = min(within, AHEAD * left)
    try:
        answer: Reply = client.send(to, method, body, headers, within=within, redirects=redirects, withholds=withholds)
    except (DeliveryFailed, SoftTimeout):
        visit.well = False
        raise
    visit.well = answer.status not in BUSY
    return answer


def _judged(answer: Reply, to: Endpoint, config: HttpConfig, redirects: int, job: CurrentJob, withholds: bool) -> dict[str, Any]:
    kept: dict[str, Any] = {"status": answer.status, "ms": answer.ms, "size": answer.size, "answer": ""}
    if not withholds:
        kept["answer"] = clean(answer.body.decode("utf-8", "replace").encode()[:KEPT].decode("utf-8", "ignore"))
    if 200 <= answer.status < 300:
        return {**kept, "complete": answer.complete and not withholds}
    if 300 <= answer.status < 400:
        error = failure("redirect", to.place, redirects=redirects, **kept)
    else:
        error = failure("answer", to.place, text=WITHHELD if withholds else "", **kept)
    if answer.status in config.gone:
        raise Fail(f"{to.place} answered {answer.status}, which is permanent") from error
    delay = answers.wait(answer.retry_after, answer.date, job.now) if answer.retry_after else None
    if delay is None:
        raise error
    if job.expires_at is not None:
        delay = min(delay, max(0.0, (job.expires_at - job.now).total_seconds()))
    raise Retry(delay, f"{to.place} asked for {clock.text(delay)}") from error


def _sends_secret(url: str, headers: Mapping[str, Any], config: HttpConfig) -> bool:
    """Whether the request contains a secret that the host can send back: in a header, in the query, by which some URLs are signed, or
    for the proxy. A signature contains none.
    """
    return any(not isinstance(value, str) for value in headers.values()) or "?" in url or "@" in (config.proxy or "")


def _about(seconds: float) -> float:
    return seconds * uniform(0.5, 1.5)


class _Clients:
    """The client of this process, made at its first delivery of the settings that hold then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: tuple[int, HttpConfig | None, Any] = (0, None, None)

    def get(self, config: HttpConfig) -> Any:
        with self._lock:
            pid, of, client = self._made
            if of is not config or pid != os.getpid():
                from django_delayq.targets.client import Client  # needs urllib3, which nobody else does

                client = Client(config)
                self._made = (os.getpid(), config, client)
            return client

    def close(self) -> None:
        with self._lock:
            if self._made[2] is not None:
                self._made[2].close()
            self._made = (0, None, None)


clients: Final = _Clients()
delivery: Final = made(Delivery, attempt, where=f"the task {NAME}", name=NAME)
registry.add(delivery)
registry.followed = True  # some deliveries are
