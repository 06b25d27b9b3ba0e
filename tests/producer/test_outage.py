"""The behaviour of views while Redis is down, full, or rejects commands."""

from __future__ import annotations

import logging
import re

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, ids, signals
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import Job
from django_delayq.producer import breaker
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import ScheduleItem
from tests.depths import queue_depth
from tests.tasks_for_tests import close_order, ping
from tests.topologies import ToldNode

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]


class Outage:
    """A Redis server for the producer, which the test stops. Counts the connection attempts."""

    def __init__(self, server, monkeypatch) -> None:
        self.server = server
        self.tries = 0
        real = Link._send

        def counted(link, commands):
            self.tries += 1
            return real(link, commands)

        monkeypatch.setattr(Link, "_send", counted)


@pytest.fixture
def outage(own_redis, settings, monkeypatch) -> Outage:
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    return Outage(server, monkeypatch)


@pytest.mark.parametrize("said", ["MOVED 1 127.0.0.1:1", "TRYAGAIN later", "READONLY no", "NOREPLICAS no", "LOADING yes"])
def test_a_server_that_speaks_of_itself_breaks_no_request(own_redis, settings, said):
    node = ToldNode(own_redis())
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": node.url}
    try:
        node.refuse("EVALSHA", said, times=9)
        with transaction.atomic():
            job = delayq.schedule(close_order, 7)
        assert Job.objects.get(pk=job.id).published is None
        with pytest.raises(StoreUnavailable) as refused:
            delayq.schedule(close_order, 7, queue="redis")
        assert len(refused.value.jobs) == 1
        node.refuse("EVALSHA", said, times=0)
        stores.reset()
        assert delayq.cancel(job) == "done"
    finally:
        node.close()


def test_redis_down_does_not_break_a_request(outage, caplog):
    heard = []

    def listener(**kwargs):
        heard.append(kwargs["error"])

    signals.store_unavailable.connect(listener)
    outage.server.terminate()
    with caplog.at_level(logging.WARNING, "django_delayq.producer"), transaction.atomic():
        job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    signals.store_unavailable.disconnect(listener)
    assert Job.objects.get(pk=job.id).published is None
    assert "The relay will publish them" in caplog.text
    assert len(heard) == 1


def test_after_one_failure_the_next_requests_do_not_try_again_for_a_while(outage, monkeypatch):
    monkeypatch.setattr(breaker, "COOLDOWN", 60.0)  # longer than these requests take on any machine
    outage.server.terminate()
    delayq.schedule(close_order, 1)
    tries = outage.tries
    for number in range(5):
        delayq.schedule(close_order, number, key=f"k{number}")
    assert outage.tries == tries
    later = clock.monotonic() + 120
    monkeypatch.setattr(clock, "monotonic", lambda: later)
    outage.server.start()
    assert delayq.schedule(close_order, 9).created is True


def test_redis_durability_raises_when_redis_is_down(outage):
    outage.server.terminate()
    with pytest.raises(delayq.StoreUnavailable, match="not available"):
        delayq.schedule(ping)
    assert not Job.objects.exists()


def test_a_full_redis_leaves_the_row_to_the_relay(outage):
    stores.link.execute("CONFIG", "SET", "maxmemory", "1")
    job = delayq.schedule(close_order, 7)
    assert Job.objects.get(pk=job.id).published is None
    with pytest.raises(delayq.StoreUnavailable, match=r"memory|not tried again"):
        delayq.schedule(ping)


def test_at_a_full_redis_jobs_can_still_be_cancelled(outage):
    job = delayq.schedule(close_order, 7, delay="1h")
    stores.link.execute("CONFIG", "SET", "maxmemory", "1")
    delayq.schedule(close_order, 8)
    assert job.cancel() is delayq.Change.DONE, "only schedule is refused, and a refusal is no reason to wait"


def fall_behind(queue: str) -> None:
    """A thousand jobs in five entries of the stream that no mirror has read."""
    with stores.guarded():
        for _ in range(5):
            items = [
                ScheduleItem(id=ids.new(), task="t", band="normal", max_attempts=1, payload=b"[[],{}]", delay_ms=3_600_000)
                for _ in range(200)
            ]
            stores.queue(queue, 0).schedule(items)


def test_a_mirror_too_far_behind_blocks_schedules(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_MAX_EVENTS": 1000}
    fall_behind("orders")
    job = delayq.schedule(close_order, 7)
    assert Job.objects.get(pk=job.id).published is None
    assert stores.inspector().job(job.queue, job.id) is None


def test_a_mirror_too_far_behind_raises_what_is_documented_and_stops_nothing_else(settings):
    job = delayq.schedule(ping, delay="1h")
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_MAX_EVENTS": 1000}
    fall_behind("redis")
    with pytest.raises(delayq.StoreUnavailable, match="1000 jobs behind") as refused:
        delayq.schedule(ping)
    assert len(refused.value.jobs) == 1, "the job that was not taken"
    assert job.cancel() is delayq.Change.DONE, "a refusal leaves the breaker closed"


def test_a_mirror_too_far_behind_may_be_left_to_grow(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_MAX_EVENTS": 1000, "MIRROR_FULL": "grow"}
    fall_behind("redis")
    assert delayq.schedule(ping).created is True
    assert queue_depth("redis").untold == 1001


def test_a_refused_command_raises_what_is_documented(delayq_redis):
    delayq_redis.link.execute("SET", stores.queue("redis", 0).keys["jobs"], "not a hash")
    for call in (lambda: delayq.schedule(ping), lambda: delayq.cancel("0" * 22, queue="redis")):
        with pytest.raises(delayq.StoreUnavailable, match="WRONGTYPE"):
            call()


def test_while_redis_is_away_one_warning_in_two_seconds_counts_the_jobs_that_wait(outage, caplog, monkeypatch):
    now = [clock.monotonic()]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    outage.server.stop()
    for seconds in (0.0, 0.5, 0.5, 1.5):
        now[0] += seconds
        delayq.schedule(close_order, 7)
    said = [record.getMessage() for record in caplog.records if "Redis did not accept" in record.getMessage()]
    assert [re.findall(r"committed jobs \((\d+)\)", text) for text in said] == [["1"], ["3"]]
