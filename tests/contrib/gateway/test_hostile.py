"""Hostile requests: none is answered with 500, and none schedules by halves. The cases are the same each time; `DELAYQ_FUZZ=10000`
tries so many.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from random import Random
from typing import Any
from urllib.parse import quote

from django_delayq.contrib.gateway.models import KeptAnswer
from django_delayq.models import Job
from django_delayq.producer.options import POLICIES
from django_delayq.producer.stores import stores
from tests.contrib.gateway.conftest import BASE, TASK

CASES = int(os.environ.get("DELAYQ_FUZZ", "3000"))
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
        for _ in range(self.dice.randrange(4)):
            name = self.dice.choice(FIELDS)
            good[name] = self.value() if self.dice.random() < 0.7 else self.dice.choice(TEXTS)
        if self.dice.random() < 0.2:
            good.pop(self.dice.choice(list(good)))
        try:
            raw = json.dumps(good if self.dice.random() < 0.9 else self.value()).encode()
        except ValueError:  # a number of too many digits
            raw = b'{"task": "' + TASK.encode() + b'", "args": [' + b"9" * 5000 + b"]}"
        if self.dice.random() < 0.02:  # deeper than a reader of JSON may go
            raw = raw.replace(b"7", b"[" * 5000 + b"]" * 5000)
        if self.dice.random() < 0.15:
            at = self.dice.randrange(len(raw) + 1)
            junk = self.dice.randbytes(self.dice.randrange(1, 9))
            raw = raw[:at] + junk + raw[at + self.dice.randrange(9) :]
        return raw

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
    """Jobs of redis durability, which get their rows from the mirror; here is none."""
    return {id for batch in stores.inspector().records("redis") for id, _ in batch} - set(rows)
