"""A person withdraws a Redis right while processes run: Redis refuses a command in the middle of a script and does not roll it back.
Each job stays somewhere, and the same call does its work when the right is back.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import ids, job_meta
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from django_delayq.store.scripts.record import ScheduleItem
from django_delayq.store.scripts.recovery import ADOPTION_MS, EpochStore
from tests.servers import USER
from tests.store.board import LEASE, NOW, Board, job_id, record

# The holder has its new date and still waits for its name at the former one, so it may be called too early.
CALLED_EARLY = ("schedule, latest, with a name", "zrem")
WRITES = ("hset", "hsetnx", "hdel", "zadd", "zrem", "zremrangebyrank", "xadd", "lpush", "hincrby", "unlink", "bitfield", "setrange")
NAMED = {"payload": json.dumps([[], {}, {"meta": {job_meta.NAMED: ["order:1", 1]}}], separators=(",", ":")).encode()}


def put(board: Board, *numbers: int, due: int = NOW, policy: Any = "keep", **fields: Any) -> Any:
    items = [ScheduleItem.of(record(number, **fields), due_ms=due, on_conflict=policy) for number in numbers]
    return board.store.start_schedule(items, now_ms=NOW, mode="told")()


def claimed(board: Board, *numbers: int, **fields: Any) -> None:
    put(board, *numbers, **fields)
    board.claim(now=NOW)


def failed(board: Board) -> None:
    claimed(board, 1, key="k")
    board.settle(1, "fail")


def waits(board: Board) -> None:
    """The first holds the name, the second waits for it."""
    put(board, 1, **NAMED)
    board.claim()
    put(board, 2, key="k", **NAMED)
    board.claim("n2")
    put(board, 3, due=NOW + 9, **NAMED)


def paused(board: Board) -> None:
    put(board, 1, 2)
    LimitStore(board.store).limit([LimitChange("pause", "task:shop.close")], now_ms=NOW)


def held(board: Board) -> None:
    """Of two jobs that a pause holds, and that may return."""
    paused(board)
    board.claim("n0")
    LimitStore(board.store).limit([LimitChange("resume", "task:shop.close")], now_ms=NOW)


# Each case: the state before, and the call.
CALLS: dict[str, tuple[Callable[[Board], Any], Callable[[Board], Any]]] = {
    "schedule": (lambda board: None, lambda board: put(board, 1)),
    "schedule with a key": (lambda board: None, lambda board: put(board, 1, key="k")),
    "schedule many": (lambda board: None, lambda board: put(board, 1, 2, 3)),
    "schedule, merged": (lambda board: put(board, 1, key="k"), lambda board: put(board, 2, key="k")),
    "schedule, replaced": (lambda board: put(board, 1, key="k"), lambda board: put(board, 2, key="k", policy="replace")),
    "schedule, earliest": (
        lambda board: put(board, 1, key="k", due=NOW + 9),
        lambda board: put(board, 2, key="k", due=NOW + 5, policy="earliest"),
    ),
    "schedule, expired": (lambda board: put(board, 1, key="k", expires_ms=NOW - 1), lambda board: put(board, 2, key="k")),
    "claim": (lambda board: put(board, 1, 2), lambda board: board.claim()),
    "claim of what was cancelled": (
        lambda board: (put(board, 1), board.link.execute("HSET", board.keys["meta"], "asked", "1"), cancels(board, 1)),
        lambda board: board.claim(),
    ),
    "claim of what has expired": (lambda board: put(board, 1, key="k", expires_ms=NOW - 1), lambda board: board.claim()),
    **{
        f"settle {outcome}": (
            lambda board: claimed(board, 1, key="k"),
            lambda board, outcome=outcome: board.settle(1, outcome, delay=9),
        )
        for outcome in ("ack", "retry", "snooze", "ask", "evict", "fail", "crash", "cancel")
    },
    "cancel": (lambda board: put(board, 1, key="k"), lambda board: board.store.cancel(job_id(1), now_ms=NOW)),
    "cancel of a run": (lambda board: claimed(board, 1), lambda board: board.store.cancel(job_id(1), now_ms=NOW)),
    "reschedule": (lambda board: put(board, 1), lambda board: board.store.reschedule(job_id(1), due_ms=NOW + 7, now_ms=NOW)),
    "requeue": (failed, lambda board: board.store.requeue(job_id(1), record(1, key="k"), now_ms=NOW)),
    "purge": (lambda board: put(board, 1, key="k"), lambda board: board.store.purge(now_ms=NOW)),
    "schedule with a name": (lambda board: None, lambda board: put(board, 1, key="k", **NAMED)),
    "schedule, replaced, with a name": (waits, lambda board: put(board, 4, key="k", policy="replace", **NAMED)),
    "schedule, latest, with a name": (waits, lambda board: put(board, 4, key="k", due=NOW + 8, policy="latest", **NAMED)),
    "claim with a name": (lambda board: put(board, 1, 2, **NAMED), lambda board: board.claim()),
    "settle ack with a name": (waits, lambda board: board.settle(1, "ack")),
    "settle retry with a name": (waits, lambda board: board.settle(1, "retry", delay=9)),
    "cancel with a name": (waits, lambda board: board.store.cancel(job_id(2), now_ms=NOW)),
    "reschedule with a name": (waits, lambda board: board.store.reschedule(job_id(2), due_ms=NOW + 7, now_ms=NOW)),
    "purge with a name": (waits, lambda board: board.store.purge(now_ms=NOW)),
    "claim of what is paused": (paused, lambda board: board.claim()),
    "claim of what was paused": (held, lambda board: board.claim()),
    "cancel of what is held": (held, lambda board: board.store.cancel(job_id(1), now_ms=NOW)),
    "limit": (held, lambda board: LimitStore(board.store).limit([LimitChange("pause", "task:shop.close", NOW + 5)], now_ms=NOW)),
    "tidy with a name": (waits, lambda board: board.store.tidy(now_ms=NOW)),
    "tidy": (failed, lambda board: board.store.tidy(failed_before_ms=NOW + 1, now_ms=NOW)),
}


def cancels(board: Board, number: int) -> None:
    board.link.execute("HSET", board.keys["cancels"], ids.short(job_id(number)), "somebody")


@pytest.fixture
def withdraw(link) -> Iterator[Callable[[str], None]]:
    """Withdraws a right from the user of the package, and gives it back ("+zadd")."""
    taken: set[str] = set()

    def change(rule: str) -> None:
        taken.add(rule[1:])
        link.execute("ACL", "SETUSER", USER, rule)

    yield change
    for command in taken:
        link.execute("ACL", "SETUSER", USER, f"+{command}")


def nowhere(board: Board) -> set[int]:
    """The jobs that have a record and no place."""
    found = board.dump()
    places = [found.get(name, {}) for name in ("high", "normal", "low", "blocked", "leases", "failed")]
    return {number for number in found.get("jobs", ()) if not any(number in place for place in places)}


def ended_by(found: dict[str, Any]) -> dict[str, Any]:
    """A dump without how often jobs have begun, which a claim that was cut off may have counted, and without the turns of names."""
    return {name: list(value) if name in ("runs", "names") else value for name, value in found.items()}


@pytest.mark.parametrize("command", WRITES)
@pytest.mark.parametrize("call", CALLS)
def test_a_right_that_is_withdrawn_loses_no_job_and_a_repeat_does_the_rest(board, withdraw, call, command):
    before, act = CALLS[call]
    before(board)
    had = set(board.dump().get("jobs", ()))
    told = board.log.length()
    withdraw(f"-{command}")
    with contextlib.suppress(StoreError):
        act(board)
    assert nowhere(board) <= {1, 2, 3, 4} - had, "what Redis had is where it was, or where it goes"
    assert board.log.length() >= told, "the events stay"
    withdraw(f"+{command}")
    act(board)
    now = ended_by(board.dump())
    if (call, command) == CALLED_EARLY:
        del now["blocked"], now["waiters"]
    board.link.execute("FLUSHALL")
    before(board)
    act(board)
    assert now == ended_by(board.dump())


@pytest.fixture
def left(board, withdraw) -> None:
    """Redis has only the record of the second job."""
    put(board, 1)
    withdraw("-zadd")
    with pytest.raises(StoreError):
        put(board, 2, due=NOW + 5, key="k")
    withdraw("+zadd")
    assert nowhere(board) == {2}


def test_what_is_nowhere_is_scheduled_by_a_repeat_and_not_said_to_be_there(board, left):
    _, [reply] = put(board, 2, due=NOW + 5, key="k")
    assert (reply.status, reply.due_ms) == ("created", NOW + 5)
    assert board.dump()["normal"] == {1: 0, 2: 5}
    assert board.happened() == ["scheduled 1", "scheduled 2"]
    _, [reply] = put(board, 2, due=NOW + 5, key="k")
    assert reply.status == "again"


def test_what_is_nowhere_holds_no_key(board, left):
    _, [reply] = put(board, 3, key="k")
    assert (reply.status, reply.id) == ("created", job_id(3))
    _, [reply] = put(board, 2, key="k")
    assert (reply.status, reply.id) == ("kept", job_id(3))


def test_what_is_nowhere_is_cancelled(board, left):
    assert board.store.cancel(job_id(2), now_ms=NOW).change == Change.DONE
    assert board.dump()["jobs"] == [1]


def test_what_is_nowhere_is_requeued(board, left):
    assert board.store.requeue(job_id(2), now_ms=NOW)[0] is Change.DONE
    assert board.dump()["normal"] == {1: 0, 2: 0}


def test_what_is_nowhere_comes_back_from_its_row(board, left):
    store = EpochStore(board.store)
    item = store.row(record(2, key="k"), runs=False, attempts=0, crashes=0, asks=0, due_ms=NOW + 5, cancel=False, lease_ms=LEASE)
    assert store.restore([item], epoch=board.store.epoch(), now_ms=NOW) == ["restored"]
    assert board.dump()["normal"] == {1: 0, 2: ADOPTION_MS}
