"""The receivers of runs: those of the signal, and those of the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_delayq.mirror.database_connections import Connections
from django_delayq.worker.receivers import Receivers
from tests.worker.bench import Bench


class Told:
    """Records its calls."""

    def __init__(self, name: str, to: list[Any], fails_at: str = "") -> None:
        self.name, self.to, self.fails_at = name, to, fails_at

    def begins(self, run) -> None:
        self._note("begins", run, "")

    def ends(self, run, outcome) -> None:
        self._note("ends", run, outcome.kind)

    def _note(self, what: str, run, kind: str) -> None:
        self.to.append((self.name, what, kind, run.current is not None))
        if self.fails_at == what:
            raise ValueError("a receiver's own")


def listen(bench: Bench, *receivers: Any) -> None:
    bench.executor._receivers = Receivers(receivers)


def nothing() -> None:
    pass


def test_who_is_told_first_of_a_begin_is_told_last_of_the_end(bench: Bench) -> None:
    told: list[Any] = []
    listen(bench, Told("a", told), Told("b", told))
    bench.register(nothing)
    bench.put("nothing")
    bench.run()
    assert told == [
        ("a", "begins", "", True),
        ("b", "begins", "", True),
        ("b", "ends", "ack", True),
        ("a", "ends", "ack", True),
    ]


def test_a_job_that_never_began_has_an_end_too(bench: Bench) -> None:
    told: list[Any] = []
    listen(bench, Told("a", told))
    bench.put("unknown")
    bench.put("nothing", payload=b"{not json")
    bench.run()
    assert sorted(told) == [("a", "ends", "fail", False), ("a", "ends", "park", False)]


def test_a_receiver_that_raises_at_the_begin_refuses_the_run(bench: Bench) -> None:
    told: list[Any] = []
    ran: list[int] = []
    listen(bench, Told("a", told, fails_at="begins"), Told("b", told))
    bench.register(lambda: ran.append(1))
    bench.tasks["task"] = bench.tasks.pop("<lambda>")
    bench.put("task")
    bench.run()
    assert bench.kinds()[-1] == "retried"
    assert ran == []
    assert told[-1] == ("a", "ends", "retry", True)


def test_a_receiver_that_raises_at_the_end_changes_nothing(bench: Bench, caplog) -> None:
    told: list[Any] = []
    listen(bench, Told("a", told), Told("b", told, fails_at="ends"))
    bench.register(nothing)
    bench.put("nothing")
    bench.run()
    assert bench.kinds()[-1] == "succeeded"
    assert told[-1] == ("a", "ends", "ack", True)
    assert "Told failed at its end; ValueError" in caplog.text


def test_a_retry_is_one_line_and_the_last_attempt_has_the_frames(bench: Bench, caplog) -> None:
    def errs() -> None:
        raise KeyError("stock")

    caplog.set_level(logging.INFO, logger="django_delayq")
    bench.register(errs)
    bench.put("errs", max_attempts=2)
    bench.put("errs", max_attempts=1)
    bench.run()
    retried, failed = sorted((record for record in caplog.records), key=lambda record: record.levelno)
    assert (retried.levelname, failed.levelname) == ("WARNING", "ERROR")
    assert "KeyError at " in retried.getMessage()
    assert not hasattr(retried, "traceback")
    assert failed.traceback.startswith("KeyError\n")
    assert failed.name == "django_delayq.worker.job"


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_a_task_left_open_is_rolled_back_behind_it(bench: Bench, caplog) -> None:
    left = []

    def forgets() -> None:
        transaction.atomic().__enter__()
        left.append(connections["default"])

    def work() -> None:
        listen(bench, Connections())
        bench.register(forgets)
        bench.put("forgets")
        bench.run()
        assert connections["default"] is not left[0]

    in_a_thread(work)
    assert bench.kinds()[-1] == "succeeded"
    assert "the database 'default' was left open by a task" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_behind_a_job_only_what_its_thread_has_opened_is_looked_at(bench: Bench, monkeypatch) -> None:
    looked: list[str] = []

    def opens() -> None:
        connection.ensure_connection()

    def work() -> None:
        receiver = Connections()
        monkeypatch.setattr(receiver, "_tidy", lambda alias, _: looked.append(alias))
        listen(bench, receiver)
        bench.register(nothing)
        bench.put("nothing")
        bench.run()
        assert looked == []
        bench.register(opens)
        bench.put("opens")
        bench.run()
        bench.put("nothing")  # it is open still
        bench.run()

    in_a_thread(work)
    assert looked == ["default", "default"]


@pytest.mark.django_db(transaction=True)
def test_behind_an_error_every_connection_is_looked_at(bench: Bench, monkeypatch) -> None:
    looked: list[str] = []

    def errs() -> None:
        raise KeyError("stock")

    def work() -> None:
        connection.ensure_connection()  # before there was a receiver: as if a soft timeout had occurred right after it
        receiver = Connections()
        monkeypatch.setattr(receiver, "_tidy", lambda alias, _: looked.append(alias))
        listen(bench, receiver)
        bench.register(errs)
        bench.put("errs")
        bench.run()

    in_a_thread(work)
    assert looked == ["default"]


def in_a_thread(work: Callable[[], None]) -> None:
    """With separate database connections, like a consumer."""

    def all_of_it() -> None:
        try:
            work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(all_of_it).result()
