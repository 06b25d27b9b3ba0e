"""`delayq bench`."""

from __future__ import annotations

import pytest

from django_delayq.management import bench
from django_delayq.management.bench_run import Size
from django_delayq.models import Attempt, Checkpoint, Job
from tests.management.conftest import lose_redis

GOOD = {
    "ping": {"p50": 0.1, "p99": 0.3},
    "schedule": {"single": 9000.0, "many": 90_000.0},
    "outbox": {"p50": 1.0, "p99": 3.0, "single": 900.0, "many": 9000.0},
    "work": {"p50": 1.0, "p99": 5.0, "lost": 0.0, "rate": 10_000.0},
    "mirror": {"rate": 3000.0},
}


@pytest.fixture
def small(monkeypatch) -> None:
    """Next to nothing is measured."""
    monkeypatch.setattr(bench, "SIZE", Size(seconds=0.05, late=20, spread=0.5, rate=300))


def keys(server) -> set[bytes]:
    return set(server.link.execute("KEYS", "*"))


def test_it_measures_everything_and_leaves_nothing_behind(run, orders, redis_server, small):
    [mine] = orders.scheduled()
    before = keys(redis_server)
    answer = run("bench", "--yes", "--json")
    assert answer.code == 0
    assert {name: set(figures) for name, figures in answer.json["figures"].items()} == {
        name: set(figures) for name, figures in GOOD.items()
    }
    assert answer.json["figures"]["work"]["lost"] == 0
    assert answer.json["verdict"].startswith("Verdict: ")
    assert keys(redis_server) == before
    assert list(Job.objects.values_list("pk", flat=True)) == [mine.id]
    assert not Attempt.objects.exists()
    assert set(Checkpoint.objects.values_list("queue", flat=True)) == {"orders"}


def test_it_removes_its_traces_when_it_fails_in_the_middle(run, orders, redis_server, small, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr("django_delayq.management.bench_run.Bench.work", fail)
    before = keys(redis_server)
    with pytest.raises(RuntimeError):
        run("bench", "--yes")
    assert keys(redis_server) == before
    assert not Job.objects.exists()


def test_it_asks_before_it_burdens_the_servers_and_says_what_it_found_in_sentences(run, orders, small):
    assert run("bench", typed="n").code == 1
    assert run("bench", typed="n").error == "Nothing was done."
    assert run("bench").code == 2
    answer = run("bench", typed="y")
    assert answer.code == 0
    assert "One worker process runs " in answer.out
    assert answer.lines[-1].startswith("Verdict: ")


def test_without_redis_it_says_so(run, orders, small, settings):
    lose_redis(settings)
    answer = run("bench", "--yes")
    assert answer.code == 1
    assert "is not available" in answer.error


def grades(**changes: dict[str, float]) -> list[str]:
    figures = {name: {**values, **changes.get(name, {})} for name, values in GOOD.items()}
    return [line.grade for line in bench.judge(figures)]


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
    assert all(line.advice for line in bench.judge(figures) if line.grade == "poor")
