"""Worker processes, from scheduling to the outcome: the runs, their outcomes, and how the worker ends."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest

from django_delayq import ids
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.depths import queue_depth
from tests.ports import free_port
from tests.worker.conftest import Shop, eventually


def test_a_burst_runs_what_is_due_and_leaves(shop: Shop) -> None:
    jobs = shop.put_many("count", [(number,) for number in range(20)])
    later = shop.put("count", 99, delay_ms=3_600_000)
    assert shop.work("--burst").wait() == 0
    assert shop.counts() == dict.fromkeys(range(20), 1)
    assert shop.happened(jobs[3]) == ["scheduled", "claimed", "succeeded"]
    assert shop.detail(jobs[3], "succeeded")["r"] == 6
    assert shop.happened(later) == ["scheduled"]
    assert shop.leases() == 0


def test_a_burst_leaves_an_empty_queue_at_once(shop: Shop) -> None:
    assert shop.work("--burst", "--processes", "2").wait() == 0


def test_a_job_runs_when_it_is_due_and_not_before(shop: Shop) -> None:
    shop.work()
    id = shop.put("count", 1, delay_ms=700)
    eventually(lambda: "succeeded" in shop.happened(id))
    due = next(item for entry in shop.events() for item in entry.items if item.kind == "scheduled").fields[1]
    assert shop.detail(id, "succeeded")["s"] >= int(due)


def test_failures_are_retried_along_the_ladder_and_then_failed(shop: Shop) -> None:
    id = shop.put("err", max_attempts=3)
    shop.work()
    eventually(lambda: "failed" in shop.happened(id))
    assert shop.ran() == ["attempt 1", "attempt 2", "attempt 3"]
    assert shop.happened(id) == ["scheduled", *["claimed", "retried"] * 2, "claimed", "failed"]
    detail = shop.detail(id, "failed")
    assert detail["c"] == "ValueError"
    assert detail["m"] == "the answer is not 42"
    assert "tests/app/shop/tasks.py" in detail["t"]
    assert "django_delayq/worker" not in detail["t"]
    assert shop.detail(id, "retried")["p"] == detail["p"]


def test_a_task_may_snooze_ask_for_a_retry_and_fail(shop: Shop) -> None:
    id = shop.put("moody")
    shop.work()
    eventually(lambda: "failed" in shop.happened(id))
    assert shop.ran() == ["attempt 1 0", "attempt 1 0", "attempt 2 0"]
    assert shop.happened(id) == ["scheduled", "claimed", "snoozed", "claimed", "retried", "claimed", "failed"]
    assert shop.detail(id, "snoozed")["d"] == "not now"
    assert shop.detail(id, "retried")["d"] == "once more"
    assert shop.detail(id, "failed")["m"] == "enough"


def test_a_task_asks_along_its_own_ladder_whose_count_outlasts_a_retry_and_gives_up_at_the_end(shop: Shop) -> None:
    id = shop.put("ask", max_attempts=2)
    shop.work()
    eventually(lambda: "failed" in shop.happened(id))
    assert shop.ran() == [
        "asked 0 attempt 1",
        "asked 1 attempt 1",  # fails, and is retried
        "asked 1 attempt 2",
        "asked 2 attempt 2",
        "asked 3 attempt 2",
    ]
    assert shop.happened(id) == [
        "scheduled",
        *["claimed", "snoozed", "claimed", "retried"],
        *["claimed", "snoozed"] * 2,
        "claimed",
        "failed",
    ]
    told = [item.fields for entry in shop.events() for item in entry.items if item.kind == "snoozed"]
    assert [fields[5] for fields in told] == ["1", "2", "3"]
    detail = shop.detail(id, "failed")
    assert detail["c"] == "django_delayq.exceptions.GaveUp"
    assert detail["m"] == "The task still raised NotYet after its last poll delay (number 3). answer 5 is: not yet"


def test_coroutines_run_side_by_side(shop: Shop) -> None:
    jobs = shop.put_many("async_nap", [(number, None) for number in range(6)])
    shop.work("--threads", "6")
    eventually(lambda: [line.split()[0] for line in shop.ran()] == ["began"] * 6)
    shop.release(*range(6))
    eventually(lambda: all("succeeded" in shop.happened(id) for id in jobs))
    assert shop.detail(jobs[5], "succeeded")["r"] == 5


def test_a_soft_timeout_is_raised_in_the_task(shop: Shop) -> None:
    plain, coroutine = shop.put("endless", max_attempts=1), shop.put("async_endless", max_attempts=1)
    shop.work()
    eventually(lambda: "failed" in shop.happened(plain) and "failed" in shop.happened(coroutine))
    assert {"soft timeout", "cleaned up"} <= set(shop.ran())
    for id in (plain, coroutine):
        assert shop.detail(id, "failed")["c"] == "django_delayq.exceptions.SoftTimeout"
        assert "longer than its timeout" in shop.detail(id, "failed")["m"]


@pytest.mark.slow
def test_a_deaf_task_fails_when_its_process_is_dead_and_a_neighbour_without_a_timeout_has_the_grace(shop: Shop) -> None:
    worker = shop.work("--threads", "2", "--grace", "3s")
    (first,) = eventually(worker.children)
    other = shop.put("nap", 2, 600)
    eventually(lambda: len(shop.ran()) == 1)
    deaf = shop.put("deaf", 1, max_attempts=1)
    eventually(lambda: len(worker.children()) == 2)  # another process has the slot
    eventually(lambda: "failed" in shop.happened(deaf))
    assert first not in worker.children()
    assert shop.detail(deaf, "failed")["c"] == "HardTimeout"
    eventually(lambda: "snoozed" in shop.happened(other))
    assert shop.detail(other, "snoozed")["e"] == "evicted"
    eventually(lambda: len(shop.happened(other)) >= 4)
    assert shop.happened(other)[:4] == ["scheduled", "claimed", "snoozed", "claimed"]
    assert shop.happened(deaf) == ["scheduled", "claimed", "failed"]


@pytest.mark.slow
def test_a_deaf_tasks_neighbour_ends_in_its_time_and_runs_once(shop: Shop) -> None:
    worker = shop.work("--threads", "2")
    other = shop.put("nap", 2, None)
    eventually(lambda: len(shop.ran()) == 1)
    deaf = shop.put("deaf", 1, max_attempts=1)
    eventually(lambda: len(worker.children()) == 2)  # another process has the slot
    assert shop.happened(deaf) == ["scheduled", "claimed"]
    shop.release(2)
    eventually(lambda: "failed" in shop.happened(deaf))
    assert shop.happened(other) == ["scheduled", "claimed", "succeeded"]
    assert sum(line.startswith("began 2 ") for line in shop.ran()) == 1
    assert worker.process.poll() is None


@pytest.mark.slow
def test_a_deaf_task_has_failed_and_is_not_given_back_when_its_worker_is_told_to_leave(shop: Shop) -> None:
    worker = shop.work("--threads", "2", "--grace", "2s")
    other = shop.put("nap", 2, 600)
    eventually(lambda: len(shop.ran()) == 1)
    deaf = shop.put("deaf", 1, max_attempts=1)
    eventually(lambda: len(worker.children()) == 2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert shop.happened(deaf) == ["scheduled", "claimed", "failed"]
    assert shop.happened(other)[:3] == ["scheduled", "claimed", "snoozed"]
    assert shop.leases() == 0


def test_what_cannot_be_read_fails_at_once(shop: Shop) -> None:
    id = shop.put("count", payload=b"{not json")
    shop.work()
    eventually(lambda: "failed" in shop.happened(id))
    assert shop.happened(id) == ["scheduled", "claimed", "failed"]
    assert shop.detail(id, "failed")["c"] == "Poison"
    assert "cannot be read" in shop.detail(id, "failed")["m"]


def test_a_job_without_its_task_is_parked_with_a_reason(shop: Shop) -> None:
    id = shop.put("shop.renamed")
    assert shop.work("--burst").wait() == 0
    assert shop.happened(id) == ["scheduled", "claimed", "snoozed"]
    assert "No task named 'shop.renamed' is registered" in shop.detail(id, "snoozed")["d"]


def test_a_running_job_sees_that_it_is_cancelled_and_shows_its_progress(shop: Shop) -> None:
    short = shop.put("until_cancelled")
    id = ids.full(short)
    shop.work()
    inspector = Inspector(shop.link, prefix="delayq")

    def progress() -> str:
        view = inspector.job("default", id)
        return view.progress if view else ""

    assert eventually(progress).endswith("/600")
    shop.store().cancel(id, actor="test")
    eventually(lambda: "saw the request" in shop.ran())
    eventually(lambda: "cancelled" in shop.happened(short))


def test_the_first_signal_lets_running_jobs_finish_and_gives_the_rest_back(shop: Shop) -> None:
    running = shop.put_many("nap", [(number, None) for number in range(2)])
    worker = shop.work("--threads", "2")
    eventually(lambda: len(shop.ran()) == 2)
    waiting = shop.put("nap", 3, 0.1)
    worker.signal(signal.SIGTERM)
    eventually(lambda: "shutting down" in worker.text())
    shop.release(0, 1)
    assert worker.wait() == 0
    assert all("succeeded" in shop.happened(id) for id in running)
    assert "succeeded" not in shop.happened(waiting)
    assert shop.leases() == 0


def test_what_outlasts_the_grace_is_snoozed(shop: Shop) -> None:
    id = shop.put("nap", 1, 600)
    worker = shop.work("--grace", "500ms")
    eventually(lambda: len(shop.ran()) == 1)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert shop.happened(id) == ["scheduled", "claimed", "snoozed"]
    assert shop.leases() == 0


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_second_signal_gives_everything_back_at_once(shop: Shop, sign: int, code: int) -> None:
    id = shop.put("nap", 1, 600)
    worker = shop.work("--grace", "10m")
    eventually(lambda: len(shop.ran()) == 1)
    worker.signal(sign)
    eventually(lambda: "shutting down" in worker.text())
    worker.signal(sign)
    assert worker.wait() == code
    assert shop.happened(id) == ["scheduled", "claimed", "snoozed"]


def test_a_quiet_worker_claims_no_more_and_stays(shop: Shop) -> None:
    worker = shop.work()
    first = shop.put("count", 1)
    eventually(lambda: "succeeded" in shop.happened(first))
    worker.signal(signal.SIGUSR1)
    registry = WorkerRegistry(shop.link, prefix="delayq")
    eventually(lambda: [known["state"] for known in registry.all()] == ["quiet"])
    second = shop.put("count", 2)
    third = shop.put("count", 3, delay_ms=300)
    eventually(lambda: queue_depth("default", Inspector(shop.link, prefix="delayq")).due == 2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert shop.happened(second) == shop.happened(third) == ["scheduled"]


def test_sigquit_shows_where_every_thread_is(shop: Shop) -> None:
    shop.put("nap", 1, 600)
    worker = shop.work()
    eventually(lambda: len(shop.ran()) == 1)
    worker.signal(signal.SIGQUIT)
    eventually(lambda: "in nap" in worker.text() and "supervisor.py" in worker.text())
    assert worker.process.poll() is None


def test_a_task_process_is_replaced_after_so_many_jobs(shop: Shop) -> None:
    jobs = shop.put_many("count", [(number,) for number in range(30)])
    worker = shop.work("--max-jobs", "5")
    eventually(lambda: all("succeeded" in shop.happened(id) for id in jobs))
    eventually(lambda: "is replaced: it has run" in worker.text())
    more = shop.put("count", 31)
    eventually(lambda: "succeeded" in shop.happened(more))
    assert set(shop.counts().values()) == {1}


def test_the_worker_shows_itself_and_answers_probes(shop: Shop) -> None:
    port = free_port()
    shop.put("nap", 1, 600)
    worker = shop.work("--health-port", str(port), "--processes", "2", "--log-format", "json")

    def ask(path: str) -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    eventually(lambda: ask("health")[0] == 200)
    eventually(lambda: ask("ready")[0] == 200)
    assert ask("nothing")[0] == 404
    registry = WorkerRegistry(shop.link, prefix="delayq")
    eventually(lambda: registry.all()[0]["busy"] == 1)
    (shown,) = registry.all()
    assert shown["queues"] == ["default", "slow"]
    assert shown["pid"] == worker.pid
    assert shown["silent"] is False
    worker.signal(signal.SIGTERM)
    eventually(lambda: ask("ready")[0] == 503)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert registry.all() == []


def test_a_quiet_worker_is_healthy_when_its_task_processes_have_gone(shop: Shop) -> None:
    port = free_port()
    shop.put("nap", 1, 1)
    worker = shop.work("--health-port", str(port), "--max-jobs", "1")
    eventually(lambda: len(shop.ran()) == 1)
    worker.signal(signal.SIGUSR1)
    eventually(lambda: worker.children() == [])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--queues", "nowhere"), "Unknown queue 'nowhere'. Choose from: default, slow"),
        (("--queues", "slwo"), "Unknown queue 'slwo' (did you mean 'slow'?). Choose from: default, slow"),
        (("--queues", "nowhere=4"), "Unknown queue 'nowhere'. Choose from: default, slow"),
        (
            ("--queues", "default=4,slow=x"),
            "'x' is not a valid weight. Use slow=4, with a whole number from 1 to 100",
        ),
        (("--queues", "slow=0"), "'0' is not a valid weight"),
        (("--queues", "slow,slow=2"), "'slow' has two weights: 1 and 2"),
        (("--queues", "slow=101"), "'101' is not a valid weight"),
        (("--exclude-queues", "default,slow"), "There are no queues to serve"),
        (("--roles", "lead"), "Unknown role 'lead'"),
        (("--threads", "0"), "not a whole number of at least 1"),
        (("--grace", "soon"), "is not a duration"),
    ],
)
def test_a_wrong_option_is_a_usage_error(shop: Shop, options: tuple[str, ...], text: str) -> None:
    worker = shop.work(*options)
    assert worker.wait() == 2
    assert text in worker.text()


def test_only_the_named_queues_are_served(shop: Shop) -> None:
    here, there = shop.put("count", 1), shop.put("count", 2, queue="slow")
    assert shop.work("--burst", "--queues", "slow").wait() == 0
    assert "succeeded" in shop.happened(there, "slow")
    assert shop.happened(here) == ["scheduled"]


def test_a_server_that_evicts_is_refused(shop: Shop, own_redis) -> None:
    server = own_redis(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    shop.url = server.url
    worker = shop.work()
    assert worker.wait() == 1
    assert "maxmemory-policy" in worker.text()
