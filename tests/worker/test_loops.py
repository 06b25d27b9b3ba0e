"""Mover, consumer, settler, lease extender, deadlines and recovery, a pass at a time, on a real server."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from django_delayq import clock, ids, signals
from django_delayq.exceptions import StoreUnavailable
from django_delayq.job_meta import NAMED, Quota, Rate, SharedName
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Cooldown
from django_delayq.worker.lease_table import RUNNING, WAITING
from django_delayq.worker.supervisor.hanging_processes import LAST_LOOK
from django_delayq.worker.supervisor.lease_extender import LeaseExtender, longest_pause
from django_delayq.worker.supervisor.supervisor import COOLDOWN, SLOW
from django_delayq.worker.supervisor.worker_beat import Tidy
from tests.worker.bench import Bench


def nothing() -> None:
    pass


def test_a_job_goes_from_the_schedule_to_its_end(bench: Bench) -> None:
    bench.register(lambda_named("double", lambda number: number * 2))
    bench.put("double", 21)
    bench.run()
    assert bench.kinds() == ["scheduled", "claimed", "succeeded"]
    assert bench.body("succeeded")["r"] == 42
    assert len(bench.free) == 20
    assert bench.leases.counts() == (1, 0)


def test_no_more_is_claimed_than_threads_can_run(bench: Bench) -> None:
    bench.register(nothing)
    for _ in range(5):
        bench.put("nothing")
    bench.move()
    assert len(bench.buffer) == 2
    bench.move()
    assert len(bench.buffer) == 2
    assert bench.buffer.call_at == 0
    bench.consumers[0].poll(bench.take())
    assert bench.called == 0  # one still waits for the other thread
    bench.consumers[1].poll(bench.take())
    assert bench.called == 1
    bench.move()
    assert len(bench.buffer) == 2


def test_quick_jobs_are_taken_ahead(bench: Bench) -> None:
    for _ in range(60):
        bench.pace.note(0.001)
    assert bench.pace.ahead() > 50
    for _ in range(30):
        bench.put("nothing")
    bench.move()
    assert len(bench.buffer) == 20  # as many as there are rows


def test_a_job_with_a_rate_waits_for_an_idle_thread_and_nothing_is_taken_ahead_until_it_has_one(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(bench.pace, "ahead", lambda: 4)
    rated = {"meta": {NAMED: SharedName("", 0, Rate("bank:7", Quota(1, 1000, 1))).packed()}}
    for _ in range(6):
        bench.put("nothing")
    bench.move()
    assert len(bench.buffer) == 6  # two for the threads, and four ahead
    with_rate = bench.put("nothing", options=rated)
    for _ in range(9):
        bench.put("nothing")
    held = []
    for number in range(12):
        taken = bench.take()
        held.append((taken.job.id == with_rate, len(bench.buffer)))
        bench.consumers[number % 2].poll(taken)
        bench.settler.poll()
        bench.move()
    turn = [is_it for is_it, _ in held].index(True)
    assert held[turn - 1][1] <= 1, "nothing was taken ahead of it"
    assert held[-1][1] > 1, "and after it, jobs are taken ahead again"


def test_a_process_that_takes_more_ahead_than_two_claims_bring_goes_on_claiming(redis_server, monkeypatch) -> None:
    bench = Bench(redis_server.link, rows=1000)
    monkeypatch.setattr(bench.pace, "ahead", lambda: 600)
    for _ in range(250):
        bench.put("nothing")
    bench.move()
    assert len(bench.buffer) == 200  # one claim
    bench.move()
    assert len(bench.buffer) == 250
    bench.close()


def test_a_claim_whose_reply_was_lost_is_sent_again_and_gives_the_same_jobs(bench: Bench, monkeypatch) -> None:
    bench.put("nothing")
    store, real = bench.stores[0], bench.stores[0].claim
    nonces = []

    def claim(worker: str, nonce: str, **options: object):
        nonces.append(nonce)
        reply = real(worker, nonce, **options)
        if len(nonces) == 1:
            raise StoreUnavailable("the reply was lost")
        return reply

    monkeypatch.setattr(store, "claim", claim)
    bench.move()
    assert len(bench.buffer) == 0
    bench.mover._resume_at = 0
    bench.move()
    assert nonces[0] == nonces[1]
    assert len(bench.buffer) == 1
    assert bench.kinds() == ["scheduled", "claimed"]


def test_jobs_that_wait_too_long_are_given_back(bench: Bench) -> None:
    bench.put("nothing")
    bench.move()
    bench.mover._monotonic = lambda: clock.monotonic() + 2
    bench.move()
    bench.settler.poll()
    assert bench.kinds()[:3] == ["scheduled", "claimed", "snoozed"]
    assert bench.pace.ahead() == 0


def test_a_full_mover_hands_its_timer_over(bench: Bench) -> None:
    bench.move()
    meta = bench.board.keys["meta"]
    link = bench.board.link
    assert link.execute("HGET", meta, "timer") == b"w/1"
    bench.mover._room = lambda ahead: 0
    for watch in bench.mover._watches:
        watch.at = 0
    bench.move()
    bench.mover._full_since -= 1
    bench.move()
    assert link.execute("HGET", meta, "timer") is None


def test_a_quiet_mover_claims_nothing(bench: Bench) -> None:
    bench.put("nothing")
    bench.mover.hush()
    bench.move()
    assert bench.kinds() == ["scheduled"]


def test_a_job_that_is_lost_before_it_began_does_not_run(bench: Bench) -> None:
    ran = []
    bench.register(lambda_named("run", lambda: ran.append(1)))
    bench.put("run")
    bench.move()
    (held,) = bench.leases.held()
    bench.leases.lose(held.row, held.turn)
    bench.consumers[0].poll(bench.take())
    assert ran == []
    assert len(bench.free) == 20
    assert bench.settled == 1, "a process that leaves waits for its rows"


def test_a_job_whose_lease_may_have_run_out_is_given_back_and_not_run(bench: Bench) -> None:
    ran = []
    bench.register(lambda_named("run", lambda: ran.append(1)))
    bench.put("run")
    bench.mover._monotonic = lambda: clock.monotonic() - 100
    bench.move()
    bench.consumers[0].poll(bench.take())
    bench.settler.poll()
    assert ran == []
    assert bench.kinds() == ["scheduled", "claimed", "snoozed"]


def test_settling_goes_on_with_the_same_batch_after_trouble(bench: Bench, monkeypatch) -> None:
    bench.register(nothing)
    bench.put("nothing")
    bench.move()
    bench.consumers[0].poll(bench.take())
    store, real = bench.stores[0], bench.stores[0].settle
    calls = []

    def settle(items, **options):
        calls.append(list(items))
        answer = real(items, **options)
        if len(calls) == 1:
            raise StoreUnavailable("the reply was lost")
        return answer

    monkeypatch.setattr(store, "settle", settle)
    with pytest.raises(StoreUnavailable):
        bench.settler.poll()
    bench.settler.poll()
    assert calls[0] == calls[1]
    assert bench.kinds() == ["scheduled", "claimed", "succeeded"]
    assert len(bench.free) == 20


def test_the_outcome_of_a_lost_claim_changes_nothing(bench: Bench, caplog) -> None:
    bench.register(nothing)
    id = bench.put("nothing")
    bench.move()
    bench.consumers[0].poll(bench.take())
    bench.board.link.execute("HSET", bench.board.keys["runs"], id, "1:0:n:another")
    bench.settler.poll()
    assert bench.kinds() == ["scheduled", "claimed"]
    assert "the lease of attempt 1 was lost" in caplog.text


def test_an_adoption_concerns_the_jobs_of_its_line(redis_server, monkeypatch) -> None:
    bench = Bench(redis_server.link, queues=("a", "b"))
    ids, adopted = [bench.put("nothing", line=number) for number in (0, 1)], []
    monkeypatch.setattr(bench.adopter, "adopt", lambda line, runs: adopted.append([run.job.id for run in runs]) or ["adopted"])
    assert bench.adopter.adopt_line(bench.lines[0])
    assert adopted == [], "no job of the line is here"
    bench.move()
    assert bench.adopter.lines == set(bench.lines)
    assert bench.adopter.adopt_line(bench.lines[1])
    assert adopted == [ids[1:]]
    bench.close()


def test_a_process_warns_once_of_a_redis_that_lost_its_contents(bench: Bench, caplog) -> None:
    bench.move()
    bench.board.link.execute("HSET", bench.board.keys["meta"], "generation", "another")
    for _ in range(3):
        bench.move()
    assert caplog.text.count("Redis lost its contents or was rolled back") == 1


def test_the_lease_extender_extends_what_runs_and_what_waits(bench: Bench) -> None:
    bench.put("nothing")
    bench.put("nothing")
    bench.move()
    leases = bench.board.keys["leases"]
    for id in bench.board.link.execute("ZRANGE", leases, 0, -1):
        bench.board.link.execute("ZADD", leases, 1, id)
    bench.leases.start(0, started=clock.monotonic(), task=0)
    bench.extender.poll()
    ends = bench.board.link.execute("ZRANGE", leases, 0, -1, "WITHSCORES")[1::2]
    assert all(int(end) > clock.wall_ms() for end in ends)
    held = {held.state for held in bench.leases.held()}
    assert held == {WAITING, RUNNING}


@pytest.mark.parametrize("lease", [1.0, 2.0, 30.0])
def test_two_passes_of_the_lease_extender_may_fail_before_a_lease_runs_out(redis_server: Any, lease: float) -> None:
    bench = Bench(redis_server.link, lease=lease, lease_ms=int(lease * 1000))
    between_extensions = lease / 3 + bench.extender.poll()  # it looks as often as it says, and extends after a third
    after_an_error = longest_pause(bench.lines) * 1.5  # with the most of its jitter
    assert between_extensions + 2 * after_an_error <= lease


class KeptLine:
    """A line on a server whose answers take so long, by a clock of the test."""

    def __init__(self, now: list[float], link: Any, takes: float, lease: float = 3.0) -> None:
        self.queue, self.lease, self.lease_ms = "q", lease, int(lease * 1000)
        self.cooldown: Cooldown = link.cooldown
        self.store = SimpleNamespace(link=link, extend=self._extend)
        self.extended: list[float] = []  # when
        self._now, self._takes = now, takes

    def _extend(self, jobs: Any, **_: Any) -> dict[str, str]:
        if self.cooldown.active:
            raise StoreUnavailable(code="redis_cooldown", where="there")
        began = self._now[0]
        self._now[0] += self._takes
        self.cooldown.answered(began)
        self.extended.append(began)
        return {id: "ok" for id, _ in jobs}


def test_a_server_that_answers_late_costs_no_lease_on_another(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("django_delayq.store.connection.link.clock", SimpleNamespace(monotonic=lambda: now[0]))
    late, well = Mock(cooldown=Cooldown()), Mock(cooldown=Cooldown())
    for link in (late, well):
        link.cooldown.seconds, link.cooldown.late = COOLDOWN, SLOW
    lines = [*(KeptLine(now, late, takes=1.9) for _ in range(3)), KeptLine(now, well, takes=0.001)]
    held = [
        SimpleNamespace(line=n, progress_turn=0, progress="", row=n, turn=1, id=f"j{n}", fence="f", state=RUNNING, started=99.0)
        for n in range(4)
    ]
    leases = SimpleNamespace(held=lambda: held, extended=lambda *_: None, state=lambda _: RUNNING)
    child: Any = SimpleNamespace(pid=1, leases=leases)
    served: Any = lines
    extender = LeaseExtender(lines=served, children=lambda: [child], worker="w", monotonic=lambda: now[0])
    for _ in range(20):
        with contextlib.suppress(StoreUnavailable):
            extender.poll()
        now[0] += extender._pass
    assert all(line.extended for line in lines), "none is forgotten"
    gaps = [after - before for before, after in pairwise(lines[3].extended)]
    assert max(gaps) < lines[3].lease


def test_the_lease_extender_tells_of_lost_leases_and_cancel_requests(bench: Bench) -> None:
    first, second = bench.put("nothing"), bench.put("nothing")
    bench.move()
    bench.board.link.execute("HSET", bench.board.keys["runs"], first, "1:0:n:another")
    bench.stores[0].cancel(ids.full(second))
    bench.extender.poll()
    rows = {held.id: held for held in bench.leases.held()}
    assert bench.leases.is_lost(rows[first].row, rows[first].turn)
    assert bench.leases.is_cancelled(rows[second].row, rows[second].turn)


def test_the_lease_extender_passes_progress_on(bench: Bench) -> None:
    id = bench.put("nothing")
    bench.move()
    bench.extender.poll()
    bench.leases.start(0, started=clock.monotonic(), task=0)
    bench.leases.progress(0, "3/9")
    bench.extender.poll()
    assert bench.board.link.execute("HGET", bench.board.keys["progress"], id) == b"3/9"


def run_of(bench: Bench, id: str) -> str | None:
    found = bench.board.link.execute("HGET", bench.board.keys["runs"], id)
    return None if found is None else found.decode()


def bury(bench: Bench) -> None:
    """The steps of the supervisor after a process has ended."""
    bench.recovery.take_over(bench.child, "evict", bench.deadlines.ended(bench.child))
    bench.recovery.poll()


@pytest.mark.parametrize(("retry_ms", "kind"), [(5000, "retried"), (-1, "failed")])
def test_a_run_past_its_hard_deadline_is_settled_when_its_process_is_dead_and_keeps_its_lease_till_then(
    bench: Bench, retry_ms: int, kind: str
) -> None:
    id = bench.put("shop.close")
    bench.move()
    now = clock.monotonic()
    bench.leases.start(0, started=now - 10, task=0, hard=now - 1, retry_ms=retry_ms)
    bench.deadlines.poll()
    assert (bench.replaced, bench.child.killed) == ([bench.child], False)  # it shows where it hangs
    bench.child.hung_since -= LAST_LOOK
    bench.deadlines.poll()
    assert (bench.replaced, bench.child.killed) == ([bench.child], True)
    bench.extender.poll()
    assert bench.replaced == [bench.child]
    assert bench.kinds() == ["scheduled", "claimed"]
    assert bench.board.link.execute("ZSCORE", bench.board.keys["leases"], id) is not None
    bury(bench)
    assert bench.kinds() == ["scheduled", "claimed", kind]
    assert bench.body(kind)["c"] == "HardTimeout"


def test_a_deaf_runs_neighbours_have_their_own_timeouts_or_the_grace_and_are_evicted_then(redis_server, monkeypatch) -> None:
    bench = Bench(redis_server.link, threads=4)
    now = 1000.0
    monkeypatch.setattr(bench.deadlines, "_monotonic", lambda: now)
    ids = [bench.put("shop.close") for _ in range(4)]
    bench.move()
    rows = {held.id: held.row for held in bench.leases.held()}
    bench.leases.start(rows[ids[0]], started=now, task=0, hard=now + 5, retry_ms=-1)
    bench.leases.start(rows[ids[1]], started=now, task=0)  # no timeout: it has the grace, 30 s
    bench.leases.start(rows[ids[2]], started=now, task=0, hard=now + 100, retry_ms=-1)
    bench.leases.start(rows[ids[3]], started=now, task=0, hard=now + 20, retry_ms=9000)
    now += 6
    bench.deadlines.poll()
    assert (bench.replaced, bench.child.killed) == ([bench.child], False)
    now += 20  # the fourth does not hear its own either
    bench.deadlines.poll()
    assert not bench.child.killed
    bench.leases.empty(rows[ids[2]])  # the third has ended in time
    bench.deadlines.poll()
    assert not bench.child.killed
    now += 11
    bench.deadlines.poll()
    assert (bench.replaced, bench.child.killed) == ([bench.child], True)
    bury(bench)
    events = [(item.kind, item.fields[0]) for entry in bench.board.log.read("0-0", 99) for item in entry.items]
    assert set(events[-3:]) == {("failed", ids[0]), ("snoozed", ids[1]), ("retried", ids[3])}
    assert bench.body("snoozed")["e"] == "evicted"
    assert run_of(bench, ids[1]) == "0:0:n::e1", "neither an attempt nor a crash"


def test_a_deaf_run_that_ends_after_all_is_settled_by_its_own_process(bench: Bench) -> None:
    bench.put("shop.close")
    bench.move()
    now = clock.monotonic()
    bench.leases.start(0, started=now - 10, task=0, hard=now - 1, retry_ms=-1)
    bench.put("nothing")
    bench.move()
    bench.leases.start(1, started=now, task=0)
    bench.deadlines.poll()
    assert not bench.child.killed
    taken = bench.take()
    bench.settler.add(taken, taken.outcome("ack", b"{}"))
    bench.settler.poll()
    bench.deadlines.poll()
    assert not bench.child.killed
    assert (bench.deadlines.ended(bench.child), bench.kinds()[-1]) == ([], "succeeded")


def test_a_job_that_was_evicted_three_times_runs_alone(bench: Bench) -> None:
    id = bench.put("nothing")
    for times in range(1, 4):
        bench.move()
        taken = bench.take()
        assert not bench.mover.suspects
        assert not bench.leases.retires()
        bench.settler.add(taken, taken.outcome("evict"))
        bench.settler.poll()
        bench.buffer.taken -= 1
        assert run_of(bench, id) == f"0:0:n::e{times}"
    bench.move()
    assert [taken.job.id for taken in bench.mover.suspects] == [id]
    assert bench.leases.retires()
    assert not len(bench.buffer)


def test_deadlines_are_looked_at_when_the_next_one_comes(bench: Bench, monkeypatch) -> None:
    """A run that begins later has five seconds, so a second between looks is enough for all others."""
    now = 100.0
    monkeypatch.setattr(bench.deadlines, "_monotonic", lambda: now)
    bench.put("shop.close")
    bench.move()
    assert bench.deadlines.poll() == 1.0
    bench.leases.start(0, started=now, task=0, hard=now + 0.5, retry_ms=-1)
    assert bench.deadlines.poll() == 0.5
    now += 0.25
    assert bench.deadlines.poll() == 0.25
    bench.leases.start(0, started=now, task=0, hard=now + 60, retry_ms=-1)
    assert bench.deadlines.poll() == 1.0


def test_a_backoff_function_is_asked_at_the_hard_deadline(bench: Bench) -> None:
    asked = []

    def backoff(attempt: int, error: BaseException) -> str:
        asked.append((attempt, type(error).__name__))
        return "2m"

    bench.tasks["shop.close"] = SimpleNamespace(backoff=backoff)
    bench.put("shop.close")
    bench.move()
    bench.leases.start(0, started=1.0, task=0, hard=2.0, retry_ms=-2)
    bench.deadlines.poll()
    bury(bench)
    assert asked == [(1, "SoftTimeout")]
    assert bench.kinds()[-1] == "retried"


def test_what_a_dead_process_held_is_given_back(bench: Bench) -> None:
    ran, waited = bench.put("nothing"), bench.put("nothing")
    bench.move()
    bench.leases.start({held.id: held.row for held in bench.leases.held()}[ran], started=1.0, task=0)
    hear = Mock()
    signals.job_crashed.connect(hear)  # for as long as this test lasts: by a weak reference
    bench.recovery.take_over(bench.child, "crash")
    bench.recovery.poll()
    assert hear.call_args.kwargs["job_id"] == ids.full(ran)
    events = [(item.kind, item.fields[0]) for entry in bench.board.log.read("0-0", 99) for item in entry.items]
    assert set(events[-2:]) == {("crashed", ran), ("snoozed", waited)}
    assert not bench.recovery
    assert bench.child.leases is None


def test_a_claim_that_stands_nowhere_is_asked_for_and_given_back(bench: Bench) -> None:
    id = bench.put("nothing")
    bench.leases.claiming(0, "n77")
    bench.stores[0].claim("w/1", "n77", want=1, lease_ms=30_000, max_crashes=3)
    bench.recovery.take_over(bench.child, "crash")
    bench.recovery.poll()
    assert bench.kinds() == ["scheduled", "claimed", "snoozed"]
    assert bench.stores[0].claim("w/2", "n78", want=1, lease_ms=30_000, max_crashes=3).jobs[0].id == id


def test_a_line_in_trouble_keeps_nothing_of_other_lines_from_being_given_back(redis_server) -> None:
    bench = Bench(redis_server.link, queues=("a", "b"))
    ids = [bench.put("nothing", line=number) for number in (0, 1)]
    bench.move()
    leases = bench.stores[0].keys["leases"]
    bench.board.link.execute("RENAME", leases, "elsewhere")
    bench.board.link.execute("SET", leases, "of somebody else")
    bench.recovery.take_over(bench.child, "crash")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        bench.recovery.poll()
    claim = bench.stores[1].claim("w/2", "n2", want=1, lease_ms=30_000, max_crashes=3)
    assert [job.id for job in claim.jobs] == ids[1:]
    assert bench.recovery, "what the other line was told stays to be told"
    bench.board.link.execute("RENAME", "elsewhere", leases)
    bench.recovery.poll()
    claim = bench.stores[0].claim("w/2", "n3", want=1, lease_ms=30_000, max_crashes=3)
    assert [job.id for job in claim.jobs] == ids[:1]
    assert not bench.recovery
    bench.close()


def lambda_named(name: str, fn):
    fn.__name__ = name
    return fn


@pytest.mark.parametrize(("lease", "many"), [(30.0, 20), (5.0, 3)])
def test_each_line_of_a_server_that_answers_late_is_extended_before_its_lease_ends(monkeypatch, lease: float, many: int) -> None:
    now = [100.0]
    monkeypatch.setattr("django_delayq.store.connection.link.clock", SimpleNamespace(monotonic=lambda: now[0]))
    late = Mock(cooldown=Cooldown(), away=False)
    late.server, late.cooldown.seconds, late.cooldown.late = late, COOLDOWN, SLOW
    lines = [KeptLine(now, late, takes=0.6, lease=lease) for _ in range(many)]
    held = [
        SimpleNamespace(line=n, progress_turn=0, progress="", row=n, turn=1, id=f"j{n}", fence="f", state=RUNNING, started=99.0)
        for n in range(many)
    ]
    child: Any = SimpleNamespace(pid=1, leases=SimpleNamespace(held=lambda: held, extended=lambda *_: None, state=lambda _: RUNNING))
    served: Any = lines
    extender = LeaseExtender(lines=served, children=lambda: [child], worker="w", monotonic=lambda: now[0])
    while now[0] < 100.0 + 6 * lease:
        try:
            now[0] += extender.poll()
        except StoreUnavailable:
            now[0] += longest_pause(served)
    for line in lines:
        assert max(after - before for before, after in pairwise([100.0, *line.extended])) < lease


def test_tidy_comes_to_each_line_of_a_server_that_answers_late() -> None:
    late = Mock(cooldown=Cooldown())
    late.server = late
    calls: list[int] = []

    def line(number: int) -> Any:
        def tidy(cursor: str) -> Any:
            if late.busy:
                raise StoreUnavailable(code="redis_cooldown", where="there")
            late.busy = True
            calls.append(number)
            return SimpleNamespace(cursor="0")

        return Mock(link=late, tidy=tidy)

    tidy = Tidy([line(n) for n in range(3)], rand=lambda: 0.0)
    for _ in range(7):
        late.busy = False
        tidy.poll()
    assert calls == [0, 1, 2, 0, 1, 2]
