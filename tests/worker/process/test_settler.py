"""From an outcome to the row that is free again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.queue import MOST
from django_delayq.worker.current import Run
from django_delayq.worker.lease_table import SETTLING, WAITING
from django_delayq.worker.process import settler as module
from django_delayq.worker.process.settler import AGAIN
from django_delayq.worker.tally import Tally, figures
from tests.stage import eventually
from tests.worker.bench import Bench

ROWS = 20


def nothing() -> None:
    pass


@pytest.fixture
def bench(redis_server) -> Iterator[Bench]:
    bench = Bench(redis_server.link, threads=3, rows=ROWS)
    bench.register(nothing)
    yield bench
    bench.close()


def ended(bench: Bench, jobs: int = 1) -> list[Run]:
    """Runs of so many jobs, which have ended; the settler has been told."""
    for _ in range(jobs):
        bench.put("nothing")
    bench.move()
    runs = [bench.take() for _ in range(jobs)]
    for run in runs:
        bench.settler.add(run, bench.executor.run(run))
    return runs


def is_over(bench: Bench, runs: list[Run]) -> bool:
    """Whether nothing in the process stands for them any more."""
    rows = {run.row for run in runs}
    return not rows & {held.row for held in bench.leases.held()} and not rows & set(bench.adopter._in_rows) and rows <= set(bench.free)


def recorded(bench: Bench, monkeypatch) -> list[list[str]]:
    """The ids of each call of settle."""
    real, calls = bench.stores[0].settle, []

    def settle(items, **options):
        calls.append([item.id for item in items])
        return real(items, **options)

    monkeypatch.setattr(bench.stores[0], "settle", settle)
    return calls


def forget(bench: Bench, runs: list[Run]) -> None:
    """Redis has lost these runs, and is in another epoch."""
    bench.board.link.execute("HDEL", bench.board.keys["runs"], *(run.job.id for run in runs))
    bench.board.link.execute("HSET", bench.board.keys["meta"], "generation", "another")


def adoption(bench: Bench, monkeypatch, *first: str) -> None:
    """The first adoption returns these answers, followed by those of Redis; later adoptions are answered by Redis."""
    real, pending = bench.adopter.adopt, [list(first)]

    def adopt(line, runs):
        words = pending.pop() if pending else []
        return [*words, *(real(line, runs[len(words) :]) if runs[len(words) :] else [])]

    monkeypatch.setattr(bench.adopter, "adopt", adopt)


def test_a_row_is_free_again_when_redis_knows_of_the_end(bench: Bench) -> None:
    [run] = ended(bench)
    assert [held.state for held in bench.leases.held()] == [SETTLING]
    assert run.row not in bench.free
    assert bench.settler.poll() == 1.0
    assert is_over(bench, [run])
    assert bench.settled == 1


def test_a_run_without_an_outcome_frees_its_row_and_redis_is_told_nothing(bench: Bench) -> None:
    bench.put("nothing")
    bench.move()
    run = bench.take()
    assert [held.state for held in bench.leases.held()] == [WAITING]
    bench.settler.add(run, None)
    assert is_over(bench, [run])
    assert bench.settled == 1
    bench.settler.poll()
    assert bench.kinds() == ["scheduled", "claimed"]


def test_a_call_settles_two_hundred_at_most(bench: Bench, monkeypatch) -> None:
    calls = recorded(bench, monkeypatch)
    [run] = ended(bench)
    outcome = bench.executor.run(run)
    for _ in range(MOST):
        bench.settler.add(run, outcome)
    bench.settler.poll()
    assert [len(call) for call in calls] == [MOST, 1]


def test_what_ends_while_redis_is_told_goes_with_the_next_call(bench: Bench, monkeypatch) -> None:
    for _ in range(2):
        bench.put("nothing")
    bench.move()
    first, second = bench.take(), bench.take()
    real, calls = bench.stores[0].settle, []

    def settle(items, **options):
        if not calls:
            bench.settler.add(second, bench.executor.run(second))
        calls.append([item.id for item in items])
        return real(items, **options)

    monkeypatch.setattr(bench.stores[0], "settle", settle)
    bench.settler.add(first, bench.executor.run(first))
    bench.settler.poll()
    assert calls == [[first.job.id], [second.job.id]]
    assert is_over(bench, [first, second])


def test_what_redis_has_lost_is_adopted_and_settled_once_more(bench: Bench, monkeypatch, caplog) -> None:
    runs = ended(bench, 3)
    calls = recorded(bench, monkeypatch)
    forget(bench, runs[1:])
    bench.settler.poll()
    assert calls == [[run.job.id for run in runs], [run.job.id for run in runs[1:]]]
    assert bench.kinds()[-1] == "succeeded"
    assert bench.leases.counts() == (3, 0)
    assert is_over(bench, runs)
    assert "was lost" not in caplog.text


def test_what_cannot_be_adopted_yet_keeps_its_row_and_comes_with_the_next_pass(bench: Bench, monkeypatch) -> None:
    runs = ended(bench, 3)
    forget(bench, runs[1:])
    adoption(bench, monkeypatch, "wait")
    assert bench.settler.poll() == AGAIN
    assert bench.leases.counts() == (2, 0), "the others are settled meanwhile"
    assert [held.row for held in bench.leases.held()] == [runs[1].row]
    assert is_over(bench, [runs[0], runs[2]])
    assert bench.settler.poll() == 1.0
    assert bench.leases.counts() == (3, 0)
    assert is_over(bench, runs)


def test_what_is_not_adopted_is_settled_no_more(bench: Bench, monkeypatch, caplog) -> None:
    runs = ended(bench, 2)
    calls = recorded(bench, monkeypatch)
    forget(bench, runs)
    adoption(bench, monkeypatch, "finished", "merged")
    bench.settler.poll()
    assert len(calls) == 1
    assert bench.leases.counts() == (0, 0)
    assert is_over(bench, runs)
    warned = "".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert [run.job.id for run in runs if run.job.id in warned] == [runs[1].job.id], "who has ended already has lost nothing"


def test_one_that_redis_refuses_holds_up_no_other(bench: Bench, monkeypatch, caplog) -> None:
    runs = ended(bench, 3)
    real, bad = bench.stores[0].settle, runs[1].job.id

    def settle(items, **options):
        if any(item.id == bad for item in items):
            raise StoreError("no")
        return real(items, **options)

    monkeypatch.setattr(bench.stores[0], "settle", settle)
    bench.settler.poll()
    assert bench.leases.counts() == (2, 0)
    assert is_over(bench, runs)
    assert f"job {bad} cannot be settled" in caplog.text


def test_its_thread_is_woken_by_what_ends(bench: Bench) -> None:
    bench.settler.start()
    try:
        for done in (1, 2):
            runs = ended(bench)
            eventually(lambda done=done: bench.settled == done)  # type: ignore[misc]  # bound here
            assert is_over(bench, runs)
    finally:
        bench.settler.end(20)
    assert not bench.settler._thread.is_alive()
    assert bench.settler._thread.daemon, "a process that must end at once does not wait for it"


def test_its_thread_ends_when_all_is_settled(bench: Bench, monkeypatch) -> None:
    real, begun = bench.stores[0].settle, threading.Event()

    def settle(items, **options):
        begun.set()
        assert bench.settler._ending.wait(60)
        return real(items, **options)

    monkeypatch.setattr(bench.stores[0], "settle", settle)
    bench.settler.start()
    runs = ended(bench)
    assert begun.wait(60)
    runs += ended(bench)
    bench.settler.end(20)
    assert not bench.settler._thread.is_alive()
    assert is_over(bench, runs)


def test_its_thread_comes_back_after_trouble_and_to_what_waits(bench: Bench, monkeypatch) -> None:
    pauses: list[float] = []
    real, troubles = bench.stores[0].settle, [StoreUnavailable("away"), StoreUnavailable("still")]

    def settle(items, **options: Any):
        if troubles:
            raise troubles.pop()
        return real(items, **options)

    monkeypatch.setattr(bench.stores[0], "settle", settle)
    monkeypatch.setattr(module.clock, "sleep", pauses.append)
    runs = ended(bench, 2)
    forget(bench, runs)
    adoption(bench, monkeypatch, "wait")
    bench.settler.start()
    until = clock.monotonic() + 30
    while not is_over(bench, runs) and clock.monotonic() < until:
        threading.Event().wait(0.002)
    bench.settler.end(20)
    assert is_over(bench, runs)
    assert len(pauses) == 2
    assert min(pauses) > 0
    assert bench.settler.trouble.failures == 0


def test_poison_is_counted_under_the_task_that_its_record_names_if_that_can_be_read(bench: Bench) -> None:
    tally = Tally(1, 2)
    tally.serves(bench.lines, ["nothing", "renamed"])
    records = [b"1nr nothing\n{broken", b"1nr renamed\n[[]]", b"1nr gone\n[[]]", b"what is that"]
    ends = []
    bench.put("nothing")
    bench.move()
    taken = bench.take()
    for record in records:
        run = copy(taken)
        run.job = taken.job._replace(record=record)
        ends.append(((run, bench.executor.run(run)), "done"))
    tally.settled(ends, bench.leases)
    [line] = figures(["q"], tally.read())
    others = 2
    assert line.ended == {(0, "fail"): 1, (1, "park"): 1, (others, "park"): 1, (others, "fail"): 1}
