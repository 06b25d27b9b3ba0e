"""`delayq pause`, `resume` and `purge`: actions on a whole queue."""

from __future__ import annotations

import pytest

from django_delayq.models import Event, Job
from django_delayq.states import State
from tests.depths import queue_depth
from tests.management.conftest import lose_redis


def depth():
    return queue_depth("orders")


def test_pause_stops_claims_and_says_so(run, orders):
    orders.scheduled(delay=0)
    answer = run("pause", "orders", "--reason", "stocktaking")
    assert (answer.code, answer.out) == (0, "orders is paused.\n")
    assert orders.claim() == []
    assert depth().paused_by.startswith("cli:")
    assert depth().paused_reason == "stocktaking"


def test_pause_twice_says_that_it_was_paused(run, orders):
    assert run("pause", "orders", "--json").json == {
        "queue": "orders",
        "paused": True,
        "changed": True,
        "running": 0,
        "unconfirmed": [],
    }
    assert run("pause", "orders").out == "orders is already paused.\n"
    assert run("pause", "orders", "--json").json == {
        "queue": "orders",
        "paused": True,
        "changed": False,
        "running": 0,
        "unconfirmed": [],
    }


def test_resume_lets_the_queue_go_on(run, orders):
    orders.scheduled(delay=0)
    run("pause", "orders")
    answer = run("resume", "orders", "--reason", "counted")
    assert (answer.code, answer.out) == (0, "orders is resumed.\n")
    assert len(orders.claim()) == 1
    orders.fold()
    assert Event.objects.get(kind="resumed").reason == "counted"


def test_resume_of_a_queue_that_is_not_paused_says_so(run, orders):
    assert run("resume", "orders").out == "orders is not paused.\n"
    assert run("resume", "orders", "--json").json == {
        "queue": "orders",
        "paused": False,
        "changed": False,
        "running": 0,
        "unconfirmed": [],
    }


def test_purge_cancels_the_scheduled_jobs_and_leaves_the_running_one(run, orders):
    running = orders.running()
    orders.scheduled(3)
    answer = run("purge", "orders", "--yes", "--reason", "wrong import")
    assert (answer.code, answer.out) == (0, "Cancelled scheduled jobs of orders: 3. Running jobs continue.\n")
    assert orders.in_redis(running) == "running"
    orders.fold()
    assert sorted(Job.objects.values_list("state", flat=True)) == ["cancelled"] * 3 + ["running"]


def test_purge_goes_on_beyond_one_batch(run, orders):
    orders.scheduled(201)
    assert run("purge", "orders", "--yes", "--json").json == {"queue": "orders", "cancelled": 201}
    assert depth().scheduled == 0


def test_purge_shows_its_progress_beside_the_output(run, orders, capsys):
    orders.scheduled(201)
    answer = run("purge", "orders", "--yes")
    assert answer.lines == ["Cancelled scheduled jobs of orders: 201. Running jobs continue."]
    assert "purging orders" in capsys.readouterr().err


def test_a_dry_run_of_purge_changes_nothing(run, orders):
    orders.scheduled(2)
    assert run("purge", "orders", "--dry-run").out == "Scheduled jobs of orders that would be cancelled: 2.\n"
    assert run("purge", "orders", "--dry-run", "--json").json == {"queue": "orders", "would_cancel": 2}
    assert depth().scheduled == 2


def test_purge_without_a_person_is_refused_with_a_hint(run, orders):
    orders.scheduled()
    answer = run("purge", "orders")
    assert answer.code == 2
    assert "Add --yes or --dry-run" in answer.error
    assert depth().scheduled == 1


def test_purge_asks_for_the_queues_name(run, orders, capsys):
    orders.scheduled()
    assert run("purge", "orders", typed="orders").code == 0
    assert capsys.readouterr().err == "This cancels all scheduled jobs of orders: 1. Type the name of the queue to continue: "
    assert depth().scheduled == 0


@pytest.mark.parametrize("typed", ["", "y", "yes", "default"])
def test_purge_takes_nothing_but_the_queues_name(run, orders, typed):
    orders.scheduled()
    answer = run("purge", "orders", typed=typed)
    assert (answer.code, answer.error) == (1, "Nothing was changed: this is not the name of the queue.")
    assert depth().scheduled == 1


def test_purge_of_an_empty_queue_needs_no_answer(run, orders):
    answer = run("purge", "orders")
    assert (answer.code, answer.out) == (0, "Cancelled scheduled jobs of orders: 0. Running jobs continue.\n")


@pytest.mark.parametrize("verb", ["pause", "resume", "purge"])
def test_an_unknown_queue_comes_with_the_nearest_name(run, orders, verb):
    answer = run(verb, "oders")
    assert answer.code == 2
    assert "(did you mean 'orders'?)" in answer.error


def test_redis_down_is_one_sentence(run, orders, settings):
    lose_redis(settings)
    answer = run("purge", "orders", "--yes")
    assert (answer.code, answer.out) == (1, "")
    assert "is not available" in answer.error
    assert "\n" not in answer.error


@pytest.mark.parametrize(("verb", "said"), [("pause", "orders is paused."), ("resume", "orders is resumed.")])
def test_with_redis_down_a_pause_is_stored_and_workers_repeat_it(run, orders, settings, verb, said):
    if verb == "resume":
        run("pause", "orders")
    lose_redis(settings)
    answer = run(verb, "orders")
    assert (answer.code, answer.out) == (1, f"{said} Workers repeat this for partitions that cannot be reached: orders.\n")


def test_a_pause_with_an_end_says_until_when(run, orders):
    run("pause", "orders", "--until", "2099-01-01T00:00Z")
    assert "until 2098-12-31 18:00:00-06:00" in run("status").out
    [row] = run("pauses", "--json").json
    assert (row["queue"], row["until"]) == ("orders", "2099-01-01T00:00:00+00:00")


def test_purge_also_ends_committed_jobs_that_redis_does_not_have(run, orders, monkeypatch):
    orders.scheduled(2)
    missed = orders.unpublished(monkeypatch)
    assert run("purge", "orders", "--dry-run", "--json").json["would_cancel"] == 3
    assert run("purge", "orders", "--yes", "--json").json == {"queue": "orders", "cancelled": 3}
    assert Job.objects.get(pk=missed.id).state == State.CANCELLED
