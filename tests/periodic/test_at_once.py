"""Loops that run at the same time, each with its own connection. Each tick gets one job, whichever loop is first."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, Event, current_thread

import pytest
from django.db import Error as DriverError
from django.db import connection, connections
from django.db.utils import OperationalError

from django_delayq.exceptions import ConfigError
from django_delayq.mirror import checkpoint
from django_delayq.models import Job, Periodic, SeenDeclaration, Tick
from django_delayq.periodic import schedules
from django_delayq.periodic.due_ticks import Deployments, TickWriter
from tests.periodic.conftest import Code, fates
from tests.tasks_for_tests import close_order

WORKERS = 4


def at_once(works: list[Callable[[], object]]) -> list[object]:
    """Runs each in a thread. Returns the results."""

    def run(work):
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(works)) as pool:
        return [one.result(60) for one in [pool.submit(run, work) for work in works]]


def patiently(code: Code) -> None:
    """Runs one pass. Retries after a deadlock or a lock that is held too long, as the mirror process does."""
    for _ in range(20):
        try:
            return code.loop.poll()
        except OperationalError:
            connection.close()
    pytest.fail("the database refuses every time")


@pytest.fixture
def workers(tables, clock) -> list[Code]:
    return [Code() for _ in range(WORKERS)]


def test_loops_that_run_at_once_make_one_job_per_tick(workers, clock):
    for code in workers:
        for number in range(20):
            code.declare(f"s{number:02}", every_ms=60_000)

    for _ in range(6):
        clock.advance(seconds=30)
        at_once([lambda code=code: [patiently(code) for _ in range(3)] for code in workers])
    for code in workers:
        code.poll()
    ticks = list(Tick.objects.values_list("schedule__name", "at", "job_id"))
    assert len({(name, at) for name, at, _ in ticks}) == len(ticks) == Job.objects.count() == 20 * 3
    assert {job for *_, job in ticks} == set(Job.objects.values_list("pk", flat=True))
    assert SeenDeclaration.objects.count() == 21


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time, so there is no such window")
def test_two_that_have_both_decided_before_one_writes_make_one_job(workers, clock, monkeypatch):
    first, second = workers[:2]
    for code in (first, second):
        code.declare()
    first.loop._deployments.look(clock.now())
    for code in (first, second):
        code.loop._looked = clock.now()
    both = Barrier(2)
    save = TickWriter._save
    turns = []

    def together(self, batch):
        turns.append(len(batch.ticks))
        if len(turns) <= 2:
            both.wait(30)
        save(self, batch)

    # As on a database without working locks.
    monkeypatch.setattr(TickWriter, "_locked", lambda self, pks: list(Periodic.objects.filter(pk__in=pks)))
    monkeypatch.setattr(TickWriter, "_save", together)
    at_once([first.loop.poll, second.loop.poll])
    assert turns[:2] == [1, 1], "both were about to write it"
    assert Tick.objects.count() == Job.objects.count() == 1
    for code in (first, second):
        code.poll()
    assert fates() == [("12:10:00", "scheduled")]
    assert Tick.objects.get().job_id == Job.objects.get().pk


def test_of_many_that_see_a_schedule_first_one_makes_its_row(workers, clock):
    for code in workers:
        for number in range(5):
            code.declare(f"s{number}")
    at_once([lambda code=code: patiently(code) for code in workers])
    assert Periodic.objects.count() == 5
    assert SeenDeclaration.objects.count() == 6


def test_of_many_that_retire_a_schedule_one_does(workers, clock, caplog):
    workers[0].declare()
    workers[0].poll()
    for minute in range(62):
        clock.advance(minutes=1)
        workers[1 + minute % 2].loop.poll()
        if minute == 58:
            assert Periodic.objects.get().retired_at is None
    assert Periodic.objects.get().retired_at is not None
    Periodic.objects.update(retired_at=None)
    caplog.clear()
    deployments = [Deployments(declared=code.declared) for code in workers[1:]]
    at_once([lambda one=one: one.look(clock.now()) for one in deployments])
    assert len([record for record in caplog.records if "is retired" in record.getMessage()]) == 1


def test_a_loop_that_has_fallen_asleep_holds_up_no_schedule(workers, clock, monkeypatch):
    can_say_so = connection.vendor == "postgresql" or (connection.vendor == "mysql" and connection.mysql_is_mariadb)
    if not can_say_so:
        pytest.skip("this database cannot end a transaction that sleeps")
    monkeypatch.setattr(checkpoint, "FROZEN", 1)
    sleeper, other = workers[:2]
    for code in (sleeper, other):
        code.declare(every_ms=60_000)
        code.loop._deployments.look(clock.now())
        code.loop._looked = clock.now()
    asleep, awake, threads = Event(), Event(), []
    save = TickWriter._save

    def fall_asleep(self, batch):
        save(self, batch)
        if current_thread() in threads:
            asleep.set()
            awake.wait(60)

    def sleep():
        threads.append(current_thread())
        try:
            sleeper.loop.poll()
        except DriverError:
            return "it has lost its turn"
        finally:
            connections.close_all()

    monkeypatch.setattr(TickWriter, "_save", fall_asleep)
    with ThreadPoolExecutor(1) as pool:
        frozen = pool.submit(sleep)
        assert asleep.wait(60)
        for _ in range(300):
            patiently(other)
            if fates() or awake.wait(0.1):
                break
        found = fates()
        awake.set()
        assert frozen.result(60) == "it has lost its turn"
    assert found == fates() == [("12:01:00", "scheduled")]
    assert Job.objects.count() == 1


def test_people_and_loops_at_once_leave_a_schedule_as_the_last_one_said(workers, clock):
    for code in workers:
        code.declare(every_ms=10_000)
        code.loop._deployments.look(clock.now())

    def switch():
        for _ in range(5):
            schedules.turn_off("nightly", "sam")
            schedules.turn_on("nightly", "sam")
        schedules.turn_off("nightly", "sam")

    at_once([switch, *(lambda code=code: [patiently(code) for _ in range(8)] for code in workers[:2])])
    row = Periodic.objects.get()
    assert not row.enabled
    for code in workers:
        code.poll()
    row.refresh_from_db()
    assert (row.write_at, row.withdrawing) == (None, False)
    waiting = Job.objects.exclude(state="cancelled")
    assert not waiting.exists()
    assert set(Tick.objects.values_list("fate", flat=True)) <= {"cancelled"}


def test_of_those_that_are_deleted_and_turned_on_at_once_no_job_waits_without_its_schedule(workers, clock):
    names = [f"s{number:02}" for number in range(15)]
    for name in names:
        schedules.create(name, close_order.name, every="10m", args=(1,), actor="sam")
    patiently(workers[0])

    def each(act: Callable[[str, str], object]) -> None:
        for name in names:
            with suppress(ConfigError):  # the other loop was first
                act(name, "sam")

    keep = [lambda code=code: [patiently(code) for _ in range(15)] for code in workers[:2]]
    at_once([lambda: each(schedules.delete), lambda: each(schedules.turn_on), *keep])
    patiently(workers[0])
    waiting = set(Job.objects.exclude(state="cancelled").values_list("pk", flat=True))
    assert waiting <= set(Tick.objects.filter(schedule__in=Periodic.objects.all()).values_list("job_id", flat=True))


def test_of_many_who_ask_for_a_run_at_the_same_moment_each_gets_one(workers, clock):
    code, *_ = workers
    code.declare()
    code.poll()
    together = Barrier(WORKERS)

    def ask() -> object:
        connection.ensure_connection()
        together.wait(60)
        return schedules.run_now("nightly", "sam").id

    found = at_once([ask] * WORKERS)
    assert set(Tick.objects.filter(by_hand=True).values_list("job_id", flat=True)) == set(found)
    assert Tick.objects.filter(by_hand=True).count() == WORKERS
