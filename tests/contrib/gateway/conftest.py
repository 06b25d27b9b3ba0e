from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import Client

from django_delayq.contrib.gateway import tokens
from django_delayq.contrib.gateway.models import ALL, Token
from tests.management.conftest import orders, without_database
from tests.worker.conftest import bench, durable, new_database, shop

__all__ = ["bench", "durable", "new_database", "orders", "shop", "without_database"]

BASE = "/queue/v1/"
TASK = "tests.tasks_for_tests.close_order"
PING = "tests.tasks_for_tests.ping"


@pytest.fixture(autouse=True)
def backend() -> None:
    """No backend for Django's tasks, and only the queues of the settings. Replaces the fixture with this name in the parent folder."""


@pytest.fixture(autouse=True)
def addresses(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_urls"
    cache.clear()


class Caller:
    """A program with a token."""

    def __init__(self, text: str, token: Token | None = None) -> None:
        self.text, self.token = text, token
        self.client = Client(raise_request_exception=True, enforce_csrf_checks=True)

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(BASE + path, headers=self._headers(headers))

    def post(self, path: str, body: Any = None, *, key: str = "", kind: str = "application/json", **headers: str) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        more = {"Idempotency-Key": key} if key else {}
        return self.client.post(BASE + path, raw, content_type=kind, headers=self._headers({**headers, **more}))

    def schedule(self, *args: Any, **body: Any) -> Any:
        return self.post("jobs", {"task": TASK, "args": list(args) or [7], "delay": "1h", **body})

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.text}", **more} if self.text else more


@pytest.fixture
def make(transactional_db: None) -> Callable[..., Caller]:
    def made(name: str = "partner", **given: Any) -> Caller:
        token, text = tokens.make(name, **{"queues": [ALL], "verbs": [ALL], "per_minute": 100_000, **given})
        return Caller(text, token)

    return made


@pytest.fixture
def caller(delayq_redis: Any, make: Callable[..., Caller]) -> Caller:
    """A caller that may do everything."""
    return make()


@pytest.fixture
def long_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """No minute ends between the requests of a test."""
    monkeypatch.setattr(tokens, "WINDOW_MS", 10**12)


def refused(answer: Any, status: int, code: str, place: str | None = None) -> dict[str, Any]:
    """Returns the document of a refusal, after it checks its format."""
    assert answer["Content-Type"] == "application/problem+json", answer.content
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["code"], found.get("place")) == (status, code, place), found
    assert found["status"] == status
    assert all(found[name] for name in ("title", "detail", "remedy"))
    return found


@pytest.fixture
def clerk(transactional_db: None) -> Callable[..., Client]:
    """`clerk("view_token")` returns a browser that is logged in as a user with only these permissions of the gateway."""

    def log_in(*names: str, app: str = "delayq_gateway") -> Client:
        user = User.objects.create_user(f"clerk{User.objects.count()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(content_type__app_label=app, codename__in=names))
        client = Client()
        client.force_login(user)
        return client

    return log_in
