"""How a run is interrupted: Redis reports the abort, the process raises an exception in the thread, and the supervisor kills a process
whose run does not react.
"""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import django_delayq as delayq
from django_delayq import ids
from django_delayq.states import Change
from django_delayq.worker.process import task_call
from django_delayq.worker.process.task_process import ABORT
from django_delayq.worker.supervisor.hanging_processes import LAST_LOOK
from tests.worker.bench import Bench

LIMIT = 10.0  # seconds for what takes a moment


def running(bench: Bench) -> Any:
    """A job that a consumer has taken."""
    bench.put("work")
    bench.move()
    return bench.take()


def test_the_lease_extender_calls_the_process_once(bench: Bench) -> None:
    run = running(bench)
    assert bench.stores[0].cancel(ids.full(run.job.id), abort=True).change == Change.RUNNING
    for _ in range(2):
        bench.extender._full_at = dict.fromkeys(bench.lines, 0.0)
        bench.extender.poll()
    assert bench.told == [ABORT]
    assert bench.leases.aborted() == {(run.row, run.turn)}
    assert bench.leases.is_cancelled(run.row, run.turn)
    bench.leases.empty(run.row)
    assert bench.leases.aborted() == set()


def test_an_abort_is_not_meant_for_the_next_job_of_a_row(bench: Bench) -> None:
    run = running(bench)
    bench.child.abort(next(bench.leases.held()), 1.0)
    bench.leases.empty(run.row)
    bench.leases.put(run.row, line=0, id=run.job.id, fence="n2", attempt=1, taken=1.0, good_until=9.0)
    assert bench.leases.aborted() == set()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_that_waits_in_its_process_does_not_begin(bench: Bench, is_async: bool) -> None:
    called = []

    def work() -> None:
        called.append("plain")

    async def coroutine() -> None:
        called.append("coroutine")

    coroutine.__name__ = "work"
    bench.register(coroutine if is_async else work, is_async=is_async)
    run = running(bench)
    held = next(bench.leases.held())
    bench.leases.cancel(held)
    bench.child.abort(held, 1.0)
    bench.executor.abort(bench.leases.aborted(), [])
    outcome = bench.executor.run(run)
    assert outcome is not None
    assert (outcome.kind, called) == ("cancel", [])
    assert isinstance(outcome.error, delayq.Cancelled)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_is_interrupted_by_another_thread_and_no_other_is(bench: Bench, is_async: bool) -> None:
    begun = [threading.Event(), threading.Event()]
    go_on = threading.Event()

    def work(number: int) -> int:
        begun[number].set()
        while not go_on.wait(0.001):
            pass
        return number

    async def coroutine(number: int) -> int:
        begun[number].set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        return number

    coroutine.__name__ = "work"
    bench.register(coroutine if is_async else work, is_async=is_async)
    for number in range(2):
        bench.put("work", number)
    bench.move()
    runs = [bench.take(), bench.take()]
    outcomes: list[Any] = [None, None]

    def consume(number: int) -> None:
        outcomes[number] = bench.executor.run(runs[number])

    threads = [threading.Thread(target=consume, args=(number,), daemon=True) for number in range(2)]
    for thread, event in zip(threads, begun, strict=True):
        thread.start()
        assert event.wait(LIMIT)
    held = {one.row: one for one in bench.leases.held()}[runs[0].row]
    bench.leases.cancel(held)
    bench.child.abort(held, 1.0)
    for _ in range(2):  # a second call changes nothing
        bench.executor.abort(bench.leases.aborted(), runs)
    threads[0].join(LIMIT)
    go_on.set()  # the run that was not interrupted ends, too
    for thread in threads:
        thread.join(LIMIT)
    kinds = {outcome.id: outcome.kind for outcome in outcomes}
    assert kinds == {runs[0].job.id: "cancel", runs[1].job.id: "ack"}
    assert isinstance(outcomes[0].error, delayq.Cancelled)
    assert runs[0].interrupted is not is_async
    assert not runs[1].interrupted
    bench.executor.abort(set(), runs)
    assert not bench.executor._aborted, "what is over is forgotten"


def test_an_aborted_run_has_five_seconds_to_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(bench.deadlines, "_monotonic", lambda: now)
    run = running(bench)
    bench.leases.start(run.row, started=now, task=0)
    bench.deadlines.poll()
    held = next(bench.leases.held())
    bench.leases.cancel(held)
    bench.child.abort(held, now)
    bench.deadlines.poll()
    assert not bench.replaced
    now += 5.0
    bench.deadlines.poll()
    now += LAST_LOOK
    bench.deadlines.poll()
    assert (bench.replaced, bench.child.killed) == ([bench.child], True)
    bench.recovery.take_over(bench.child, "evict", bench.deadlines.ended(bench.child))
    bench.recovery.poll()
    assert bench.kinds()[-1] == "cancelled"
    assert bench.body("cancelled")["c"] == "django_delayq.exceptions.Cancelled"


def test_the_five_seconds_of_a_job_that_waited_when_it_was_aborted_begin_with_its_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(bench.deadlines, "_monotonic", lambda: now)
    run = running(bench)
    bench.child.abort(next(bench.leases.held()), now)
    now += 60.0
    bench.leases.start(run.row, started=now, task=0)
    bench.deadlines.poll()
    assert not bench.replaced
    now += 5.0
    bench.deadlines.poll()
    assert bench.replaced == [bench.child]


def test_who_has_ended_is_forgotten(bench: Bench) -> None:
    run = running(bench)
    bench.child.abort(next(bench.leases.held()), 1.0)
    bench.deadlines.poll()
    assert bench.child.aborted == {(run.row, run.turn): 1.0}
    bench.leases.empty(run.row)
    bench.deadlines.poll()
    assert bench.child.aborted == {}


def test_an_abort_reaches_no_other_job_and_not_the_worker() -> None:
    stop, runs = threading.Event(), [SimpleNamespace(args=(), kwargs={}, row=0, turn=turn, cancel_token=None) for turn in range(3000)]

    def harass() -> None:
        while not stop.is_set():
            for run in runs[now : now + 2]:
                task_call.raise_in_thread(run, delayq.Cancelled)

    now = interrupted = 0
    thread = threading.Thread(target=harass)
    thread.start()
    try:
        for now, run in enumerate(runs):  # noqa: B007  # the other thread looks at it
            try:
                task_call.call(run, lambda: sum(range(300)), set())
            except delayq.Cancelled:
                interrupted += 1
                assert run.cancel_token == {}
            sum(range(300))  # here it would hit the worker itself
    finally:
        stop.set()
        thread.join()
    assert interrupted <= 3000


def test_a_run_that_ends_while_it_is_interrupted_waits_for_that_and_drops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(args=(), kwargs={}, row=0, turn=1, cancel_token=None)
    begun, taken, waits = threading.Event(), threading.Event(), threading.Event()
    raise_in = task_call._set_async_exc

    def late(thread: int, kind: type[BaseException] | None) -> None:
        if kind is not None:
            taken.set()
            waits.wait(60)
        raise_in(thread, kind)

    def interrupt_it() -> None:
        begun.wait()
        task_call.raise_in_thread(run, delayq.Cancelled)

    def work() -> str:
        begun.set()
        taken.wait()
        return "done"

    monkeypatch.setattr(task_call, "_set_async_exc", late)
    monkeypatch.setattr(task_call.clock, "sleep", lambda _seconds: waits.set())
    thread = threading.Thread(target=interrupt_it)
    thread.start()
    assert task_call.call(run, work, set()) == "done"
    thread.join()
    assert waits.is_set()
    assert not task_call._raising.locked()
    assert run.cancel_token == {}


def test_a_run_is_interrupted_once() -> None:
    run: Any = SimpleNamespace(args=(), kwargs={}, row=0, turn=1, cancel_token=None)
    heard = []

    def work() -> None:
        for kind in (delayq.SoftTimeout, delayq.Cancelled):
            try:
                task_call.raise_in_thread(run, kind)
                sum(range(10))
            except (delayq.SoftTimeout, delayq.Cancelled) as error:
                heard.append(type(error))

    task_call.call(run, work, set())
    assert heard == [delayq.SoftTimeout]
    assert run.cancel_token == {}
