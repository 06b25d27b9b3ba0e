"""A person or the timeout can stop a task that does not check for cancellation."""

from __future__ import annotations

import pytest
from conftest import Begun
from deployment import until
from orders.tasks import bake

from django_delayq.testing.kit import Kit


@pytest.mark.live
def test_a_job_that_takes_its_process_with_it_has_crashed(begun: Begun) -> None:
    assert begun.site.end_of(begun.crashed) == ["failed", "crashed"]
    until(lambda: begun.crashed in begun.site.heard("job_crashed"), "nobody heard of it")


@pytest.mark.live
def test_running_jobs_are_stopped_and_may_clean_up(begun: Begun) -> None:
    assert list(begun.aborted.values()) == ["running", "running"]
    for job, cleaned in zip(begun.aborted, ("oven_is_off", "fan_is_off"), strict=True):
        assert begun.site.end_of(job) == ["cancelled", "cancelled"]
        assert job in begun.site.heard(cleaned), "it has not cleaned up"


@pytest.mark.live
def test_a_task_that_does_not_hear_its_timeout_ends_by_it(begun: Begun) -> None:
    assert begun.site.end_of(begun.deaf) == ["failed", "timeout"]


def test_a_job_that_waits_is_cancelled(delayq: Kit) -> None:
    job = bake.using(delay="1h").schedule(60)
    assert job.cancel(abort=True) == "done"
    assert delayq.advance("2h") == []
