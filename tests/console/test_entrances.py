"""The admin, the command, an operation and the gateway do the same to jobs of which some cannot be changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.console import operation_loop, verbs
from django_delayq.console.operation_loop import OperationLoop
from django_delayq.console.verbs import NamedJob
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job, Operation
from django_delayq.producer.stores import stores
from tests.admin.conftest import JOBS, OPERATIONS
from tests.contrib.gateway.conftest import make
from tests.tasks_for_tests import close_order

Cancels = Callable[[list[UUID]], str]

__all__ = ["make"]


@pytest.fixture
def cancels(request, staff, run, make, settings, caplog) -> Cancels:
    """Cancels jobs through an entrance. Returns what the entrance says."""
    settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_urls"
    caplog.set_level(logging.WARNING, "django_delayq.operations")

    def by_admin(jobs: list[UUID]) -> str:
        form = {"action": "cancel", "_selected_action": [*map(str, jobs)], "confirmed": "1", "reason": "", "index": "0"}
        return " ".join(map(str, staff().post(JOBS, form, follow=True).context["messages"]))

    def by_command(jobs: list[UUID]) -> str:
        answer = run("cancel", "--state", "scheduled", "--yes")
        assert answer.code == 1
        return f"{answer.out} {answer.error}"

    def by_operation(jobs: list[UUID]) -> str:
        operation = Operation.objects.create(verb="cancel", selection={"view": "scheduled"}, actor="admin:ann")
        loop = OperationLoop()
        try:
            while loop.poll() == 0:
                pass
        except StoreUnavailable:  # the rest is on a server that is away
            pass
        operation.refresh_from_db()
        page = staff().get(f"{OPERATIONS}{operation.pk}/change/").content.decode()
        left = Job.objects.filter(pk__in=jobs, queue__in=operation_loop.labels(operation))
        assert all(job.queue in page for job in left)
        return " ".join([*(job.short_id for job in left), *caplog.messages])

    def by_gateway(jobs: list[UUID]) -> str:
        caller = make()
        answers = {ids.short(id): caller.post(f"jobs/{ids.short(id)}/cancel") for id in jobs}
        return " ".join(f"{id}: {answer.json()['code']}" for id, answer in answers.items() if answer.status_code != 200)

    return {"admin": by_admin, "command": by_command, "operation": by_operation, "gateway": by_gateway}[request.param]


@pytest.fixture
def jobs(orders, own_redis, settings) -> Any:
    """One job on each of two servers, the job of the queue "own" first."""
    server = own_redis(appendonly="yes")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}, "own": {"REDIS": server.url}}}
    found = [delayq.schedule(close_order, 1, queue=queue, delay="1h") for queue in ("own", "default")]
    for name in ("own", "default"):
        MirrorLoop(stores.places, conf.get().queue(name), prefix="delayq").drain()
    return server, *found


ENTRANCES = pytest.mark.parametrize("cancels", ["admin", "command", "operation", "gateway"], indirect=True)


@ENTRANCES
def test_a_job_on_a_server_that_answers_is_cancelled_and_one_on_a_dead_server_is_named(cancels, jobs):
    server, away, here = jobs
    server.terminate()
    said = cancels([away.id, here.id])
    assert away.short_id in said
    assert here.short_id not in said
    assert here.reschedule(delay="2h") == "finished"
    server.start()
    stores.forget()
    assert away.state == "scheduled"


@ENTRANCES
def test_a_job_in_a_queue_that_the_settings_no_longer_name_is_named_and_the_other_is_cancelled(cancels, jobs, settings):
    _, unlisted, here = jobs
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    said = cancels([unlisted.id, here.id])
    assert unlisted.short_id in said
    assert here.short_id not in said
    assert here.reschedule(delay="2h") == "finished"


def test_a_queue_whose_server_cannot_be_named_keeps_no_other_job_from_being_changed(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}, "own": {"REDIS": f"{__name__}.broken_factory"}}}
    here = delayq.schedule(close_order, 1, queue="default", delay="1h")
    jobs = [NamedJob(ids.new(), "own"), NamedJob(here.id, "default")]
    (_, refused), (_, done) = verbs.apply(verbs.VERBS["cancel"].each, jobs, actor="ann", reason="")
    assert isinstance(refused, DelayqError)
    assert done == "done"


def broken_factory() -> Any:
    raise RuntimeError
