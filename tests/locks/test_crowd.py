"""Holders in separate processes: many at once, killed, or frozen for longer than their lease."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise

import pytest

import django_delayq as delayq
from tests.app import record
from tests.servers import as_package
from tests.stage import Actor, eventually, project, sqlite

pytestmark = pytest.mark.slow

PROCESSES, THREADS, ROUNDS = 2, 6, 8


@pytest.fixture
def start(redis_server, tmp_path) -> Iterator[Callable[..., Actor]]:
    environment = project(tmp_path, as_package(redis_server.url), sqlite(":memory:"), {"QUEUES": {"default": {}}})
    actors: list[Actor] = []

    def begin(*words: object) -> Actor:
        command = [sys.executable, "-m", "tests.locks.holder", *map(str, words)]
        actor = Actor(tmp_path / f"{len(actors)}.log", command, environment)
        actor.start()
        actors.append(actor)
        return actor

    yield begin
    for actor in actors:
        with suppress(ProcessLookupError):
            os.kill(actor.pid, signal.SIGCONT)
        actor.kill_tree()


def test_of_many_threads_in_two_processes_no_two_have_it_at_once_and_the_number_rises(start, tmp_path):
    (tmp_path / "till").write_text("0")
    actors = [start("crowd", THREADS, ROUNDS) for _ in range(PROCESSES)]
    assert [actor.wait(120) for actor in actors] == [0] * PROCESSES, "".join(actor.text() for actor in actors)
    assert int((tmp_path / "till").read_text()) == PROCESSES * THREADS * ROUNDS
    lines = record.lines(tmp_path, "crowd-*.jsonl")
    assert [line["what"] for line in lines] == ["took", "ends"] * (PROCESSES * THREADS * ROUNDS)
    assert all(first["fence"] == second["fence"] for first, second in zip(lines[::2], lines[1::2], strict=True))
    assert all(first["fence"] < second["fence"] for first, second in pairwise(lines[::2]))


def said(folder, what: str) -> list[dict]:
    return [line for line in record.lines(folder, "holder-*.jsonl") if line["what"] == what]


def test_the_lock_of_a_killed_holder_is_the_next_one_s_when_its_lease_has_ended(start, tmp_path):
    holder = start("holds")
    eventually(lambda: bool(said(tmp_path, "took")))
    with pytest.raises(delayq.LockTaken), delayq.lock("till"):
        raise AssertionError
    holder.kill_tree()
    with delayq.lock("till", wait="60s") as lock:
        assert lock.fence > said(tmp_path, "took")[0]["fence"]
        assert said(tmp_path, "lost") == []


def test_a_holder_that_is_frozen_for_longer_than_its_lease_hears_so_when_it_goes_on_and_has_the_smaller_number(start, tmp_path):
    holder = start("holds")
    eventually(lambda: bool(said(tmp_path, "took")))
    os.kill(holder.pid, signal.SIGSTOP)
    with delayq.lock("till", wait="60s") as lock:
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.wait(60) == 0, holder.text()
        [lost] = said(tmp_path, "lost")
        assert (lost["code"], lost["fence"]) == ("lock_lost", said(tmp_path, "took")[0]["fence"])
        assert lost["fence"] < lock.fence, "a store that refuses smaller numbers refuses what it would have written"
        lock.check()
