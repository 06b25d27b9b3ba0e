"""A running job that is aborted, in a real worker: what its task hears, and how it ends."""

from __future__ import annotations

import pytest

from django_delayq import ids
from django_delayq.states import Change
from django_delayq.worker.process import task_call
from tests.stage import sqlite
from tests.worker.conftest import Shop, eventually

LOOK = """
from django.contrib.auth.models import Group
from django_delayq.models import Job
print(Group.objects.count(), *Job.objects.values_list("state", "result"))
"""
PAY = "from tests.app.shop.tasks import {task}; print({task}.schedule(7).id)"


def abort(shop: Shop, *jobs: str) -> None:
    for id in jobs:
        assert shop.store().cancel(ids.full(id), actor="clerk", abort=True).change == Change.RUNNING


def look(shop: Shop) -> str:
    return shop.manage("shell", "-v", "0", "-c", LOOK)


def test_a_thread_is_interrupted_and_its_connections_are_closed(shop: Shop) -> None:
    shop.keep_rows({**sqlite(shop.folder / "db.sqlite3"), "CONN_MAX_AGE": None})  # they stay open behind other jobs
    id = shop.put("spin", 1)
    worker = shop.work("--threads", "1")
    eventually(lambda: "began 1" in shop.ran())
    (process,) = worker.children()
    abort(shop, id)
    eventually(lambda: "cancelled" in shop.happened(id))
    assert shop.ran() == ["began 1", "interrupted 1"]
    assert shop.happened(id) == ["scheduled", "claimed", "cancel_requested", "cancelled"]
    assert shop.detail(id, "cancelled")["c"] == "django_delayq.exceptions.Cancelled"
    assert shop.detail(id, "cancelled")["m"] == task_call.ABORTED
    assert "in _spin" in shop.detail(id, "cancelled")["t"]
    next_one = shop.put("open_files")
    eventually(lambda: "succeeded" in shop.happened(next_one))
    assert shop.detail(next_one, "succeeded")["r"] == 0
    assert worker.children() == [process]


def test_a_coroutine_is_cancelled_and_others_go_on(shop: Shop) -> None:
    id, other = shop.put("async_forever", 1), shop.put("async_nap", 2, None)
    shop.work("--threads", "2")
    eventually(lambda: len(shop.ran()) == 2)
    abort(shop, id)
    eventually(lambda: "cancelled" in shop.happened(id))
    assert "cleaned up 1" in shop.ran()
    assert shop.detail(id, "cancelled")["c"] == "django_delayq.exceptions.Cancelled"
    shop.release(2)
    eventually(lambda: shop.happened(other) == ["scheduled", "claimed", "succeeded"])


@pytest.mark.slow
def test_what_does_not_hear_ends_with_its_process_and_a_neighbour_is_evicted(shop: Shop) -> None:
    """The task waits in C, and has no timeout."""
    id, other = shop.put("nap", 1, 600), shop.put("nap", 2, 600)
    worker = shop.work("--threads", "2", "--grace", "1s")
    eventually(lambda: len(shop.ran()) == 2)
    (first,) = worker.children()
    abort(shop, id)
    eventually(lambda: "cancelled" in shop.happened(id))
    assert first not in worker.children()
    assert shop.happened(id) == ["scheduled", "claimed", "cancel_requested", "cancelled"]
    assert "did not end when it was aborted" in shop.detail(id, "cancelled")["m"]
    eventually(lambda: shop.happened(other)[:4] == ["scheduled", "claimed", "snoozed", "claimed"])
    assert shop.detail(other, "snoozed")["e"] == "evicted"


def test_a_task_that_catches_it_and_returns_has_succeeded(shop: Shop) -> None:
    id = shop.put("give_in", 7)
    shop.work()
    eventually(lambda: "began 7" in shop.ran())
    abort(shop, id)
    eventually(lambda: "succeeded" in shop.happened(id))
    assert shop.detail(id, "succeeded")["r"] == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "begun", "left"),
    [("pay_for_ever", "paying 7", "0 ('cancelled', None)"), ("pay_and_wait", "paid 7", "1 ('succeeded', 7)")],
)
def test_an_atomic_run_is_rolled_back_or_has_succeeded(durable: Shop, task: str, begun: str, left: str) -> None:
    id = durable.manage("shell", "-v", "0", "-c", PAY.format(task=task)).strip()
    durable.work("--roles", "move,mirror,relay")
    eventually(lambda: begun in durable.ran())
    assert "An abort was requested" in manage_in_vain(durable, "delayq", "cancel", id, "--abort")
    eventually(lambda: look(durable).strip() == left)
    assert durable.ran() == [begun]


def manage_in_vain(shop: Shop, *words: str) -> str:
    """The output of a command that exits with 1: the job was running."""
    code = "from django.core.management import call_command\ntry: call_command(*{words!r})\nexcept SystemExit: pass"
    return shop.manage("shell", "-v", "0", "-c", code.format(words=words))
