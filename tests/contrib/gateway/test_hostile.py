"""Hostile requests: no request gets a 500, and no request is scheduled partially. The cases are the same in every run.
`DELAYQ_FUZZ=10000` runs that many of each kind.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from django_delayq.contrib.gateway.models import KeptAnswer
from django_delayq.models import Job
from django_delayq.producer.options import POLICIES
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from tests.contrib.gateway.conftest import BASE, TASK
from tests.targets.conftest import SECRET
from tests.targets.conftest import TASK as DELIVERIES
from tests.targets.offers.conftest import TARGETS
from tests.targets.offers.conftest import TASK as OFFERS

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("DELAYQ_FUZZ", "3000"))
FEWER = int(os.environ.get("DELAYQ_FUZZ", "1000"))  # of each other kind
SEED = 20260731
TEXTS = (
    "",
    " ",
    "x" * 300,
    "\x00",
    "a\x00b",
    "\u202e",
    "\ud800",
    "\U0001f600",
    "é",
    "../../etc/passwd",
    "' OR 1=1 --",
    "{{7*7}}",
    "%s%n",
    "\r\nX: y",
    "null",
    "9" * 400,
    "NaN",
    "1h",
    "-1s",
    "1e9h",
    "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+14:00",
    "2030-01-01T00:00:00",
    "2030-13-01T00:00:00Z",
    "T",
    "orders",
    "default",
    "redis",
    "keep",
    "replace",
    TASK,
    "django.core.mail.send_mail",
    "os.system",
)
NUMBERS = (0, -1, 1, 1.5, 2**31, 2**53, 2**63, 2**70, -(2**63), 1e308, 5e-324, 10**400, True, False, None)
FIELDS = (
    "task",
    "args",
    "kwargs",
    "delay",
    "run_at",
    "key",
    "on_conflict",
    "queue",
    "priority",
    "max_attempts",
    "expires",
    "meta",
    "id",
    "reason",
)
MESSAGE_FIELDS = ("body", "n", "wait", "lease", "older_than", "messages", "fence", "id", *FIELDS[3:])
TARGET_FIELDS = ("url", "json", "text", "base64", "headers", "secret", "method", "timeout", "redirects", "to", "message", *FIELDS[3:])
FENCES = ("1/a", "0/a", "1/", "/", "1/" + "a" * 64, "9" * 400 + "/a", "1/a/b", "\u0661/a", "-1/a", "1/\x00")
URLS = (
    "https://partner.example/",
    "http://127.0.0.1:1/",
    "http://[::1]/",
    "ftp://x",
    "https://a:b@x/",
    "https://\ud800/",
    "https://x:99999/",
    "//x",
    "http://" + "x" * 5000,
)
SETTLING = ("ack", "retry", "snooze", "fail", "extend")
NAMES = (
    "order_id",
    "note",
    "self",
    "fn",
    "delay",
    "__class__",
    "delayq.carried",
    "delayq.periodic",
    "scheduled_by",
    "a/b~c",
    "\ud800",
    "",
)


class Stranger:
    """Makes requests from a seed."""

    def __init__(self, seed: int, known: list[str]) -> None:
        self.dice, self.known = Random(seed), known
        self.held: list[dict[str, Any]] = []  # what was pulled

    def value(self, depth: int = 0) -> Any:
        kind = self.dice.randrange(6 if depth < 4 else 2)
        if kind < 2:
            return self.dice.choice(TEXTS if kind else NUMBERS)
        count = self.dice.randrange(4)
        if kind in (2, 3):
            return [self.value(depth + 1) for _ in range(count)]
        if kind == 4:
            return {self.dice.choice(NAMES + TEXTS): self.value(depth + 1) for _ in range(count)}
        nested: Any = self.value(4)
        for _ in range(self.dice.choice((3, 99, 101, 300))):
            nested = [nested]
        return nested

    def body(self) -> bytes:
        good: dict[str, Any] = {"task": TASK, "args": [7], "delay": "1h"}
        if self.dice.random() < 0.2:
            good |= {"key": self.dice.choice("ab"), "on_conflict": self.dice.choice(POLICIES)}
        self.spoil(good, FIELDS)
        return self.raw(good)

    def spoil(self, good: dict[str, Any], names: tuple[str, ...]) -> None:
        for _ in range(self.dice.randrange(4)):
            name = self.dice.choice(names)
            good[name] = self.value() if self.dice.random() < 0.7 else self.dice.choice(TEXTS)
        if good and self.dice.random() < 0.2:
            good.pop(self.dice.choice(list(good)))

    def raw(self, good: dict[str, Any]) -> bytes:
        try:
            raw = json.dumps(good if self.dice.random() < 0.9 else self.value()).encode()
        except ValueError:  # a number with too many digits
            raw = b'{"task": "' + TASK.encode() + b'", "args": [' + b"9" * 5000 + b"]}"
        if self.dice.random() < 0.02:  # deeper than a JSON parser may go
            raw = raw.replace(b"7", b"[" * 5000 + b"]" * 5000)
        if self.dice.random() < 0.15:
            at = self.dice.randrange(len(raw) + 1)
            junk = self.dice.randbytes(self.dice.randrange(1, 9))
            raw = raw[:at] + junk + raw[at + self.dice.randrange(9) :]
        return raw

    def of_messages(self) -> tuple[str, bytes]:
        """Returns the path and the body of a request about messages. Some requests settle held messages."""
        queue = self.dice.choice(("mail",) * 8 + ("orders", "nowhere", self.id()))
        verb = self.dice.choice(("messages", "messages", "pull", "pull", *SETTLING, *(f"messages/{{id}}/{verb}" for verb in SETTLING)))
        good: dict[str, Any] = {"body": self.dice.choice((7, self.value())), "delay": 0} if verb == "messages" else {}
        if verb == "pull":
            good = {"n": self.dice.randrange(1, 4), "wait": 0}
        elif verb != "messages":
            claims = [self.claim() for _ in range(self.dice.randrange(4))]
            for claim in claims:
                claim |= {"delay": 0} if "snooze" in verb else {}
            one = claims[0] if claims else {"fence": "1/a"}
            good = {"messages": claims} if "id" not in verb else {name: value for name, value in one.items() if name != "id"}
            verb = verb.replace("{id}", quote(str(one.get("id", self.id())).encode("utf-8", "surrogatepass"), safe="") or "x")
        if self.dice.random() < 0.5:
            self.spoil(good, MESSAGE_FIELDS)
        return f"queues/{queue}/{verb}", self.raw(good)

    def claim(self) -> dict[str, Any]:
        if self.held and self.dice.random() < 0.7:
            return dict(self.dice.choice(self.held[-20:]))
        return {"id": self.dice.choice((*TEXTS, "0" * 22)), "fence": self.dice.choice(FENCES)}

    def of_targets(self) -> tuple[str, bytes]:
        """Returns the same for deliveries and offers."""
        secret = self.dice.choice(("partner", "other", "", "*", {"secret": "partner"}))
        url = self.dice.choice(URLS) if self.dice.random() < 0.5 else URLS[0]
        good: dict[str, Any] = {"url": url, "json": self.value()}
        if self.dice.random() < 0.3:
            good["headers"] = {self.dice.choice(("X-Key", "Host", "a b", "Cookie", "webhook-id")): secret}
        if self.dice.random() < 0.3:
            good["secret"] = secret
        path = self.dice.choice(("deliveries", "deliveries", "offers"))
        if path == "offers":
            good = {"to": self.dice.choice(("shipping", "invoices", "nowhere")), "message": self.value()}
        self.spoil(good, TARGET_FIELDS)
        return path, self.raw(good)

    def id(self) -> str:
        chosen = self.dice.choice((*TEXTS, *self.known[-20:], "z" * 22, "0" * 22))
        return quote(chosen.encode("utf-8", "surrogatepass"), safe="") or "x"

    def path(self) -> str:
        verb = self.dice.choice(("cancel", "reschedule", "run-now", "requeue"))
        return self.dice.choice(
            (
                "jobs",
                "jobs",
                "jobs",
                "jobs",
                f"jobs/{self.id()}",
                f"jobs/{self.id()}/{verb}",
                f"keys/{verb}",
                f"queues/{self.id()}",
                f"jobs?queue={self.id()}&key={self.id()}",
            )
        )

    def headers(self, token: str) -> dict[str, str]:
        found = {"Authorization": f"Bearer {token}"}
        if self.dice.random() < 0.05:
            found["Authorization"] = self.dice.choice(
                ("Bearer", "Bearer \u00ff", f"bearer  {token}", f"Basic {token}", "x" * 9000, f"Bearer {token}\x00")
            )
        if self.dice.random() < 0.2:
            found["Idempotency-Key"] = self.dice.choice(("a", "b", "\u00e9", "x" * 400, "\x00", str(self.dice.randrange(50))))
        return found


def test_hostile_requests_end_in_no_500_and_schedule_nothing_by_halves(caller):
    known: list[str] = []
    stranger, seen = Stranger(SEED, known), Counter()
    accepted: set[str] = set()
    for case in range(CASES):
        method = stranger.dice.choice(("POST",) * 8 + ("GET", "PUT"))
        kind = stranger.dice.choice(("application/json",) * 8 + ("text/plain", "application/json; charset=x", ""))
        path, raw, headers = stranger.path(), stranger.body(), stranger.headers(caller.text)
        answer = caller.client.generic(method, BASE + path, raw, kind, headers=headers)
        assert answer.status_code < 500, (case, method, path, raw, headers, answer.content)
        seen[answer.status_code] += 1
        if answer["Content-Type"].startswith("application/"):
            told = answer.json()
            if method == "POST" and path.partition("?")[0] == "jobs" and answer.status_code in (200, 201):
                known.append(told["id"])
                if told["created"]:
                    accepted.add(told["id"])
    rows = {job.short_id: job for job in Job.objects.all()}
    assert set(rows) | _only_in_redis(rows) == accepted
    for job in rows.values():
        view = stores.inspector().job(job.queue, job.pk)
        assert view is not None, "a row that Redis has never heard of"
        assert view.record is None or view.record.task == job.task
    assert not KeptAnswer.objects.filter(status=None).exists()
    assert {200, 201, 400, 401, 404, 405, 409, 415, 422} <= set(seen)
    assert seen[201] > CASES / 100


def _only_in_redis(rows: dict[str, Job]) -> set[str]:
    """Returns the jobs of redis durability without a row. The mirror writes their rows, and no mirror runs here."""
    return {id for batch in stores.inspector().records("redis") for id, _ in batch} - set(rows)


def test_hostile_requests_about_messages_end_in_no_500_and_lose_none(make, settings, delayq_redis):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull", "BACKOFF": "0s"}}}
    caller, stranger, seen = make(), Stranger(SEED + 1, []), Counter()
    accepted: set[str] = set()
    ended: set[str] = set()
    for case in range(FEWER):
        path, raw = stranger.of_messages()
        headers = stranger.headers(caller.text)
        answer = caller.client.post(BASE + path, raw, content_type="application/json", headers=headers)
        assert answer.status_code < 500, (case, path, raw, headers, answer.content)
        seen[answer.status_code] += 1
        verb = path.rpartition("/")[2]
        if answer.status_code == 201 and answer.json()["created"]:
            accepted.add(answer.json()["id"])
        elif answer.status_code == 200 and verb == "pull":
            stranger.held += [{"id": one["id"], "fence": one["fence"]} for one in answer.json()["messages"]]
        elif answer.status_code == 200 and verb in ("ack", "fail", "retry"):
            told = answer.json()
            ended |= {one["id"] for one in told.get("messages", [told]) if one["answer"] == "done"}
    rows = {job.short_id: job for job in Job.objects.all()}
    assert set(rows) == accepted
    held = {one["id"] for one in stranger.held}
    assert held <= accepted
    assert ended <= held
    for id, job in rows.items():
        view = stores.inspector().job(job.queue, job.pk)
        assert view is not None, "a row that Redis has never heard of"
        assert view.state in ("scheduled", "running") or id in ended or job.record.key, "nobody has ended it"
    assert {200, 201, 400, 401, 404, 422} <= set(seen)
    assert min(len(accepted), len(ended)) > FEWER / 100


def test_hostile_requests_about_targets_end_in_no_500_and_schedule_nothing_by_halves(make, settings, delayq_redis, monkeypatch):
    for task in (OFFERS, DELIVERIES):  # as where the settings have TARGETS and HTTP
        monkeypatch.setitem(registry._tasks, task.name, task)
    secrets = {"partner": SECRET, "other": SECRET}
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": TARGETS, "HTTP": {"SECRETS": secrets}}
    caller = make(targets=["shipping"], secrets=["partner=https://partner.example"])
    stranger, seen, accepted = Stranger(SEED + 2, []), Counter(), set()
    for case in range(FEWER):
        path, raw = stranger.of_targets()
        headers = stranger.headers(caller.text)
        answer = caller.client.post(BASE + path, raw, content_type="application/json", headers=headers)
        assert answer.status_code < 500, (case, path, raw, headers, answer.content)
        seen[answer.status_code] += 1
        if answer.status_code == 201 and answer.json()["created"]:
            accepted.add(answer.json()["id"])
    rows = {job.short_id: job for job in Job.objects.all()}
    assert set(rows) | _only_in_redis(rows) == accepted
    for job in rows.values():
        headers = job.kwargs.get("headers") or {}
        named = [value["secret"] for value in headers.values() if isinstance(value, dict)]
        assert {job.kwargs.get("secret", "partner"), *named} <= {"partner"}
        assert job.kwargs.get("to", "shipping") == "shipping"
    assert {201, 400, 401, 403, 422} <= set(seen)
    assert seen[201] > FEWER / 100
