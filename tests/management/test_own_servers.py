"""`python -m benchmarks.own_servers`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import own_servers
from benchmarks.own_servers import Size
from django_delayq.models import Attempt, Checkpoint, Job
from tests.management.conftest import Terminal, lose_redis

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
