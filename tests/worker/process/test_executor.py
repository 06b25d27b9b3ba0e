"""From a claimed record to an outcome."""

from __future__ import annotations

import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import translation

import django_delayq as delayq
from django_delayq import clock, ids, signals
from django_delayq.job_meta import VERSION
from django_delayq.ladder import Ladder
from django_delayq.states import CARRIED
from django_delayq.store.scripts.queue import ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from django_delayq.worker import current
from django_delayq.worker.current import CurrentJob
from django_delayq.worker.lease_table import RUNNING
from django_delayq.worker.process.executor import ParkedJobs
from django_delayq.worker.process.timeouts import hard_limit
from tests.worker.bench import Bench


def run(bench: Bench, fn, *args, options=None, **fields):
    """Runs a task once and returns its outcome."""
    job_fields = {name: fields.pop(name) for name in ("max_attempts", "key") if name in fields}
    bench.register(fn, **fields)
    bench.put(fn.__name__, *args, options=options, **job_fields)
    bench.move()
    taken = bench.take()
    outcome = bench.executor.run(taken)
    bench.consumers[0].finished += 1
    bench.settler.add(taken, outcome)
    bench.settler.poll()
    return outcome


def any_run() -> Any:
    """The interface of a run that can be interrupted."""
    return SimpleNamespace(args=(), kwargs={}, row=0, turn=1, cancel_token=None)


def test_an_error_is_retried_along_the_tasks_ladder(bench: Bench) -> None:
    def task():
        raise ValueError("no")

    outcome = run(bench, task, backoff=Ladder("7s 9s"))
    assert (outcome.kind, outcome.delay_ms) == ("retry", 7000)


def test_the_jobs_own_ladder_comes_before_the_tasks(bench: Bench) -> None:
    def task():
        raise ValueError("no")

    assert run(bench, task, backoff=Ladder("7s"), options={"backoff": "3s"}).delay_ms == 3000


def test_the_queues_ladder_is_the_last_resort(bench: Bench) -> None:
    def task():
        raise ValueError("no")

    assert run(bench, task).delay_ms == 60_000


def test_a_job_that_was_claimed_more_than_two_seconds_ago_is_given_back(bench: Bench) -> None:
    ran = []
    bench.register(ran.append)
    bench.put("append", 1)
    bench.move()
    taken = bench.take()
    taken.claimed -= 2.1  # the answer to the claim was late, and the task may have been paused since
    outcome = bench.executor.run(taken)
    assert (outcome.kind, outcome.delay_ms, ran) == ("snooze", 0, [])


@pytest.mark.parametrize(("answer", "kind", "delay_ms"), [("90s", "retry", 90_000), (None, "fail", 0)])
def test_a_backoff_function_decides(bench: Bench, answer, kind: str, delay_ms: int) -> None:
    def task():
        raise ValueError("no")

    outcome = run(bench, task, backoff=lambda attempt, error: answer)
    assert (outcome.kind, outcome.delay_ms) == (kind, delay_ms)


def test_a_formula_that_errs_gives_way_to_the_queues_ladder(bench: Bench, caplog) -> None:
    def task():
        raise ValueError("no")

    outcome = run(bench, task, backoff=Ladder.formula(lambda n: 1 / 0, times=3))
    assert (outcome.kind, outcome.delay_ms) == ("retry", 60_000)
    assert "so the backoff of the queue is used" in caplog.text


def test_a_backoff_function_that_errs_gives_way_to_the_queues_ladder(bench: Bench, caplog) -> None:
    def task():
        raise ValueError("no")

    assert run(bench, task, backoff=lambda attempt, error: 1 / 0).delay_ms == 60_000
    assert "ZeroDivisionError" in caplog.text


def test_the_last_attempt_fails(bench: Bench) -> None:
    def task():
        raise ValueError("no")

    assert run(bench, task, max_attempts=1).kind == "fail"


def test_a_retry_at_the_last_attempt_fails_with_its_cause(bench: Bench) -> None:
    def task():
        try:
            raise KeyError("stock")
        except KeyError as error:
            raise delayq.Retry("5s", "sold out") from error

    assert run(bench, task, max_attempts=1).kind == "fail"
    assert bench.body("failed")["c"] == "KeyError"
    assert bench.body("failed")["d"] == "sold out"


def test_the_fence_that_a_task_sees_is_no_other_runs_and_its_claim_is_settled_all_the_same(bench: Bench) -> None:
    seen = []

    def task():
        seen.append(delayq.current().fence)
        raise delayq.Retry(0)

    bench.register(task)
    for _ in range(2):
        bench.put("task")
    for _ in range(2):  # one claim takes both
        bench.move()
        for taken in (bench.take(), bench.take()):
            bench.settler.add(taken, bench.executor.run(taken))
            bench.consumers[0].finished += 1
        bench.settler.poll()
    assert len(set(seen)) == 4
    assert bench.kinds().count("retried") == 4


@pytest.mark.parametrize("delay", [0, 0.25])
def test_a_snooze_of_less_than_a_second_is_one_of_a_second(bench: Bench, delay: float) -> None:
    def task():
        raise delayq.Snooze(delay)

    assert run(bench, task).delay_ms == 1000


def test_a_job_whose_task_nobody_knows_fails_a_day_after_it_was_first_put_off_by_whichever_process(
    bench: Bench,
) -> None:
    link, keys = bench.board.link, bench.board.keys
    link.execute("HSET", keys["meta"], "format", 1)
    id = bench.put("gone")

    def claimed_by_a_new_process() -> None:
        link.execute("ZADD", keys["normal"], 1, id)
        bench.executor._parked = ParkedJobs()
        bench.run()

    claimed_by_a_new_process()
    past = link.execute("HGET", keys["runs"], id).decode()
    assert re.fullmatch(r"0:0:n::u\d{13}", past)
    claimed_by_a_new_process()
    assert bench.kinds() == ["scheduled", *["claimed", "snoozed"] * 2]
    assert link.execute("HGET", keys["runs"], id).decode() == past
    link.execute("HSET", keys["runs"], id, f"0:0:n::u{int(past.rpartition('u')[2]) - 86_401_000}")
    claimed_by_a_new_process()
    assert bench.kinds()[-1] == "failed"
    assert bench.body("failed")["p"] == "poison-task"
    bench.stores[0].requeue(ids.full(id))
    claimed_by_a_new_process()
    assert bench.kinds()[-3:] == ["requeued", "claimed", "snoozed"]


def newer(a, /, b, *more, c, d=4, **others):
    raise AssertionError("it must not be called")


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {"b": 2, "c": 3}, "missing a required argument: 'a'"),
        ((1,), {"c": 3}, "missing a required argument: 'b'"),
        ((1, 2), {}, "missing a required argument: 'c'"),
        ((1, 2), {"b": 2, "c": 3}, "multiple values for argument 'b'"),
    ],
)
def test_arguments_that_do_not_fit_park_the_job_before_an_attempt_counts(bench: Bench, caplog, args, kwargs, why) -> None:
    bench.board.link.execute("HSET", bench.board.keys["meta"], "format", 1)
    bench.register(newer)
    told = []
    signals.job_failed.connect(lambda **more: told.append(more), weak=False, dispatch_uid="parked")
    id = bench.put("newer", *args, max_attempts=1, kwargs=kwargs)
    bench.run()
    signals.job_failed.disconnect(dispatch_uid="parked")
    assert bench.kinds() == ["scheduled", "claimed", "snoozed"]
    assert bench.body("snoozed")["p"] == "parked-arguments"
    assert why in bench.body("snoozed")["d"]
    assert "is parked for 1m: newer(a, /, b, *more, c, d=4, **others) cannot be called with these arguments" in caplog.text
    assert bench.board.link.execute("HGET", bench.board.keys["runs"], id).startswith(b"0:0:n::u")
    assert told == []


def upgraded(order: int, amount: int) -> list[Any]:
    job = delayq.current()
    return [order, amount, job.args, job.kwargs, job.meta]


def test_the_arguments_of_an_older_version_are_upgraded_before_the_call(bench: Bench) -> None:
    bench.register(upgraded, version=2, upgrade={1: lambda order_id: {"order": order_id, "amount": 0}})
    bench.put("upgraded", 7)
    bench.run()
    assert bench.body("succeeded")["r"] == [7, 0, [], {"order": 7, "amount": 0}, {}]


def test_a_newer_version_parks_before_an_attempt_counts_and_runs_where_it_is_known(bench: Bench, caplog) -> None:
    link, keys = bench.board.link, bench.board.keys
    link.execute("HSET", keys["meta"], "format", 1)
    bench.register(upgraded)
    id = bench.put("upgraded", 7, 5, max_attempts=1, options={"meta": {VERSION: 2}})
    bench.run()
    assert bench.kinds() == ["scheduled", "claimed", "snoozed"]
    assert bench.body("snoozed")["p"] == "parked-version"
    assert link.execute("HGET", keys["runs"], id).startswith(b"0:0:n::u")
    assert "is parked for 1m: This process has version 1 of the task upgraded" in caplog.text
    bench.register(upgraded, version=2)
    link.execute("ZADD", keys["normal"], 1, id)
    bench.run()
    assert bench.body("succeeded")["r"][:2] == [7, 5]


def test_a_version_that_no_worker_knows_for_a_day_fails_as_poison(bench: Bench) -> None:
    link, keys = bench.board.link, bench.board.keys
    link.execute("HSET", keys["meta"], "format", 1)
    bench.register(upgraded)
    id = bench.put("upgraded", 7, 5, options={"meta": {VERSION: 2}})
    bench.run()
    link.execute("HSET", keys["runs"], id, f"0:0:n::u{clock.wall_ms() - 86_401_000}")
    link.execute("ZADD", keys["normal"], 1, id)
    bench.executor._parked = ParkedJobs()
    bench.run()
    assert bench.body("failed")["p"] == "poison-version"


def with_context(**carried: Any) -> dict[str, Any]:
    return {"meta": {CARRIED: {name.replace("__", "."): packed for name, packed in carried.items()}}}


def test_a_job_whose_carrier_this_worker_lacks_is_parked_before_an_attempt_counts(bench: Bench, caplog) -> None:
    assert run(bench, hello, options=with_context(Tenant="acme")).kind == "park"
    assert bench.body("snoozed")["p"] == "parked-carriers"
    assert "DELAYQ['CARRIERS'] lacks Tenant" in caplog.text


def test_a_job_whose_carrier_no_worker_has_for_a_day_fails_as_poison(bench: Bench) -> None:
    link, keys = bench.board.link, bench.board.keys
    link.execute("HSET", keys["meta"], "format", 1)
    bench.register(hello)
    id = bench.put("hello", options=with_context(Tenant="acme"))
    bench.run()
    link.execute("HSET", keys["runs"], id, f"0:0:n::u{clock.wall_ms() - 86_401_000}")
    link.execute("ZADD", keys["normal"], 1, id)
    bench.executor._parked = ParkedJobs()
    bench.run()
    assert bench.body("failed")["p"] == "poison-carriers"


def test_a_job_runs_where_its_carriers_are_known_and_a_watcher_is_not(bench: Bench, settings) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"]}
    assert run(bench, hello, options=with_context(Tenant="acme", django_delayq__otel={})).kind == "ack"


def hello() -> None:
    """Does nothing."""


def test_a_job_that_has_run_before_is_parked_too_and_runs_when_its_task_fits_again(bench: Bench) -> None:
    ran = []

    def task(x):
        ran.append(x)
        if len(ran) == 1:
            raise ValueError("once more")

    link, keys = bench.board.link, bench.board.keys
    link.execute("HSET", keys["meta"], "format", 1)
    bench.register(task, backoff=Ladder("0s"))
    id = bench.put("task", 7)
    bench.run()
    bench.tasks["task"].fn = lambda: ran.append("wrong")
    link.execute("ZADD", keys["normal"], 1, id)
    bench.run()
    assert link.execute("HGET", keys["runs"], id).startswith(b"1:0:n::u")
    bench.register(task)
    link.execute("ZADD", keys["normal"], 1, id)
    bench.run()
    assert ran == [7, 7]
    assert bench.kinds() == ["scheduled", "claimed", "retried", "claimed", "snoozed", "claimed", "succeeded"]


def test_a_job_whose_arguments_fit_no_task_for_a_day_fails_as_poison(bench: Bench) -> None:
    link, keys = bench.board.link, bench.board.keys
    link.execute("HSET", keys["meta"], "format", 1)
    bench.register(newer)
    id = bench.put("newer")
    bench.run()
    link.execute("HSET", keys["runs"], id, f"0:0:n::u{clock.wall_ms() - 86_401_000}")
    link.execute("ZADD", keys["normal"], 1, id)
    bench.executor._parked = ParkedJobs()
    bench.run()
    assert bench.kinds()[-1] == "failed"
    assert bench.body("failed")["p"] == "poison-arguments"
    assert "It has waited for a day." in bench.body("failed")["m"]


def test_an_async_task_is_parked_likewise(bench: Bench) -> None:
    async def step(x, y):
        raise AssertionError("it must not be called")

    assert run(bench, step, 1, is_async=True).kind == "park"


def test_a_type_error_of_the_task_itself_is_an_error_of_the_task(bench: Bench) -> None:
    def task(x):
        return len(x)

    assert run(bench, task, 1, max_attempts=1).kind == "fail"
    assert bench.body("failed")["c"] == "TypeError"


def test_a_task_cannot_end_the_worker(bench: Bench) -> None:
    def task():
        raise SystemExit(1)

    assert run(bench, task).kind == "retry"
    assert bench.body("retried")["c"] == "SystemExit"


def test_a_coroutine_cannot_end_the_worker_either(bench: Bench) -> None:
    async def leave():
        raise SystemExit(1)

    async def stay():
        return delayq.current().attempt

    assert run(bench, leave, is_async=True).kind == "retry"
    assert run(bench, stay, is_async=True).kind == "ack"


@pytest.mark.parametrize("result", [{1, 2}, float("nan"), object(), "x" * 70_000])
def test_a_result_that_cannot_be_stored_is_noted_and_the_job_succeeds(bench: Bench, result) -> None:
    def task():
        return result

    assert run(bench, task).kind == "ack"
    assert "not kept" in bench.body("succeeded")["d"]
    assert "r" not in bench.body("succeeded")


def test_text_that_databases_refuse_is_made_harmless(bench: Bench) -> None:
    def task():
        raise ValueError("nul \0 and half \ud800 a pair")

    run(bench, task)
    assert bench.body("retried")["m"] == "nul \\x00 and half \\ud800 a pair"


def test_a_long_traceback_keeps_its_head_and_its_tail(bench: Bench) -> None:
    def task():
        raise ValueError("begin " + "x" * 100_000 + " end")

    run(bench, task)
    text = bench.body("retried")["t"]
    assert len(text) < 40_000
    assert text.startswith("Traceback")
    assert text.endswith("end\n")


def test_the_cause_of_several_errors_is_in_the_traceback_once(bench: Bench) -> None:
    def task():
        raise ExceptionGroup("two", [ValueError("one"), ValueError("another")]) from KeyError("the cause")

    run(bench, task)
    assert bench.body("retried")["t"].count("KeyError: 'the cause'") == 1


def test_errors_of_one_cause_have_one_fingerprint(bench: Bench) -> None:
    def task(number):
        raise ValueError(f"order {number} is 0x{number:x}")

    def another(number):
        raise ValueError(f"order {number} is 0x{number:x}")

    prints = []
    for fn, number in ((task, 17), (task, 4711), (another, 17)):
        run(bench, fn, number)
        prints.append(bench.body("retried")["p"])
    assert prints[0] == prints[1] != prints[2]


def test_a_task_knows_its_job(bench: Bench) -> None:
    seen: list[CurrentJob] = []

    def task():
        seen.append(delayq.current())

    run(bench, task, key="order-1")
    (job,) = seen
    assert (job.attempt, job.queue, job.key, job.task) == (1, "q", "order-1", "task")
    assert job.lateness.total_seconds() >= 0
    assert job.run_at.tzinfo is not None
    assert not job.cancel_requested


def test_there_is_no_current_job_outside_a_task() -> None:
    with pytest.raises(RuntimeError, match="outside a running task"):
        delayq.current()


def test_progress_of_a_lost_job_raises(bench: Bench) -> None:
    def task():
        (held,) = bench.leases.held()
        delayq.current().progress(1, 2)
        bench.leases.lose(held.row, held.turn)
        delayq.current().progress(2, 2)

    outcome = run(bench, task)
    assert isinstance(outcome.error, delayq.LeaseLost)


def test_progress_of_a_run_that_has_ended_raises_and_is_nobodys(bench: Bench) -> None:
    left_behind: list[delayq.CurrentJob] = []
    run(bench, lambda: left_behind.append(delayq.current()))

    def task():
        with pytest.raises(delayq.LeaseLost, match="has ended"):
            left_behind[0].progress(1, 2)

    assert run(bench, task).error is None
    assert [held.progress for held in bench.leases.held()] in ([], [""], ["", ""])


def test_a_failure_after_a_cancel_request_ends_the_job(bench: Bench) -> None:
    def task():
        (held,) = bench.leases.held()
        bench.leases.cancel(held)
        assert delayq.current().cancel_requested
        raise ValueError("stopped half-way")

    assert run(bench, task).kind == "cancel"
    assert bench.kinds()[-1] == "cancelled"


def test_signals_tell_of_the_start_and_the_end(bench: Bench) -> None:
    heard = []

    def started(sender, job, **_):
        heard.append(("started", job.attempt))

    def failed(sender, job, outcome, **_):
        heard.append(("failed", outcome.kind))
        raise RuntimeError("a receiver's error changes nothing")

    def task():
        raise delayq.Fail("no")

    signals.job_started.connect(started)
    signals.job_failed.connect(failed)
    try:
        run(bench, task)
    finally:
        signals.job_started.disconnect(started)
        signals.job_failed.disconnect(failed)
    assert heard == [("started", 1), ("failed", "fail")]
    assert bench.kinds()[-1] == "failed"


def test_a_timeout_comes_from_the_job_the_task_or_the_queue(bench: Bench) -> None:
    def task():
        while True:
            time.sleep(0.001)

    outcome = run(bench, task, timeout=3600.0, options={"timeout": 0.05})
    assert isinstance(outcome.error, delayq.SoftTimeout)
    assert "50ms" in str(outcome.error)


def test_a_run_knows_how_much_of_its_timeout_is_left(bench: Bench) -> None:
    seen = []

    def task():
        seen.append(delayq.current().time_left)

    for timeout in (3600.0, None):
        run(bench, task, timeout=timeout)
    first, none = seen
    assert 0 < first <= 3600
    assert none is None


@pytest.mark.parametrize(
    ("own", "tasks", "queues", "wanted"),
    [(5, 6.0, 7.0, 5), (None, 6.0, 7.0, 6.0), (None, 6.0, None, 6.0), (None, None, 7.0, 7.0), (None, None, None, None)],
)
def test_the_nearest_timeout_counts_and_the_supervisor_is_told_when_it_ends(redis_server, own, tasks, queues, wanted) -> None:
    bench = Bench(redis_server.link, timeout=queues)
    held = []

    def task():
        held.extend(bench.leases.held())

    try:
        bench.register(task, timeout=tasks)
        bench.put("task", options={"timeout": own} if own else None)
        bench.move()
        taken = bench.take()
        assert bench.executor.run(taken).kind == "ack"
    finally:
        bench.close()
    assert taken.timeout == wanted
    [row] = held
    assert (row.state, row.started) == (RUNNING, taken.started)
    assert row.hard == (0.0 if wanted is None else taken.started + hard_limit(wanted))


@pytest.mark.parametrize("wrong", ["~" * 22, "short"])
def test_a_job_that_is_called_by_no_id_is_poison(bench: Bench, wrong: str) -> None:
    bench.register(lambda: None)
    bench.put("<lambda>")
    bench.move()
    taken = bench.take()
    taken.job = taken.job._replace(id=wrong)
    assert bench.executor.run(taken).kind == "fail"
    assert taken.poison == "poison-record"


@pytest.mark.parametrize("wrong_by", [-7_200_000, 2_678_400_000])
def test_a_run_is_dated_by_redis_and_not_by_the_clock_of_the_host(bench: Bench, monkeypatch, wrong_by: int) -> None:
    seen = []

    def task():
        now = clock.monotonic()
        monkeypatch.setattr(clock, "monotonic", lambda: now + 0.25)
        seen.extend(clock.to_ms(one) for one in (delayq.current().started_at, delayq.current().now))

    right = clock.wall_ms()
    monkeypatch.setattr(clock, "wall_ms", lambda: right + wrong_by)
    outcome = run(bench, task)
    assert abs(seen[0] - right) < 600_000
    assert 250 <= seen[1] - seen[0] < 60_000
    assert outcome.ran_ms >= 250


@pytest.mark.parametrize("implicit", [False, True])
def test_who_says_how_a_run_ends_because_of_an_error_shows_that_one(bench: Bench, implicit: bool) -> None:
    def task():
        try:
            raise LookupError("no such order")
        except LookupError as error:
            if implicit:
                raise delayq.Fail("gone")  # noqa: B904  # so that it is known as the context alone
            raise delayq.Fail("gone") from error

    run(bench, task)
    assert bench.body("failed")["c"] == "LookupError"
    assert bench.body("failed")["d"] == "gone"


def test_who_fails_without_an_error_shows_that_and_who_snoozes_shows_none(bench: Bench) -> None:
    def fails():
        raise delayq.Fail("gone")

    def snoozes():
        raise delayq.Snooze("5m")

    run(bench, fails)
    assert bench.body("failed")["c"].endswith("Fail")
    assert "t" not in bench.body("failed"), "it says nothing of where"
    run(bench, snoozes)
    assert "c" not in bench.body("snoozed")


def test_a_backoff_function_is_given_the_error_behind_a_retry(bench: Bench) -> None:
    given: list[str] = []

    def backoff(attempt: int, error: BaseException) -> str:
        given.append(type(error).__name__)
        return "5s"

    def behind():
        raise delayq.Retry from ValueError("the cause")

    def alone():
        raise delayq.Retry

    def chained():
        raise KeyError("itself") from ValueError("the cause")

    for task in (behind, alone, chained):
        assert run(bench, task, backoff=backoff).kind == "retry"
    assert given == ["ValueError", "Retry", "KeyError"]


def test_a_wrap_is_given_what_the_job_carries(bench: Bench) -> None:
    given: list[Any] = []

    def wrap(fn, meta, is_async):
        given.append((dict(meta), is_async))
        return fn

    bench.executor._wrap = wrap
    run(bench, lambda: None, options={"meta": {"order": 7}})
    run(bench, lambda: None)
    assert given == [({"order": 7}, False), ({}, False)]


def test_an_atomic_run_has_the_result_that_its_database_side_gives(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(current, "_installed", SimpleNamespace(run=lambda _run, call: [call(), "committed"]))
    run(bench, lambda: 5, atomic=True)
    assert bench.body("succeeded")["r"] == [5, "committed"]


def test_a_soft_timeout_never_reaches_the_next_job() -> None:
    from django_delayq.worker.process.timeouts import SoftTimer

    timer = SoftTimer()
    stop = threading.Event()

    def harass() -> None:
        while not stop.is_set():
            timer.poll()

    thread = threading.Thread(target=harass)
    thread.start()
    late = 0
    try:
        for _ in range(3000):
            try:
                timer.call(any_run(), 0.00001, lambda: sum(range(300)), set())
            except delayq.SoftTimeout:
                late += 1
            sum(range(300))  # here it would hit the worker itself
    finally:
        stop.set()
        thread.join()
    assert late <= 3000


def test_what_a_task_sets_in_its_context_ends_with_its_job(bench: Bench) -> None:
    seen = []

    def speak(language: str) -> None:
        seen.append(translation.get_language())
        translation.activate(language)

    bench.register(speak)
    bench.put("speak", "de")
    bench.put("speak", "fr")
    bench.run()
    bench.run()
    assert len(seen) == 2
    assert "de" not in seen


def test_the_log_says_which_job_is_poison(bench: Bench, caplog) -> None:
    record = JobRecord(id=ids.new(), task="speak", durable=False, payload=b"{not json")
    bench.stores[0].schedule([ScheduleItem.of(record, delay_ms=0)])
    bench.run()
    (said,) = caplog.records
    assert (said.job_id, said.queue, said.attempt) == (ids.short(record.id), "q", 1)
    assert ids.short(record.id) in said.getMessage()
    assert "not json" not in said.getMessage()


def test_a_soft_timeout_comes_not_before_the_task_has_begun() -> None:
    from django_delayq.worker.process.timeouts import SoftTimer

    timer, done = SoftTimer(), []

    class Alarm(threading.Event):
        def set(self) -> None:
            time.sleep(0.01)
            timer.poll()  # the timeout is over while the worker itself is in a place that must not be interrupted
            done.append("set")

    timer._alarm, timer._next_look, timer._thread = Alarm(), float("inf"), threading.current_thread()
    with pytest.raises(delayq.SoftTimeout, match="timeout of 5ms"):
        timer.call(any_run(), 0.005, lambda: [timer.poll() for _ in range(3)], set())
    assert done == ["set"]


@pytest.mark.parametrize("held", [0.0, 3600.0, -5.0])
def test_a_job_that_waits_for_a_lock_looks_again_after_a_second_and_then_as_long_as_it_has_waited(
    bench: Bench, monkeypatch, held: float
) -> None:
    ends: list[BaseException | None] = [ValueError("no")]

    def task():
        if ends:
            raise ends.pop()
        raise delayq.LockTaken(lock="order:42", holder="web-1:17", since=clock.now(), held=held, left=30.0)

    now, real = [0.0], clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: real + now[0])
    bench.register(task, backoff=Ladder("1h"))
    bench.put("task")
    bench.move()
    taken = bench.take()

    def look() -> tuple[str, int]:
        taken.claimed = clock.monotonic()
        outcome = bench.executor.run(taken)
        return outcome.kind, outcome.delay_ms

    waits = []
    assert look()[0] == "retry"
    for _ in range(5):
        kind, delay_ms = look()
        assert kind == "snooze"
        waits.append(delay_ms)
        now[0] += delay_ms / 1000
    assert waits == [1000, 1000, 2000, 4000, 8000]
    ends.append(ValueError("no"))
    assert look()[0] == "retry"
    assert look() == ("snooze", 1000)


def test_a_job_that_meets_a_taken_lock_is_put_off_and_says_for_which(bench: Bench) -> None:
    def task():
        raise delayq.LockTaken(lock="order:42", holder="web-1:17", since=clock.now(), held=3600.0, left=30.0)

    outcome = run(bench, task, max_attempts=1)
    assert (outcome.kind, outcome.delay_ms, outcome.reason) == ("snooze", 1000, "waits for lock order:42")
    assert bench.body("snoozed")["d"] == "waits for lock order:42"
    assert "c" not in bench.body("snoozed")
