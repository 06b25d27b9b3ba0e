"""Orders that stand there, a provider of payments that does as it is told, and the shop as it is deployed."""

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from deployment import Deployment
from orders import provider
from orders.models import Customer, Order, Tenant


@pytest.fixture
def new_order(db: None) -> Callable[..., Order]:
    def make(total: int = 7, email: str = "ann@example.com") -> Order:
        tenant, _ = Tenant.objects.get_or_create(slug="bikes")
        return Order.objects.create(customer=Customer.objects.create(tenant=tenant, email=email), total=total)

    return make


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str | Exception]:
    """What the provider will say, in order; then it pays."""
    said: list[str | Exception] = []

    def collect(order_id: int, amount: int) -> str:
        answer = said.pop(0) if said else "paid"
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(provider, "collect", collect)
    return said


@pytest.fixture(scope="session", autouse=True)
def starting(request: pytest.FixtureRequest) -> Generator[Future[tuple[Deployment, str]] | None]:
    """The deployment starts beside the other tests, and with it the job that needs the longest."""
    if not any(item.get_closest_marker("live") for item in request.session.items):
        yield None
        return
    deployment = Deployment()
    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(lambda: (deployment.start(), deployment.post("/stock/scan/", {"seconds": 60})["job"]))
    assert deployment.stop() == 0
    assert len(deployment.heard("worker_started")) == len(deployment.heard("worker_stopped")) == 1
    deployment.remove()


@pytest.fixture
def site(starting: Future[tuple[Deployment, str]]) -> Deployment:
    return starting.result()[0]


@pytest.fixture
def deaf(starting: Future[tuple[Deployment, str]]) -> str:
    return starting.result()[1]
