"""The calls of views: jobs in and out of transactions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, conf, exceptions, ids, signals
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Event, Job
from django_delayq.producer import queues
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import Outcome, QueueStore
from tests.depths import queue_depth
from tests.tasks_for_tests import close_order, ping

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]


def in_redis(job: delayq.Job) -> bool:
    return stores.inspector().job(job.queue, job.id) is not None


def test_a_committed_transaction_schedules():
    with transaction.atomic():
        job = delayq.schedule(close_order, 7, delay="30m", key="o:7")
        assert job.created is None
        assert not in_redis(job)
    assert in_redis(job)
    assert job.created is True
    assert job.state == "scheduled"


def test_a_commit_leaves_its_jobs_to_the_relay_while_redis_has_just_failed():
    with transaction.atomic():
        job = delayq.schedule(close_order, 7)
        stores.breaker.note(exceptions.StoreUnavailable("hung"))
    assert not in_redis(job)
    assert Job.objects.get().published is None


def test_a_rolled_back_transaction_schedules_nothing():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        job = delayq.schedule(close_order, 7)
        other = delayq.schedule(ping, durability="redis")
        raise ZeroDivisionError
    assert not in_redis(job)
    assert not in_redis(other)
    assert not Job.objects.exists()


def test_a_rolled_back_savepoint_schedules_nothing_of_its_own():
    with transaction.atomic():
        kept = delayq.schedule(close_order, 1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            dropped = delayq.schedule(close_order, 2)
            raise ZeroDivisionError
    assert in_redis(kept)
    assert not in_redis(dropped)
    assert Job.objects.count() == 1


def test_the_transactions_own_duration_is_not_added_to_the_delay(monkeypatch):
    with transaction.atomic():
        job = delayq.schedule(close_order, 7, delay="10s")
        later = clock.monotonic() + 4
        monkeypatch.setattr(clock, "monotonic", lambda: later)
    monkeypatch.undo()
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    assert 5_000 < view.date_ms - view.now_ms <= 6_000


@pytest.mark.slow
def test_a_web_process_killed_right_after_the_commit_leaves_the_row(settings):
    script = textwrap.dedent("""
        import os, signal, django
        django.setup()
        import django_delayq as delayq
        from django.db import connection, transaction
        from tests.tasks_for_tests import close_order
        connection.settings_dict["NAME"] = os.environ["TEST_NAME"]
        with transaction.atomic():
            delayq.schedule(close_order, 41, delay="1h")
            transaction.get_connection().run_on_commit.insert(0, (set(), lambda: os.kill(os.getpid(), signal.SIGKILL), False))
    """)
    name = transaction.get_connection().settings_dict["NAME"]
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "TEST_NAME": str(name)}
    done = subprocess.run([sys.executable, "-c", script], env=env, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    row = Job.objects.get()
    assert (row.args, row.state, row.published) == ([41], "scheduled", None)
    assert not stores.inspector().job("orders", row.id)


def test_a_held_key_returns_its_holder():
    first = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    second = delayq.schedule(close_order, 7, delay="2h", key="o:7")
    assert (second.id, second.created) == (first.id, False)
    assert Job.objects.count() == 1
    first.cancel()
    assert delayq.schedule(close_order, 7, key="o:7").created is True


def test_a_key_used_twice_in_one_transaction_is_one_job():
    with transaction.atomic():
        first = delayq.schedule(close_order, 7, delay="1h", key="o:7")
        second = delayq.schedule(close_order, 7, delay="1h", key="o:7")
        assert (first.created, second.created) == (None, None), "the commit decides: the first may be rolled back with a savepoint"
    assert (first.created, second.id, second.created) == (True, first.id, False)
    assert list(Job.objects.filter(merged_into=first.id).values_list("state", "ending")) == [("cancelled", "merged")]


def test_error_and_replace_policies():
    first = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    with pytest.raises(delayq.KeyTaken) as taken:
        delayq.schedule(close_order, 7, key="o:7", on_conflict="error")
    assert taken.value.holder == first.id
    second = delayq.schedule(close_order, 8, delay="1h", key="o:7", on_conflict="replace")
    assert second.created is True
    assert (first.state, second.state) == (None, "scheduled")
    assert stores.inspector().find("orders", "o:7") == second.id


def test_a_task_is_still_a_function():
    assert close_order(5) == 5


def test_what_a_function_carries_does_not_change_its_task():
    def function() -> None: ...

    function.name, function.queue, function.priority = "other", "nowhere", "high"
    made = delayq.task(name="tests.carried", queue="orders")(function)
    assert (made.name, made.queue, made.priority) == ("tests.carried", "orders", 0)


def test_options_and_arguments_never_mix():
    job = close_order.using(delay="1h", priority=5).using(delay="2h").schedule(7, note="hello")
    row = Job.objects.get(pk=job.id)
    assert (row.args, row.kwargs, row.priority) == ([7], {"note": "hello"}, 5)
    with pytest.raises(delayq.ConfigError, match="'delay' is also an option"):

        @delayq.task(name="tests.clash")
        def clash(delay: int) -> None: ...


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: delayq.schedule(close_order, 1, run_at=datetime(2030, 1, 1)), delayq.ConfigError, "naive.*make_aware"),
        (lambda: delayq.schedule(close_order, 1, run_at="2030-01-01"), delayq.ConfigError, "aware datetime"),
        (lambda: delayq.schedule(close_order, 1, delay="1h", run_at=clock.now()), delayq.ConfigError, "not both"),
        (lambda: delayq.schedule(close_order, 1, delay=-5), delayq.ConfigError, "negative"),
        (lambda: delayq.schedule(close_order, 1, delay="-5m"), delayq.ConfigError, "'-5m' is negative. The minimum is 0"),
        (lambda: delayq.schedule(close_order, 1, on_conflict="replce"), delayq.ConfigError, "keep, replace.*did you mean 'replace'"),
        (lambda: delayq.schedule(close_order, 1, priority="high"), delayq.ConfigError, "whole number such as 10, not 'high'"),
        (lambda: delayq.schedule(close_order, 1, backoff=[1, 2]), delayq.ConfigError, "not a ladder.*did you mean '1s 2s'"),
        (lambda: delayq.schedule("shop.tasks.close", 1), delayq.ConfigError, "Import the task, and pass it instead of its name"),
        (lambda: delayq.schedule(close_order, Job()), delayq.PayloadError, r"args\[0\].*pk"),
        (lambda: delayq.schedule(close_order, 1, note=float("nan")), delayq.PayloadError, r"kwargs\['note'\].*nan"),
        (lambda: delayq.schedule(close_order, "x" * 10_000_000), delayq.PayloadTooLarge, "MAX_PAYLOAD"),
        (lambda: delayq.schedule(close_order, 1, queue="ordres"), delayq.QueueUnknown, "did you mean 'orders'"),
        (lambda: close_order.using(dealy="1h"), delayq.ConfigError, "did you mean 'delay'"),
        (
            lambda: delayq.schedule(close_order, 1, dealy="1h"),
            delayq.PayloadError,
            "unexpected keyword argument 'dealy'",
        ),
        (lambda: delayq.schedule(close_order), delayq.PayloadError, "missing a required argument"),
        (lambda: delayq.schedule(print, 1), delayq.ConfigError, "not a task.*@delayq.task"),
        (lambda: delayq.schedule(close_order, 1, on_conflict="ignore"), delayq.ConfigError, "on_conflict"),
        (lambda: delayq.schedule(close_order, 1, using="other"), Exception, "other"),
        (lambda: delayq.schedule(close_order, 1, max_attempts=0), delayq.ConfigError, "Pass expires="),
        (lambda: delayq.schedule(close_order, 1, max_attempts=-1), delayq.ConfigError, "at least 1"),
        (lambda: delayq.schedule(close_order, 1, priority="high"), delayq.ConfigError, "whole number"),
        (lambda: delayq.schedule(close_order, 1, priority=2**31), delayq.ConfigError, "priority"),
        (lambda: delayq.schedule(close_order, 1, backoff=lambda n, e: 1), delayq.ConfigError, "@task"),
        (lambda: delayq.schedule(close_order, 1, meta=[1]), delayq.PayloadError, "meta"),
        (lambda: delayq.schedule(close_order, 1, key="a\nb"), delayq.PayloadError, "control character"),
        (lambda: delayq.cancel("nonsense"), delayq.PayloadError, "is not a job id"),
        (lambda: delayq.cancel(key="k"), delayq.ConfigError, "queue="),
        (lambda: delayq.cancel(), delayq.ConfigError, "Pass a Job"),
        (lambda: delayq.cancel(str(ids.new()), key="k", queue="orders"), delayq.ConfigError, "but not both"),
        (lambda: delayq.requeue(ids.new(), key="k", queue="orders"), delayq.ConfigError, "but not both"),
        (lambda: delayq.pause("ordres"), delayq.QueueUnknown, "did you mean"),
        (lambda: delayq.task(5), delayq.ConfigError, "All options are keyword arguments"),
    ],
)
def test_bad_input_is_refused_with_place_and_remedy(call, error, words):
    with pytest.raises(error, match=f"(?s){words}"):
        call()
    assert not Job.objects.exists()


def test_dates_in_any_time_zone():
    at = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    job = delayq.schedule(close_order, 1, run_at=at)
    assert Job.objects.get(pk=job.id).run_at == at


@pytest.mark.parametrize(
    "at",
    [
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12))),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
        datetime(1969, 12, 31, tzinfo=UTC),
    ],
)
def test_a_date_that_no_row_can_hold_never_reaches_redis(at):
    job = delayq.schedule(close_order, 7, delay="1h")
    for call in (
        lambda: delayq.schedule(ping, run_at=at),
        lambda: delayq.schedule(close_order, 7, run_at=at),
        lambda: delayq.schedule(ping, expires=at),
        lambda: job.reschedule(run_at=at),
    ):
        with pytest.raises(delayq.ConfigError, match=r"1970.*9999"):
            call()
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    assert view.date_ms < view.now_ms + 3_600_001


def test_changes_answer_honestly():
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    assert job.reschedule(delay="2h") is delayq.Change.DONE
    assert job.run_now() is delayq.Change.DONE
    claimed = stores.queue("orders", 0).claim("w", "n", want=1, lease_ms=30_000, max_crashes=3).jobs
    assert len(claimed) == 1
    assert delayq.cancel(str(job.id)) is delayq.Change.RUNNING
    assert job.run_now() is delayq.Change.RUNNING
    assert delayq.cancel("0" * 22) is delayq.Change.UNKNOWN
    assert delayq.get("0" * 22) is None


def test_an_id_alone_is_asked_for_in_every_queue():
    job = delayq.schedule(ping, 7, delay="1h")
    assert not Job.objects.exists(), "no row says which"
    assert job.queue != next(iter(conf.get().queues)), "the first one does not know it"
    assert delayq.cancel(job.id) is delayq.Change.DONE
    assert (
        stores.queue("redis", 0).claim("w", "n", want=1, lease_ms=30_000, max_crashes=3, now_ms=clock.wall_ms() + 7_200_000).jobs == []
    )


def test_a_handle_shows_its_name_its_task_and_its_queue():
    job = delayq.schedule(close_order, 7, delay="1h")
    assert repr(job) == f"<Job {job.short_id} tests.tasks_for_tests.close_order on orders>"


@pytest.mark.parametrize("end", ["cancel", "purge", "replace"])
def test_a_job_cancelled_by_mistake_is_requeued_at_once(end):
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    if end == "cancel":
        job.cancel()
    elif end == "purge":
        assert sum(queues.purge("orders")) == 1
    else:
        delayq.schedule(close_order, 8, delay="1h", key="o:7", on_conflict="replace").cancel()
    assert Job.objects.get(pk=job.id).state == ("cancelled" if end == "cancel" else "scheduled"), "the mirror is behind"
    assert job.requeue() is delayq.Change.DONE
    assert job.state == "scheduled"
    assert job.requeue() is delayq.Change.CONFLICT


def test_a_job_that_succeeded_is_not_requeued_because_the_mirror_is_behind():
    job = delayq.schedule(close_order, 7)
    [claimed] = stores.queue("orders", 0).claim("w", "n", want=1, lease_ms=30_000, max_crashes=3).jobs
    ack = Outcome(id=claimed.id, attempt=1, fence="n", kind="ack")
    stores.queue("orders", 0).settle([ack], worker="w", max_crashes=3)
    assert Job.objects.get().state == "scheduled"
    assert job.requeue() is delayq.Change.CONFLICT
    assert not queue_depth("orders").scheduled


@pytest.mark.parametrize("key", ["", None, 5, "a\nb"])
def test_a_key_that_no_job_can_hold_names_no_job(key):
    job = delayq.schedule(close_order, 7, delay="1h")  # without a key, and not mirrored yet
    for call in (
        lambda: delayq.cancel(key=key, queue="orders"),
        lambda: delayq.reschedule(key=key, queue="orders", delay="2h"),
        lambda: delayq.run_now(key=key, queue="orders"),
        lambda: delayq.requeue(key=key, queue="orders"),
        lambda: delayq.get(key=key, queue="orders"),
    ):
        with pytest.raises((delayq.ConfigError, delayq.PayloadError)):
            call()
    assert job.state == "scheduled"


def test_a_job_is_unknown_in_a_queue_that_is_not_its_own():
    job = delayq.schedule(close_order, 7, delay="1h")  # not mirrored yet: its row looks as if Redis lacked it
    assert delayq.cancel(job.id, queue="default") is delayq.Change.UNKNOWN
    assert delayq.reschedule(job.id, queue="default", delay="2h") is delayq.Change.UNKNOWN
    assert Job.objects.get().state == job.state == "scheduled"
    job.cancel()
    Job.objects.update(state="cancelled")
    assert delayq.requeue(job.id, queue="default") is delayq.Change.UNKNOWN
    assert queue_depth("default").scheduled == 0
    assert delayq.requeue(job.id) is delayq.Change.DONE
    assert in_redis(job)


def test_get_finds_a_job_by_its_id_alone():
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    found = delayq.get(job.id)
    assert found is not None
    assert (found.queue, found.key, found.state) == ("orders", "o:7", "scheduled")
    other = delayq.get(delayq.schedule(ping, durability="redis").id)
    assert other is not None
    assert other.queue == "redis"


def test_get_takes_a_handle_as_well():
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    found = delayq.get(delayq.Job(id=job.id, queue="orders"))
    assert found is not None
    assert (found.id, found.key) == (job.id, "o:7")


def test_get_by_key_finds_the_holder_in_its_queue_and_no_other():
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    other = delayq.schedule(ping, key="o:7")
    for queue, id in (("orders", job.id), ("redis", other.id), ("default", None)):
        found = delayq.get(key="o:7", queue=queue)
        assert (found and found.id) == id
    assert delayq.get(key="o:8", queue="orders") is None
    with pytest.raises(delayq.ConfigError, match="Pass queue="):
        delayq.get(key="o:7")
    with pytest.raises(delayq.ConfigError, match="Pass a Job"):
        delayq.get()


def test_get_by_key_finds_what_is_committed_and_not_published_yet(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("django_delayq.producer.put._send_rows", lambda publisher, puts: [])
        job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    found = delayq.get(key="o:7", queue="orders")
    assert found is not None
    assert (found.id, found.state) == (job.id, "scheduled")


def test_get_by_key_does_not_find_a_job_that_has_ended_though_the_mirror_is_behind():
    job = delayq.schedule(close_order, 7, key="o:7")
    end(job, "ack")
    assert Job.objects.get().published is None
    assert delayq.get(key="o:7", queue="orders") is None


def end(job: delayq.Job, outcome: str) -> None:
    """Runs it to its end, without an event for the mirror."""
    store, nonce = stores.queue(job.queue, 0), f"n{uuid.uuid4().hex}"
    [claimed] = store.claim("w", nonce, want=1, lease_ms=30_000, max_crashes=3).jobs
    item = Outcome(id=claimed.id, attempt=claimed.attempt, fence=nonce, kind=outcome)
    assert store.settle([item], worker="w", max_crashes=3) == ["done"]


def test_a_failed_job_is_requeued_by_its_key():
    older = delayq.schedule(close_order, 7, key="o:7")
    end(older, "fail")
    job = delayq.schedule(close_order, 8, key="o:7")
    end(job, "fail")
    assert delayq.requeue(key="o:7", queue="default") is delayq.Change.UNKNOWN
    assert delayq.requeue(key="o:7", queue="orders", actor="clerk") is delayq.Change.DONE
    assert (job.state, older.state) == ("scheduled", "failed")
    assert delayq.requeue(key="o:7", queue="orders") is delayq.Change.CONFLICT
    assert delayq.requeue(key="o:8", queue="orders") is delayq.Change.UNKNOWN


def test_nothing_older_is_requeued_by_key_when_the_latest_job_succeeded():
    older = delayq.schedule(close_order, 7, key="o:7")
    end(older, "fail")
    end(delayq.schedule(close_order, 8, key="o:7"), "ack")
    assert delayq.requeue(key="o:7", queue="orders") is delayq.Change.CONFLICT
    assert older.state == "failed"


@pytest.mark.parametrize("release", ["this", "before"])
@pytest.mark.parametrize("outcome", ["ack", "fail"])
def test_requeue_by_key_passes_over_what_was_merged_into_the_job(outcome, release):
    config = conf.get().queue("orders")
    job = delayq.schedule(close_order, 7, key="o:7")
    with transaction.atomic():  # else nothing is left of a job that is merged
        merged = delayq.schedule_many(close_order.using(key="o:7", on_conflict="latest").bind(8) for _ in range(30))
    end(job, outcome)
    MirrorLoop(stores.link, config, prefix="delayq").drain()
    assert Job.objects.filter(state="cancelled").count() == len(merged)
    if release == "before":  # it knew no column for it, but told it by an event
        rows = Job.objects.filter(ending="merged")
        for place, row in enumerate(rows):
            Event.objects.create(job=row, queue="orders", at=clock.now(), kind="merged", stream_id=f"1-{place}")
        rows.update(ending=None, merged_into=None)
    wanted = delayq.Change.DONE if outcome == "fail" else delayq.Change.CONFLICT
    assert delayq.requeue(key="o:7", queue="orders") is wanted
    assert queue_depth("orders").scheduled == (job.state == "scheduled") == (outcome == "fail")


def test_the_signal_of_a_scheduled_job():
    heard = []

    def listener(sender, job, **_):
        heard.append((sender.name, job.id))

    signals.job_scheduled.connect(listener)
    job = delayq.schedule(close_order, 7)
    signals.job_scheduled.disconnect(listener)
    assert heard == [("tests.tasks_for_tests.close_order", job.id)]


def test_a_call_that_comes_after_the_run_answers_the_date_of_the_plan(monkeypatch):
    """Redis was away; the relay was faster than the request, and a worker faster than both."""
    send, times = QueueStore.start_schedule, []

    def late(store, items, **options):
        send(store, items, **options)()
        assert len(store.claim("w", "n", want=1, lease_ms=30_000, max_crashes=3).jobs) == 1
        times.append(clock.now())
        time.sleep(0.02)
        return send(store, items, **options)

    monkeypatch.setattr(QueueStore, "start_schedule", late)
    assert delayq.schedule(close_order, 7).run_at <= times[0]
