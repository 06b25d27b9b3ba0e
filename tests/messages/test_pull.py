"""Messages are pushed, pulled and settled. Messages that no consumer settled are pulled again."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from django.db import connection, connections, transaction

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.mirror import restore
from django_delayq.mirror.restore import RestoreLoop, needs_restore
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.states import MESSAGE, Change, State
from django_delayq.store.connection.wake import WakeLine
from django_delayq.store.scripts import site
from django_delayq.store.scripts.site import Facts, SiteRefused
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.depths import queue_depth
from tests.messages.consumer import LEASE
from tests.messages.held import held, overlaps
from tests.servers import as_package
from tests.stage import Actor, many_open_files, project, sqlite
from tests.tasks_for_tests import close_order
from tests.worker.conftest import eventually

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_message_is_pulled_as_it_was_pushed():
    body = {"to": "a@example.org", "parts": [1, 2.5, None, "ü"]}
    job = delayq.push("quick", body, key="m:1", meta={"from": "shop"})
    (message,) = delayq.pull("quick", 5)
    assert (message.id, message.body, message.key, message.meta) == (job.id, body, "m:1", {"from": "shop"})
    assert (message.attempt, message.queue, message.max_attempts) == (1, "quick", 3)
    assert message.fence.endswith(message.short_id)


def test_what_is_acked_does_not_come_again():
    job = delayq.push("quick", 1)
    delayq.pull("quick")[0].ack()
    assert len(delayq.pull("quick", lease="1s")) == 0
    assert stores.inspector().job("quick", job.id).state == "finished"


def test_a_message_that_no_key_here_has_signed_waits_and_one_without_a_signature_fails(settings):
    unsigned = delayq.push("quick", 0)
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    settings.SECRET_KEY = "new"
    job = delayq.push("quick", 1)
    settings.SECRET_KEY = "old"
    assert len(delayq.pull("quick")) == 0
    assert stores.inspector().job("quick", unsigned.id).state == "failed"
    assert stores.inspector().job("quick", job.id).state == "scheduled"
    delayq.run_now(job)
    settings.SECRET_KEY = "new"
    assert [message.body for message in delayq.pull("quick")] == [1]


def test_what_is_not_due_waits():
    delayq.push("quick", 1, delay="1h")
    assert len(delayq.pull("quick")) == 0


def test_a_retry_comes_again_as_its_next_attempt():
    delayq.push("quick", 1)
    delayq.pull("quick")[0].retry(0, "not yet")
    (message,) = delayq.pull("quick")
    assert message.attempt == 2


def test_without_a_delay_a_retry_goes_by_the_ladder_of_the_message():
    delayq.push("quick", 1, backoff="1h")
    delayq.pull("quick")[0].retry()
    assert len(delayq.pull("quick")) == 0
    assert queue_depth("quick").scheduled == 1


def test_after_the_last_attempt_a_retry_is_a_failure():
    job = delayq.push("quick", 1, max_attempts=1)
    delayq.pull("quick")[0].retry(0)
    assert stores.inspector().job("quick", job.id).state == "failed"


def test_a_message_without_a_limit_says_0_and_has_no_last_attempt():
    delayq.push("quick", 1, max_attempts=0, expires="1h", backoff="1ms")
    (message,) = delayq.pull("quick")
    assert (message.max_attempts, message.is_last_attempt) == (0, False)
    message.retry()
    (again,) = delayq.pull("quick", wait="60s")
    assert again.attempt == 2


def test_a_snoozed_message_comes_again_in_the_same_attempt():
    delayq.push("quick", 1)
    delayq.pull("quick")[0].snooze(0)
    assert delayq.pull("quick")[0].attempt == 1


def test_a_failed_message_can_be_requeued():
    job = delayq.push("quick", "x")
    delayq.pull("quick")[0].fail("no such address")
    assert stores.inspector().job("quick", job.id).state == "failed"
    assert job.requeue() is Change.DONE
    assert delayq.pull("quick")[0].body == "x"


def test_what_is_not_settled_comes_again_as_the_next_attempt_behind_its_ladder():
    delayq.push("quick", 1)
    (first,) = delayq.pull("quick", lease="100ms")
    (second,) = delayq.pull("quick", wait="60s")
    assert (second.attempt, second.id) == (2, first.id)
    assert second.fence != first.fence
    with pytest.raises(delayq.LeaseLost):
        first.ack()
    second.ack()


def test_an_end_that_comes_behind_a_lost_lease_is_refused_also_before_anybody_pulls_again():
    delayq.push("quick", 1, backoff="1h")
    (first,) = delayq.pull("quick", lease="100ms")
    time.sleep(0.15)
    assert len(delayq.pull("quick")) == 0  # settles the lost lease as an attempt
    with pytest.raises(delayq.LeaseLost):
        first.ack()
    assert stores.inspector().job("quick", first.id).state == "scheduled"


def test_leases_that_end_fail_a_message_when_no_attempt_is_left_and_however_often_before():
    job = delayq.push("quick", 1, max_attempts=5, backoff="1ms")
    for attempt in range(1, 6):
        (message,) = delayq.pull("quick", wait="60s", lease="50ms")
        assert message.attempt == attempt
    assert len(delayq.pull("quick", wait="200ms")) == 0
    view = stores.inspector().job("quick", job.id)
    assert (view.state, view.crashes) == ("failed", 0)


def test_a_lease_that_is_extended_holds():
    delayq.push("quick", 1)
    (message,) = delayq.pull("quick", lease="100ms")
    message.extend("10s")
    time.sleep(0.15)
    assert len(delayq.pull("quick")) == 0
    message.ack()


def test_a_batch_is_settled_in_one_call_at_the_end_of_the_block(monkeypatch):
    for number in range(5):
        delayq.push("quick", number)
    calls = []
    real = type(stores.queue("quick", 0)).settle
    monkeypatch.setattr(type(stores.queue("quick", 0)), "settle", lambda *a, **k: calls.append(1) or real(*a, **k))
    with delayq.pull("quick", 5, lease="2s") as batch:
        for message in batch[:3]:
            message.ack()
        batch[3].fail("bad")
        assert calls == []
    assert calls == [1]
    assert queue_depth("quick").running == 1  # an undecided message is held until its lease ends
    (left,) = delayq.pull("quick", 5, wait="60s")
    assert (left.body, left.attempt) == (4, 2)


def test_a_push_ends_the_wait(monkeypatch):
    called = []
    real = WakeLine.drain
    monkeypatch.setattr(WakeLine, "drain", lambda line: called.append(1) or real(line))

    def push() -> None:
        delayq.push("quick", "woken")
        connections.close_all()

    thread = threading.Timer(0.2, push)
    thread.start()
    (message,) = delayq.pull("quick", wait="30s")
    thread.join()
    assert message.body == "woken"
    assert called == [1]


def test_a_process_with_many_open_files_waits_as_others_do():
    with many_open_files():
        assert len(delayq.pull("quick", wait="20ms")) == 0


def test_a_task_is_refused_on_a_queue_of_messages_and_a_message_on_one_of_workers():
    with pytest.raises(delayq.ConfigError, match=r"delayq\.push\('mail', …\)"):
        delayq.schedule(close_order, 1, queue="mail")
    with pytest.raises(delayq.ConfigError, match="CONSUMER"):
        delayq.push("orders", {})
    with pytest.raises(delayq.ConfigError, match="CONSUMER"):
        delayq.pull("orders")
    with pytest.raises(delayq.QueueUnknown):
        delayq.push("orderz", {})


def test_no_task_may_bear_the_name_that_stands_for_messages():
    with pytest.raises(delayq.ConfigError, match="is reserved for messages"):
        delayq.task(name=MESSAGE)(lambda: None)


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"n": 201}, {"n": True}, {"lease": "1ms"}, {"lease": "13h"}, {"wait": -1}, {"older_than": "x"}]
)
def test_what_cannot_be_asked_for_is_refused(wrong):
    with pytest.raises(delayq.ConfigError):
        delayq.pull("mail", **wrong)


def test_a_body_that_json_cannot_hold_is_refused_by_its_place():
    with pytest.raises(delayq.PayloadError, match=r"body\['at'\]"):
        delayq.push("mail", {"at": object()})


def test_a_durable_message_is_a_row_at_the_commit_and_ends_there(mirrored):
    with transaction.atomic():
        job = delayq.push("mail", {"a": 1}, key="k")
        assert len(delayq.pull("mail")) == 0
    assert Job.objects.get(pk=job.id).task == MESSAGE
    (message,) = delayq.pull("mail")
    mirrored("mail")
    assert job.state == "running"
    message.ack()
    mirrored("mail")
    assert job.wait(0) == "succeeded"
    (attempt,) = Attempt.objects.filter(job_id=job.id)
    assert (attempt.number, attempt.outcome, attempt.worker.split(":")[1]) == (1, "succeeded", str(os.getpid()))


def test_a_lease_that_ended_is_shown_as_an_attempt_that_failed(mirrored):
    job = delayq.push("mail", 1)
    delayq.pull("mail", lease="50ms")
    delayq.pull("mail", wait="60s")[0].ack()
    mirrored("mail")
    first, second = Attempt.objects.filter(job_id=job.id).order_by("number")
    assert (first.outcome, first.message) == ("retried", "the lease of its consumer ran out")
    assert (second.number, second.outcome) == (2, "succeeded")
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.crashes) == ("succeeded", 2, 0)


def test_nothing_is_pulled_from_a_queue_that_another_database_records(monkeypatch):
    delayq.push("quick", 1)
    site.forget()  # a new process
    store = stores.queue("quick", 0)
    store.link.execute("HSET", store.keys["meta"], "mirror_token", "2-00000000000000bb")
    monkeypatch.setattr(site, "partition_facts", lambda _queue, _partition, **_: Facts("", "0-0", "2-00000000000000aa"))
    monkeypatch.setattr(site, "LAG", 0.0)
    monkeypatch.setattr(site, "_refused", {})
    monkeypatch.setattr(site, "_compared", set())  # as in a new process
    with pytest.raises(SiteRefused, match="another database"):
        delayq.pull("quick")
    monkeypatch.setattr(site, "partition_facts", lambda _queue, _partition, **_: Facts("", "0-0", "2-00000000000000bb"))
    assert [message.body for message in delayq.pull("quick")] == [1]


QUEUES = {"default": {}, "mail": {"CONSUMER": "pull", "DURABILITY": "redis", "BACKOFF": "100ms", "MAX_CRASHES": 0, "LEASE": LEASE}}
DEATHS = ["1 taken", "2 half", "3 settled", "4 taken", ""]
MESSAGES = 400  # so that no consumer takes them all while another starts


@pytest.mark.slow
def test_of_five_consumers_that_are_killed_none_holds_what_another_holds_and_nothing_is_lost(redis_server, settings, tmp_path):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": QUEUES}
    pushed = {delayq.push("mail", number).short_id for number in range(MESSAGES)}
    environment = project(tmp_path, as_package(redis_server.url), sqlite(":memory:"), {"QUEUES": QUEUES})
    actors = []
    for number, death in enumerate(DEATHS):
        command = [sys.executable, "-m", "tests.messages.consumer", str(number), *death.split()]
        actor = Actor(tmp_path / f"{number}.log", command, environment)
        actor.start()
        actors.append(actor)
    try:
        deadline = clock.monotonic() + 60
        while not all("ready" in actor.text() for actor in actors):
            assert clock.monotonic() < deadline, "a consumer did not start"
            clock.sleep(0.02)
        for actor in actors:
            actor.tell("go")
        codes = [actor.wait(60) for actor in actors]
    finally:
        for actor in actors:
            actor.kill_tree()
    assert set(codes) == {0, -signal.SIGKILL}, "".join(actor.text() for actor in actors)
    depth = queue_depth("mail")
    assert (depth.scheduled, depth.running, depth.failed) == (0, 0, 0)
    found = held(tmp_path, LEASE)
    assert set(found) == pushed
    assert all(spans[-1].ends for spans in found.values()), "the last holder of each has settled it"
    fences = [span.fence for spans in found.values() for span in spans]
    assert len(set(fences)) == len(fences)
    assert overlaps(found) == []


@pytest.fixture
def settle_down(settings, mirrored, monkeypatch):
    """Runs mirror and restore in turn until there is nothing to do. Held messages then have a short lease."""
    queues = settings.DELAYQ["QUEUES"]
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**queues, "mail": {**queues["mail"], "LEASE": "300ms"}}}
    monkeypatch.setattr(restore, "LOOK", 0.0)
    loop = RestoreLoop(stores.link, conf.get().queue("mail"), prefix="delayq")

    def settled() -> None:
        for _ in range(500):
            mirrored("mail")
            pause = loop.poll()
            if pause == restore.IDLE and not needs_restore(*loop.look()):
                return
            clock.sleep(min(pause, 0.005))
        pytest.fail("restore does not come to an end")

    return settled


def test_messages_that_wait_and_that_are_held_come_back_after_a_wipe(settle_down, mirrored, redis_server):
    settle_down()
    body = {"to": ["ü", 1.5, None]}
    waits, held = delayq.push("mail", body, key="k", meta={"from": "shop"}, backoff="1ms"), delayq.push("mail", "held", backoff="1ms")
    delayq.push("mail", "over")
    batch = delayq.pull("mail", 3, lease="2s")
    first = {message.body if isinstance(message.body, str) else "waits": message for message in batch}
    first["over"].ack()
    first["waits"].snooze(0)
    mirrored("mail")
    redis_server.link.execute("FLUSHALL")
    settle_down()
    with pytest.raises(delayq.LeaseLost):
        first["held"].ack()
    found: dict[object, delayq.Message] = {}
    for _ in range(600):
        for message in delayq.pull("mail", 10, wait="100ms"):
            found[message.id] = message
            message.ack()
        if len(found) == 2:
            break
    assert set(found) == {waits.id, held.id}
    assert (found[waits.id].body, found[waits.id].key, found[waits.id].meta) == (body, "k", {"from": "shop"})
    mirrored("mail")
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


@pytest.fixture
def work(redis_server, tmp_path) -> Iterator[Callable[..., Actor]]:
    """Starts workers on the test's own database."""
    if connection.vendor != "sqlite":
        pytest.skip("the worker of this test goes on the file of SQLite")
    queues = {"default": {}, "mail": {"CONSUMER": "pull"}}
    file = sqlite(str(connection.settings_dict["NAME"]))
    started: list[Actor] = []

    def start(*options: str) -> Actor:
        environment = project(tmp_path, as_package(redis_server.url), file, {"QUEUES": queues})
        actor = Actor(tmp_path / "worker.log", [sys.executable, "-m", "django", "delayq_worker", *options], environment)
        actor.start()
        started.append(actor)
        return actor

    yield start
    for actor in started:
        actor.kill_tree()


def test_a_worker_folds_what_becomes_of_messages_and_claims_none(work):
    worker = work("--threads", "1")
    job = delayq.push("mail", {"a": 1})
    registry = WorkerRegistry(stores.link, prefix="delayq")
    eventually(lambda: [one for one in registry.all() if one["queues"] == ["default"]], "the worker's beat")
    (message,) = delayq.pull("mail")
    message.ack()
    eventually(lambda: Job.objects.get(pk=job.id).state == State.SUCCEEDED, "its row")
    assert worker.alive


def test_a_worker_of_messages_alone_keeps_their_records(work):
    worker = work("--queues", "mail")
    job = delayq.push("mail", 1)
    delayq.pull("mail")[0].fail("no")
    eventually(lambda: Job.objects.get(pk=job.id).state == State.FAILED, "its row")
    assert worker.alive, worker.text()


def test_a_worker_that_would_do_nothing_for_messages_does_not_start(work):
    worker = work("--queues", "mail", "--roles", "move")
    assert worker.wait() == 2
    assert "Add the role mirror" in worker.text()
