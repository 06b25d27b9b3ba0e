"""A measure has one value, wherever it is shown: run time and lateness count from the start of the last run, not from its claim."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client

import django_delayq as delayq
from django_delayq import clock
from django_delayq.admin.charts import brief
from django_delayq.console import health, trends
from django_delayq.contrib.prometheus.metrics import queues_page
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.spread import BUCKETS, bucket, percentile
from django_delayq.worker.outcome import failure_detail, success_detail
from tests.admin.conftest import JOBS, QUEUES, Staff
from tests.conftest import Run
from tests.contrib.watched.scraped import Scraped, scrape
from tests.ports import free_port
from tests.tasks_for_tests import close_order
from tests.worker.conftest import Shop, eventually, shop

__all__ = ["shop"]

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


# Real jobs of a real worker: each page is compared with the rows of the attempts.

TASKS = "tests.app.shop.tasks"
SPANS = ("1h", "1d", "7d")


class Truth:
    """The last runs of the jobs that ended, in ms, read from attempts."""

    def __init__(self, **of: str) -> None:
        ended = {job.pk: job for job in Job.objects.filter(state__in=("succeeded", "failed"), **of)}
        self.runs = list(Attempt.objects.filter(job_id__in=ended).order_by("number"))
        last = {run.job_id: run for run in self.runs}
        assert last.keys() == ended.keys()
        self.ran = sorted(ms(run.finished_at - run.started_at) for run in last.values())
        self.late = sorted(ms(last[id].started_at - job.run_at) for id, job in ended.items())
        self.outcomes = Counter(run.outcome for run in self.runs)

    @property
    def line(self) -> tuple[Any, ...]:
        """As the tables of trends show it."""
        done, failed = self.outcomes["succeeded"], self.outcomes["failed"]
        return done, failed, f"{round(100 * failed / (done + failed))}%", self.exact(self.late), self.exact(self.ran)

    def exact(self, values: list[int]) -> tuple[str, str]:
        return share_of(values, 0.5), share_of(values, 0.95)

    def counted(self, values: list[int]) -> tuple[str, str]:
        """As counters per power of two show it."""
        counts = Counter(map(bucket, values))
        whole = [counts[number] for number in range(BUCKETS)]
        return brief(percentile(whole, 0.5)), brief(percentile(whole, 0.95))


def ms(time: Any) -> int:
    return round(time.total_seconds() * 1000)


def share_of(values: list[int], share: float) -> str:
    return brief(float(values[min(len(values) - 1, int(share * len(values)))]))


def cells(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["succeeded"], line["failed"], line["share"], line["late"], line["ran"]


@pytest.fixture
def ran(shop: Shop, settings: Any, transactional_db: None) -> Iterator[int]:
    """Jobs of three tasks in two queues have ended: claimed together and run one by one, some retried. Returns the worker's port."""
    own = {"DURABILITY": "redis", "BACKOFF": "60ms", "QUEUES": {"default": {}, "slow": {}}}
    settings.DELAYQ = {**own, "REDIS": settings.DELAYQ["REDIS"]}
    stores.reset()
    shop.settings = own
    shop.database = {**json.loads(os.environ["DELAYQ_TEST_DATABASE"]), "NAME": connection.settings_dict["NAME"]}
    port = free_port()
    shop.put_many("doze", [(number, number / 100) for number in range(2, 14)])
    shop.put_many("doze", [(number, 0.15) for number in range(3)], queue="slow")
    shop.put_many("count", [(number,) for number in range(5)])
    for number in range(2):
        shop.put("err", queue="slow", max_attempts=3 - number)
    shop.put_many("count", [(number,) for number in range(4)], queue="slow", delay_ms=3_600_000)
    shop.work("--roles", "move,mirror", "--threads", "1", "--health-port", str(port))
    eventually(lambda: Job.objects.filter(state__in=("succeeded", "failed")).count() == 22, "all ended", patience=120)
    yield port
    stores.reset()


def test_each_page_shows_the_figures_of_the_attempts(ran: int, staff: Staff, run: Run) -> None:
    client = staff()
    queues, tasks = {name: Truth(queue=name) for name in ("default", "slow")}, ("doze", "count", "err")
    whole = Truth()
    assert (whole.outcomes["retried"], whole.outcomes["failed"]) == (3, 2)
    assert queues["default"].late[-1] > 500, "claimed together, the last one waited for the others"
    trends_agree(client, queues, tasks)
    for name in tasks:
        task_page_agrees(client, f"{TASKS}.{name}")
    dashboard_agrees(client, queues)
    metrics_agree(scrape(ran), queues)
    depths_agree(client, run)


def trends_agree(client: Client, queues: dict[str, Truth], tasks: tuple[str, ...]) -> None:
    for span in SPANS:
        context = client.get(f"{QUEUES}trends/?span={span}").context
        assert {line["name"]: cells(line) for line in context["queues"]} == {name: truth.line for name, truth in queues.items()}, span
        found = {line["name"]: cells(line) for line in context["tasks"]}
        assert found == {f"{TASKS}.{task}": Truth(task=f"{TASKS}.{task}").line for task in tasks}, span
        for name, truth in queues.items():
            context = client.get(f"{QUEUES}{name}/change/?span={span}").context
            assert cells(context["whole"]) == truth.line, (name, span)
            charts = {chart["name"]: [cells for _, cells in chart["rows"]] for chart in context["charts"]}
            assert sum(int(count) for (count,) in charts["well"]) == truth.outcomes["succeeded"]
            columns = [sum(map(int, column)) for column in zip(*charts["unwell"], strict=True)]
            assert columns == [truth.outcomes["retried"], truth.outcomes["failed"]]


def task_page_agrees(client: Client, task: str) -> None:
    truth = Truth(task=task)
    for span in SPANS:
        context = client.get(f"{JOBS}task/{quote(task)}/?span={span}").context
        assert list(map(cells, context["sums"])) == [truth.line], span
        shares = (0.5, 0.95, 0.99, 1.0)
        shown = [row[1:] for row in context["figures"]]
        assert shown == [[share_of(values, share) for share in shares] for values in (truth.ran, truth.late)]
        assert context["attempts"] == len(truth.runs)


def dashboard_agrees(client: Client, queues: dict[str, Truth]) -> None:
    for row in client.get(QUEUES).context["queues"]:
        truth = queues[row["queue"].name]
        done, failed, share, _, _ = truth.line
        assert (row["hour"], row["share"]) == (done + failed, share)
        assert (row["lateness"], row["ran"]) == (truth.counted(truth.late), truth.counted(truth.ran))
    failed = dict(client.get(QUEUES).context["failing"])
    assert failed == {f"{TASKS}.err": Truth().outcomes["failed"]}


def metrics_agree(seen: Scraped, queues: dict[str, Truth]) -> None:
    for name, truth in queues.items():
        runs = [ms(run.finished_at - run.started_at) for run in truth.runs]
        assert seen.of("delayq_worker_run_seconds_count", queue=name) == len(runs)
        assert seen.of("delayq_worker_run_seconds_sum", queue=name) == pytest.approx(sum(runs) / 1000)
        assert seen.of("delayq_worker_lateness_seconds_count", queue=name) == len(runs)
        for outcome, count in truth.outcomes.items():
            assert seen.total("delayq_worker_runs_total", queue=name, outcome=outcome) == count
    late = queues["default"].late  # without retries, these are all runs
    assert seen.of("delayq_worker_lateness_seconds_sum", queue="default") == pytest.approx(sum(late) / 1000)
    assert seen.of("delayq_worker_lateness_seconds_bucket", queue="default", le="0.5") == sum(ms <= 500 for ms in late)


def depths_agree(client: Client, run: Run) -> None:
    """Counts of jobs in Redis agree with the rows."""
    seen = Scraped(queues_page(health.redis_samples()).decode())
    status = {row["queue"]: row for row in run("status", "--json").json["queues"]}
    rows = {row["queue"].name: row["queue"].depth for row in client.get(QUEUES).context["queues"]}
    for name in ("default", "slow"):
        for state in ("scheduled", "running", "failed"):
            count = Job.objects.filter(queue=name, state=state).count()
            assert status[name][state] == getattr(rows[name], state) == seen.of("delayq_jobs", queue=name, state=state) == count
        assert status[name]["retrying"] == rows[name].retrying == seen.of("delayq_jobs_retrying", queue=name) == 0


def test_more_jobs_than_rows_are_read_have_the_figures_of_the_counters(ran: int, staff: Staff, monkeypatch: Any) -> None:
    monkeypatch.setattr(trends, "NEWEST", 3)
    truth = Truth(queue="default")
    [line] = [line for line in staff().get(f"{QUEUES}trends/").context["queues"] if line["name"] == "default"]
    assert (line["late"], line["ran"]) == (truth.counted(truth.late), truth.counted(truth.ran))
