"""Existing orders, a payment provider whose answers the test sets, and the deployed shop."""

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pytest
from deployment import Deployment, until
from django.contrib.auth.models import User
from django.test import Client
from orders import provider
from orders.models import Customer, Order, Tenant


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs live tests last, so that the other tests do not wait while the deployment starts."""
    items.sort(key=lambda item: item.get_closest_marker("live") is not None)


@pytest.fixture
def new_order(db: None) -> Callable[..., Order]:
    def make(total: int = 7, email: str = "ann@example.com") -> Order:
        tenant, _ = Tenant.objects.get_or_create(slug="bikes")
        return Order.objects.create(customer=Customer.objects.create(tenant=tenant, email=email), total=total)

    return make


@pytest.fixture
def staff(client: Client, db: None) -> Client:
    """A client of a superuser, logged in without a password, because a password hash takes a quarter of a second."""
    client.force_login(User.objects.create_superuser("ann"))
    return client


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str | Exception]:
    """The provider's next answers, in order. After them, it answers "paid"."""
    said: list[str | Exception] = []

    def collect(order_id: int, amount: int) -> str:
        answer = said.pop(0) if said else "paid"
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(provider, "collect", collect)
    return said


class Begun(NamedTuple):
    """The deployment, and the jobs that take longest there."""

    site: Deployment
    crashed: str  # a job that killed its process, and its neighbours
    deaf: str  # a job that does not notice its timeout
    aborted: dict[str, str]  # jobs that were aborted while they ran, with the answer to the abort


def begin(site: Deployment) -> Begun:
    site.start()
    crashed = site.post("/stock/label/")["job"]
    until(
        lambda: site.get(f"/jobs/{crashed}/")["state"] == "failed", "its process did not end"
    )  # before other jobs can be its neighbours
    deaf, *jobs = (site.post(f"/stock/{task}/", {"seconds": 60})["job"] for task in ("scan", "bake", "cool"))
    until(lambda: {site.get(f"/jobs/{job}/")["state"] for job in jobs} == {"running"}, "they do not run")
    return Begun(site, crashed, deaf, {job: site.post("/stock/abort/", {"job": job})["change"] for job in jobs})


@pytest.fixture(scope="session", autouse=True)
def starting(request: pytest.FixtureRequest) -> Generator[Future[Begun] | None]:
    """Starts while the other tests run."""
    if not any(item.get_closest_marker("live") for item in request.session.items):
        yield None
        return
    deployment = Deployment()
    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(begin, deployment)
    assert deployment.stop() == 0
    assert len(deployment.heard("worker_started")) == len(deployment.heard("worker_stopped")) == 1
    deployment.remove()


@pytest.fixture
def begun(starting: Future[Begun]) -> Begun:
    return starting.result()


@pytest.fixture
def site(begun: Begun) -> Deployment:
    return begun.site
