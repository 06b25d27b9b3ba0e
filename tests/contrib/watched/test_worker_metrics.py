"""Compares the metrics at the port of a real worker with what actually happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from django_delayq.contrib.prometheus.metrics import OF_QUEUES, OF_WORKERS, worker_page
from django_delayq.management.commands.delayq_worker import NO_METRICS
from django_delayq.worker.tally import MOST_TASKS, LineFigures, Tally, WorkerFigures, figures
from tests.contrib.watched.scraped import OF_DIVIDED, Scraped, ask, scrape
from tests.ports import free_port
from tests.stage import ROOT
from tests.worker.conftest import Shop, eventually

TASKS = "tests.app.shop.tasks"
RUNS = "delayq_worker_runs_total"


def runs(seen: Scraped, task: str, outcome: str, queue: str = "default") -> float | None:
    return seen.of(RUNS, queue=queue, task=f"{TASKS}.{task}", outcome=outcome)


def test_runs_are_told_by_queue_task_and_outcome_as_they_happened(shop: Shop) -> None:
    port = free_port()
    for number in range(5):
        shop.put("count", number, delay_ms=600_000 if number > 2 else 0)
    shop.put("count", 9, queue="slow")
    shop.put("err", max_attempts=2)
    shop.work("--health-port", str(port), "--processes", "2")
    seen = eventually(lambda: (one := scrape(port)).total(RUNS) == 6 and one)
    assert runs(seen, "count", "succeeded") == 3
    assert runs(seen, "count", "succeeded", "slow") == 1
    assert (runs(seen, "err", "retried"), runs(seen, "err", "failed")) == (1, 1)
    assert runs(seen, "nap", "failed") == 0, "what has not happened yet is told as 0, so that the first time is seen"
    for name in ("run", "lateness"):
        assert seen.of(f"delayq_worker_{name}_seconds_count", queue="default") == 5
        assert seen.of(f"delayq_worker_{name}_seconds_bucket", queue="slow", le="+Inf") == 1
    assert seen.of("delayq_worker_slots") == 16
    assert seen.of("delayq_worker_processes", kind="task") == 2
    assert seen.of("delayq_worker_redis_reached") == 1


def test_lateness_counts_from_the_date_and_run_time_from_the_start(shop: Shop) -> None:
    port = free_port()
    shop.put("doze", 1, 0.3)
    shop.put("count", 1)
    worker = shop.work("--health-port", str(port), "--threads", "1")
    seen = eventually(lambda: (one := scrape(port)).total(RUNS) == 2 and one)
    assert seen.of("delayq_worker_run_seconds_bucket", queue="default", le="0.25") == 1
    assert seen.of("delayq_worker_run_seconds_count", queue="default") == 2
    assert 0.3 <= (seen.of("delayq_worker_run_seconds_sum", queue="default") or 0) < 30
    # Both were due before the worker started, and one of them also waited for the other.
    assert 0.3 <= (seen.of("delayq_worker_lateness_seconds_sum", queue="default") or 0) < 60
    assert worker.alive


@pytest.mark.slow
def test_what_runs_is_told_and_what_its_killed_process_ran_is_a_crash(shop: Shop) -> None:
    port = free_port()
    job = shop.put("nap", 1, 600)
    worker = shop.work("--health-port", str(port))
    eventually(lambda: scrape(port).of("delayq_worker_leases", queue="default", state="running") == 1)
    assert scrape(port).of("delayq_worker_slots_busy") == 1
    assert runs(scrape(port), "nap", "crashed") == 0
    eventually(lambda: len(shop.ran()) == 1)
    for pid in worker.children():
        os.kill(pid, signal.SIGKILL)
    seen = eventually(lambda: (one := scrape(port)).total(RUNS, outcome="crashed") and one)
    assert runs(seen, "nap", "crashed") == 1
    assert seen.of("delayq_worker_process_restarts_total", process="task-1", cause="died") == 1
    assert "crashed" in shop.happened(job)


@pytest.mark.slow
def test_a_run_that_had_to_be_ended_with_its_process_is_a_failure_of_its_task(shop: Shop) -> None:
    port = free_port()
    shop.put("deaf", 1, options={"timeout": 0.1}, max_attempts=1)
    shop.work("--health-port", str(port))
    seen = eventually(lambda: (one := scrape(port)).total(RUNS, outcome="failed") and one)
    assert runs(seen, "deaf", "failed") == 1
    assert seen.total(RUNS) == 1
    assert seen.of("delayq_worker_process_restarts_total", process="task-1", cause="replaced") == 1


def test_a_process_that_was_replaced_takes_no_count_with_it(shop: Shop) -> None:
    port = free_port()
    shop.put_many("count", [(number,) for number in range(30)])
    shop.work("--health-port", str(port), "--max-jobs", "5")
    eventually(lambda: scrape(port).of("delayq_worker_process_restarts_total", process="task-1", cause="replaced"))
    shop.put_many("count", [(number,) for number in range(30, 40)])
    seen = eventually(lambda: (one := scrape(port)).total(RUNS) == 40 and one)
    assert runs(seen, "count", "succeeded") == 40


@pytest.mark.slow
def test_a_lease_that_was_lost_is_counted_once(shop: Shop) -> None:
    port = free_port()
    job = shop.put("stay", 1, 600)
    worker = shop.work("--health-port", str(port))
    eventually(lambda: scrape(port).of("delayq_worker_leases", queue="default", state="running") == 1)
    keys = shop.store().keys
    attempt, crashes, band, _ = shop.link.execute("HGET", keys["runs"], job).decode().split(":")
    shop.link.execute("HSET", keys["runs"], job, f"{attempt}:{crashes}:{band}:somebody-else")
    seen = eventually(lambda: (one := scrape(port)).total("delayq_worker_leases_lost_total") and one)
    assert seen.of("delayq_worker_leases_lost_total", queue="default") == 1
    assert worker.alive


def test_the_states_of_a_worker_are_told(shop: Shop) -> None:
    port = free_port()
    shop.put("nap", 1, 600)
    worker = shop.work("--health-port", str(port), "--grace", "60")
    eventually(lambda: scrape(port).of("delayq_worker_state", state="working") == 1)
    eventually(lambda: len(shop.ran()) == 1)
    worker.signal(signal.SIGUSR1)
    eventually(lambda: scrape(port).of("delayq_worker_state", state="quiet") == 1)
    worker.signal(signal.SIGTERM)
    seen = eventually(lambda: (one := scrape(port)).of("delayq_worker_state", state="leaving") == 1 and one)
    assert seen.of("delayq_worker_state", state="working") == 0


def test_who_keeps_records_tells_what_was_folded_and_on_request_of_the_queues(shop: Shop) -> None:
    port = free_port()
    shop.keep_rows()
    shop.put_many("count", [(number,) for number in range(3)])
    shop.put("count", 1, delay_ms=600_000)
    shop.work("--roles", "move,mirror,relay", "--health-port", str(port), "--metrics-queues")
    seen = eventually(lambda: (one := scrape(port)).of("delayq_jobs", queue="default", state="scheduled") == 1 and one)
    assert seen.of("delayq_up", part="redis") == seen.of("delayq_up", part="database") == 1
    assert seen.of("delayq_jobs_delayed", queue="default") == 1
    seen = eventually(lambda: (one := scrape(port)).of("delayq_worker_mirror_lag_events", queue="default") == 0 and one)
    assert (seen.of("delayq_worker_events_folded_total", queue="default") or 0) >= 2
    assert seen.of("delayq_worker_processes", kind="loop") == 1
    named = {family.name for family in seen.families.values()}
    assert named == {name.removesuffix("_total") for name in (*OF_WORKERS, *OF_QUEUES)} - OF_DIVIDED, "all there is, and nothing else"


def test_a_worker_tells_of_no_queue_unless_it_is_asked_to(shop: Shop) -> None:
    port = free_port()
    shop.work("--health-port", str(port))
    seen = scrape(port)
    named = {family.name for family in seen.families.values()}
    folds = {"delayq_worker_events_folded", "delayq_worker_mirror_lag_seconds", "delayq_worker_mirror_lag_events"}
    assert named == {name.removesuffix("_total") for name in OF_WORKERS} - folds


@pytest.fixture
def without_client(tmp_path: Path) -> dict[str, str]:
    """Returns the environment of processes that cannot import the Prometheus client."""
    (tmp_path / "hidden").mkdir()
    hide = "import sys, importlib.abc\nclass Hide(importlib.abc.MetaPathFinder):\n    def find_spec(self, name, path, target=None):\n"
    hide += "        if name.split('.')[0] == 'prometheus_client': raise ModuleNotFoundError(name)\n"
    hide += "import importlib.util\nfound = importlib.util.find_spec\n"
    hide += "importlib.util.find_spec = lambda name, *more: None if name == 'prometheus_client' else found(name, *more)\n"
    (tmp_path / "hidden" / "sitecustomize.py").write_text(f"{hide}sys.meta_path.insert(0, Hide())\n")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "hidden"), *filter(None, [os.environ.get("PYTHONPATH", "")])])}


def test_without_the_client_of_prometheus_the_port_says_what_to_install(shop: Shop, without_client) -> None:
    port = free_port()
    shop.environment = without_client
    shop.work("--health-port", str(port))
    status, text = eventually(lambda: (got := ask(port))[0] and got)
    assert (status, NO_METRICS in text, "django-delayq[prometheus]" in text) == (404, True, True)
    eventually(lambda: ask(port, "ready")[0] == 200)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--metrics-queues",), "--metrics-queues requires --health-port"),
        (("--metrics-queues", "--health-port", "0"), "--metrics-queues requires the role mirror or relay"),
    ],
)
def test_the_option_says_what_it_needs(shop: Shop, options, text) -> None:
    worker = shop.work(*options)
    assert worker.wait() == 2
    assert text in worker.text()


def test_the_option_needs_the_client_of_prometheus(shop: Shop, without_client) -> None:
    shop.environment = without_client
    worker = shop.work("--roles", "mirror", "--health-port", "0", "--metrics-queues")
    assert worker.wait() == 2
    assert NO_METRICS in worker.text()


def test_nothing_of_prometheus_is_imported_where_nobody_measures(shop: Shop) -> None:
    code = "import django; django.setup(); import sys; from django_delayq.management.commands import delayq_worker;"
    code += "print(sorted(name for name in sys.modules if name.startswith(('prometheus_client', 'django_delayq.contrib.'))))"
    environment = {**os.environ, **shop.project}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def seen_of(tasks: list[str], lines: list[LineFigures]) -> Scraped:
    facts = {"version": "1", "started": 0, "state": "working", "memory": 0, "processes": 1, "threads": 1, "busy": 0}
    text = worker_page(
        WorkerFigures(
            lines=lines,
            given_back={},
            lost={},
            leases={},
            restarts={},
            processes={},
            facts=facts,
            tasks=tasks,
            reached=True,
            records=None,
        )
    )
    return Scraped(text.decode())


def test_tasks_behind_the_first_hundred_are_told_together() -> None:
    tasks = [f"shop.t{number:03}" for number in range(MOST_TASKS + 5)]
    empty = figures(["default"], Tally(1, len(tasks)).read())[0]
    ended = {(0, "ack"): 2, (MOST_TASKS, "ack"): 3, (MOST_TASKS + 7, "fail"): 1}
    line = LineFigures(queue="default", ran=empty.ran, late=empty.late, lost=0, ended=ended)
    seen = seen_of(tasks, [line])
    assert seen.of(RUNS, queue="default", task="shop.t000", outcome="succeeded") == 2
    assert seen.of(RUNS, queue="default", task="other", outcome="succeeded") == 3
    assert seen.of(RUNS, queue="default", task="other", outcome="failed") == 1
    assert f"shop.t{MOST_TASKS}" not in str(seen.keys())


def test_partitions_of_a_queue_are_added_up() -> None:
    counts = Tally(2, 1).read()
    width = len(counts) // 2
    counts[1] = counts[width + 1] = 500  # ms of runs
    counts[2] = counts[width + 3] = 1  # one in the first bucket, one in the second
    seen = seen_of(["shop.t"], figures(["default", "default"], counts))
    assert seen.of("delayq_worker_run_seconds_count", queue="default") == 2
    assert seen.of("delayq_worker_run_seconds_sum", queue="default") == 1.0
    assert seen.of("delayq_worker_run_seconds_bucket", queue="default", le="0.005") == 1
    assert seen.of("delayq_worker_run_seconds_bucket", queue="default", le="0.01") == 2


def test_names_that_need_quoting_are_quoted() -> None:
    empty = figures(["default"], Tally(1, 1).read())[0]
    line = LineFigures(queue='a "queue"\\', ran=empty.ran, late=empty.late, lost=1, ended={})
    assert seen_of(["shop.t"], [line]).of("delayq_worker_leases_lost_total", queue='a "queue"\\') == 1
