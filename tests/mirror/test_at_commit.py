"""`cancel(…, at_commit=True)` and `reschedule(…, at_commit=True)`: part of the open transaction."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import F

import django_delayq as delayq
from django_delayq import clock
from django_delayq.mirror.relay import CommitRequestLoop
from django_delayq.models import Attempt, CommitRequest, Event, Job
from django_delayq.producer import changes, commit_requests
from django_delayq.producer.commit_requests import carry_out
from django_delayq.producer.outbox import requests
from django_delayq.producer.stores import stores
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import close_order, ping

pytestmark = pytest.mark.django_db(transaction=True)

DONE, PENDING = delayq.Change.DONE, delayq.Change.PENDING
KEY = {"key": "o:7", "queue": "orders"}
HOUR = 3_600_000


class TakeBackError(Exception):
    """Ends a transaction."""


@pytest.fixture
def loop_of_requests(orders) -> CommitRequestLoop:
    return CommitRequestLoop(young=0)


@pytest.fixture
def killed(monkeypatch):
    """Commits the block, and its process dies before the hooks of the commit."""

    class Killed:
        def __enter__(self) -> None:
            self._block = transaction.atomic()
            self._block.__enter__()

        def __exit__(self, *error) -> None:
            connection.run_on_commit.clear()
            self._block.__exit__(*error)

    return Killed


def left(job) -> int:
    """Hours until it is due, by Redis."""
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    assert view.state == "scheduled"
    return round((view.date_ms - view.now_ms) / HOUR)


def in_redis(job) -> str | None:
    view = stores.inspector().job("orders", job.id)
    return None if view is None or view.state == "finished" else view.state


@pytest.mark.parametrize("durability", ["outbox", "redis"])
@pytest.mark.parametrize("by_key", [False, True], ids=["by id", "by key"])
def test_it_happens_at_the_commit(orders, durability, by_key):
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7", durability=durability)
    target = KEY if by_key else {"job": job}
    with transaction.atomic():
        assert delayq.reschedule(**target, delay="3h", at_commit=True) is PENDING
        assert left(job) == 1
    assert left(job) == 3
    with transaction.atomic():
        assert delayq.cancel(**target, actor="shop", reason="paid", at_commit=True) is PENDING
        assert in_redis(job) == "scheduled"
    assert in_redis(job) is None
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.error) == ("cancelled", "paid")
    assert Event.objects.get(kind="cancelled").actor == "shop"
    assert not CommitRequest.objects.exists()


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
@pytest.mark.parametrize("inner", [False, True], ids=["transaction", "savepoint"])
def test_a_rollback_takes_it_back(orders, loop_of_requests, verb, inner):
    job = delayq.schedule(close_order, 7, delay="1h")

    def change() -> None:
        more = {"delay": "3h"} if verb == "reschedule" else {}
        assert getattr(job, verb)(at_commit=True, **more) is PENDING
        raise TakeBackError

    with transaction.atomic():
        if inner:
            with pytest.raises(TakeBackError), transaction.atomic():
                change()
        else:
            with pytest.raises(TakeBackError):
                change()
            transaction.set_rollback(True)
    loop_of_requests.poll()
    assert left(job) == 1
    assert not CommitRequest.objects.exists()


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
@pytest.mark.parametrize("by_key", [False, True], ids=["by id", "by key"])
@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_relay_carries_out_what_a_killed_process_has_committed(orders, loop_of_requests, killed, verb, by_key, durability):
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7", durability=durability)
    target = KEY if by_key else {"job": job}
    with killed():
        getattr(delayq, verb)(**target, at_commit=True, **({"delay": "3h"} if verb == "reschedule" else {}))
    assert left(job) == 1
    loop_of_requests.poll()
    assert (in_redis(job) is None) if verb == "cancel" else (left(job) == 3)
    assert not CommitRequest.objects.exists()


def test_a_young_request_is_left_to_its_own_process(orders, killed):
    job = delayq.schedule(close_order, 7, delay="1h")
    with killed():
        job.cancel(at_commit=True)
    CommitRequestLoop().poll()
    assert in_redis(job) == "scheduled"


def test_redis_is_away_at_the_commit_and_a_relay_carries_it_out_when_it_is_back(orders, loop_of_requests, redis_away):
    job = delayq.schedule(close_order, 7, delay="1h")
    redis_away()
    with transaction.atomic():
        assert job.cancel(at_commit=True) is PENDING
    assert CommitRequest.objects.count() == 1
    redis_away(False)
    loop_of_requests.poll()
    assert in_redis(job) is None
    orders.fold()
    assert Job.objects.get().state == "cancelled"


def test_a_lost_reply_is_asked_for_again(orders, loop_of_requests, lost_reply):
    job = delayq.schedule(close_order, 7, delay="1h")
    with transaction.atomic():
        job.cancel(at_commit=True, reason="paid")
        lost_reply()
    loop_of_requests.poll()
    assert in_redis(job) is None
    orders.fold()
    assert Job.objects.get().state == "cancelled"
    assert not CommitRequest.objects.exists()


def test_what_is_carried_out_twice_changes_nothing_more(orders, loop_of_requests, monkeypatch):
    job = delayq.schedule(close_order, 7, delay="1h")
    kept = []
    monkeypatch.setattr(requests, "end", lambda ended: kept.extend(ended))
    for _ in range(2):
        with transaction.atomic():
            assert job.cancel(at_commit=True, reason="paid") is PENDING
    monkeypatch.undo()
    loop_of_requests.poll()
    orders.fold()
    assert Event.objects.filter(kind="cancelled").count() == 1
    assert Job.objects.get().state == "cancelled"


def age(seconds: float = 10) -> None:
    """The requests were made so long ago."""
    CommitRequest.objects.update(at=F("at") - timedelta(seconds=seconds))


@pytest.mark.parametrize("by_key", [False, True], ids=["by id", "by key"])
def test_a_date_that_somebody_gave_meanwhile_stays(orders, loop_of_requests, killed, by_key):
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with killed():
        delayq.reschedule(**(KEY if by_key else {"job": job}), delay="3h", at_commit=True)
    Job.objects.update(created_at=F("created_at") - timedelta(seconds=20))
    age()
    assert job.reschedule(delay="5h", actor="clerk") is DONE
    loop_of_requests.poll()
    assert left(job) == 5
    assert not CommitRequest.objects.exists()


def test_a_date_that_was_given_before_does_not_stay(orders, loop_of_requests, killed):
    job = delayq.schedule(close_order, 7, delay="1h")
    with killed():
        job.reschedule(delay="3h", at_commit=True)
    at = CommitRequest.objects.get().at - timedelta(seconds=5)  # by a transaction that has committed later
    Event.objects.create(job_id=job.id, queue="orders", at=at, kind="rescheduled", stream_id="row:1")
    loop_of_requests.poll()
    assert left(job) == 3


@pytest.mark.parametrize("mirrored", [False, True], ids=["without a row", "with a row"])
@pytest.mark.parametrize("late", [False, True], ids=["beside another connection", "late"])
def test_a_newer_job_of_the_key_is_left_alone(orders, loop_of_requests, killed, mirrored, late):
    with killed():
        delayq.cancel(**KEY, at_commit=True)
    age()
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7", durability="redis")
    if mirrored:
        orders.fold()
        assert Job.objects.exists()
    if late:
        loop_of_requests.poll()
    else:
        carry_out(requests.find()[0])
    assert in_redis(job) == "scheduled"
    assert not CommitRequest.objects.exists()


def test_an_older_job_is_cancelled_although_the_clock_of_its_host_is_ahead(orders, loop_of_requests, killed, monkeypatch):
    real = clock.wall_ms
    monkeypatch.setattr(clock, "wall_ms", lambda: real() + HOUR)
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7", durability="redis")
    monkeypatch.undo()
    with killed():
        delayq.cancel(**KEY, at_commit=True)
    age()
    loop_of_requests.poll()
    assert in_redis(job) is None


@pytest.mark.parametrize("by_key", [False, True], ids=["by id", "by key"])
def test_a_late_cancel_does_not_undo_a_requeue(orders, loop_of_requests, killed, by_key):
    job = delayq.schedule(close_order, 7, key="o:7")
    with killed():
        delayq.cancel(**(KEY if by_key else {"job": job}), at_commit=True)
    Job.objects.update(created_at=F("created_at") - timedelta(seconds=20))
    age()
    orders.settle(orders.claim()[0], "fail")
    orders.fold()
    assert job.requeue(actor="clerk") is DONE
    orders.fold()
    loop_of_requests.poll()
    assert in_redis(job) == "scheduled"
    assert not CommitRequest.objects.exists()


def test_the_last_word_of_a_transaction_holds(orders):
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with transaction.atomic():
        job.cancel(at_commit=True)
        job.reschedule(delay="3h", at_commit=True)
    assert left(job) == 3
    with transaction.atomic():
        delayq.cancel(**KEY, at_commit=True)
        delayq.reschedule(**KEY, delay="4h", at_commit=True)
    assert left(job) == 4
    with transaction.atomic():
        job.reschedule(delay="5h", at_commit=True)
        job.cancel(at_commit=True)
    assert in_redis(job) is None


def test_a_last_word_that_is_taken_back_leaves_the_one_before(orders):
    job = delayq.schedule(close_order, 7, delay="1h")
    with transaction.atomic():
        job.reschedule(delay="3h", at_commit=True)
        with pytest.raises(TakeBackError), transaction.atomic():
            job.cancel(at_commit=True)
            raise TakeBackError
    assert left(job) == 3


@pytest.mark.parametrize("dies", [False, True], ids=["commits", "is killed"])
def test_a_job_of_the_key_that_the_transaction_schedules_afterwards_takes_its_place(orders, loop_of_requests, killed, dies):
    old = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    orders.fold()
    with killed() if dies else transaction.atomic():
        assert delayq.cancel(**KEY, at_commit=True) is PENDING
        new = delayq.schedule(close_order, 8, delay="2h", key="o:7")
    if dies:
        for _ in range(3):
            orders.relay.poll()
            orders.fold()
        assert in_redis(old) is None, "the relay carries it out before it publishes rows of that key"
    assert (in_redis(old), in_redis(new)) == (None, "scheduled")


def test_who_holds_the_key_at_the_commit_is_cancelled(orders):
    first = delayq.schedule(close_order, 7, key="o:7")
    with transaction.atomic():
        orders.settle(orders.claim()[0], "retry", delay=HOUR)
        delayq.cancel(**KEY, at_commit=True)
    assert in_redis(first) is None


def test_what_the_same_transaction_has_scheduled_is_changed_in_it(orders):
    with transaction.atomic():
        job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
        assert job.cancel(at_commit=True) is DONE
    assert in_redis(job) is None
    assert Job.objects.get().state == "cancelled"


def test_a_running_job_gets_a_request(orders, caplog):
    job = delayq.schedule(close_order, 7)
    [held] = orders.claim()
    with transaction.atomic():
        assert job.cancel(at_commit=True, abort=True) is PENDING
    assert orders.store.extend([(held.id, held.fence)], worker="host:1:w", lease_ms=30_000) == {held.id: "abort"}
    assert "at the commit: running" in caplog.text


def test_what_has_ended_stays_ended(orders, caplog):
    job = delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "ack")
    with transaction.atomic():
        assert job.cancel(at_commit=True) is PENDING
    orders.fold()
    assert Job.objects.get().state == "succeeded"
    assert "at the commit: finished" in caplog.text
    assert not CommitRequest.objects.exists()


def test_a_far_job_is_changed_in_the_transaction(horizon, orders):
    job = delayq.schedule(close_order, 7, delay="9h", key="o:7")
    with pytest.raises(TakeBackError), transaction.atomic():
        assert job.cancel(at_commit=True) is DONE
        raise TakeBackError
    assert Job.objects.get().state == "scheduled"
    with transaction.atomic():
        assert delayq.cancel(**KEY, at_commit=True) is PENDING
        new = delayq.schedule(close_order, 8, delay="9h", key="o:7")
    assert dict(Job.objects.values_list("id", "state")) == {job.id: "cancelled", new.id: "scheduled"}


def test_without_a_transaction_it_acts_at_once(orders):
    job = delayq.schedule(close_order, 7, delay="1h")
    assert job.cancel(at_commit=True) is DONE
    assert not CommitRequest.objects.exists()


def test_it_asks_redis_nothing_before_the_commit(orders, redis_away):
    job = delayq.schedule(close_order, 7, delay="1h")
    redis_away()
    with pytest.raises(TakeBackError), transaction.atomic():
        assert job.cancel(at_commit=True) is PENDING
        raise TakeBackError


def test_behind_a_wipe_it_holds(orders, loop, loop_of_requests, killed, wipe):
    job = delayq.schedule(close_order, 7, delay="1h")
    settle_down(orders, loop)
    with killed():
        job.cancel(at_commit=True)
    wipe()
    settle_down(orders, loop)
    loop_of_requests.poll()
    assert in_redis(job) is None
    settle_down(orders, loop)
    assert Job.objects.get().state == "cancelled"


def test_its_async_twins_take_it(orders):
    async def view() -> list[delayq.Change]:
        job = await delayq.aschedule(close_order, 7, delay="1h")
        return [await delayq.areschedule(job, delay="3h", at_commit=True), await job.acancel(at_commit=True)]

    assert async_to_sync(view)() == [DONE, DONE]


def test_with_debug_the_immediate_form_warns_once_per_place(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": ["tests.tasks_for_tests"]}  # else nothing is scheduled with DEBUG
    settings.DEBUG = True
    job, other = (delayq.schedule(close_order, number, delay="1h") for number in (7, 8))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        with transaction.atomic():
            for _ in range(2):
                other.reschedule(delay="2h")
            own = delayq.schedule(close_order, 9, delay="1h")
            own.cancel()
            job.cancel(at_commit=True)
        job.cancel()
    [warning] = told
    assert "at_commit=True" in str(warning.message)
    assert warning.filename == __file__


def test_without_debug_nobody_is_warned(orders):
    job = delayq.schedule(close_order, 7, delay="1h")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with transaction.atomic():
            job.reschedule(delay="2h")
    assert told == []


def test_requests_of_a_queue_that_this_process_does_not_list_stay_and_keep_nobody_waiting(orders, loop_of_requests, killed, settings):
    later = [CommitRequest(queue="new", key=f"k{number}", verb="cancel", at=clock.from_ms(0)) for number in range(201)]
    CommitRequest.objects.bulk_create(later)  # by processes of a newer release, say
    job = delayq.schedule(close_order, 7, delay="1h")
    with killed():
        job.cancel(at_commit=True)
    loop_of_requests.poll()
    assert in_redis(job) is None
    assert CommitRequest.objects.count() == 201
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ.get("QUEUES", {"default": {}}), "new": {}}}
    loop_of_requests.poll()
    assert CommitRequest.objects.count() == 1  # 200 in a pass


def test_a_change_of_another_job_of_the_key_takes_the_place_of_no_change(orders):
    ended = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    ended.cancel()
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with transaction.atomic():
        job.cancel(at_commit=True)
        ended.cancel(at_commit=True)
    assert in_redis(job) is None


def test_a_change_of_one_job_takes_the_place_of_no_change_by_key(orders):
    ended = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    ended.cancel()
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with transaction.atomic():
        delayq.cancel(**KEY, at_commit=True)
        ended.cancel(at_commit=True)
    assert in_redis(job) is None


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_change_of_a_job_whose_server_is_away_holds_no_other_up(orders, loop_of_requests, killed, settings, durability):
    lost = delayq.schedule(ping, delay="1h", durability=durability)
    job = delayq.schedule(close_order, 7, delay="1h", durability=durability)
    away = {"redis": {"REDIS": "unix:///nowhere/delayq.sock"}, "orders": {}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": away}
    stores.reset()
    with killed():
        for id in (lost.id, job.id):
            assert delayq.cancel(id, at_commit=True) is PENDING
    with pytest.raises(delayq.StoreUnavailable):
        loop_of_requests.poll()
    assert in_redis(job) is None
    assert CommitRequest.objects.get().job_id == lost.id


def test_later_changes_of_a_job_wait_for_the_first(orders, loop_of_requests, killed, monkeypatch):
    job = delayq.schedule(close_order, 7, delay="1h")
    for hours in (3, 4):
        with killed():
            delayq.reschedule(job.id, delay=f"{hours}h", at_commit=True)
    with monkeypatch.context() as once:
        real, calls = changes.one, []
        once.setattr(changes, "one", lambda *args: calls.append(args) or (_ for _ in ()).throw(delayq.StoreUnavailable("no")))
        with pytest.raises(delayq.StoreUnavailable):
            loop_of_requests.poll()
    assert (len(calls), CommitRequest.objects.count(), changes.one) == (1, 2, real)
    loop_of_requests.poll()
    assert left(job) == 4


def test_changes_of_a_queue_that_is_not_listed_are_logged_once_a_minute(
    orders, loop_of_requests, killed, settings, caplog, monkeypatch
):
    job = delayq.schedule(close_order, 7, delay="1h")
    with killed():
        delayq.cancel(job.id, at_commit=True)
    CommitRequest.objects.create(queue="new", key="k", verb="cancel", at=clock.from_ms(0))
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    for _ in range(3):
        loop_of_requests.poll()
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == ["committed changes (2) are waiting for a process that has these queues in its settings: new, orders"]
    real = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: real() + 61)
    loop_of_requests.poll()
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2


@pytest.mark.parametrize("within", ["alone", "in a transaction"])
@pytest.mark.parametrize("by_key", [False, True], ids=["by id", "by key"])
@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_new_job_of_a_key_is_not_merged_into_one_whose_cancel_is_committed(
    orders, loop_of_requests, killed, durability, by_key, within
):
    old = delayq.schedule(close_order, 7, delay="1h", key="o:7", durability=durability)
    with killed():
        assert delayq.cancel(**(KEY if by_key else {"job": old}), at_commit=True) is PENDING
    with transaction.atomic() if within == "in a transaction" else nullcontext():
        new = delayq.schedule(close_order, 7, delay="2h", key="o:7", durability=durability)
    loop_of_requests.poll()
    assert (in_redis(old), in_redis(new)) == (None, "scheduled")
    assert (new.created, new.id != old.id) == (True, True)
    assert not CommitRequest.objects.exists()


def test_a_new_job_of_a_key_takes_the_date_of_no_job_whose_cancel_is_committed(orders, loop_of_requests, killed):
    old = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with killed():
        delayq.cancel(**KEY, at_commit=True)
    new = delayq.schedule(close_order, 7, delay="2h", key="o:7", on_conflict="latest")
    loop_of_requests.poll()
    assert (in_redis(old), in_redis(new)) == (None, "scheduled")


def test_while_redis_is_away_a_new_job_of_a_key_is_not_merged_into_one_whose_cancel_is_committed(orders, loop_of_requests, redis_away):
    redis_away()
    old = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with transaction.atomic():
        delayq.cancel(**KEY, at_commit=True)
    new = delayq.schedule(close_order, 7, delay="2h", key="o:7")
    assert new.id != old.id
    redis_away(False)
    orders.relay.poll()
    loop_of_requests.poll()
    assert (in_redis(old), in_redis(new)) == (None, "scheduled")


def test_a_server_that_does_not_answer_is_asked_once_for_all_changes_of_a_transaction(orders, monkeypatch):
    jobs = [delayq.schedule(close_order, number, delay="1h") for number in range(5)]
    asked = []

    def no_answer(request):
        asked.append(request)
        raise delayq.StoreUnavailable("no answer")

    monkeypatch.setattr(commit_requests, "carry_out", no_answer)
    with transaction.atomic():
        for job in jobs:
            job.cancel(at_commit=True)
    assert len(asked) == 1
    assert CommitRequest.objects.count() == 5, "the relay makes them"


def test_a_run_has_no_dates_outside_of_its_claim_and_its_end(orders):
    delayq.schedule(close_order, 1)
    delayq.schedule(close_order, 2)
    first, second = orders.claim()
    orders.settle(first, "ack", detail=b'{"s":1,"f":2}')
    orders.settle(second, "ack", detail=b'{"s":9795000000000,"f":9795000000001}')
    orders.fold()
    for run in Attempt.objects.all():
        assert timedelta() <= run.finished_at - run.started_at < timedelta(minutes=1)
        assert abs(run.finished_at - clock.now()) < timedelta(minutes=1)
