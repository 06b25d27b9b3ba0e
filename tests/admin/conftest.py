from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

import django_delayq as delayq
from django_delayq.producer.task import registry
from tests.management.conftest import Shop, beat, lose_redis, lost_cancel
from tests.mirror.conftest import Orders  # noqa: F401

JOBS = "/admin/delayq/job/"
QUEUES = "/admin/delayq/queue/"
OPERATIONS = "/admin/delayq/operation/"
WORKERS = "/admin/delayq/worker/"
SET_ASIDE = "/admin/delayq/setaside/"
ALL = (
    "view_job",
    "cancel_job",
    "run_now_job",
    "reschedule_job",
    "requeue_job",
    "resolve_job",
    "forget_key",
    "edit_job",
    "export_job",
    "start_operation",
    "steer_operation",
    "view_operation",
    "purge_queue",
    "view_queue",
    "pause_queue",
    "set_rate",
    "view_worker",
    "quiet_worker",
    "stop_worker",
    "view_setaside",
    "retry_setaside",
    "view_periodic",
    "switch_periodic",
    "override_periodic",
    "run_periodic",
    "schedule_job",
    "view_target",
    "view_batch",
    "cancel_batch",
)

__all__ = ["Shop", "beat", "lose_redis", "lost_cancel"]


@pytest.fixture
def orders(delayq_redis, transactional_db) -> Shop:
    return Shop()


Staff = Callable[..., Client]


@pytest.fixture
def staff(transactional_db) -> Staff:
    """`staff("view_job")` returns a browser that is logged in as a user with only these permissions. Without names, the user has all
    permissions.
    """

    def log_in(*codenames: str) -> Client:
        user = User.objects.create_user(f"clerk{User.objects.count()}", password="p", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="delayq", codename__in=codenames or ALL))
        client = Client(enforce_csrf_checks=False)
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def more_tasks(monkeypatch) -> Callable[..., None]:
    """Registers tasks for one test: `more_tasks("pay", lambda pin: None, sensitive=["pin"])`."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    def add(name: str, fn: Callable[..., Any] | None = None, **options: Any) -> None:
        def nothing() -> None: ...

        delayq.task(name=name, queue="orders", **options)(fn or nothing)

    return add


def page(job: delayq.Job) -> str:
    return reverse("admin:delayq_job_change", args=[job.id])


def act(job: delayq.Job, verb: str) -> str:
    return reverse(f"admin:delayq_job_{verb}", args=[job.id])


def said(response: Any) -> list[str]:
    """Returns the messages of the page that follows."""
    return [str(message) for message in response.context["messages"]]


def sent_live(client: Client, address: str) -> tuple[Any, Any]:
    """Returns the live part of a page, and the response to a browser that already has it. A second may begin between the two
    requests, and pages show how long ago something was. Then the request is sent once more.
    """
    part = client.get(address, {"live": "1"})
    for _ in range(20):
        again = client.get(address, {"live": "1"}, headers={"If-None-Match": part["ETag"]})
        if again.status_code != 200:
            break
        part = again
    return part, again


def choose(client: Client, action: str, jobs: list[delayq.Job], *, query: str = "", **fields: Any) -> Any:
    """Ticks jobs in the list and chooses an action. With `confirmed=1` it also answers the confirmation page."""
    form = {"action": action, "_selected_action": [str(job.id) for job in jobs], "index": "0", **fields}
    return client.post(JOBS + query, form, follow=True)
