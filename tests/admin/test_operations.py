"""Operations change all matching jobs in steps. The process that runs the mirror executes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.console import keyset, operation_loop
from django_delayq.console.operation_loop import OperationLoop
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import Event, Job, Operation
from django_delayq.producer import acts, queues
from django_delayq.producer.stores import stores
from tests.admin.conftest import lose_redis
from tests.tasks_for_tests import close_order

Stage = Operation.Stage


def begin(verb: str = "cancel", **fields: Any) -> Operation:
    fields = {"selection": {"view": "scheduled"}, "actor": "admin:clerk", "reason": "stock", **fields}
    return Operation.objects.create(verb=verb, **fields)


def work(loop: OperationLoop | None = None) -> None:
    """Runs passes until there is no more immediate work."""
    loop = loop or OperationLoop()
    while loop.poll() == 0:
        pass


def states(orders) -> set[str]:
    orders.fold()
    return set(Job.objects.values_list("state", flat=True))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(operation_loop, "CHUNK", 3)


def test_it_does_all_that_match_and_says_what_became_of_each(orders):
    jobs = orders.scheduled(8)
    other = delayq.schedule(close_order, 9, delay="1h", key="other")
    orders.fold()
    stores.queue("orders", 0).cancel(jobs[0].id)  # by another user; the event is not folded yet: it is cancelled, as it should be
    delayq.run_now(jobs[1])
    orders.settle(*orders.claim(), "ack")  # nor is this
    operation = begin(selection={"view": "scheduled", "text": "before:+2h"})
    work()
    operation.refresh_from_db()
    assert operation.stage == Stage.FINISHED
    assert operation.counts == {"done": 8, "finished": 1}
    assert (operation.expected, operation.seen, operation.chunk) == (9, 9, {})
    assert operation.started_at <= operation.finished_at
    assert states(orders) == {"cancelled", "succeeded"}
    event = Event.objects.filter(job_id=other.id).latest("id")
    assert (event.actor, event.reason) == ("admin:clerk", "stock")


@pytest.mark.parametrize(("verb", "options"), [("run_now", {}), ("reschedule", {"delay": 7200.0})])
def test_dates_are_moved(orders, verb, options):
    orders.scheduled(4)
    begin(verb, options=options)
    work()
    orders.fold()
    dates = [(job.run_at - clock.now()).total_seconds() for job in Job.objects.all()]
    assert all(date <= 0 if verb == "run_now" else 7000 < date <= 7200 for date in dates)


def test_a_date_is_kept_as_a_date(orders):
    orders.scheduled(1)
    date = clock.from_ms(1_900_000_000_000)
    begin("reschedule", options={"run_at": date.isoformat()})
    work()
    orders.fold()
    assert Job.objects.get().run_at == date


def test_a_failed_group_is_requeued(orders):
    for _ in range(4):
        orders.ended("fail", detail=b'{"c":"E","p":"abc"}')
    orders.ended("fail", detail=b'{"c":"E","p":"other"}')
    operation = begin("requeue", selection={"view": "failed", "text": "fingerprint:abc"})
    work()
    operation.refresh_from_db()
    assert operation.counts == {"done": 4}
    orders.fold()
    assert Job.objects.filter(state="scheduled").count() == 4


def test_jobs_scheduled_after_its_start_are_none_of_its_own(orders):
    orders.scheduled(2)
    operation = begin()
    orders.scheduled(2)
    work()
    operation.refresh_from_db()
    assert operation.counts == {"done": 2}


def test_what_comes_due_after_its_start_is_none_of_its_own(orders):
    orders.scheduled(2, delay=0)
    late = orders.scheduled(1, delay="1h")[0]
    operation = begin(selection={"view": "due", "at_ms": clock.wall_ms() + 1000})
    Job.objects.filter(pk=late.id).update(run_at=clock.now() + timedelta(seconds=5))
    work()
    operation.refresh_from_db()
    assert operation.counts == {"done": 2}


def test_only_what_really_matches_is_touched(orders):
    for number in (7, 77, 7):
        delayq.schedule(close_order, number, note="7", delay="1h")
    orders.fold()
    operation = begin(selection={"text": "arg:order_id=7"})
    work()
    operation.refresh_from_db()
    assert operation.counts == {"done": 2}


def test_of_frozen_ids_no_other_job_is_touched_whatever_matches(orders, monkeypatch):
    monkeypatch.setattr(keyset, "STEP", 2)  # ids looked up at a time
    jobs = orders.scheduled(9)
    meant = [job.id for job in jobs[1:8]]
    Job.objects.filter(pk=meant[2]).delete()
    gone = orders.ended("ack")
    operation = begin(selection={"text": "nothing matches"}, frozen=sorted(map(ids.short, [*meant, gone.id])), expected=8)
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.expected) == (Stage.FINISHED, 8)
    assert operation.counts == {"done": 6, "finished": 1}
    orders.fold()
    assert set(Job.objects.filter(state="cancelled").values_list("pk", flat=True)) == {*meant} - {meant[2]}


def test_a_search_that_is_not_understood_touches_nothing(orders):
    orders.scheduled(2)
    operation = begin(selection={"text": "stat:failed"})
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.FINISHED, {})


def test_rows_far_between_are_found(orders, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 2)
    jobs = orders.scheduled(11)
    Job.objects.filter(pk__in=[jobs[0].id, jobs[10].id]).update(error="far")
    operation = begin(selection={"text": "error:far"})
    work()
    operation.refresh_from_db()
    assert operation.counts == {"done": 2}


def test_a_paused_one_waits_and_goes_on_where_it_was(orders):
    orders.scheduled(7)
    operation = begin()
    loop = OperationLoop()
    loop.poll()
    Operation.objects.update(stage=Stage.PAUSED)
    work(loop)
    operation.refresh_from_db()
    assert (operation.stage, operation.seen) == (Stage.PAUSED, 3)
    Operation.objects.update(stage=Stage.RUNNING, paced_from=None)
    work(loop)
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.FINISHED, {"done": 7})


def test_a_cancelled_one_ends_and_stays_cancelled(orders, monkeypatch):
    orders.scheduled(7)
    operation = begin()

    def and_somebody_cancels_the_operation(jobs: Any, **options: Any) -> Any:
        Operation.objects.update(stage=Stage.CANCELLED)
        return acts.cancel_each(jobs, **options)

    monkeypatch.setitem(operation_loop.VERBS, "cancel", and_somebody_cancels_the_operation)
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.CANCELLED, {"done": 3})


def test_two_record_keepers_do_not_share_one_operation(orders):
    orders.scheduled(7)
    begin()
    first, second = OperationLoop(), OperationLoop()
    assert first.poll() == 0
    assert second.poll() > 0
    assert Operation.objects.get().seen == 3


@pytest.mark.parametrize(
    ("verb", "counts", "ends"),
    [("cancel", {"done": 7}, "cancelled"), ("requeue", {"done": 5, "again": 2}, "scheduled")],
)
def test_whoever_takes_it_over_does_the_last_chunk_again_and_does_not_count_it_twice(orders, monkeypatch, verb, counts, ends):
    if verb == "cancel":
        orders.scheduled(7)
    else:
        for _ in range(7):
            orders.ended("fail")
    operation = begin(verb, selection={"view": "scheduled" if verb == "cancel" else "failed"})
    change = operation_loop.VERBS[verb]
    dies, left = OperationLoop(), [5]

    def power_cut_after_five(jobs: Any, **options: Any) -> Any:
        chunk = list(jobs)
        yield from change(chunk[: left[0]], **options)
        left[0] -= len(chunk)
        if left[0] < 0:
            raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setitem(operation_loop.VERBS, verb, power_cut_after_five)
        work(dies)
    other = OperationLoop()
    assert other.poll() > 0  # the lease of the dead process has not expired
    Operation.objects.update(held_until=clock.now() - timedelta(seconds=1))
    work(other)
    operation.refresh_from_db()
    assert operation.counts == counts
    assert (operation.stage, operation.seen) == (Stage.FINISHED, 7)
    assert states(orders) == {ends}


def test_without_redis_it_waits_and_says_why(orders, settings):
    orders.scheduled(4)
    operation = begin()
    working = settings.DELAYQ
    lose_redis(settings)
    loop = OperationLoop()
    with pytest.raises(StoreUnavailable):
        loop.poll()
    operation.refresh_from_db()
    assert operation.problem["code"] == "redis_away"
    assert operation.problem["fields"].keys() == {"where", "cause"}
    assert (operation.stage, operation.seen) == (Stage.RUNNING, 0)
    settings.DELAYQ = working
    work(loop)
    operation.refresh_from_db()
    assert (operation.stage, operation.counts, operation.problem) == (Stage.FINISHED, {"done": 4}, None)


def test_a_job_whose_queue_is_gone_is_left_alone(orders):
    jobs = orders.scheduled(3)
    Job.objects.filter(pk=jobs[1].id).update(queue="old")
    operation = begin()
    work()
    operation.refresh_from_db()
    assert operation.counts == {"done": 2, "left": 1}


def test_it_is_spread_over_the_time_that_was_given(orders):
    orders.scheduled(4)
    operation = begin(seconds=3600)
    loop = OperationLoop()
    assert loop.poll() == 0  # the first at once
    assert 0 < loop.poll() <= 1
    operation.refresh_from_db()
    assert operation.seen == 1
    Operation.objects.update(paced_from=clock.now() - timedelta(seconds=1800))
    work(loop)
    operation.refresh_from_db()
    assert operation.seen in (2, 3)


FAR: dict[str, Any] = {"selection": {"text": "error:far"}}  # no index serves this


def test_nothing_is_counted_through_the_whole_table(orders, monkeypatch):
    Job.objects.filter(pk__in=[job.id for job in orders.scheduled(4)]).update(error="far")
    operation = begin(**FAR)
    work()
    operation.refresh_from_db()
    assert (operation.expected, operation.counts) == (None, {"done": 4})
    monkeypatch.setattr(operation_loop, "MOST_COUNTED", 2)
    orders.scheduled(3)
    operation = begin()
    work()
    operation.refresh_from_db()
    assert (operation.expected, operation.counts) == (None, {"done": 3})


@pytest.mark.parametrize("fields", [FAR, {}])
def test_what_is_spread_over_a_time_is_counted_step_by_step_before(orders, monkeypatch, fields):
    Job.objects.filter(pk__in=[job.id for job in orders.scheduled(7)]).update(error="far")
    monkeypatch.setattr(keyset, "WINDOW", 2)
    monkeypatch.setattr(operation_loop, "MOST_COUNTED", 2)
    operation = begin(seconds=3600, **fields)
    loop, looks = OperationLoop(), 0
    while operation.expected is None:
        assert loop.poll() == 0
        operation.refresh_from_db()
        looks += 1
    assert (looks, operation.expected, operation.seen) == (3, 7, 0)
    work(loop)
    operation.refresh_from_db()
    assert operation.seen == 1
    assert loop.poll() > 0


def test_time_that_nobody_worked_is_not_caught_up_in_a_rush(orders):
    orders.scheduled(6)
    begin(seconds=3600)
    OperationLoop().poll()
    hours_ago = clock.now() - timedelta(hours=5)
    Operation.objects.update(paced_from=hours_ago, held_until=hours_ago)
    work()
    assert Operation.objects.get().seen == 2


def test_who_may_no_longer_do_it_has_it_paused(orders, staff):
    orders.scheduled(7)
    staff("view_job", "start_operation", "cancel_job")
    user = User.objects.get()
    operation = begin(user=str(user.pk), permission="delayq.cancel_job")
    loop = OperationLoop()
    loop.poll()
    user.user_permissions.remove(Permission.objects.get(codename="cancel_job"))
    work(loop)
    operation.refresh_from_db()
    assert (operation.stage, operation.seen) == (Stage.PAUSED, 3)
    told = {"code": "permission_gone", "fields": {"actor": operation.actor, "permission": "delayq.cancel_job"}}
    assert operation.problem == told
    assert LogEntry.objects.count() == 3  # one for each job that was done
    User.objects.update(is_active=False)
    Operation.objects.update(stage=Stage.RUNNING)
    work(loop)
    operation.refresh_from_db()
    assert operation.problem == {"code": "actor_inactive", "fields": {"actor": operation.actor}}


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        ("cancel", "view_job"),
        ("cancel", "start_operation"),
        ("cancel", "cancel_job"),
        ("purge", "view_queue"),
        ("purge", "purge_queue"),
    ],
)
def test_each_permission_that_starting_it_takes_is_needed_to_the_end(orders, staff, verb, missing):
    orders.scheduled(1)
    needed = {"cancel": ["view_job", "start_operation", "cancel_job"], "purge": ["view_queue", "purge_queue"]}[verb]
    staff(*needed)
    user = User.objects.get()
    user.user_permissions.remove(Permission.objects.get(codename=missing))
    operation = begin(verb, selection={"queue": "orders"}, user=str(user.pk), permission=f"delayq.{needed[-1]}")
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.seen) == (Stage.PAUSED, 0)
    assert operation.problem["fields"]["permission"] == f"delayq.{missing}"


def test_a_purge_empties_a_queue(orders, monkeypatch):
    orders.scheduled(5)
    running = orders.running()
    operation = begin("purge", selection={"queue": "orders"})
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.FINISHED, {"done": 5})
    assert orders.in_redis(running) == "running"


def test_a_purge_gets_past_rows_that_are_not_mirrored_yet(orders, monkeypatch):
    monkeypatch.setattr(queues, "MOST", 2)  # rows a step
    for number in range(24):
        delayq.schedule(close_order, number, delay="1h")  # the row of each does not show whether Redis has the job
    operation, loop = begin("purge", selection={"queue": "orders"}), OperationLoop()
    for _ in range(6):
        loop.poll()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.FINISHED, {"done": 24})
    assert states(orders) == {"cancelled"}


@pytest.mark.parametrize("fields", [{"verb": "explode"}, {"selection": {"colour": "red"}}, {"options": {"run_at": "soon"}}])
def test_one_that_cannot_be_understood_is_paused_and_stops_no_other(orders, fields):
    orders.scheduled(2)
    odd = begin(**{"verb": "reschedule", **fields})
    operation = begin()
    work()
    odd.refresh_from_db()
    operation.refresh_from_db()
    assert odd.stage == Stage.PAUSED
    assert odd.problem["code"] == "unexpected"
    assert operation.counts == {"done": 2}


@pytest.mark.parametrize("odd", ["it is refused", "it is not understood"])
def test_what_a_person_has_cancelled_meanwhile_is_not_paused(orders, monkeypatch, odd):
    orders.scheduled(2)
    operation = begin()

    def and_somebody_cancels_it(*_: Any) -> str:
        Operation.objects.update(stage=Stage.CANCELLED)
        if odd == "it is not understood":
            raise TypeError(odd)
        return odd

    monkeypatch.setattr(operation_loop, "refused", and_somebody_cancels_it)
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.CANCELLED, {})


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("delayq_redis")
def test_an_operation_on_a_server_that_is_away_holds_up_none_on_another(own_redis, settings):
    own = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "redis": {"REDIS": own.url}}}
    there = [delayq.schedule(close_order, n, delay="1h", queue="redis") for n in range(2)]
    here = [delayq.schedule(close_order, n, delay="1h") for n in range(2)]
    begun = [begin(selection={"view": "scheduled", "queue": queue}) for queue in ("redis", "orders")]
    own.terminate()
    loop = OperationLoop()
    for _ in range(5):
        loop.poll()
    away, well = (Operation.objects.get(pk=one.pk) for one in begun)
    assert (well.stage, well.counts) == ("finished", {"done": 2})
    assert away.stage == "running"
    assert away.problem["code"] == "redis_away"
    assert [stores.queue("orders", 0).link.execute("HEXISTS", "delayq:{orders}:jobs", job.short_id) for job in here] == [0, 0]
    own.start()
    stores.forget()
    assert [delayq.get(job.id) is not None for job in there] == [True, True]


@pytest.fixture
def two_servers(delayq_redis, transactional_db, own_redis, settings):
    """Gives the queue "redis" a separate server, and returns that server."""
    own = own_redis(appendonly="yes")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "redis": {"REDIS": own.url}}}
    return own


def in_turn(number: int) -> None:
    """Schedules jobs on both servers alternately."""
    for n in range(number):
        delayq.schedule(close_order, n, delay="1h", queue="redis")
        delayq.schedule(close_order, n, delay="1h")


@pytest.mark.slow
def test_what_is_on_a_server_that_is_away_is_left_for_later_and_the_others_go_on(two_servers, monkeypatch):
    monkeypatch.setattr(operation_loop, "AGAIN", 0.0)
    in_turn(5)
    operation = begin()
    two_servers.pause()
    loop = OperationLoop()
    with pytest.raises(StoreUnavailable):  # when nothing else is left
        work(loop)
    operation.refresh_from_db()
    assert (operation.stage, operation.counts, operation.seen) == (Stage.RUNNING, {"done": 5}, 5)
    assert operation_loop.labels(operation) == ["redis"]
    assert operation.problem["code"] == "redis_away"
    two_servers.resume()
    stores.forget()
    work(loop)
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.FINISHED, {"done": 10})
    assert (operation.passed_over, operation.problem, operation.expected) == (None, None, 10)


@pytest.mark.slow
def test_whoever_takes_over_goes_on_with_what_was_left_for_later(two_servers):
    in_turn(5)
    operation = begin()
    two_servers.pause()
    with pytest.raises(StoreUnavailable):
        work()
    two_servers.resume()
    stores.forget()
    Operation.objects.update(held_until=clock.now() - timedelta(seconds=1))
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.FINISHED, {"done": 10})


@pytest.mark.slow
def test_a_chunk_of_what_was_left_for_later_is_done_again_and_nothing_else_left_out(two_servers, monkeypatch):
    in_turn(5)
    operation = begin()
    two_servers.pause()
    loop = OperationLoop()
    with pytest.raises(StoreUnavailable):
        work(loop)
    two_servers.resume()
    stores.forget()

    def power_cut(jobs: Any, **options: Any) -> Any:
        list(acts.cancel_each(jobs, **options))
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setitem(operation_loop.VERBS, "cancel", power_cut)
        Operation.objects.update(held_until=None)
        work()
    Operation.objects.update(held_until=None)
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts, operation.seen) == (Stage.FINISHED, {"done": 10}, 10)


@pytest.mark.slow
def test_while_both_servers_are_away_it_waits(two_servers, settings, own_redis):
    other = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "orders": {"REDIS": other.url}, "default": {}}}
    in_turn(3)
    operation = begin(selection={"text": "queue:redis OR queue:orders"})
    other.pause()
    two_servers.pause()
    loop = OperationLoop()
    for _ in range(20):
        try:
            loop.poll()
        except StoreUnavailable:
            break
    other.resume()
    two_servers.resume()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.RUNNING, {})
    stores.forget()
    Operation.objects.update(held_until=None)
    work()
    operation.refresh_from_db()
    assert (operation.stage, operation.counts) == (Stage.FINISHED, {"done": 6})
