"""The small parts of the worker."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from django_delayq import clock, failpoints
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker import logs, loop
from django_delayq.worker.loop import ErrorPause, LoopSchedule, PipeStop
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.process import executor
from django_delayq.worker.process.consumer import Pace
from django_delayq.worker.process.executor import LockWaits, ParkedJobs
from django_delayq.worker.supervisor.fork import Forker, Slot
from django_delayq.worker.supervisor.recycling import Reloader
from django_delayq.worker.supervisor.supervisor import Supervisor


class Counter:
    """A loop that counts its passes and says how long to sleep."""

    def __init__(self, *pauses: float) -> None:
        self.pauses = list(pauses)
        self.passes = 0

    def poll(self) -> float:
        self.passes += 1
        pause = self.pauses.pop(0) if self.pauses else 1000.0
        if pause < 0:
            raise StoreUnavailable("Redis is away.")
        return pause


def test_a_schedule_of_loops_calls_each_loop_when_its_time_has_come() -> None:
    often, rarely = Counter(0, 0, 0), Counter()
    schedule = LoopSchedule([often, rarely])
    assert schedule.poll() == 0
    assert schedule.poll() == 0
    assert (often.passes, rarely.passes) == (2, 1)
    schedule.soon(rarely)
    schedule.poll()
    assert rarely.passes == 2


def test_a_loop_that_is_nearly_due_goes_with_one_that_is(monkeypatch) -> None:
    """Each waking of the thread costs more than a pass."""
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    first, near, far, short = Counter(1.0, 1.0), Counter(1.2), Counter(5.0), Counter(0.1, 0.1)
    schedule = LoopSchedule([first, near, far, short])
    assert schedule.poll() == pytest.approx(0.1)
    now = 100.05
    schedule.poll()
    assert [loop.passes for loop in (first, near, far, short)] == [1, 1, 1, 1]  # none is due: none is early
    now = 101.0
    schedule.poll()
    assert [loop.passes for loop in (first, near, far, short)] == [2, 2, 1, 2]
    now = 101.06
    schedule.poll()
    assert short.passes == 2


def test_an_error_of_one_loop_does_not_stop_the_others(caplog, monkeypatch) -> None:
    monkeypatch.setattr(loop, "outages", OutageLog())
    broken, sound = Counter(-1, -1, 1000), Counter(0, 0, 0, 0)
    schedule = LoopSchedule([broken, sound])
    schedule.poll()
    assert sound.passes == 1
    for part in schedule._parts:
        part.at = 0.0
    schedule.poll()
    for part in schedule._parts:
        part.at = 0.0
    schedule.poll()
    assert caplog.text.count("Redis is away") == 1
    assert (broken.passes, sound.passes) == (3, 3)


def test_another_error_than_a_lost_redis_is_logged_when_it_begins_and_when_it_ends(caplog) -> None:
    pause = ErrorPause("mover")
    for _ in range(2):
        pause.failed(StoreError("a wrong type"))
    pause.worked()
    began, ended = (message for message in caplog.messages if message.startswith("mover"))
    assert began.partition(";")[0] == "mover: unexpected error"
    assert ended.startswith("mover works again after")
    assert ended.endswith("Errors: 2")


def test_pauses_after_errors_double_up_to_a_limit() -> None:
    backoff = ErrorPause("x", longest=1.0, rand=lambda: 0.5)
    pauses = [backoff.failed(StoreUnavailable("away")) for _ in range(8)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_a_parked_job_waits_longer_each_time_and_not_for_ever(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    parked = ParkedJobs()
    assert [parked.delay("a") for _ in range(5)] == [60, 120, 300, 600, 600]
    assert parked.delay("b") == 60
    now[0] = executor.PATIENCE + 1
    assert parked.delay("a") is None


def test_of_parked_jobs_it_forgets_the_oldest_beyond_its_size(monkeypatch) -> None:
    monkeypatch.setattr(executor, "MOST", 2)
    parked = ParkedJobs()
    for id in "abc":
        parked.delay(id)
    assert parked.delay("a") == 60
    assert parked.delay("c") == 120


def test_a_job_waits_for_a_lock_as_long_as_it_has_waited_and_at_most_ten_seconds(monkeypatch) -> None:
    monkeypatch.setattr(executor, "MOST", 2)
    waits = LockWaits()
    assert [waits.delay_ms("a", now, now) for now in (5, 1005, 2005, 4005, 8005, 16_005, 26_005)] == [
        *(1000, 1000, 2000, 4000, 8000, 10_000, 10_000)
    ]
    assert waits.delay_ms("b", 26_005, 28_505) == 2500  # its run waited for the lock itself
    assert waits.delay_ms("a", 26_005, 20) == 1000  # the clock was set back
    waits.delay_ms("c", 26_005, 26_005)  # the oldest are forgotten
    assert waits.delay_ms("a", 36_005, 36_005) == 10_000
    assert waits.delay_ms("b", 36_005, 36_005) == 1000
    waits.forget("b")
    assert waits.delay_ms("b", 46_005, 46_005) == 1000


def test_failpoints_do_nothing_unless_armed() -> None:
    failpoints.arm("")
    failpoints.failpoint("mover.claim")


def test_an_armed_failpoint_acts_at_its_turn() -> None:
    failpoints.arm("here=raise:now@2 there=sleep:0")
    try:
        failpoints.failpoint("here")
        failpoints.failpoint("there")
        with pytest.raises(failpoints.FailpointError, match="now"):
            failpoints.failpoint("here")
        failpoints.failpoint("here")
    finally:
        failpoints.arm("")


def test_a_lost_reply_is_a_store_that_cannot_be_reached() -> None:
    failpoints.arm("here=lose")
    try:
        with pytest.raises(StoreUnavailable, match="reply is lost"):
            failpoints.failpoint("here")
    finally:
        failpoints.arm("")


def test_with_a_file_to_create_only_the_first_acts_and_holds_until_it_is_written(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "once"
    monkeypatch.setenv(failpoints.ONCE, str(path))
    failpoints.arm("here=hold there=raise:now before=sleep:0")
    thread = threading.Thread(target=failpoints.failpoint, args=("here",))
    try:
        failpoints.failpoint("before")
        assert not path.exists()  # to sleep is no act
        thread.start()
        while not path.exists():
            assert thread.is_alive()
        failpoints.failpoint("there")
        failpoints.failpoint("here")
        assert thread.is_alive()
        path.write_text("go")
        thread.join(30)
        assert not thread.is_alive()
    finally:
        path.write_text("go")
        failpoints.arm("")


@pytest.mark.parametrize("text", ["here", "here=jump", "here=raise@x"])
def test_a_failpoint_that_says_nothing_sensible_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        failpoints.arm(text)


def test_the_reloader_sees_a_change_but_waits_for_code_that_compiles(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "stall.py"
    path.write_text("x = 1\n")
    module = types.ModuleType("stall")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "stall", module)
    changed: list[str] = []
    reloader = Reloader(changed.append)
    for second, text in enumerate(("x = \n", "x = 2\n"), 1):
        path.write_text(text)
        os.utime(path, (second, second))
        reloader.poll()
    assert changed == [str(path)]


def test_a_stop_is_set_by_a_byte_on_the_pipe() -> None:
    commands, write = os.pipe()
    alive, keep = os.pipe()
    stop = PipeStop(commands, alive)
    assert not stop.is_set()
    assert not stop.wait(0.01)
    os.write(write, b"L")
    assert stop.wait(30)
    assert stop.is_set()
    for descriptor in (commands, write, alive, keep):
        os.close(descriptor)


def test_workers_show_themselves_and_fall_silent(redis_server, monkeypatch) -> None:
    registry = WorkerRegistry(redis_server.link, prefix="t")
    registry.beat("a", {"pid": 1})
    registry.beat("b", {"pid": 2})
    registry.leave("b")
    redis_server.link.execute("HSET", "t:{workers}", "c", json.dumps({"beat": clock.wall_ms() - 60_000}))
    redis_server.link.execute("HSET", "t:{workers}", "d", "no json")
    assert [(worker["id"], worker["silent"]) for worker in registry.all()] == [("a", False), ("c", True)]
    assert [worker["id"] for worker in registry.all()] == ["a", "c"]


def test_a_log_line_in_json_carries_the_fields_of_its_job() -> None:
    record = logging.LogRecord("django_delayq.worker", logging.WARNING, "", 1, "job %s", ("x",), None)
    record.job_id, record.attempt = "x", 2
    line = json.loads(logs.JsonFormatter().format(record))
    assert (line["level"], line["message"], line["job_id"], line["attempt"]) == ("warning", "job x", "x", 2)
    assert "task" not in line


def test_a_process_that_cannot_be_forked_is_tried_again_and_leaves_nothing_open(monkeypatch, caplog) -> None:
    def no_room() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    forker = Forker(dict)
    slot = Slot("task-1", lambda name: forker.fork(name, "w/1", lambda ends: 0))
    before = os.listdir("/dev/fd")
    monkeypatch.setattr(os, "fork", no_room)
    slot.fill()
    assert slot.child is None
    assert "task-1 cannot be started. The next attempt is in 5 s" in caplog.text
    assert len(os.listdir("/dev/fd")) <= len(before)  # fewer, if connections of this process were closed before the fork
    monkeypatch.undo()
    later = clock.monotonic() + 6
    monkeypatch.setattr(clock, "monotonic", lambda: later)
    slot.fill()
    child = slot.child
    assert child is not None
    while not child.reap():
        time.sleep(0.01)
    assert child.exit_code == 0
    forker.close()


@pytest.mark.parametrize("threads", [1, 8, 100])
def test_nothing_is_taken_ahead_before_a_job_has_ended_or_while_jobs_take_long(threads):
    pace = Pace(threads)
    assert pace.ahead() == 0
    pace.note(5.0)
    assert pace.ahead() == 0
    for _ in range(50):
        pace.note(0.001)
    assert pace.ahead() > 0
    pace.slow()
    assert pace.ahead() == 0


@pytest.mark.parametrize(
    ("what", "calm"),
    [
        ({}, True),
        ({"_signals": [15]}, False),
        ({"_leaving": [1]}, False),
        ({"_stopping": True}, False),
        ({"_loop_slots": [SimpleNamespace(child=None)]}, False),
        ({"_children": lambda: [SimpleNamespace(kill_at=7.0)]}, False),
    ],
    ids=["all there", "signalled", "one leaves", "stopping", "an empty slot", "one is to be killed"],
)
def test_a_supervisor_looks_rarely_only_while_nothing_is_under_way(what, calm) -> None:
    child = SimpleNamespace(kill_at=float("inf"))
    quiet = {
        "_signals": [],
        "_leaving": [],
        "_stopping": False,
        "_tasks": [SimpleNamespace(child=child)],
        "_loop_slots": [],
        "_children": lambda: [child],
    }
    assert Supervisor._calm(SimpleNamespace(**{**quiet, **what})) is calm
