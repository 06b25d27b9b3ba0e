"""`delayq prune`."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest

from django_delayq import clock, conf
from django_delayq.mirror.checkpoint import locked_checkpoint
from django_delayq.mirror.prune import PruneLoop
from django_delayq.models import Attempt, Event, Job, Operation, database
from django_delayq.producer.stores import stores
from django_delayq.store.scripts import decode
from tests.management.conftest import lose_redis


@pytest.fixture
def old(orders) -> None:
    """Eight days ago one job succeeded, one failed, one was cancelled; retention is 7, unlimited and 30 days. One waits."""
    orders.ended("ack")
    orders.ended("fail")
    [cancelled] = orders.scheduled()
    cancelled.cancel(actor="clerk")
    orders.fold()
    Job.objects.update(finished_at=clock.now() - timedelta(days=8))
    orders.scheduled()


def states() -> list[str]:
    return sorted(Job.objects.values_list("state", flat=True))


def test_prune_deletes_what_is_past_its_retention_and_keeps_the_rest(run, old):
    answer = run("prune", "--yes")
    assert (answer.code, answer.out) == (0, "Deleted rows: 1.\n")
    assert states() == ["cancelled", "failed", "scheduled"]


def test_prune_deletes_attempts_and_events_with_their_job(run, old):
    Job.objects.filter(state="cancelled").update(finished_at=clock.now() - timedelta(days=31))
    assert run("prune", "--yes", "--json").json == {"deleted": 2}
    assert list(Attempt.objects.values_list("outcome", flat=True)) == ["failed"]
    assert not Event.objects.filter(kind="cancelled").exists()


def test_prune_leaves_what_has_been_requeued_since_it_looked(orders, old, monkeypatch):
    Job.objects.filter(state="cancelled").update(finished_at=clock.now() - timedelta(days=31))
    job = Job.objects.get(state="cancelled")

    @contextmanager
    def requeued_meanwhile(*given):
        with locked_checkpoint(*given) as mine:
            Job.objects.filter(pk=job.pk).update(state="scheduled", finished_at=None)
            yield mine

    monkeypatch.setattr("django_delayq.mirror.prune.locked_checkpoint", requeued_meanwhile)
    PruneLoop(stores.places, conf.get().queue("orders")).prune()
    assert states() == ["failed", "scheduled", "scheduled"]


def test_prune_goes_by_the_retention_of_each_queue(run, old, settings):
    queues = {**settings.DELAYQ["QUEUES"], "orders": {"RETENTION": {"succeeded": None, "failed": "1d"}}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    run("prune", "--yes")
    assert states() == ["cancelled", "scheduled", "succeeded"]


def test_prune_of_one_queue_leaves_the_others(run, old):
    assert run("prune", "--queue", "default", "--yes").out == "Deleted rows: 0.\n"
    assert run("prune", "--queue", "orders", "--yes").out == "Deleted rows: 1.\n"


def test_a_dry_run_of_prune_counts_and_deletes_nothing(run, old):
    assert run("prune", "--dry-run").out == "Rows that would be deleted: 1.\n"
    counted = run("prune", "--dry-run", "--json").json["would_delete"]
    assert {name: count for name, count in counted.items() if count} == {"orders succeeded": 1}
    assert len(states()) == 4


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        ({}, {"finished lately", "waiting", "running", "paused"}),
        (
            {"cancelled": None},
            {"finished long ago", "cancelled long ago", "finished lately", "waiting", "running", "paused"},
        ),
        ({"cancelled": "1h"}, {"waiting", "running", "paused"}),
    ],
)
def test_prune_deletes_operations_that_have_been_over_for_as_long_as_cancelled_jobs_are_kept(run, orders, settings, retention, left):
    settings.DELAYQ = {**settings.DELAYQ, "RETENTION": retention}
    now = clock.now()
    for name, days in (("finished long ago", 31), ("cancelled long ago", 31), ("finished lately", 29)):
        stage = Operation.Stage(name.split()[0])
        Operation.objects.create(verb="cancel", actor="clerk", reason=name, stage=stage, finished_at=now - timedelta(days=days))
    for stage in ("waiting", "running", "paused"):
        Operation.objects.create(verb="cancel", actor="clerk", reason=stage, stage=stage, created_at=now - timedelta(days=90))
    run("prune", "--queue", "orders", "--yes")
    assert Operation.objects.count() == 6
    assert run("prune", "--dry-run", "--json").json["would_delete"]["operations"] == 6 - len(left)
    assert run("prune", "--yes", "--json").json == {"deleted": 6 - len(left)}
    assert set(Operation.objects.values_list("reason", flat=True)) == left


def test_prune_without_a_person_is_refused_with_a_hint(run, old):
    answer = run("prune")
    assert answer.code == 2
    assert "--yes" in answer.error
    assert len(states()) == 4


@pytest.mark.parametrize(("typed", "left"), [("y", 3), ("n", 4), ("", 4)])
def test_prune_asks_a_person(run, old, typed, left, capsys):
    run("prune", typed=typed)
    assert capsys.readouterr().err == "This permanently deletes rows: 1. Continue? [y/N] "
    assert len(states()) == left


def test_prune_with_nothing_to_delete_asks_nobody(run, orders):
    orders.ended("ack")
    assert run("prune").out == "Deleted rows: 0.\n"


def test_prune_deletes_nothing_while_redis_cannot_say_what_time_it_is(run, old, settings):
    lose_redis(settings)
    assert run("prune", "--yes").code == 1
    assert len(states()) == 4


@pytest.mark.parametrize("wrong_by", [timedelta(days=31), timedelta(hours=25), timedelta(minutes=5), timedelta(hours=-2)])
def test_prune_deletes_nothing_while_the_clocks_of_database_and_redis_differ(run, old, monkeypatch, wrong_by):
    of_redis = clock.from_ms(clock.wall_ms())
    monkeypatch.setattr(decode, "time_ms", lambda _reply: clock.to_ms(of_redis))
    monkeypatch.setattr(database, "now", lambda: of_redis + wrong_by)
    answer = run("prune", "--yes")
    assert answer.code == 1
    assert "Nothing is deleted while they differ by five minutes or more" in answer.error
    assert len(states()) == 4


def test_an_unknown_queue_comes_with_the_nearest_name(run, orders):
    answer = run("prune", "--queue", "oders")
    assert answer.code == 2
    assert "(did you mean 'orders'?)" in answer.error


@pytest.mark.parametrize("command", ["prune", "restore", "resign", "set-aside"])
def test_an_empty_queue_as_of_an_unset_variable_does_not_mean_all(run, old, settings, command):
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    answer = run(command, "--queue", "", "--yes")
    assert (answer.code, "no such queue" in answer.error) == (2, True)
    assert len(states()) == 4
