"""What does not ask whether it shall stop can be stopped all the same."""

from __future__ import annotations

import pytest
from deployment import Deployment, until
from orders.tasks import bake

from django_delayq.testing.kit import Kit


@pytest.mark.live
def test_running_jobs_are_stopped_and_may_clean_up(site: Deployment) -> None:
    jobs = [site.post(f"/stock/{task}/", {"seconds": 60})["job"] for task in ("bake", "cool")]
    until(lambda: {site.get(f"/jobs/{job}/")["state"] for job in jobs} == {"running"}, "they do not run")
    for job in jobs:
        assert site.post("/stock/abort/", {"job": job})["change"] == "running"
    for job, cleaned in zip(jobs, ("oven_is_off", "fan_is_off"), strict=True):
        assert site.end_of(job) == ["cancelled", "cancelled"]
        assert job in site.heard(cleaned), "it has not cleaned up"


def test_a_job_that_waits_is_cancelled(delayq: Kit) -> None:
    job = bake.using(delay="1h").schedule(60)
    assert job.cancel(abort=True) == "done"
    assert delayq.advance("2h") == []
