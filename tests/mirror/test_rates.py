"""Rates: from the task to the claim, and the ones that a person sets. The row comes first; no wipe and no late command undoes them."""

from __future__ import annotations

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import ids
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.job_meta import Quota
from django_delayq.mirror.declared_rates import DeclaredRates
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.models import Event, Job, Pause
from django_delayq.producer import name_format, queues
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import pay_out

pytestmark = pytest.mark.django_db(transaction=True)


def in_redis(queue: str = "orders") -> dict[str, str]:
    return LimitStore(stores.queue(queue, 0)).rates()


def test_a_task_declares_a_rate_and_its_jobs_start_no_faster(orders):
    first, second = delayq.schedule(pay_out, 7), delayq.schedule(pay_out, 7)
    other = delayq.schedule(pay_out, 8)
    assert {job.id for job in orders.claim()} == {ids.short(first.id), ids.short(other.id)}
    assert orders.claim() == []
    assert [job.id for job in orders.claim(ahead_ms=10_000)] == [ids.short(second.id)]
    assert Job.objects.get(pk=first.id).shared_name.rate == ("bank:7", Quota(6, 60_000, 1))


@pytest.mark.parametrize("value", ["bank", ("bank:{bank}",), ("bank:{bank}", "0/m"), ("b", "5/w"), ("b", "5/m", 0), ("b", "5/m", 2, 1)])
def test_a_rate_that_is_not_valid_is_refused(value):
    with pytest.raises(ConfigError, match="rate must be a name"):
        delayq.task(name="x", rate=value)(lambda bank: None)


def test_the_format_of_a_rate_is_checked_like_that_of_a_name():
    with pytest.raises(ConfigError, match=r"rate='bank:\{bnak\}' names 'bnak'"):
        delayq.task(name="x", rate=("bank:{bnak}", "5/m"))(lambda bank: None)
    with pytest.raises(PayloadError, match="creates a name that has 205 characters"):
        delayq.schedule(pay_out, "x" * 200)


def test_a_person_sets_a_rate_and_resets_it(orders):
    for number in range(4):
        delayq.schedule(pay_out, 7, number)
    assert len(orders.claim()) == 1
    reply = delayq.set_rate("bank:7", "120/m", burst=2, actor="ann", reason="the bank allows more")
    assert (reply.changed, reply.waiting, reply.seconds, reply.unconfirmed) == (True, 3, 1.5, ())
    assert in_redis() == in_redis("redis") == {"bank:7": "120:60000:2"}
    assert not delayq.set_rate("bank:7", "120/m", burst=2, actor="bob")
    assert orders.claim() == []  # a worker looks at once, because the rate has changed
    assert orders.claim(ahead_ms=1000)
    assert Pause.objects.get().paused_by == "ann"
    assert delayq.set_rate("bank:7", None, actor="bob").changed
    assert in_redis() == {}
    assert not Pause.objects.exists()
    found = Event.objects.filter(queue="").values_list("kind", "actor", "detail")
    assert list(found) == [
        ("rate_set", "ann", {"word": "rate:bank:7", "rate": "120:60000:2"}),
        ("rate_set", "bob", {"word": "rate:bank:7", "rate": ""}),
    ]


def test_jobs_that_a_faster_rate_lets_go_at_once_are_counted(orders, monkeypatch):
    send, started = queues.send_word, []

    def send_and_claim(word: str) -> queues.SentWord:
        sent = send(word)
        for ahead_ms in (1000, 2000):  # the new rate counts from the first look on
            started.extend(orders.claim(ahead_ms=ahead_ms))
        return sent

    for number in range(4):
        delayq.schedule(pay_out, 7, number)
    orders.claim()
    monkeypatch.setattr(queues, "send_word", send_and_claim)
    assert delayq.set_rate("bank:7", "100/s").waiting == 3
    assert started


def test_a_dry_run_counts_and_changes_nothing(orders):
    for number in range(4):
        delayq.schedule(pay_out, 7, number)
    orders.claim()
    reply = delayq.set_rate("bank:7", "1/s", dry_run=True)
    assert (reply.changed, reply.waiting, reply.seconds) == (True, 3, 3.0)
    assert (in_redis(), Pause.objects.exists()) == ({}, False)


@pytest.mark.parametrize(("name", "rate", "burst"), [("a\n", "1/s", None), ("a", "1", None), ("a", "1/s", 0), ("a", "1/s", True)])
def test_a_rate_of_nothing_known_is_refused(orders, name, rate, burst):
    with pytest.raises(ConfigError, match=r"set_rate\(\)"):
        delayq.set_rate(name, rate, burst=burst)


def test_in_a_transaction_a_rate_is_refused_because_a_rollback_could_not_undo_it(orders):
    with transaction.atomic(), pytest.raises(ConfigError, match="a transaction is open"):
        delayq.set_rate("bank:7", "1/s")
    assert in_redis() == {}


def test_partitions_that_cannot_be_reached_are_named_and_get_the_rate_later(orders, redis_away):
    redis_away()
    reply = delayq.set_rate("bank:7", "1/s")
    assert (reply.changed, set(reply.unconfirmed)) == (True, set(queues.partitions()))
    redis_away(False)
    assert in_redis() == {}
    PauseLoop().poll()
    assert in_redis() == {"bank:7": "1:1000:1"}
    assert Pause.objects.get().missing == ""


def test_a_process_that_dies_between_the_row_and_redis_has_set_the_rate(orders, monkeypatch):
    def die(word: str) -> None:
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(queues, "send_word", die)
        delayq.set_rate("bank:7", "1/s")
    PauseLoop().poll()
    assert in_redis() == {"bank:7": "1:1000:1"}


def test_after_a_wipe_a_rate_counts_again_before_claims_continue(orders, loop, wipe):
    for number in range(3):
        delayq.schedule(pay_out, 7, number)
    orders.fold()
    delayq.set_rate("bank:7", "1/h")
    wipe()
    loop.poll()
    assert in_redis() == {"bank:7": "1:3600000:1"}
    settle_down(orders, loop)
    assert len(orders.claim(ahead_ms=60_000)) == 1
    assert orders.claim(ahead_ms=120_000) == []


def test_a_late_command_of_a_frozen_process_does_not_last(orders):
    store = LimitStore(stores.queue("orders", 0))
    delayq.set_rate("bank:7", "1/h")
    store.limit([LimitChange("rate", "bank:7", "100:1000:1"), LimitChange("rate", "bank:8", "1:1000:1")])
    PauseLoop().poll()
    assert in_redis() == {"bank:7": "1:3600000:1"}
    assert [row.word for row in Pause.objects.all()] == ["rate:bank:7"]


def test_a_rate_and_a_name_can_be_combined(orders):
    delayq.schedule(pay_out.using(concurrency=("bank:{bank}", 2)), 7)
    assert len(orders.claim()) == 1
    assert LimitStore(stores.queue("orders", 0)).running("name:bank:7") == 1


def deploy(monkeypatch: pytest.MonkeyPatch, rate: tuple[str, str] | None) -> None:
    """The newest code of the task has another rate, and its first worker has come."""
    rated = name_format.rate(rate, pay_out.signature, "deploy()")
    monkeypatch.setattr(pay_out, "rated", rated)
    DeclaredRates().poll()
    PauseLoop().poll()


def test_jobs_that_wait_follow_a_lower_rate_in_newer_code(orders, monkeypatch):
    for number in range(3):
        delayq.schedule(pay_out, 7, number)
    deploy(monkeypatch, ("bank:{bank}", "1/h"))
    assert in_redis() == {f"\1{pay_out.name}": "1:3600000:1"}
    assert len(orders.claim()) == 1
    assert orders.claim(ahead_ms=3_500_000) == []
    assert len(orders.claim(ahead_ms=3_600_000)) == 1
    assert not Event.objects.filter(kind="rate_set").exists()  # no person has done it
    assert delayq.set_rate("bank:7", "100/m").changed
    assert orders.claim(ahead_ms=3_601_000) == []  # the new rate counts from here
    assert len(orders.claim(ahead_ms=3_602_000)) == 1


def test_jobs_that_wait_are_free_if_newer_code_has_no_rate(orders, monkeypatch):
    for number in range(3):
        delayq.schedule(pay_out, 7, number)
    DeclaredRates().poll()
    PauseLoop().poll()
    assert len(orders.claim()) == 1
    deploy(monkeypatch, None)
    assert in_redis() == {f"\1{pay_out.name}": "none"}
    assert len(orders.claim()) == 2


def test_an_older_worker_that_still_runs_does_not_bring_its_rate_back(orders, monkeypatch):
    old = pay_out.rated
    DeclaredRates().poll()
    deploy(monkeypatch, ("bank:{bank}", "1/h"))
    monkeypatch.setattr(pay_out, "rated", old)
    DeclaredRates().poll()
    PauseLoop().poll()
    assert in_redis() == {f"\1{pay_out.name}": "1:3600000:1"}


def test_a_task_that_never_had_a_rate_has_no_row(orders, monkeypatch):
    monkeypatch.setattr(pay_out, "rated", None)
    DeclaredRates().poll()
    assert not Pause.objects.filter(word=f"declared:{pay_out.name}").exists()
