"""The log of a worker while Redis is away: one warning in two seconds for all loops of all processes, with the number of failures."""

from __future__ import annotations

import os
import re

import pytest

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.link import connect
from django_delayq.worker.outage_log import EVERY, STALE, OutageLog
from tests.worker.conftest import Shop, eventually

AWAY = StoreUnavailable(code="redis_away", where="a:1", cause="gone")
COOLDOWN = StoreUnavailable(code="redis_cooldown", where="a:1")
LINE = re.compile(r"WARNING \[(\d+)\] Redis at .* Failed attempts since the last line: (\d+)\. Failing loops: \d+$", re.MULTILINE)
END = re.compile(r"WARNING \[(\d+)\] Redis works again after [\d.]+ s\. Failed attempts: (\d+)$", re.MULTILINE)


class Hands:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(clock, "monotonic", hands)
    return hands


def test_twenty_loops_that_fail_write_one_line_in_two_seconds(hands: Hands, caplog) -> None:
    log, loops = OutageLog(), [object() for _ in range(20)]
    for _ in range(3):
        for loop in loops:
            log.failed(loop, AWAY)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("Failed attempts since the last line: 1. Failing loops: 1")
    hands.now += EVERY
    log.failed(loops[0], AWAY)
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith("Redis at a:1 is not available: gone. ")
    assert caplog.messages[1].endswith("Failed attempts since the last line: 60. Failing loops: 20")


def test_the_end_is_one_line_when_the_last_loop_works(hands: Hands, caplog) -> None:
    log, first, second = OutageLog(), object(), object()
    log.failed(first, AWAY)
    log.failed(second, AWAY)
    hands.now += EVERY
    log.worked(first)
    assert "works again" not in caplog.text
    hands.now += EVERY
    log.worked(second)
    assert caplog.messages[-1] == f"Redis works again after {2 * EVERY:.1f} s. Failed attempts: 2"
    log.worked(second)
    hands.now += EVERY
    log.worked(second)
    assert caplog.text.count("works again") == 1


def test_an_error_with_a_cause_is_shown_rather_than_a_cooldown(hands: Hands, caplog) -> None:
    log = OutageLog()
    for error in (AWAY, COOLDOWN):
        log.failed(log, error)
        hands.now += EVERY
    assert all("gone" in message for message in caplog.messages)
    assert len(caplog.messages) == 2


@pytest.fixture
def supervisor() -> OutageLog:
    log = OutageLog()
    log.open()
    yield log
    log.close()


def reported_by_a_child(log: OutageLog, *errors: StoreUnavailable) -> None:
    if (child := os.fork()) == 0:
        log.become_child()
        for error in errors:
            log.failed(log, error)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_leaves_its_line_to_the_supervisor(supervisor: OutageLog, caplog) -> None:
    reported_by_a_child(supervisor, AWAY, AWAY)
    assert caplog.messages == []
    supervisor.poll()
    assert caplog.messages == [
        f"{AWAY} The worker tries again until it succeeds. Failed attempts since the last line: 2. Failing loops: 1"
    ]


def test_a_child_that_died_does_not_count_as_failing_for_ever(supervisor: OutageLog, hands: Hands, caplog) -> None:
    reported_by_a_child(supervisor, AWAY)
    supervisor.poll()
    hands.now += STALE
    supervisor.poll()
    assert caplog.messages[-1].startswith("Redis works again")


def test_a_child_whose_pipe_is_full_goes_on(supervisor: OutageLog) -> None:
    long = StoreUnavailable("x" * 10_000)
    reported_by_a_child(supervisor, *([long] * 1_000))
    supervisor.poll()


@pytest.mark.slow
def test_a_worker_without_redis_writes_its_lines_from_one_process(shop: Shop, own_redis) -> None:
    server = own_redis()
    shop.url, shop.link = server.url, connect(server.url, name="test")
    shop.keep_rows()
    worker = shop.work("--roles", "move,mirror,relay", "--processes", "3")
    eventually(lambda: len(shop.link.execute("CLIENT", "LIST").splitlines()) > 6, "all processes are connected")
    server.kill()
    eventually(lambda: len(LINE.findall(worker.text())) > 2, worker.text)
    server.start()
    eventually(lambda: END.search(worker.text()), worker.text)
    lines, (pid, total) = LINE.findall(worker.text()), END.findall(worker.text())[0]
    assert {pid for pid, _ in lines} == {pid} == {str(worker.pid)}
    assert len(lines) < int(total) == pytest.approx(sum(int(count) for _, count in lines), abs=int(total) // 2)
    about_it = re.findall(r"WARNING.*(?:not available|again after|waits|continues)", worker.text())
    assert len(about_it) == len(lines) + 1, worker.text()
