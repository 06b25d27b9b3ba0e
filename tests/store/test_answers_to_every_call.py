"""Errors about a node at each call of a store: they are no answer about a job and change nothing, and repeating the call completes
it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq import ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from django_delayq.store.scripts.lock_store import LockStore
from django_delayq.store.scripts.queue import QueueStore, ScheduleItem
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.links import opened
from tests.store.board import NOW, Board, job_id, record

SAID = (
    "MOVED 3999 127.0.0.1:6381",
    "ASK 3999 127.0.0.1:6381",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "NOREPLICAS Not enough good replicas to write.",
)
SHORT = ids.short(job_id(1))

Call = Callable[[Board], object]


def epoch(board: Board) -> EpochStore:
    return EpochStore(board.store)


def row(board: Board) -> RestoreItem:
    return epoch(board).row(record(8), runs=False, attempts=0, crashes=0, asks=0, due_ms=NOW, cancel=False, lease_ms=30_000)


def locks(board: Board) -> LockStore:
    return LockStore(board.link, board.keys)


def new(board: Board) -> ScheduleItem:
    return ScheduleItem.of(record(9), due_ms=NOW)


# The calls of each class by name: the command that the node rejects, and the call. Job 1 runs, job 2 waits.
STORE: dict[str, tuple[str, Call]] = {
    "schedule": ("EVALSHA", lambda board: board.store.schedule([new(board)], now_ms=NOW)),
    "start_schedule": ("EVALSHA", lambda board: board.store.start_schedule([new(board)], now_ms=NOW)()),
    "epoch": ("EVALSHA", lambda board: board.store.epoch()),
    "stand": ("EVALSHA", lambda board: board.store.stand()),
    "claim": ("EVALSHA", lambda board: board.claim("n2")),
    "extend": ("EVALSHA", lambda board: board.extend(1)),
    "settle": ("EVALSHA", lambda board: board.settle(1, "ack")),
    "cancel": ("EVALSHA", lambda board: board.store.cancel(job_id(2), now_ms=NOW)),
    "reschedule": ("EVALSHA", lambda board: board.store.reschedule(job_id(2), due_ms=NOW + 1, now_ms=NOW)),
    "cancel_each": ("EVALSHA", lambda board: board.store.cancel_each([(job_id(2), "")], now_ms=NOW)),
    "reschedule_each": ("EVALSHA", lambda board: board.store.reschedule_each([(job_id(2), "", NOW + 1)], now_ms=NOW)),
    "reschedule_many": ("EVALSHA", lambda board: board.store.reschedule_many([(job_id(2), NOW + 1)], now_ms=NOW)),
    "ends": ("ZMSCORE", lambda board: board.store.ends([job_id(3)])),
    "requeue_each": ("EVALSHA", lambda board: board.store.requeue_each([(job_id(3), record(3), "1")], now_ms=NOW)),
    "requeue": ("EVALSHA", lambda board: board.store.requeue(job_id(3), record(3), now_ms=NOW)),
    "pause": ("EVALSHA", lambda board: board.store.pause(now_ms=NOW)),
    "resume": ("EVALSHA", lambda board: board.store.resume(now_ms=NOW)),
    "purge": ("EVALSHA", lambda board: board.store.purge(now_ms=NOW)),
    "tidy": ("EVALSHA", lambda board: board.store.tidy(now_ms=NOW)),
}
EPOCH: dict[str, tuple[str, Call]] = {
    "look": ("HMGET", lambda board: epoch(board).look("0-0")),
    "holders": ("HMGET", lambda board: epoch(board).holders(["k"])),
    "adopt": ("EVALSHA", lambda board: epoch(board).adopt([row(board)], worker="w1", epoch="", now_ms=NOW)),
    "restore": ("EVALSHA", lambda board: epoch(board).restore([row(board)], epoch=board.store.epoch(), now_ms=NOW)),
    "stand": ("EVALSHA", lambda board: epoch(board).stand()),
    "sweep": ("EVALSHA", lambda board: epoch(board).sweep("g", now_ms=NOW)),
    "drop": ("EVALSHA", lambda board: epoch(board).drop([ids.short(job_id(2))], now_ms=NOW)),
    "confirm": ("EVALSHA", lambda board: epoch(board).confirm("g", now_ms=NOW)),
}
EVENTS: dict[str, tuple[str, Call]] = {
    "read": ("XRANGE", lambda board: board.log.read("0-0", 10)),
    "trim": ("EVALSHA", lambda board: board.log.trim("0-1")),
    "records": ("HMGET", lambda board: board.log.records([SHORT])),
    "ended": ("ZMSCORE", lambda board: board.log.ended([job_id(1)])),
    "now_ms": ("TIME", lambda board: board.log.now_ms()),
    "is_newer": ("HGET", lambda board: board.log.is_newer(0)),
    "unknown": ("ZMSCORE", lambda board: board.log.unknown([job_id(7)])),
    "jobs": ("HSCAN", lambda board: list(board.log.jobs())),
    "tells": ("XRANGE", lambda board: board.log.tells(["1-1"])),
    "last_id": ("EXISTS", lambda board: board.log.last_id()),
    "length": ("XLEN", lambda board: board.log.length()),
    "generation": ("HGET", lambda board: board.log.generation()),
}
LOCKS: dict[str, tuple[str, Call]] = {
    "lock": ("EVALSHA", lambda board: locks(board).lock("l", "t", lease_ms=1000, holder="w1", now_ms=NOW)),
    "prolong": ("EVALSHA", lambda board: locks(board).prolong([("l", "t", 1000)], now_ms=NOW)),
    "unlock": ("EVALSHA", lambda board: locks(board).unlock("l", "t", now_ms=NOW)),
}
LIMITS: dict[str, tuple[str, Call]] = {
    "limit": ("EVALSHA", lambda board: LimitStore(board.store).limit([LimitChange("pause", "task:shop.close")], now_ms=NOW)),
    "paused": ("HGETALL", lambda board: LimitStore(board.store).paused()),
    "running": ("ZCARD", lambda board: LimitStore(board.store).running()),
    "rates": ("HGETALL", lambda board: LimitStore(board.store).rates()),
    "waiting": ("ZLEXCOUNT", lambda board: LimitStore(board.store).waiting("bank:7")),
    "allows": ("HGETALL", lambda board: LimitStore(board.store).allows(b"1no shop.close\n[]")),
}
OF = {LimitStore: LIMITS, QueueStore: STORE, EpochStore: EPOCH, EventLog: EVENTS, LockStore: LOCKS}
# Calls without a command, and `resign` and `offer`, which run a script like all others.
OTHERS = {"new_generation", "run", "run_each", "written", "signs", "resign", "offer", "asks", "read", "row", "line"}
CALLS = {f"{kind.__name__}.{name}": call for kind, calls in OF.items() for name, call in calls.items()}


def test_no_call_is_missing() -> None:
    for kind, calls in OF.items():
        public = {name for name, what in vars(kind).items() if callable(what) and not name.startswith("_")}
        assert public - OTHERS == calls.keys() - OTHERS


@pytest.mark.parametrize("name", CALLS)
def test_no_call_takes_what_a_node_says_of_itself_for_an_answer(node, name):
    link = opened(node.url)
    board = Board(link, link)
    board.put(1)
    board.claim()
    board.put(2, NOW + 60_000, key="k")
    before, happened = board.dump(), board.happened()
    command, call = CALLS[name]
    for said in SAID:
        node.refuse(command, said)
        with pytest.raises(StoreUnavailable):
            call(board)
        assert (board.dump(), board.happened()) == (before, happened), said
    assert node.refused == [command] * len(SAID)
    call(board)
