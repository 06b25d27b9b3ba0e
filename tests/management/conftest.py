from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker import outcome
from tests.mirror.conftest import Orders
from tests.tasks_for_tests import close_order

NOWHERE = "unix:///nowhere/delayq.sock"


class Shop(Orders):
    """The queue "orders" with jobs in every state, mirrored into rows."""

    def scheduled(self, count: int = 1, **options: Any) -> list[delayq.Job]:
        made = [delayq.schedule(close_order, n, **{"delay": "1h", **options}) for n in range(count)]
        self.fold()
        return made

    def running(self, **options: Any) -> delayq.Job:
        return self._claimed(options)[0]

    def ended(self, outcome: str = "fail", detail: bytes = b"{}", **options: Any) -> delayq.Job:
        job, claimed = self._claimed(options)
        self.settle(claimed, outcome, detail=detail)
        self.fold()
        return job

    def parked(self, code: str) -> delayq.Job:
        job, claimed = self._claimed({})
        self.settle(claimed, "park", delay=600_000, detail=outcome.park_detail(code, "the worker says why"))
        self.fold()
        return job

    def unpublished(self, monkeypatch: pytest.MonkeyPatch, *, age: float = 60, **options: Any) -> delayq.Job:
        """A committed row that Redis does not have, as if the web process died right after the commit."""
        with monkeypatch.context() as patch:
            patch.setattr("django_delayq.producer.put._send_rows", lambda publisher, puts: [])
            job = delayq.schedule(close_order, 7, **{"delay": "1h", **options})
        Job.objects.filter(pk=job.id).update(created_at=clock.now() - timedelta(seconds=age))
        return job

    def claim_one(self) -> Any:
        """A claimed job that is not folded yet."""
        delayq.schedule(close_order, 7)
        [claimed] = self.claim()
        return claimed

    def in_redis(self, job: delayq.Job | UUID) -> str | None:
        """Returns the state in Redis."""
        view = stores.inspector().job("orders", job if isinstance(job, UUID) else job.id)
        return view.state if view else None

    def _claimed(self, options: dict[str, Any]) -> tuple[delayq.Job, Any]:
        job = delayq.schedule(close_order, 7, **options)
        [claimed] = self.claim()
        self.fold()
        return job, claimed


@pytest.fixture
def orders(delayq_redis, transactional_db) -> Shop:
    return Shop()


@pytest.fixture
def lost_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis cancels jobs, and its replies are lost."""
    cancel = QueueStore.cancel_each

    def without_a_reply(*args: Any, **options: Any) -> Any:
        cancel(*args, **options)
        raise StoreUnavailable(code="redis_away", where="here", cause="the reply was lost")

    monkeypatch.setattr(QueueStore, "cancel_each", without_a_reply)


def lose_redis(settings: Any) -> None:
    """From here on, Redis does not answer."""
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": NOWHERE}
    stores.reset()


def beat(*queues: str, worker: str = "host:1:w", **facts: Any) -> None:
    """A worker that serves these queues is alive and reports these values."""
    WorkerRegistry(stores.link, prefix=conf.get().prefix).beat(worker, {"queues": list(queues), **facts})


def without_database(settings: Any, monkeypatch: pytest.MonkeyPatch, name: str = "/nowhere/db.sqlite3", **options: Any) -> None:
    """DELAYQ names a database that cannot be opened, or with `name` an empty one. Only its alias may be used in Django's test cases
    without a declaration.
    """
    facts = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    monkeypatch.setitem(connections.settings, NO_DB_ALIAS, facts)
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": NO_DB_ALIAS}


@pytest.fixture(autouse=True)
def _other_database_is_left() -> Iterator[None]:
    yield
    if hasattr(connections._connections, NO_DB_ALIAS):
        connections[NO_DB_ALIAS].close()
        del connections[NO_DB_ALIAS]
