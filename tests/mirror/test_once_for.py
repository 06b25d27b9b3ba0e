"""`once_for`: until the period has passed since the job's end, the same call returns the first job, whatever is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.mirror import prune
from django_delayq.mirror.prune import PruneLoop
from django_delayq.models import Event, Job, PeriodKey
from django_delayq.producer import acts
from django_delayq.producer.outbox import period_keys
from django_delayq.producer.outbox.agreed_clock import ClocksDiffer
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link, ScriptMissing
from tests.laws.history import History, Op, Row, Run, Sees
from tests.laws.of_keys import a_key_schedules_one_job_per_period
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import close_order, ping

Change = delayq.Change
ONCE = close_order.using(key="o:7", once_for="24h")
KINDS = ("outbox-full", "outbox-failures", "redis-full", "redis-failures")  # durability, and what the rows keep


@pytest.fixture(params=KINDS)
def durability(request, settings) -> str:
    """For each durability and each level of AUDIT."""
    durability, audit = request.param.split("-")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"DURABILITY": durability, "AUDIT": audit}, "default": {}}}
    return str(durability)


def run(orders, outcome: str = "ack") -> list[str]:
    """Runs what is due, and folds the events. Returns the ids."""
    found = orders.claim()
    for job in found:
        orders.settle(job, outcome)
    orders.fold()
    return [job.id for job in found]


def pass_time(**passed: float) -> None:
    """Moves the ends of periods into the past."""
    for row in PeriodKey.objects.exclude(until=None):
        PeriodKey.objects.filter(pk=row.pk).update(until=row.until - timedelta(**passed))


def tidy(orders) -> None:
    """Redis forgets what has ended."""
    orders.store.tidy(tombstones_ms=0, now_ms=clock.wall_ms() + 60_000)


def test_the_same_call_returns_the_first_job_until_a_period_after_its_end(durability, orders):
    first = ONCE.schedule(7)
    assert first.created is True
    again = ONCE.schedule(7)
    assert (again.id, again.created) == (first.id, False), "it waits"
    assert run(orders) == [first.short_id]
    tidy(orders)
    for gone in ({"hours": 0}, {"hours": 23}):
        pass_time(**gone)
        again = ONCE.schedule(7)
        assert (again.id, again.created) == (first.id, False)
    assert run(orders) == []
    pass_time(hours=1, seconds=1)
    second = ONCE.schedule(7)
    assert second.created is True
    assert run(orders) == [second.short_id]
    assert ONCE.schedule(7).id == second.id


def test_the_period_begins_at_the_end_however_long_the_job_waits(durability, orders):
    first = ONCE.schedule(7)
    PeriodKey.objects.update(at=clock.now() - timedelta(days=400))
    assert [row.until for row in PeriodKey.objects.all()] == [None]
    assert ONCE.schedule(7).id == first.id
    run(orders)
    [row] = PeriodKey.objects.all()
    assert row.until is not None
    assert abs(row.until - clock.now() - timedelta(hours=24)) < timedelta(hours=1)


def test_a_failure_holds_the_key(durability, orders):
    first = ONCE.schedule(7)
    run(orders, "fail")
    tidy(orders)
    assert ONCE.schedule(7).id == first.id


def test_a_cancelled_job_frees_the_key(durability, orders):
    first = ONCE.using(delay="1h").schedule(7)
    assert first.cancel() is Change.DONE
    if durability == "redis":
        orders.fold()
    second = ONCE.schedule(7)
    assert second.created is True
    orders.fold()
    assert run(orders) == [second.short_id], "the event of the cancel frees no key of the second job"
    assert ONCE.schedule(7).id == second.id


def test_an_expired_job_frees_the_key(durability, orders):
    first = ONCE.using(expires="1h").schedule(7)
    assert orders.claim(ahead_ms=7_200_000) == []
    orders.fold()
    second = ONCE.schedule(7)
    assert (second.id != first.id, second.created) == (True, True)


def test_a_replaced_job_frees_the_key(durability, orders):
    ONCE.using(delay="1h").schedule(7)
    other = close_order.using(key="o:7", on_conflict="replace").schedule(8)
    orders.fold()
    assert ONCE.schedule(7).id == other.id, "which holds the key while it is unfinished"
    assert run(orders) == [other.short_id]
    assert ONCE.schedule(7).created is True


def test_a_job_that_another_took_in_gets_no_key(durability, orders):
    holder = close_order.using(key="o:7", delay="1h").schedule(7)
    with transaction.atomic():
        merged = ONCE.schedule(7)
    orders.fold()
    assert merged.id == holder.id
    holder.run_now()
    assert run(orders) == [holder.short_id]
    assert ONCE.schedule(7).created is True


@pytest.mark.parametrize("ended", [False, True])
def test_a_wipe_between_call_and_repeat_changes_nothing(orders, loop, wipe, ended):
    first = ONCE.schedule(7)
    if ended:
        run(orders)
    orders.fold()
    wipe()
    again = ONCE.schedule(7)
    assert (again.id, again.created) == (first.id, False)
    settle_down(orders, loop)
    assert [job.id for job in orders.claim(ahead_ms=60_000)] == ([] if ended else [first.short_id])
    assert ONCE.schedule(7).id == first.id


def test_a_failed_job_that_is_put_back_has_its_key_until_its_next_end(durability, orders):
    first = ONCE.schedule(7)
    run(orders, "fail")
    pass_time(hours=25)
    PruneLoop(stores.places, orders.config).prune()
    assert first.requeue() is Change.DONE
    orders.fold()
    assert [row.until for row in PeriodKey.objects.all()] == [None]
    assert run(orders) == [first.short_id]
    assert ONCE.schedule(7).id == first.id
    pass_time(hours=25)
    assert ONCE.schedule(7).created is True


def test_a_cancelled_job_that_is_put_back_has_its_key_again(orders):
    first = ONCE.using(delay="1h").schedule(7)
    first.cancel()
    orders.fold()
    assert first.requeue() is Change.DONE
    assert run(orders) == [first.short_id]
    assert ONCE.schedule(7).id == first.id


def test_a_put_back_and_an_end_in_one_turn_of_the_mirror(durability, orders):
    first = ONCE.schedule(7)
    run(orders, "fail")
    first.requeue()
    assert run(orders) == [first.short_id]
    [row] = PeriodKey.objects.all()
    assert row.until is not None


def test_an_old_copy_that_repeats_events_changes_no_period(durability, orders):
    ONCE.schedule(7)
    found = orders.claim()
    for job in found:
        orders.settle(job, "ack")
    batch = orders.mirror.load(entries := orders.mirror.log.read("0-0", 100))
    orders.fold()
    [before] = PeriodKey.objects.values_list("until", flat=True)
    for entry in entries:
        batch.fold(entry)
    with transaction.atomic():
        orders.mirror.save(batch)
    assert [before] == list(PeriodKey.objects.values_list("until", flat=True))


def test_a_far_job_has_its_key_too(horizon, orders):
    first = ONCE.using(delay="5h").schedule(7)
    assert ONCE.using(delay="5h").schedule(7).id == first.id
    first.cancel()
    second = ONCE.using(delay="5h").schedule(7)
    assert (second.created, PeriodKey.objects.get().job) == (True, second.id)


def test_an_end_that_a_person_decides_begins_the_period(orders):
    first = ONCE.schedule(7)
    orders.settle(orders.claim()[0], "ack")
    stores.link.execute("UNLINK", orders.store.keys["events"])
    Job.objects.filter(pk=first.id).update(ending="unknown", published=None)
    assert ONCE.schedule(7).id == first.id, "whether it ran is not known"
    assert acts.mark_succeeded(first.id) is Change.DONE
    again = ONCE.schedule(7)
    assert (again.id, again.created) == (first.id, False)
    Job.objects.filter(pk=first.id).update(finished_at=clock.now() - timedelta(hours=25))
    assert ONCE.schedule(7).id != first.id


# --- rows that are deleted ---


@pytest.mark.parametrize(("state", "kept"), [("succeeded", 1), ("failed", 1), ("cancelled", 0)])
def test_a_row_that_is_deleted_leaves_its_end_to_the_key(orders, settings, state, kept):
    settings.DELAYQ = {**settings.DELAYQ, "RETENTION": {"succeeded": "1h", "failed": "1h", "cancelled": "1h"}}
    first = ONCE.using(once_for="3d").schedule(7)
    ended = clock.now() - timedelta(hours=30)
    Job.objects.filter(pk=first.id).update(state=state, finished_at=ended)  # without an event
    loop = PruneLoop(stores.places, conf.get().queue("orders"))
    loop.prune()
    assert not Job.objects.exists()
    assert [row.until for row in PeriodKey.objects.all()] == [ended + timedelta(days=3)] * kept


def test_keys_whose_period_has_ended_are_pruned(durability, orders):
    ONCE.schedule(7)
    run(orders)
    pass_time(hours=23)
    PruneLoop(stores.places, orders.config).prune()
    assert PeriodKey.objects.count() == 1
    pass_time(hours=2)
    PruneLoop(stores.places, orders.config).prune()
    assert not PeriodKey.objects.exists()


def test_a_lost_job_without_a_row_has_its_key_for_a_period(orders, wipe, monkeypatch):
    monkeypatch.setattr(prune, "LOST_PAUSE", 0.0)
    one, other = (ping.using(queue="orders", durability="redis", key=key, delay="1h", once_for="3d") for key in "ab")
    with suppress(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr("django_delayq.producer.put._send_redis_only", interrupted)
        one.schedule()
    waits = other.schedule()
    pruned = PruneLoop(stores.places, orders.config)
    pruned.poll()
    assert PeriodKey.objects.filter(until=None).count() == 2, "younger than a day"
    begun = clock.now() - timedelta(days=2)
    PeriodKey.objects.update(at=begun)
    pruned.poll()
    assert PeriodKey.objects.get(until=None).job == waits.id, "Redis knows it"
    assert PeriodKey.objects.exclude(until=None).get().until == begun + timedelta(days=3)
    wipe()
    pruned.poll()
    assert not PeriodKey.objects.filter(until=None).exists()


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


# --- at once, and lost answers ---


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., threading.Thread]]:
    """Starts a function in another thread, so with another connection."""
    threads: list[threading.Thread] = []

    def start(what: Callable[[], object]) -> threading.Thread:
        def play() -> None:
            try:
                what()
            finally:
                connection.close()

        threads.append(threading.Thread(target=play))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(60)


def held_open(elsewhere: Callable[..., threading.Thread], *, rolls_back: bool) -> tuple[list[Any], threading.Event]:
    """A transaction of another connection that has scheduled the job, and ends when the event is set."""
    made, may_end = list[Any](), threading.Event()
    there = threading.Event()

    def schedule() -> None:
        with suppress(KeyboardInterrupt), transaction.atomic():
            made.append(ONCE.schedule(7))
            there.set()
            assert may_end.wait(60)
            if rolls_back:
                raise KeyboardInterrupt

    elsewhere(schedule)
    assert there.wait(60)
    return made, may_end


@pytest.mark.parametrize("rolls_back", [False, True])
def test_of_two_transactions_at_once_one_schedules(orders, elsewhere, rolls_back):
    made, may_end = held_open(elsewhere, rolls_back=rolls_back)
    threading.Timer(0.3, may_end.set).start()
    second = ONCE.schedule(7)
    assert (second.id == made[0].id) is not rolls_back
    assert second.created is rolls_back
    orders.fold()
    assert [job.id for job in Job.objects.filter(state="scheduled")] == [second.id]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for the whole database, with its own timeout")
def test_a_transaction_that_stays_open_refuses_the_second_call(orders, elsewhere):
    _, may_end = held_open(elsewhere, rolls_back=False)
    try:
        with transaction.atomic():
            before = close_order.schedule(1)
            with pytest.raises(StoreUnavailable) as refused:
                ONCE.schedule(7)
            assert refused.value.code == "period_key_locked"
            after = close_order.schedule(2)
    finally:
        may_end.set()
    assert Job.objects.filter(pk__in=[before.id, after.id]).count() == 2, "the transaction goes on"


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for the whole database")
def test_a_call_that_finds_the_key_taken_locks_nothing(orders, elsewhere):
    first = ONCE.schedule(7)
    found = orders.claim()
    repeated, may_end = threading.Event(), threading.Event()

    def repeat() -> None:
        with transaction.atomic():
            assert ONCE.schedule(7).id == first.id
            repeated.set()
            assert may_end.wait(60)

    thread = elsewhere(repeat)
    assert repeated.wait(60)
    orders.settle(found[0], "ack")
    orders.fold()  # the mirror does not wait for the open transaction
    assert thread.is_alive()
    may_end.set()
    assert PeriodKey.objects.get().until is not None


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for the whole database")
@pytest.mark.parametrize("rolls_back", [False, True])
def test_the_mirror_does_not_wait_for_a_transaction_that_frees_a_key(orders, elsewhere, rolls_back):
    first = ONCE.schedule(7)
    freed, may_end = threading.Event(), threading.Event()

    def forget() -> None:
        with suppress(KeyboardInterrupt), transaction.atomic():
            assert delayq.forget(first) is Change.DONE
            freed.set()
            assert may_end.wait(60)
            if rolls_back:
                raise KeyboardInterrupt

    thread = elsewhere(forget)
    assert freed.wait(60)
    run(orders)
    assert thread.is_alive()
    may_end.set()
    thread.join(60)
    assert (ONCE.schedule(7).id == first.id) is rolls_back, "the row of the job shows its end"


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for the whole database")
def test_two_batches_crosswise_do_not_wait_for_each_other(orders, elsewhere):
    made: list[Any] = []
    start = threading.Barrier(2)
    for order in (range(40), range(39, -1, -1)):

        def schedule(order: range = order) -> None:
            start.wait(30)
            many = [close_order.using(key=f"k{number}", once_for="1h").bind(number) for number in order]
            with transaction.atomic():
                made.extend(delayq.schedule_many(many))

        elsewhere(schedule).join(0)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(60)
    orders.fold()
    assert len({job.id for job in made}) == 40
    assert Job.objects.filter(state="scheduled").count() == 40


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for the whole database")
def test_two_transactions_crosswise_get_an_error_with_the_key_and_one_goes_on(orders, elsewhere):
    both, refused, made = threading.Barrier(2), list[StoreUnavailable](), list[Any]()

    def play(*keys: str) -> None:
        try:
            with transaction.atomic():
                close_order.using(key=keys[0], once_for="1h").schedule(1)
                both.wait(30)
                close_order.using(key=keys[1], once_for="1h").schedule(1)
            made.append(keys)
        except StoreUnavailable as error:
            refused.append(error)

    threads = [elsewhere(lambda keys=keys: play(*keys)) for keys in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.join(60)
    assert {error.code for error in refused} <= {"deadlock", "period_key_locked"}
    assert len(refused) + len(made) == 2
    assert refused


def test_a_batch_with_a_key_twice_schedules_one_job(durability, orders):
    one, two, three = delayq.schedule_many([ONCE.bind(7), close_order.using(durability=durability).bind(8), ONCE.bind(7)])
    assert (three.id, three.created) == (one.id, False)
    assert sorted(run(orders)) == sorted([one.short_id, two.short_id])
    again = delayq.schedule_many([ONCE.bind(7), close_order.bind(9)])
    assert [job.created for job in again] == [False, True]
    assert again[0].id == one.id


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_lost_replies_and_repeats_schedule_one_job(durability, orders, monkeypatch, times, sent):
    """`sent`: Redis carries out what it was asked."""
    with monkeypatch.context() as patch:
        lose_replies(patch, times, sent=sent)
        for _ in range(times):
            with suppress(StoreUnavailable):
                ONCE.schedule(7)
            stores.reset()
    again = ONCE.schedule(7)
    orders.relay._young = -3600
    for _ in range(3):
        orders.fold()
        orders.relay.poll()
    orders.fold()
    assert run(orders) == [again.short_id]
    assert ONCE.schedule(7).id == again.id


def lose_replies(patch: pytest.MonkeyPatch, times: int, *, sent: bool) -> None:
    receive, send, left = Link._receive, Link._send, [times]

    def lossy_receive(link: Link, wire: Any, count: int) -> Any:
        replies = receive(link, wire, count)
        if sent and left[0] and not any(isinstance(reply, ScriptMissing) for reply in replies):
            left[0] -= 1
            raise link._unavailable(TimeoutError("the answer is lost"), nothing_done=False)
        return replies

    def lossy_send(link: Link, commands: Any) -> Any:
        if not sent and left[0]:
            left[0] -= 1
            raise link._unavailable(TimeoutError("nobody knows whether it was sent"), nothing_done=False)
        return send(link, commands)

    patch.setattr(Link, "_receive", lossy_receive)
    patch.setattr(Link, "_send", lossy_send)


def test_a_rollback_frees_the_key(durability, orders):
    with suppress(KeyboardInterrupt), transaction.atomic():
        ONCE.schedule(7)
        raise KeyboardInterrupt
    assert not PeriodKey.objects.exists()
    assert ONCE.schedule(7).created is True


def test_a_cancel_in_the_same_transaction_frees_the_key(orders):
    with transaction.atomic():
        ONCE.schedule(7).cancel()
        second = ONCE.schedule(7)
    assert second.created is True
    assert run(orders) == [second.short_id]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_job_that_redis_refuses_for_certain_leaves_no_key(orders, redis_server, in_transaction):
    one = ping.using(queue="orders", durability="redis", key="o:7", once_for="1h")
    redis_server.link.execute("CONFIG", "SET", "maxmemory", "1")
    try:
        if in_transaction:
            with transaction.atomic():
                one.schedule()
        else:
            with pytest.raises(StoreUnavailable):
                one.schedule()
    finally:
        redis_server.link.execute("CONFIG", "SET", "maxmemory", "0")
    assert not PeriodKey.objects.exists()
    stores.reset()
    assert one.schedule().created is True


def test_no_key_is_taken_over_while_the_clocks_of_database_and_redis_differ(orders, monkeypatch):
    first = ONCE.schedule(7)
    run(orders)
    pass_time(hours=25)

    def differ(_links: object) -> None:
        raise ClocksDiffer("an hour")

    monkeypatch.setattr(period_keys.agreed_clock, "now", differ)
    assert ONCE.schedule(7).id == first.id


# --- forget ---


def test_forget_frees_the_key_and_leaves_an_event(durability, orders):
    first = ONCE.schedule(7)
    run(orders)
    assert delayq.forget(key="o:7", queue="orders", actor="clerk", reason="the payment bounced") is Change.DONE
    assert delayq.forget(key="o:7", queue="orders") is Change.UNKNOWN
    [event] = Event.objects.filter(kind="forgot")
    assert (event.job_id, event.actor, event.reason) == (first.id, "clerk", "the payment bounced")
    second = ONCE.schedule(7)
    assert second.created is True
    assert delayq.forget(first) is Change.UNKNOWN, "another job has the key"
    assert delayq.forget(second.short_id, queue="default") is Change.UNKNOWN
    assert delayq.forget(second) is Change.DONE


def test_the_key_of_a_running_job_is_freed_only_by_force(durability, orders):
    first = ONCE.schedule(7)
    assert orders.claim()
    assert delayq.forget(key="o:7", queue="orders") is Change.RUNNING
    assert PeriodKey.objects.get().job == first.id
    assert delayq.forget(key="o:7", queue="orders", force=True) is Change.DONE
    assert not PeriodKey.objects.exists()


def test_forget_asks_redis_whether_the_job_runs(orders, redis_away):
    ONCE.schedule(7)
    redis_away()
    with pytest.raises(StoreUnavailable):
        delayq.forget(key="o:7", queue="orders")
    assert delayq.forget(key="o:7", queue="orders", force=True) is Change.DONE


def test_forget_is_part_of_the_open_transaction(orders):
    first = ONCE.schedule(7)
    with suppress(KeyboardInterrupt), transaction.atomic():
        delayq.forget(first)
        raise KeyboardInterrupt
    assert PeriodKey.objects.get().job == first.id
    assert not Event.objects.filter(kind="forgot").exists()


# --- options ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": "k", "once_for": "999ms"}, "from one second to 366 days"),
        ({"key": "k", "once_for": "367d"}, "from one second to 366 days"),
        ({"key": "k", "once_for": "soon"}, "once_for"),
        ({"once_for": "1h"}, "requires a key"),
        ({"key": "k", "once_for": "1h", "on_conflict": "replace"}, "requires on_conflict='keep'"),
    ],
)
def test_options_that_do_not_fit_are_refused(orders, options, text):
    with pytest.raises(ConfigError, match=text):
        close_order.using(**options).schedule(7)
    assert not PeriodKey.objects.exists()


def test_keys_of_two_queues_do_not_meet(orders):
    first = ONCE.schedule(7)
    assert ONCE.using(queue="default").schedule(7).created is True
    assert ONCE.schedule(7).id == first.id


# --- what it costs ---


def statements(of: Callable[[], object]) -> list[str]:
    """The statements about tables, without those that begin and end transactions."""
    with CaptureQueriesContext(connection) as seen:
        of()
    return [query["sql"] for query in seen if "delayq_" in query["sql"]]


@pytest.mark.parametrize("turns", [1, 2])
def test_the_mirror_needs_no_statement_about_keys_while_none_waits(durability, orders, turns):
    """If no job of a turn has a row, one statement finds that none waits."""
    close_order.using(key="k").schedule(7)
    if turns == 2:
        orders.fold()
    sent = [sql for sql in statements(lambda: run(orders)) if "period_ms" in sql or ("UPDATE" in sql and "period_key" in sql)]
    rowless = durability == "redis" and (turns == 1 or orders.config.audit == "failures")
    assert len(sent) == (1 if rowless else 0)


def test_a_call_without_a_period_asks_nothing_about_keys(durability, orders):
    for one in (close_order, close_order.using(key="k")):
        assert not [sql for sql in statements(lambda one=one: one.schedule(7)) if "period_key" in sql]


def test_the_mirror_asks_once_per_turn_while_a_key_waits(durability, orders):
    jobs = [close_order.using(key=f"k{number}", once_for="1h").schedule(number) for number in range(5)]
    sent = [sql for sql in statements(lambda: run(orders)) if "period_ms" in sql or (sql.startswith("UPDATE") and "period_key" in sql)]
    assert len(sent) <= 2, "one finds the keys, one begins their periods"
    assert PeriodKey.objects.filter(until=None).count() == 0
    assert PeriodKey.objects.count() == len({ids.short(job.id) for job in jobs})


# --- the law ---


def breaches(orders, *outcomes: str) -> list[str]:
    """Calls once before each of these outcomes of the job that runs then, and once at the end. Returns what the law finds."""
    history = History(sees=Sees.CALLS | Sees.ROWS | Sees.RUNS)
    for number, outcome in enumerate([*outcomes, ""]):
        made = Op(id=str(number), what="schedule", at=clock_ns(), wall=clock.wall_ms(), answer="ok")
        job = ONCE.schedule(7)
        made.given, made.until = {"queue": "orders", "key": "o:7", "once_for": 86_400.0}, clock_ns()
        made.jobs = [(job.id.hex, job.created, None)]
        history.ops[made.id] = made
        for ran in run(orders, outcome) if outcome else ():
            one = Run(job=ids.full(ran).hex, fence="f", op=made.id, task="close_order", attempt=1, at=clock_ns(), wall=clock.wall_ms())
            one.until = clock_ns()
            history.runs.append(one)
    for row in Job.objects.all():
        history.final.rows[row.pk.hex] = Row(id=row.pk.hex, op="", task="close_order", queue="orders", key=row.key, state=row.state)
    return [text for _, text in a_key_schedules_one_job_per_period(history)]


def clock_ns() -> int:
    return int(clock.monotonic() * 1_000_000_000)


def test_the_law_of_the_period_holds(durability, orders):
    assert breaches(orders, "ack", "ack", "fail") == []


def test_the_law_finds_a_failure_that_frees_the_key(orders, monkeypatch):
    begin = period_keys.ended

    def failure_frees(over: list[Any], cancelled: list[Any] = ()) -> None:
        failed = set(Job.objects.filter(pk__in=over, state="failed").values_list("pk", flat=True))
        begin([id for id in over if id not in failed], [*cancelled, *failed])

    monkeypatch.setattr(period_keys, "ended", failure_frees)
    assert breaches(orders, "fail", "ack") != []
