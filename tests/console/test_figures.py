"""A measure has one value, wherever it is shown: run time and lateness count from the start of the last run, not from its claim."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq import clock
from django_delayq.console import trends
from django_delayq.models import Attempt, Job
from django_delayq.worker.outcome import failure_detail, success_detail
from tests.tasks_for_tests import close_order

RUNS_MS = (11, 250, 40)  # one after another: all were claimed together


@pytest.mark.parametrize("audit", ["full", "outcomes", "failures"])
def test_run_time_and_lateness_count_from_the_start_of_the_run(orders, settings, audit):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": audit}
    orders = type(orders)()
    jobs = [delayq.schedule(close_order, number) for number in range(len(RUNS_MS))]
    held = sorted(orders.claim(want=len(jobs)), key=lambda job: job.id)
    begins = clock.to_ms(clock.now()) + 20
    clock.sleep((20 + sum(RUNS_MS) + 20) / 1000)
    wanted = {}
    for number, (job, took) in enumerate(zip(held, RUNS_MS, strict=True)):
        if number == 1:
            detail = failure_detail(started_ms=begins, finished_ms=begins + took, error=ValueError("no"))
        else:
            detail, _ = success_detail(begins, begins + took, None, 1000)
        orders.settle(job, "fail" if number == 1 else "ack", detail=detail)
        wanted[job.id] = (begins - job.due_ms, took)
        begins += took
    orders.fold()
    found = trends.ends(Job.objects.all(), task=close_order.name)
    kept = [one for one in jobs if Job.objects.filter(pk=one.id).exists()]
    assert {one.short_id for one in kept} >= {held[1].id}
    assert len(found.rows) == len(kept)
    for row in found.rows:
        late, took = wanted[delayq.ids.short(row.job)]
        assert (round(row.late * 1000), round(row.ran * 1000)) == (late, took)
    for run in Attempt.objects.all():
        assert round((run.finished_at - run.started_at).total_seconds() * 1000) == wanted[delayq.ids.short(run.job_id)][1]
    assert Attempt.objects.count() == (3 if audit == "full" else 1 if kept else 0)
