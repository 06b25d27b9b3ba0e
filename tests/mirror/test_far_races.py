"""Far rows that two actors change at once, in every order."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection, transaction

import django_delayq as delayq
from django_delayq import clock, conf, failpoints, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.failpoints import FailpointError
from django_delayq.mirror.bring_in import BringInLoop
from django_delayq.models import Job
from django_delayq.producer import horizon as producer_horizon
from django_delayq.producer import put, put_back, queues
from django_delayq.producer.edit import edit_and_requeue
from django_delayq.producer.outbox import far_rows
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import connect
from django_delayq.store.scripts.record import ScheduleReply
from tests.mirror.horizons import near
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import close_order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("horizon")]  # before "orders", which reads the settings

Change = delayq.Change


@pytest.fixture
def dies_behind_the_commit(horizon):
    """Brings in what is due, and dies before it has published any of it."""
    yield lambda: _die(horizon)
    failpoints.arm("")


def _die(horizon) -> None:
    failpoints.arm("bring_in.publish=raise:purpose")
    with pytest.raises(FailpointError):
        horizon.later(hours=2)
    failpoints.arm("")


def relayed(orders) -> None:
    orders.relay._young = -3600
    for _ in range(4):
        orders.fold()
        orders.relay.poll()
    orders.fold()


def due_in_hours(job: delayq.Job) -> float:
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    return round((view.date_ms - view.now_ms) / 3_600_000, 1)


def test_what_is_brought_in_and_not_published_the_relay_publishes(orders, dies_behind_the_commit):
    job = delayq.schedule(close_order, 7, delay="2h")
    dies_behind_the_commit()
    assert Job.objects.get().derived == "unpublished"
    assert not near(job)
    relayed(orders)
    assert due_in_hours(job) == 2.0


def test_a_cancel_between_the_two_commits_of_bringing_in_holds(orders, dies_behind_the_commit):
    job = delayq.schedule(close_order, 7, delay="2h")
    dies_behind_the_commit()
    assert job.cancel() is Change.DONE
    relayed(orders)
    assert orders.claim(ahead_ms=8_000_000) == []
    assert Job.objects.get().state == "cancelled"


def test_another_date_between_the_two_commits_of_bringing_in_holds(orders, dies_behind_the_commit):
    job = delayq.schedule(close_order, 7, delay="2h")
    dies_behind_the_commit()
    assert job.reschedule(delay="5h") is Change.DONE
    relayed(orders)
    assert due_in_hours(job) == 5.0
    assert Job.objects.get().derived == "scheduled"


POINTS = ("far", "committed", "published", "folded")  # up to which a far job has been brought in


@pytest.fixture
def brought(orders, horizon, dies_behind_the_commit):
    """Brings in what is due, up to that point."""

    def up_to(point: str) -> None:
        if point == "committed":
            dies_behind_the_commit()
        elif point != "far":
            horizon.later(hours=2)
        if point == "folded":
            orders.fold()

    return up_to


@pytest.mark.parametrize("point", POINTS)
def test_run_now_holds_wherever_bringing_in_is(orders, brought, point):
    job = delayq.schedule(close_order, 7, delay="2h")
    brought(point)
    assert job.run_now() is Change.DONE
    relayed(orders)
    assert [one.id for one in orders.claim()] == [job.short_id]
    relayed(orders)
    assert [(row.far, row.state) for row in Job.objects.all()] == [(False, "running")]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    ("policy", "delay", "args", "hours"),
    [
        ("keep", "30m", [1], 2.0),
        ("keep", "3h", [1], 2.0),
        ("after", "30m", [2], 0.5),
        ("after", "3h", [2], 2.0),
        ("replace", "3h", [2], 3.0),
        ("earliest", "30m", [1], 0.5),
        ("latest", "3h", [1], 3.0),
    ],
)
def test_each_policy_decides_alike_wherever_bringing_in_is(orders, horizon, brought, point, policy, delay, args, hours):
    delayq.schedule(close_order, 1, delay="2h", key="k")
    brought(point)
    delayq.schedule(close_order, 2, delay=delay, key="k", on_conflict=policy)
    relayed(orders)
    horizon.later(hours=4)
    relayed(orders)
    [row] = Job.objects.filter(state="scheduled")
    assert row.args == args
    view = stores.inspector().job("orders", row.id)
    assert view is not None
    assert round((view.date_ms - view.now_ms) / 3_600_000, 1) == hours


def test_a_key_between_the_two_commits_of_bringing_in_is_held(orders, horizon, dies_behind_the_commit):
    job = delayq.schedule(close_order, 7, delay="2h", key="k")
    dies_behind_the_commit()
    again = delayq.schedule(close_order, 8, delay="3h", key="k")
    assert (again.created, again.id) == (False, job.id)
    relayed(orders)
    assert Job.objects.filter(state="scheduled").count() == 1


@pytest.mark.parametrize("delay", ["30m", "3h"])
def test_a_key_between_the_two_commits_is_held_also_while_redis_is_away(orders, horizon, dies_behind_the_commit, redis_away, delay):
    job = delayq.schedule(close_order, 7, delay="2h", key="k")
    dies_behind_the_commit()
    redis_away()
    again = delayq.schedule(close_order, 8, delay=delay, key="k")
    assert (again.created, again.id) == (False, job.id)


@pytest.mark.parametrize("change", ["cancel", "reschedule", "run_now"])
def test_who_has_read_a_far_row_that_comes_in_meanwhile_changes_the_near_one(orders, horizon, monkeypatch, change):
    job = delayq.schedule(close_order, 7, delay="2h")
    cancel_far, move_far = far_rows.cancel, far_rows.move

    def brought(*_: object) -> None:
        horizon.later(hours=2)

    monkeypatch.setattr(far_rows, "cancel", lambda *given: (brought(), cancel_far(*given))[1])
    monkeypatch.setattr(far_rows, "move", lambda *given: (brought(), move_far(*given))[1])
    answer = job.reschedule(delay="5h") if change == "reschedule" else getattr(job, change)()
    assert answer is Change.DONE
    relayed(orders)
    claimed = orders.claim()
    if change == "reschedule":
        assert due_in_hours(job) == 5.0
    assert [one.id for one in claimed] == ([job.short_id] if change == "run_now" else [])
    assert Job.objects.get().state == ("cancelled" if change == "cancel" else "running" if claimed else "scheduled") or claimed


def test_a_row_is_cancelled_or_brought_in_and_never_both(horizon, orders):
    jobs = [delayq.schedule(close_order, number, delay="2h") for number in range(10)]
    for job in jobs[::2]:
        assert job.cancel() is Change.DONE
    assert set(horizon.later(hours=2)) == {job.id for job in jobs[1::2]}
    for job in jobs[1::2]:
        assert job.cancel() is Change.DONE
    relayed(orders)
    assert orders.claim(ahead_ms=8_000_000) == []


def test_many_loops_bring_in_each_row_once(horizon):
    jobs = delayq.schedule_many(close_order.using(delay="2h").bind(number) for number in range(200))
    found: list = []

    def bring_in() -> None:
        while some := far_rows.bring_in_due("orders", range(1), clock.now() + timedelta(hours=3), 7):
            found.extend(some)
        connection.close()

    threads = [threading.Thread(target=bring_in) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == sorted(job.id for job in jobs)


def test_while_redis_is_away_nothing_comes_in_and_all_can_be_changed(horizon, orders, tmp_path):
    job = delayq.schedule(close_order, 7, delay="2h")
    link = connect(f"unix://{tmp_path}/nobody")
    loop = BringInLoop(link, orders.config, prefix="delayq")
    loop._workers_at = clock.monotonic() + 60
    with pytest.raises(StoreUnavailable):
        loop.poll()
    assert Job.objects.get().derived == "far"
    assert job.cancel() is Change.DONE


def test_turned_off_all_that_is_far_comes_in(horizon, orders, settings):
    jobs = [delayq.schedule(close_order, number, delay="400d") for number in range(3)]
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}, "default": {}}}
    assert jobs[0].reschedule(delay="500d") is Change.DONE
    assert near(jobs[0])
    loop = BringInLoop(stores.link, conf.get().queue("orders"), prefix="delayq")
    loop.poll()
    assert all(near(job) for job in jobs)


def test_a_wiped_redis_gets_its_near_jobs_back_and_no_others(horizon, orders, loop, wipe):
    far, close = delayq.schedule(close_order, 1, delay="2h"), delayq.schedule(close_order, 2, delay="30m")
    orders.fold()
    wipe()
    settle_down(orders, loop)
    assert near(close)
    assert not near(far)
    assert Job.objects.get(pk=far.id).derived == "far"
    assert horizon.later(hours=2) == [far.id]


def test_that_far_jobs_come_in_late_is_said_once_and_when_it_is_over(horizon, orders, caplog):
    delayq.schedule(close_order, 7, delay="2h")
    with caplog.at_level(logging.WARNING, "django_delayq.relay"):
        for _ in range(2):
            horizon.loop._say_late(clock.now() + timedelta(minutes=106))
        horizon.later(hours=2)
        horizon.loop.poll()
    assert caplog.text.count("reach Redis late") == 1
    assert caplog.text.count("in time again") == 1


def test_a_far_row_that_meets_a_near_holder_brings_the_date_that_it_was_given_meanwhile(orders, horizon, monkeypatch):
    holder = delayq.schedule(close_order, 1, delay="30m", key="k")
    ask, debounce = Publisher.ask, close_order.using(key="k", on_conflict="latest")
    later = iter(["5h"])

    def asks(*args):
        answer = ask(*args)
        for delay in later:  # another transaction moves the far row before it is made near
            with transaction.atomic():
                debounce.using(delay=delay).schedule(3)
        return answer

    with transaction.atomic():
        debounce.using(delay="2h").schedule(2)
        monkeypatch.setattr(Publisher, "ask", asks)
    assert next(later, None) is None
    relayed(orders)
    assert due_in_hours(holder) == 5.0


def test_a_far_row_that_another_transaction_is_changing_waits_for_the_relay(orders, horizon, monkeypatch):
    with transaction.atomic():
        job = delayq.schedule(close_order, 2, delay="2h", key="k")
        monkeypatch.setattr(far_rows, "bring_in", _locked)
        monkeypatch.setattr(Publisher, "ask", lambda *_: [ScheduleReply("kept", ids.new(), 0)])
    horizon.loop.poll()
    assert job.created is None
    assert (Job.objects.get().derived, near(job)) == ("far", False)
    monkeypatch.undo()
    horizon.loop.poll()
    assert far_rows.of_keys("orders", ["k"]) == {"k": job.id}, "its key is checked now"


def test_a_redis_only_job_meets_the_far_row_that_another_transaction_is_changing(orders, horizon):
    far = delayq.schedule(close_order, 1, delay="2h", key="k")
    holds, may_commit = threading.Event(), threading.Event()

    def change() -> None:
        with transaction.atomic():
            far.reschedule(delay="5h")
            holds.set()
            may_commit.wait(10)
        connection.close()

    thread = threading.Thread(target=change)
    thread.start()
    assert holds.wait(10)
    threading.Timer(0.3, may_commit.set).start()
    near_one = close_order.using(delay="30m", key="k", durability="redis").schedule(2)
    thread.join(10)
    assert (near_one.id, near_one.created) == (far.id, False)
    assert due_in_hours(far) == 5.0


def _locked(_jobs, *, waits: str = "") -> list:
    if waits:
        raise StoreUnavailable(code="far_locked", what=waits, seconds=2)
    return []


def test_a_requeued_far_job_is_near(horizon, orders):
    job = delayq.schedule(close_order, 7, delay="2h")
    assert job.requeue() is Change.CONFLICT
    job.cancel()
    assert job.requeue() is Change.DONE
    assert [claimed.id for claimed in orders.claim()] == [job.short_id]
    orders.fold()
    assert Job.objects.get().state == "running"


def test_a_purge_takes_far_jobs_too(horizon, orders):
    for number in range(3):
        delayq.schedule(close_order, number, delay="2h")
    near_one = delayq.schedule(close_order, 4, delay="30m")
    assert sum(queues.purge("orders")) == 4
    assert horizon.later(days=1) == []
    assert near_one.cancel() is Change.DONE


def test_far_jobs_of_a_queue_on_another_server_come_in_while_nobody_sees_the_workers(horizon, orders, own_redis, settings):
    shared = own_redis()
    queues = {"orders": {"HORIZON": "1h", "REDIS": settings.DELAYQ["REDIS"]}, "default": {}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": shared.url, "QUEUES": queues}
    loop = BringInLoop(stores.places, conf.get().queue("orders"), prefix="delayq")
    loop.poll()
    job = delayq.schedule(close_order, 7, delay="61m")
    assert not near(job)
    shared.terminate()
    Job.objects.update(run_at=clock.now() + timedelta(minutes=59))
    loop._workers_at = 0.0
    loop.poll()
    assert near(job)
    assert not near(delayq.schedule(close_order, 8, delay="61m")), "what was noted stands"


def test_a_near_row_whose_process_has_died_before_it_looked_meets_the_far_one_of_its_key(
    orders, horizon, loop, unpublished, monkeypatch, who_publishes
):
    far = delayq.schedule(close_order, 1, delay="2h", key="k")
    monkeypatch.setattr(far_rows, "contest", lambda *_, **__: None)  # as before the far one was committed
    lost = unpublished(2, delay="30m", key="k")
    monkeypatch.undo()
    who_publishes(lost)
    relayed(orders)
    assert Job.objects.filter(state="scheduled").count() == 1
    assert near(far) or near(lost)


@pytest.fixture(params=["relay", "reschedule", "another of its key"])
def who_publishes(request, orders):
    def publish(lost: delayq.Job) -> None:
        if request.param == "reschedule":
            delayq.reschedule(lost.id, delay="20m")
        elif request.param == "another of its key":
            delayq.schedule(close_order, 3, delay="20m", key="k")  # asks who holds the key, and puts in what waits

    return publish


def test_what_is_published_between_the_two_looks_of_a_far_one_is_seen(orders, horizon, loop, unpublished, monkeypatch):
    delayq.schedule(close_order, 0, delay="30m").cancel()
    loop._look_at = 0.0
    settle_down(orders, loop)  # the server is confirmed, else rows are asked in any case
    unpublished(2, delay="30m", key="k")
    real, asked = Publisher.send, []

    def send(publisher, items, epoch, mode=""):
        answer = real(publisher, items, epoch, mode)
        if mode != "ask" or asked:
            return answer
        found = answer()
        asked.append(found)
        for go_on in unpublished.later:
            go_on()
        orders.fold()
        return lambda: found

    monkeypatch.setattr(put, "_held", lambda *_: {})  # asked behind the commit only, as in a transaction
    monkeypatch.setattr(producer_horizon, "meet", lambda *_: False)  # the near one has looked before there was a far one
    monkeypatch.setattr(Publisher, "send", send)
    delayq.schedule(close_order, 1, delay="2h", key="k")
    assert asked
    relayed(orders)
    assert Job.objects.filter(state="scheduled").count() == 1


def test_a_far_row_that_comes_while_a_job_of_redis_durability_goes_in_meets_it(orders, horizon, monkeypatch):
    real, there = Publisher.publish, []

    def publish(publisher, items, epoch=""):
        if not there:
            there.append(True)
            delayq.schedule(close_order, 1, delay="2h", key="k")
        return real(publisher, items, epoch)

    monkeypatch.setattr(Publisher, "publish", publish)
    job = delayq.schedule(close_order, 2, delay="30m", key="k", durability="redis")
    assert near(job)
    relayed(orders)
    assert Job.objects.filter(state="scheduled").count() == 1


@pytest.mark.parametrize("raced", [False, True], ids=["far first", "far meanwhile"])
@pytest.mark.parametrize("how", ["requeue", "edit"])
def test_a_requeue_does_not_take_the_key_of_a_far_job(orders, horizon, monkeypatch, how, raced):
    old = delayq.schedule(close_order, 1, delay="2h", key="k")
    old.cancel()
    delayq.schedule(close_order, 2, delay="3h", key="k")
    if raced:
        monkeypatch.setattr(put_back, "held_by_rows", lambda *_: set())
    answer = old.requeue() if how == "requeue" else edit_and_requeue(old.id, [3], {})
    assert answer is (Change.DONE if raced else Change.CONFLICT)
    relayed(orders)
    assert [row.args for row in Job.objects.filter(state="scheduled")] == ([[1 if how == "requeue" else 3]] if raced else [[2]])


def test_a_far_job_behind_a_near_one_that_redis_has_lost_follows_that(orders, horizon, loop, wipe):
    held = delayq.schedule(close_order, 1, delay="30m", key="k")
    orders.fold()
    wipe()
    again = delayq.schedule(close_order, 2, delay="2h", key="k")
    assert (again.created, again.id) == (False, held.id)
    settle_down(orders, loop)
    relayed(orders)
    assert [row.args for row in Job.objects.filter(state="scheduled")] == [[1]]


@pytest.mark.parametrize("ahead", [600_000, -600_000], ids=["ahead", "behind"])
@pytest.mark.parametrize("minutes", [55, 65, 120])
def test_a_web_host_whose_clock_is_wrong_makes_no_date_wrong(orders, horizon, monkeypatch, ahead, minutes):
    date = clock.now() + timedelta(minutes=minutes)
    with monkeypatch.context() as wrong:
        wrong.setattr(producer_horizon, "clock", SimpleNamespace(wall_ms=lambda: clock.wall_ms() + ahead, monotonic=clock.monotonic))
        job = delayq.schedule(close_order, 7, run_at=date)
    assert near(job) is (minutes < 60), "Redis' clock decides"
    horizon.loop.poll()
    orders.fold()
    row = Job.objects.get()
    assert abs(row.run_at - date) < timedelta(milliseconds=1)
    assert near(job) is (minutes < 60)


def test_a_lock_that_was_not_had_is_told_whatever_the_driver_calls_it(horizon):
    class Refused(Exception):
        sqlstate = "HY000"  # as some drivers of MySQL say beside the number

    with pytest.raises(StoreUnavailable), far_rows.in_time("k"):
        raise OperationalError from Refused(1205, "Lock wait timeout exceeded")
