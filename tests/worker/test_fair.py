"""Several queues in one worker: none waits for the backlog of another. Counted in jobs, not in time."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq.management.commands import delayq_worker
from django_delayq.store.connection.error_replies import StoreError
from tests.worker.bench import Bench
from tests.worker.conftest import Shop, eventually

BACKLOG = 4000


def even(bench: Bench) -> Bench:
    """Nothing is taken ahead, however quick the jobs are."""
    bench.pace.note = lambda seconds: None
    bench.register(nothing)
    return bench


def passes(bench: Bench, many: int) -> list[int]:
    """The lines of the jobs that so many passes took and ran."""
    lines = []
    for _ in range(many):
        bench.mover.poll()
        while len(bench.buffer):
            taken = bench.take()
            lines.append(bench.lines.index(taken.line))
            bench.consumers[0].poll(taken)
        bench.settler.poll()
    return lines


def test_queues_that_all_have_a_backlog_share_what_becomes_free(redis_server) -> None:
    bench = even(Bench(redis_server.link, queues=("a", "b", "c")))
    for number in range(3):
        for _ in range(40):
            bench.put("nothing", line=number)
    counts = Counter(passes(bench, 15))
    bench.close()
    assert sum(counts.values()) == 30
    assert set(counts.values()) == {10}


def test_queues_with_weights_share_what_becomes_free_by_their_weight(redis_server) -> None:
    bench = even(Bench(redis_server.link, queues=("a", "b", "c"), weights=(4, 1, 2)))
    for number in range(3):
        for _ in range(60):
            bench.put("nothing", line=number)
    counts = Counter(passes(bench, 21))
    bench.close()
    assert counts == {0: 24, 1: 6, 2: 12}


def test_what_a_heavy_queue_leaves_is_the_others_at_once(redis_server) -> None:
    bench = even(Bench(redis_server.link, queues=("a", "b"), weights=(100, 1)))
    for _ in range(3):
        bench.put("nothing")
    for _ in range(40):
        bench.put("nothing", line=1)
    counts = Counter(passes(bench, 10))
    bench.close()
    assert counts == {0: 3, 1: 17}


def test_a_queue_that_is_found_empty_and_one_that_fails_give_up_their_turns(redis_server, monkeypatch) -> None:
    bench = even(Bench(redis_server.link, queues=("a", "b"), weights=(9, 9)))
    told: dict[int, bool] = {}
    monkeypatch.setattr(bench.mover._round_robin, "polled", lambda line, *, more: told.update({line: more}))
    for _ in range(3):
        bench.put("nothing", line=1)
    passes(bench, 1)
    assert told == {0: False, 1: True}, "the first is empty, the second has filled all room"
    monkeypatch.setattr(bench.lines[1].store, "claim", refused)
    bench.mover.poll()
    bench.close()
    assert told[1] is False


def test_jobs_of_unlike_length_are_shared_by_number_too(redis_server) -> None:
    """One thread is free at a time, now and then both."""
    bench = even(Bench(redis_server.link, queues=("a", "b"), weights=(4, 1)))
    for number in range(2):
        for _ in range(100):
            bench.put("nothing", line=number)
    counts: Counter[int] = Counter()
    for turn in range(60):
        bench.mover.poll()
        for _ in range(len(bench.buffer) if turn % 7 == 0 else 1):
            taken = bench.take()
            counts[bench.lines.index(taken.line)] += 1
            bench.consumers[0].poll(taken)
        bench.settler.poll()
    bench.close()
    assert 3 <= counts[0] / counts[1] <= 5


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, {"orders": 1, "mail": 1, "a=4": 1}),
        ("orders=4,mail=1", {"orders": 4, "mail": 1}),
        ("mail, orders=100", {"mail": 1, "orders": 100}),
        ("a=4", {"a=4": 1}),  # a queue's own name
        ("a=4=3", {"a=4": 3}),
    ],
)
def test_weights_are_read_from_the_command_line(given: str | None, found: dict[str, int]) -> None:
    config: Any = SimpleNamespace(queues={"orders": None, "mail": None, "a=4": None})
    assert delayq_worker._queues(config, given, None) == found
    assert delayq_worker._queues(config, given, "mail") == {name: found[name] for name in found if name != "mail"}


def test_a_job_that_becomes_due_is_taken_with_the_next_thread_that_is_free(redis_server) -> None:
    now = [0.0]
    bench = even(Bench(redis_server.link, queues=("a", "b")))
    bench.mover._monotonic = lambda: now[0]
    for _ in range(40):
        bench.put("nothing")
    assert passes(bench, 5) == [0] * 10
    bench.put("nothing", line=1)
    now[0] += 1.0  # by then it is polled, even without a call
    assert 1 in passes(bench, 1)
    bench.close()


def test_a_busy_queue_costs_hardly_any_calls_about_those_that_are_empty(redis_server) -> None:
    now = [0.0]
    bench = even(Bench(redis_server.link, queues=("a", "b", "c", "d")))
    bench.mover._monotonic = lambda: now[0]
    for _ in range(200):
        bench.put("nothing")
    asked: Counter[int] = Counter()
    for number, store in enumerate(bench.stores):
        store.claim = counting(store.claim, asked, number)
    for _ in range(40):  # full between its passes, and for so long that it hands its timers over
        bench.mover.poll()
        now[0] += 0.001
        bench.mover.poll()
        now[0] += 0.011
        bench.mover.poll()
        while len(bench.buffer):
            bench.consumers[0].poll(bench.take())
        bench.settler.poll()
    bench.close()
    assert asked[0] == 40
    assert 8 <= asked[1] <= 25, "a look each 50 ms, and handing the timer back"
    assert asked[1] == asked[2] == asked[3]


def test_one_queue_is_asked_once_a_pass(redis_server) -> None:
    bench = even(Bench(redis_server.link))
    for _ in range(40):
        bench.put("nothing")
    asked: Counter[int] = Counter()
    bench.stores[0].claim = counting(bench.stores[0].claim, asked, 0)
    assert len(passes(bench, 10)) == 20
    bench.close()
    assert asked[0] == 10


def test_a_due_job_runs_while_nearly_all_of_another_queues_backlog_is_still_there(shop: Shop) -> None:
    shop.settings = {"QUEUES": {"default": {}, "slow": {}}}
    shop.put_many("doze", [(number, 0.02) for number in range(BACKLOG)])
    shop.work("--queues", "default,slow", "--threads", "4")
    shop.work("--queues", "default,slow", "--threads", "4")
    eventually(lambda: len(shop.ran()) > 100)
    shop.put("doze", "due", 0.0, queue="slow")
    eventually(lambda: "dozed due" in shop.ran())
    assert shop.left() > BACKLOG * 3 // 4


def counting(claim, asked: Counter[int], number: int):
    def count(*args, **options):
        asked[number] += 1
        return claim(*args, **options)

    return count


def nothing() -> None:
    pass


def refused(*_: Any, **__: Any) -> None:
    raise StoreError("WRONGTYPE")
