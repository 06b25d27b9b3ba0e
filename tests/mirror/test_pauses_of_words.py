"""Pauses of tasks and concurrency names: the row comes first, then all partitions. No wipe and no late command undoes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.exceptions import ConfigError
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.models import Event, Job, Pause
from django_delayq.producer import queues
from django_delayq.producer.outbox import pauses
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.limits import LimitChange, LimitStore, WordPause
from tests.laws.history import FaultSeen, History, Row, Sees
from tests.laws.judge import judge
from tests.laws.made_up import at, op, run
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import book, close_order

pytestmark = pytest.mark.django_db(transaction=True)
TASK = f"task:{close_order.name}"
IN_AN_HOUR = timedelta(hours=1)


def in_redis(queue: str = "orders") -> dict[str, WordPause]:
    return LimitStore(stores.queue(queue, 0)).paused()


def compare() -> None:
    loop = PauseLoop()
    loop.poll()


def test_jobs_of_a_paused_task_do_not_run_and_others_do(orders):
    delayq.schedule(close_order, 1)
    other = delayq.schedule(book, 1)
    reply = delayq.pause(task=close_order, actor="ann", reason="the provider is broken")
    assert (reply.changed, reply.running, reply.unconfirmed) == (True, 0, ())
    assert [job.id for job in orders.claim()] == [ids.short(other.id)]
    assert delayq.resume(task=close_order.name)
    assert len(orders.claim()) == 1
    assert not Pause.objects.exists()


def test_a_name_is_paused_in_all_queues(orders):
    delayq.schedule(close_order.using(serial="order:{order_id}"), 7)
    assert delayq.pause(name="order:7")
    assert orders.claim() == []
    assert [in_redis(queue) for queue in ("orders", "redis", "default")] == [{"name:order:7": WordPause(0, False)}] * 3


def test_the_answer_counts_the_jobs_that_are_running(orders):
    delayq.schedule(close_order, 1)
    delayq.schedule(close_order.using(serial="order:{order_id}"), 2)
    delayq.schedule(book, 1)
    assert len(orders.claim()) == 3
    assert delayq.pause(task=close_order).running == 2
    assert delayq.pause(name="order:2").running == 1


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"task": close_order}, TASK),
        ({"scope": "a"}, "scope:a"),
        ({"name": "order:7"}, "name:order:7"),
        ({"name": "order:7", "scope": "a"}, "name:a\u2028order:7"),
    ],
)
def test_a_pause_and_its_end_leave_an_event_with_actor_and_reason(orders, given, word):
    until = clock.now() + IN_AN_HOUR
    delayq.pause(**given, actor="ann", reason="broken", until=until)
    assert not delayq.pause(**given, actor="bob", until=until)
    delayq.resume(**given, actor="bob", reason="works")
    found = Event.objects.filter(queue="").values_list("kind", "actor", "reason", "detail")
    assert list(found) == [
        ("paused", "ann", "broken", {"word": word, "until": until.isoformat()}),
        ("resumed", "bob", "works", {"word": word}),
    ]


def test_a_repeated_pause_keeps_who_has_paused_it_and_is_sent_again(orders, wipe):
    delayq.pause(task=close_order, actor="ann")
    wipe()
    assert delayq.pause(task=close_order, actor="bob")
    assert not delayq.pause(task=close_order, actor="bob")
    assert TASK in in_redis()
    assert Pause.objects.get().paused_by == "ann"


def test_in_a_transaction_a_pause_is_refused_because_a_rollback_could_not_undo_it(orders):
    with transaction.atomic(), pytest.raises(ConfigError, match="a transaction is open"):
        delayq.pause(task=close_order)
    assert in_redis() == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "pass a queue, a task, a name or a scope"),
        ({"queue": "orders", "name": "a"}, "only one of them"),
        ({"task": "tests.close_oder"}, "no task is named"),
        ({"name": "a\n"}, "printable characters"),
        ({"task": close_order, "until": clock.from_ms(1)}, "in the future"),
        ({"queue": "orders", "until": clock.from_ms(1)}, "in the future"),
    ],
)
def test_a_pause_of_nothing_known_is_refused(orders, given, message):
    with pytest.raises(ConfigError, match=message):
        delayq.pause(**given)


@pytest.mark.parametrize("pace", ["100", "0/m", "5/w", 5])
def test_a_pace_is_a_number_per_unit(orders, pace):
    with pytest.raises(ConfigError, match="'100/m'"):
        delayq.resume(task=close_order, pace=pace)


def test_jobs_return_at_the_pace(orders):
    for number in range(3):
        delayq.schedule(close_order, number)
    delayq.pause(task=close_order)
    assert orders.claim() == []
    delayq.resume(task=close_order, pace="1/m")
    assert [len(orders.claim()), len(orders.claim())] == [1, 0]
    assert len(orders.claim(ahead_ms=61_000)) == 1


def test_partitions_that_cannot_be_reached_are_named_and_get_the_pause_later(orders, redis_away):
    redis_away()
    reply = delayq.pause(task=close_order)
    assert (reply.changed, set(reply.unconfirmed)) == (True, set(queues.partitions()))
    redis_away(False)
    assert in_redis() == {}
    PauseLoop().poll()
    assert in_redis() == {TASK: WordPause(0, False)}
    assert Pause.objects.get().missing == ""


def test_a_process_that_dies_between_the_row_and_redis_has_paused_the_task(orders, monkeypatch):
    def die(word: str) -> None:
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(queues, "send_word", die)
        delayq.pause(task=close_order)
    assert in_redis() == {}
    PauseLoop().poll()
    assert in_redis() == {TASK: WordPause(0, False)}


def test_after_a_wipe_a_task_is_paused_again_before_claims_continue(orders, loop, wipe):
    delayq.schedule(close_order, 1)
    orders.fold()
    delayq.pause(task=close_order)
    wipe()
    loop.poll()
    assert in_redis() == {TASK: WordPause(0, False)}
    settle_down(orders, loop)
    assert orders.claim(ahead_ms=60_000) == []
    delayq.resume(task=close_order)
    assert len(orders.claim(ahead_ms=60_000)) == 1


def test_a_late_command_of_a_frozen_process_does_not_last(orders):
    store = LimitStore(stores.queue("orders", 0))
    delayq.pause(task=close_order)
    store.limit([LimitChange("resume", TASK)])
    compare()
    PauseLoop().poll()
    assert in_redis() == {TASK: WordPause(0, False)}
    delayq.resume(task=close_order)
    store.limit([LimitChange("pause", TASK)])
    compare()
    assert all(pause.resumed for pause in in_redis().values())
    assert not Pause.objects.exists()


def test_a_pause_that_comes_while_the_rows_are_compared_stays(orders, monkeypatch):
    LimitStore(stores.queue("orders", 0)).limit([LimitChange("pause", TASK)])  # from a frozen process
    real = pauses.lacks

    def lacks(*given, **how):
        monkeypatch.setattr(pauses, "lacks", real)
        assert delayq.pause(task=close_order)
        real(*given, **how)

    monkeypatch.setattr(pauses, "lacks", lacks)
    compare()
    assert in_redis() == {TASK: WordPause(0, False)}


def test_a_pause_that_has_ended_at_its_date_leaves_the_table(orders, redis_server):
    delayq.schedule(close_order, 1)
    delayq.pause(task=close_order, until=clock.now() + IN_AN_HOUR)
    assert orders.claim() == []
    assert len(orders.claim(ahead_ms=3_601_000)) == 1
    compare()
    assert Pause.objects.exists()  # by the clock of the database it is not over
    Pause.objects.update(until=clock.now() - IN_AN_HOUR)
    compare()
    assert Pause.objects.exists()  # Redis has not ended it
    for name in ("orders", "redis", "default"):
        redis_server.link.execute("DEL", stores.queue(name, 0).keys["pauses"])
    compare()
    assert not Pause.objects.exists()
    assert Event.objects.filter(queue="", kind="resumed", actor="until").count() == 1


# --- the laws ---

SOON, LOSS, HELD = (
    "nothing paused begins two seconds after the answer",
    "a pause outlives a loss of data",
    "what a pause held runs after it",
)


class Play:
    """Calls and runs of the queue, with a made-up second after each."""

    def __init__(self, orders) -> None:
        self.orders = orders
        self.history = History(sees=Sees.CALLS | Sees.ROWS | Sees.RUNS)
        self.now = 0

    def call(self, what: str, act: Callable[[], Any], **given: Any) -> None:
        made = op(f"{what} at {self.now}", what, start=self.now, end=self.now + 0.1, given=given)
        reply = act()
        made.reply = "done" if what == "schedule" or not reply.unconfirmed else "away"
        made.ids = [reply.id.hex] if what == "schedule" else []
        self.history.ops[made.id] = made
        self.now += 3

    def run(self) -> None:
        """A worker runs what it gets."""
        for job in self.orders.claim(ahead_ms=60_000):
            self.history.runs.append(run(ids.full(job.id).hex, start=self.now, end=self.now + 0.1))
            self.orders.settle(job, "ack")
        self.orders.fold()
        self.now += 3

    def breaches(self) -> set[str]:
        for job in Job.objects.all():
            row = Row(id=job.pk.hex, op="", task=job.task, queue=job.queue, state=job.state)
            self.history.final.rows[row.id] = row
        return {breach.law for breach in judge(self.history)} & {SOON, LOSS, HELD}


@pytest.fixture
def played(orders, loop, wipe) -> Callable[[], set[str]]:
    """Pauses a task, loses the data of Redis, and resumes the task. Returns the names of the laws that this breaks."""

    def play() -> set[str]:
        made = Play(orders)
        for number in range(3):
            made.call("schedule", lambda number=number: delayq.schedule(close_order, number))
        made.call("schedule", lambda: delayq.schedule(book, 1))
        made.call("pause", lambda: delayq.pause(task=close_order), task=close_order.name)
        made.run()
        made.history.faults.append(FaultSeen(kind="wipe redis", at=at(made.now), since=at(made.now), until=at(made.now + 1)))
        wipe()
        settle_down(orders, loop)
        made.now += 3
        made.run()
        made.call("resume", lambda: delayq.resume(task=close_order), task=close_order.name)
        made.run()
        return made.breaches()

    return play


def test_the_laws_of_pauses_hold(played):
    assert played() == set()


def answers_before_redis_knows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pauses, "send", lambda *_: True)


def forgets_the_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pauses, "again", lambda _: None)


def forgets_the_jobs_that_it_held(patch: pytest.MonkeyPatch) -> None:
    limit = LimitStore.limit

    def resume(store: LimitStore, changes: Sequence[LimitChange], **given: Any) -> list[bool]:
        done = limit(store, changes, **given)
        if changes[0].kind == "resume":
            store._link.execute("HDEL", store._keys["pauses"], changes[0].word)
            store._link.execute("ZREM", store._keys["opens"], f"\1{changes[0].word}")
        return done

    patch.setattr(LimitStore, "limit", resume)


@pytest.mark.parametrize(
    ("bug", "law"), [(answers_before_redis_knows, SOON), (forgets_the_rows, LOSS), (forgets_the_jobs_that_it_held, HELD)]
)
def test_each_law_of_pauses_finds_its_bug(played, monkeypatch, bug, law):
    bug(monkeypatch)
    assert law in played()
