"""The details that workers report, and the requests that they get."""

from __future__ import annotations

import json

import pytest

from django_delayq import clock
from django_delayq.store.connection.link import Cooldown
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.worker_registry import ASKED_MS, WorkerRegistry

WORKERS = Keys("t", "workers")


@pytest.fixture
def registry(board) -> WorkerRegistry:
    return WorkerRegistry(board.link, prefix="t")


def test_a_request_is_kept_until_it_was_heard(registry):
    registry.beat("a", {})
    registry.beat("b", {})
    assert registry.ask("a", "quiet", by="admin:clerk: a deploy")
    assert registry.asked("a") == ("quiet", "admin:clerk: a deploy")
    assert registry.asked("a") == ("quiet", "admin:clerk: a deploy")
    assert registry.asked("b") is None
    assert [worker["asked"] for worker in registry.all()] == ["quiet", ""]
    registry.heard("a")
    assert registry.asked("a") is None


def test_the_last_request_counts(registry):
    registry.beat("a", {})
    assert registry.ask("a", "quiet", by="x")
    assert registry.ask("a", "stop", by="y")
    assert registry.asked("a") == ("stop", "y")


def test_who_is_not_there_is_not_asked(registry, board):
    assert not registry.ask("nobody", "stop", by="x")
    board.link.execute("HSET", WORKERS["workers"], "a", json.dumps({"beat": clock.wall_ms() - 31_000}))
    assert not registry.ask("a", "stop", by="x")
    assert board.link.execute("EXISTS", WORKERS["asked"]) == 0


@pytest.mark.parametrize("ahead", [-3_600_000, 3_600_000])
def test_the_clock_of_a_host_changes_nothing(registry, monkeypatch, ahead):
    now_ms = clock.wall_ms()
    with monkeypatch.context() as there:
        there.setattr(clock, "wall_ms", lambda: now_ms + ahead)
        registry.beat("a", {})
    assert [worker["silent"] for worker in registry.all()] == [False]
    assert registry.ask("a", "quiet", by="x")
    assert not registry.dismiss("a")


def test_a_server_that_answers_late_hears_the_whole_beat_and_who_has_died(registry, board, monkeypatch):
    monkeypatch.setattr(board.link, "cooldown", Cooldown())
    board.link.set_cooldown(3.0, late=1e-9)  # each call that is answered is followed by a rest
    registry.beat("a", {})
    board.link.cooldown.end()
    registry.died("a")
    board.link.cooldown.end()
    assert registry.all()[0]["died"]


def test_nothing_else_can_be_asked(registry):
    registry.beat("a", {})
    with pytest.raises(ValueError, match="not one of quiet, stop"):
        registry.ask("a", "exec", by="x")


@pytest.mark.parametrize("litter", [b"", b"stop", b"stop soon", b"exec %d x", b"stop 0 x", b"\xff %d x", b"stop %d0 x"])
def test_what_is_no_request_or_an_old_one_is_dropped(registry, board, litter):
    registry.beat("a", {})
    value = litter.replace(b"%d", str(clock.wall_ms() + ASKED_MS // 2).encode())
    board.link.execute("HSET", WORKERS["asked"], "a", value)
    assert registry.all()[0]["asked"] == ""
    board.link.execute("HSET", WORKERS["asked"], "a", value)
    assert registry.asked("a") is None
    assert board.link.execute("EXISTS", WORKERS["asked"]) == 0


def test_a_worker_that_leaves_takes_its_request_along(registry, board):
    registry.beat("a", {})
    registry.ask("a", "stop", by="x")
    registry.leave("a")
    assert board.link.execute("EXISTS", WORKERS["asked"], WORKERS["workers"]) == 0
