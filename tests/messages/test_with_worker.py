"""Workers beside consumers: they mirror messages, and run none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

import django_delayq as delayq
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.states import State
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.servers import as_package
from tests.stage import Actor, project, sqlite
from tests.worker.conftest import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def work(redis_server, tmp_path) -> Iterator[Callable[..., Actor]]:
    """Starts workers on the test's own database."""
    if connection.vendor != "sqlite":
        pytest.skip("the worker of this test goes on the file of SQLite")
    queues = {"default": {}, "mail": {"CONSUMER": "pull"}}
    file = sqlite(str(connection.settings_dict["NAME"]))
    started: list[Actor] = []

    def start(*options: str) -> Actor:
        environment = project(tmp_path, as_package(redis_server.url), file, {"QUEUES": queues})
        actor = Actor(tmp_path / "worker.log", [sys.executable, "-m", "django", "delayq_worker", *options], environment)
        actor.start()
        started.append(actor)
        return actor

    yield start
    for actor in started:
        actor.kill_tree()


def test_a_worker_folds_what_becomes_of_messages_and_claims_none(work):
    worker = work("--threads", "1")
    job = delayq.push("mail", {"a": 1})
    registry = WorkerRegistry(stores.link, prefix="delayq")
    eventually(lambda: [one for one in registry.all() if one["queues"] == ["default"]], "the worker's beat")
    (message,) = delayq.pull("mail")
    message.ack()
    eventually(lambda: Job.objects.get(pk=job.id).state == State.SUCCEEDED, "its row")
    assert worker.alive


def test_a_worker_of_messages_alone_keeps_their_records(work):
    worker = work("--queues", "mail")
    job = delayq.push("mail", 1)
    delayq.pull("mail")[0].fail("no")
    eventually(lambda: Job.objects.get(pk=job.id).state == State.FAILED, "its row")
    assert worker.alive, worker.text()


def test_a_worker_that_would_do_nothing_for_messages_does_not_start(work):
    worker = work("--queues", "mail", "--roles", "move")
    assert worker.wait() == 2
    assert "Add the role mirror" in worker.text()
