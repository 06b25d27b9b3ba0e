"""A task with an alias: whatever means a task means its jobs under all of its names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.console import selection, trends
from django_delayq.console.selection import Selection
from django_delayq.job_meta import Quota
from django_delayq.mirror.declared_rates import DeclaredRates
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.models import Event, Job, Pause
from django_delayq.producer import queues
from django_delayq.producer.outbox import pauses
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.store.scripts.limits import LimitStore
from tests.tasks_for_tests import book

pytestmark = pytest.mark.django_db(transaction=True)
OLD, NEW = "shop.old", "shop.new"


def pay(order_id: int) -> None: ...


@pytest.fixture
def deploy(monkeypatch) -> Callable[..., Task[..., Any]]:
    """The code of this process changes: the task has this name and these aliases."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    def change(name: str, *aliases: str, **options: Any) -> Task[..., Any]:
        for one in (OLD, NEW):
            registry._tasks.pop(one, None)
        return delayq.task(name=name, aliases=aliases, queue="orders", **options)(pay)

    return change


@pytest.fixture
def both(deploy, orders) -> Callable[..., tuple[str, str]]:
    """Schedules a job under the old name, and after the deploy another one under the new name."""

    def schedule(**options: Any) -> tuple[str, str]:
        old = deploy(OLD, **options).schedule(1)
        new = deploy(NEW, OLD, **options).schedule(2)
        return old.short_id, new.short_id

    return schedule


def paused() -> set[str]:
    return {word for word, state in LimitStore(stores.queue("orders", 0)).paused().items() if not state.resumed}


@pytest.mark.parametrize("name", [OLD, NEW])
def test_a_pause_holds_the_jobs_of_all_names_and_a_resume_frees_them(both, orders, name):
    jobs = both()
    other = delayq.schedule(book, 1)
    assert delayq.pause(task=name)
    assert [job.id for job in orders.claim()] == [other.short_id]
    assert not delayq.pause(task=NEW if name == OLD else OLD)
    assert delayq.resume(task=NEW if name == OLD else OLD)
    assert {job.id for job in orders.claim()} == {*jobs}
    assert not Pause.objects.exists()


def test_the_answer_counts_the_running_jobs_of_all_names(both, orders):
    both()
    assert len(orders.claim()) == 2
    assert queues.running(task=NEW) == 2
    assert delayq.pause(task=OLD).running == 2


def test_a_task_that_is_paused_when_it_gets_another_name_stays_paused(deploy, orders):
    until = clock.now() + timedelta(hours=1)
    deploy(OLD)
    delayq.pause(task=OLD, actor="ann", reason="broken", until=until)
    new = deploy(NEW, OLD)
    queues.pause_aliases()  # a worker starts
    new.schedule(1)
    assert orders.claim() == []
    row = pauses.of_word(f"task:{NEW}")
    assert (row.paused_by, row.paused_why, row.until, row.missing) == ("ann", "broken", until, "")
    events = Event.objects.count()
    queues.pause_aliases()
    assert Event.objects.count() == events
    delayq.resume(task=NEW)
    queues.pause_aliases()
    assert paused() == set()


def test_the_loop_of_pauses_does_so_too(deploy, orders):
    deploy(OLD)
    delayq.pause(task=OLD)
    deploy(NEW, OLD)
    PauseLoop().poll()
    assert paused() == {f"task:{OLD}", f"task:{NEW}"}


def test_what_is_resumed_while_a_loop_looks_stays_resumed(deploy, orders, monkeypatch):
    """The loop has read that one name is paused. Then a person resumes the task."""
    deploy(OLD)
    delayq.pause(task=OLD)
    deploy(NEW, OLD)
    spread = pauses.spread

    def late(words: Any, parts: Any) -> None:
        delayq.resume(task=NEW)
        spread(words, parts)

    monkeypatch.setattr(pauses, "spread", late)
    queues.pause_aliases()
    assert paused() == set()
    assert not Pause.objects.exists()


def test_half_a_pause_is_no_pause(deploy, orders, monkeypatch):
    """All names are written in one transaction."""
    deploy(NEW, OLD)
    write = pauses._write

    def fail(row: Pause, **how: Any) -> bool:
        if row.word == f"task:{OLD}":
            raise OperationalError("the database is away")
        return write(row, **how)

    monkeypatch.setattr(pauses, "_write", fail)
    with pytest.raises(OperationalError):
        delayq.pause(task=NEW)
    assert not Pause.objects.exists()
    assert paused() == set()


def test_without_aliases_nothing_is_asked(deploy, orders, django_assert_num_queries):
    deploy(NEW)
    with django_assert_num_queries(0):
        queues.pause_aliases()


def test_the_declared_rate_counts_for_the_jobs_of_all_names(both, orders):
    both(rate=("bank:{order_id}", "6/m"))
    DeclaredRates().poll()
    PauseLoop().poll()
    six = Quota(6, 60_000, 1).told()
    assert LimitStore(stores.queue("orders", 0)).rates() == {f"\1{NEW}": six, f"\1{OLD}": six}


def test_searches_lists_and_figures_have_the_jobs_of_all_names(both, orders):
    old, new = both()
    for claimed in orders.claim():
        orders.settle(claimed, "ack")
    orders.fold()
    wanted = {ids.full(old), ids.full(new)}
    for one in (Selection(task=NEW), Selection(task=OLD), Selection(text=f"task:{NEW}"), Selection(text=f"task:{OLD}")):
        assert {row.pk for row in one.rows(Job.objects.all())} == wanted
        assert all(map(one.search.holds, Job.objects.all()))
    assert {row.pk for row in Selection(text="arg:order_id=1").rows(Job.objects.all())} >= {ids.full(old)}
    for name in (OLD, NEW):
        ends = trends.ends(Job.objects.all(), task=name)
        assert [(one.job in wanted, one.task) for one in ends.rows] == [(True, NEW)] * 2
        assert len(trends.runs(ends, Job.objects.all(), name).rows) == 2
    assert {one.task for one in trends.ends(Job.objects.all(), queue="orders").rows} == {NEW}
    assert selection.search_remarks(Selection(text=f"task:{OLD}").search) == []
