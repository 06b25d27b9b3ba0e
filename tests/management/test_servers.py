"""The output of commands for queues on several servers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import django_delayq as delayq
from benchmarks import own_servers
from benchmarks.own_servers import Size
from django_delayq import conf
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Attempt, Checkpoint, Job
from django_delayq.producer.stores import stores
from django_delayq.store.connection import embedded
from django_delayq.store.connection.link import Link
from tests.conftest import Terminal
from tests.management.conftest import beat, lose_redis
from tests.tasks_for_tests import close_order


@pytest.fixture
def own(orders, own_redis, settings):
    """A separate server for `redis`. Both this server and the server of the other queues persist their data."""
    server, shared = own_redis(appendonly="yes"), own_redis(appendonly="yes")
    queues = {**settings.DELAYQ["QUEUES"], "redis": {"DURABILITY": "redis", "REDIS": server.url}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": shared.url, "QUEUES": queues}
    beat("default", "orders", "redis")
    return server


def test_status_says_which_queues_it_lacks(run, own):
    delayq.schedule(close_order, 1, delay="1h")
    assert run("status").code == 0
    own.terminate()
    answer = run("status", "--json")
    assert answer.code == 1
    assert [queue["queue"] for queue in answer.json["queues"]] == ["default", "orders"]
    assert list(answer.json["missing"]) == ["redis"]
    assert "redis is not included: Redis at unix:" in run("status").out


def test_inspect_finds_a_job_while_another_server_is_away(run, own):
    job = delayq.schedule(close_order, 1, delay="1h", durability="redis", queue="orders")
    own.terminate()
    answer = run("inspect", job.short_id)
    assert "scheduled" in answer.out


def test_a_cancel_by_filter_goes_on_behind_jobs_whose_server_is_away(run, own):
    away = [delayq.schedule(close_order, number, delay="1h", queue="redis", durability="outbox") for number in range(2)]
    here = [delayq.schedule(close_order, number, delay="1h", queue="orders") for number in range(2)]
    own.terminate()
    answer = run("cancel", "--state", "scheduled", "--yes", "--json")
    assert (answer.code, answer.json["counts"]) == (1, {"done": 2})
    assert f"2 of 4 jobs were not changed. {away[0].short_id}, {away[1].short_id}: Redis at unix:" in answer.error
    assert [delayq.reschedule(job.id, delay="2h", queue="orders") for job in here] == ["finished"] * 2


def test_a_cancel_goes_on_past_a_job_whose_queue_the_settings_no_longer_name(run, own, settings):
    jobs = [delayq.schedule(close_order, n, delay="1h", queue=queue) for n, queue in enumerate(("default", "orders", "default"))]
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    answer = run("cancel", "--state", "scheduled", "--yes", "--json")
    assert (answer.code, answer.json["counts"]) == (1, {"done": 2})
    assert f"1 of 3 jobs was not changed. {jobs[1].short_id}: The queue 'orders' is not listed" in answer.error
    assert [jobs[n].reschedule(delay="2h") for n in (0, 2)] == ["finished"] * 2


def test_doctor_judges_each_server(run, own):
    assert run("doctor", "--json").json == {"ok": True, "findings": []}
    stores.queue("redis", 0).link.execute("CONFIG", "SET", "appendonly", "no")
    assert [found["code"] for found in run("doctor", "--json").json["findings"]] == ["W010"]
    own.terminate()
    [found] = run("doctor", "--json").json["findings"]
    assert (found["code"], found["hint"]) == ("D007", "Check REDIS of the queue 'redis', and check that the server is running.")


def test_doctor_asks_a_server_that_is_away_no_more_often_for_queues_that_are_elsewhere(run, own, own_redis, settings, monkeypatch):
    gone = own_redis()
    asked: list[str] = []
    real = Link._send
    monkeypatch.setattr(Link, "_send", lambda link, commands: (asked.append(link.where), real(link, commands))[1])
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": gone.url}
    delayq.pause("redis", actor="kim")
    gone.terminate()
    found = run("doctor", "--json").json["findings"]
    assert [one["hint"] for one in found if one["code"] == "D007"] == ["Check DELAYQ['REDIS'], and check that the server is running."]
    assert any("'redis'" in one["message"] for one in found if one["code"] != "D007"), "what it says of the other one"
    times = sum(gone.socket in where for where in asked)
    queues = {**settings.DELAYQ["QUEUES"], **{f"own{n}": {"REDIS": own.url} for n in range(3)}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    asked.clear()
    run("doctor")
    assert sum(gone.socket in where for where in asked) == times > 0


def test_inspect_says_what_a_job_waits_for_while_nobody_sees_the_workers(run, own, own_redis, settings):
    gone = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": gone.url, "QUEUES": {**settings.DELAYQ["QUEUES"], "own": {"REDIS": own.url}}}
    gone.terminate()
    due, later = delayq.schedule(close_order, 1, queue="own"), delayq.schedule(close_order, 2, queue="own", delay="1h")
    said = run("inspect", due.short_id, "--json").json
    assert (said["trouble"], [one["code"] for one in said["waits_for"]]) == ("", ["workers_unseen"])
    assert "it is unknown whether a worker serves the queue own" in run("inspect", due.short_id).out
    assert [one["code"] for one in run("inspect", later.short_id, "--json").json["waits_for"]] == ["later"]
    delayq.pause("own", actor="kim")
    assert [one["code"] for one in run("inspect", due.short_id, "--json").json["waits_for"]] == ["paused_by"]


def test_doctor_finds_what_a_queue_that_has_moved_left_behind(run, own, settings):
    moved = settings.DELAYQ
    settings.DELAYQ = {**moved, "QUEUES": {**moved["QUEUES"], "redis": {"DURABILITY": "redis"}}}
    delayq.schedule(close_order, 1, delay="1h", queue="redis")
    settings.DELAYQ = moved
    [found] = run("doctor", "--json").json["findings"]
    assert found["code"] == "D025"
    assert "1 of its jobs" in found["message"]


@pytest.fixture
def durable(own, settings):
    """The queue on the other server also has rows in the outbox."""
    queues = {**settings.DELAYQ["QUEUES"], "redis": {"REDIS": own.url}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    return own


def test_restore_says_what_the_healthy_server_lacks_and_names_the_one_that_is_away(run, durable, orders):
    job = delayq.schedule(close_order, 1, delay="1h")
    MirrorLoop(stores.places, conf.get().queue("orders"), prefix="delayq").drain()
    stores.link.execute("FLUSHALL")
    durable.terminate()
    answer = run("restore", "--dry-run", "--json")
    assert (answer.code, answer.json["queues"], answer.json["rows"]) == (1, ["orders"], 1)
    assert list(answer.json["missing"]) == ["redis"]
    answer = run("restore", "--dry-run")
    assert (answer.code, answer.out.splitlines()[0]) == (1, "Unfinished rows that would be checked in Redis: 1 (orders).")
    assert "redis is not included: Redis at unix:" in answer.out
    answer = run("restore", "--yes")
    assert answer.code == 1
    assert "Restored jobs: 1 of 1" in answer.out
    assert orders.in_redis(job) == "scheduled"


GOOD = {
    "ping": {"p50": 0.1, "p99": 0.3},
    "schedule": {"single": 9000.0, "many": 90_000.0},
    "outbox": {"p50": 1.0, "p99": 3.0, "single": 900.0, "many": 9000.0},
    "work": {"p50": 1.0, "p99": 5.0, "lost": 0.0, "rate": 10_000.0},
    "mirror": {"rate": 3000.0},
}


@pytest.fixture
def small(monkeypatch) -> None:
    """Measures almost nothing."""
    monkeypatch.setattr(own_servers, "SIZE", Size(seconds=0.05, late=20, spread=0.5, rate=300))


def keys(server) -> set[bytes]:
    return set(server.link.execute("KEYS", "*"))


def test_it_measures_everything_and_leaves_nothing_behind(orders, redis_server, small, capsys):
    [mine] = orders.scheduled()
    before = keys(redis_server)
    assert own_servers.main(["--yes", "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {name: set(figures) for name, figures in answer["figures"].items()} == {name: set(figures) for name, figures in GOOD.items()}
    assert answer["figures"]["work"]["lost"] == 0
    assert answer["verdict"].startswith("Verdict: ")
    assert keys(redis_server) == before
    assert list(Job.objects.values_list("pk", flat=True)) == [mine.id]
    assert not Attempt.objects.exists()
    assert set(Checkpoint.objects.values_list("queue", flat=True)) == {"orders"}


def test_it_removes_its_jobs_when_it_fails_in_the_middle(orders, redis_server, small, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr("benchmarks.own_servers.Bench.work", fail)
    before = keys(redis_server)
    with pytest.raises(RuntimeError):
        own_servers.main(["--yes"])
    assert keys(redis_server) == before
    assert not Job.objects.exists()


def test_it_asks_first_and_prints_sentences(orders, small, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    with pytest.raises(SystemExit, match=r"Nothing was done\."):
        own_servers.main([])
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert own_servers.main([]) == 0
    out = capsys.readouterr().out
    assert "One worker process runs " in out
    assert out.splitlines()[-1].startswith("Verdict: ")


def test_it_names_a_server_that_is_away(orders, small, settings, capsys):
    lose_redis(settings)
    assert own_servers.main(["--yes"]) == 1
    assert "is not available" in capsys.readouterr().err


def grades(**changes: dict[str, float]) -> list[str]:
    figures = {name: {**values, **changes.get(name, {})} for name, values in GOOD.items()}
    return [line.grade for line in own_servers.judge(figures)]


@pytest.mark.parametrize(
    "changes",
    [
        {"ping": {"p99": 100.0}},
        {"outbox": {"p50": 100.0}},
        {"work": {"p99": 1000.0}},
        {"work": {"rate": 100.0}},
        {"mirror": {"rate": 10.0}},
        {"work": {"lost": 1.0}},
    ],
)
def test_a_slow_part_is_called_poor_with_advice(changes):
    assert set(grades()) == {"good"}
    assert grades(**changes).count("poor") == 1
    figures = {name: {**values, **changes.get(name, {})} for name, values in GOOD.items()}
    assert all(line.advice for line in own_servers.judge(figures) if line.grade == "poor")


@pytest.fixture
def home(settings) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dq-") as folder:
        home = Path(folder, "data")
        settings.DELAYQ = {**settings.DELAYQ, "REDIS": {"EMBEDDED": str(home)}}
        yield home
        embedded.stop(home)


def test_it_is_looked_at_and_stopped(run, home):
    embedded.ensure(home)
    pid = int((home / "valkey.pid").read_text())
    said = run("embedded")
    assert (said.code, said.lines) == (
        0,
        [f"A server runs in {home}, process {pid}, and answers. To stop it, run manage.py delayq embedded stop."],
    )
    assert run("embedded", "status", "--json").json == {"directory": str(home), "pid": pid, "answers": True, "stopped": False}
    stopped = run("embedded", "stop")
    assert stopped.code == 0
    assert stopped.lines == [f"Stopped the server. Its data is saved in {home}. The next process that needs it starts it again."]
    assert run("embedded", "--json").json == {"directory": str(home), "pid": 0, "answers": False, "stopped": False}


def test_what_does_not_run_is_not_started_to_be_looked_at(run, home):
    for act, code in (("status", 1), ("stop", 0)):
        said = run("embedded", act)
        assert (said.code, said.lines) == (code, [f"No server is running in {home}."])
    assert not home.exists()


def test_a_server_that_others_have_started_is_left_alone(run, settings):
    said = run("embedded", "stop")
    assert said.code == 2
    assert 'DELAYQ["REDIS"] is ' in said.error
    assert "Stop it in the way it was started" in said.error


def test_what_it_cannot_do_is_refused(run):
    assert run("embedded", "start").code == 2 or "invalid choice" in run("embedded", "start").error
