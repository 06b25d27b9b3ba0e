"""The commands of scripts for jobs without a name, a rate or a pause. They pay nothing for limits that they do not use. If a figure
here increases, every job of every queue costs more.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.store.board import NOW, Board


def schedule_one(board: Board) -> None:
    board.put(10)


def schedule_keyed(board: Board) -> None:
    board.put(11, key="k")


def reschedule(board: Board) -> None:
    board.put(8, NOW + 60_000, on_conflict="latest", key="moved")


def claim_three(board: Board) -> None:
    board.claim("n1", want=3)


def settle_one(board: Board) -> None:
    board.settle(3, "ack", fence="n0")


def retry_one(board: Board) -> None:
    board.settle(3, "retry", fence="n0", delay=1000)


def claim_nothing(board: Board) -> None:
    board.claim("n1", now=NOW - 60_000)


COSTS = {
    schedule_one: "evalsha:1 hincrby:1 hmget:1 hsetnx:1 xadd:1 zadd:1 zscore:1",
    schedule_keyed: "evalsha:1 hget:2 hincrby:1 hmget:1 hsetnx:2 xadd:1 zadd:1 zscore:1",
    reschedule: "evalsha:1 hexists:2 hget:2 hmget:2 zscore:4",
    claim_three: "evalsha:1 hdel:1 hget:1 hincrby:1 hmget:4 hset:2 "
    "llen:1 lpush:1 xadd:1 zadd:1 zrange:4 zrangebyscore:3 zremrangebyrank:1",
    settle_one: "bitfield:2 evalsha:1 exists:1 hdel:3 hincrby:1 hmget:2 setrange:1 xadd:1 zadd:1 zcard:1 zrem:1",
    retry_one: "bitfield:2 evalsha:1 exists:1 hdel:1 hget:1 hincrby:1 hmget:2 hset:1 setrange:1 xadd:1 zadd:1 zcard:1 zrem:1",
    claim_nothing: "evalsha:1 hdel:1 hget:1 hmget:2 hset:2 zrange:4 zrangebyscore:4",
}


def sent(board: Board, call: Callable[[Board], None]) -> str:
    """The number of each command of a call, with those of its script, in the order of their names."""
    board.link.execute("CONFIG", "RESETSTAT")
    call(board)
    found = re.findall(r"cmdstat_([^:]+):calls=(\d+)", board.link.execute("INFO", "commandstats").decode())
    return " ".join(f"{name}:{calls}" for name, calls in sorted(found) if name not in ("config", "config|resetstat", "info"))


@pytest.fixture
def seeded(board: Board) -> Board:
    """A queue with a running job and with due ones. The server has all scripts, because an unknown one is sent again."""
    for call in COSTS:
        call(board)
    board.link.execute("FLUSHALL")
    board.put(3, NOW - 1000)
    board.claim("n0", want=1)
    for number in (4, 5, 6, 7, 8):
        board.put(number, key="moved" if number == 8 else "")
    return board


@pytest.mark.parametrize("call", COSTS, ids=lambda call: call.__name__)
def test_a_job_without_a_name_costs_only_these_commands(seeded, call):
    assert sent(seeded, call) == COSTS[call]
