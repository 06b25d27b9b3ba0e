"""A process that finds a newer format than it knows writes nothing there, and waits for its upgrade."""

from __future__ import annotations

import logging
import signal

import pytest

import django_delayq as delayq
from django_delayq import ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import Checkpoint, Job, Site
from django_delayq.producer.stores import stores
from django_delayq.store.scripts import formats, site
from tests.mirror.conftest import Orders
from tests.tasks_for_tests import close_order
from tests.worker.conftest import eventually

NEWER = formats.FORMAT + 1


@pytest.fixture
def orders(delayq_redis, transactional_db) -> Orders:
    return Orders()


def put_format(number: int, queue: str = "orders") -> None:
    stores.link.execute("HSET", stores.queue(queue, 0).keys["meta"], "format", number)


def test_rows_wait_for_a_newer_relay(orders, caplog):
    put_format(NEWER)
    with caplog.at_level(logging.WARNING):
        job = delayq.schedule(close_order, 1)
    assert "'orders' has format" in caplog.text
    assert Job.objects.get(pk=job.id).published is None
    with pytest.raises(formats.FormatNewer):
        orders.relay.poll()
    assert Job.objects.get(pk=job.id).published is None
    put_format(formats.FORMAT)
    orders.relay.poll()
    orders.fold()
    assert Job.objects.get(pk=job.id).published is not None
    assert [ids.full(one.id) for one in orders.claim()] == [job.id]


def test_what_needs_redis_says_what_to_do(orders):
    put_format(NEWER, "redis")
    with pytest.raises(StoreUnavailable, match=rf"'redis' has format {NEWER} .* up to {formats.FORMAT} .* Upgrade"):
        delayq.schedule(close_order.using(queue="redis"), 1)


def test_the_mirror_leaves_the_stream_as_it_is(orders):
    delayq.schedule(close_order, 1)
    orders.fold()
    before = Checkpoint.objects.get(queue="orders").last_event
    delayq.schedule(close_order, 2)
    put_format(NEWER)
    with pytest.raises(formats.FormatNewer):
        orders.mirror.poll()
    assert (orders.mirror.log.length(), Checkpoint.objects.get(queue="orders").last_event) == (1, before)
    put_format(formats.FORMAT)
    orders.fold()
    assert orders.mirror.log.length() == 0


@pytest.fixture
def by_database(orders, monkeypatch):
    """The queue is that of a database with an id, as outside of tests."""
    monkeypatch.setattr("django_delayq.under_test.derives_site", lambda: False)
    Site.objects.get_or_create(number=1, defaults={"site": "0123456789abcdef"})
    stores.link.execute("UNLINK", orders.store.keys["meta"])
    site.forget()
    yield orders
    monkeypatch.undo()
    site.forget()


@pytest.mark.parametrize("format", [formats.FORMAT, NEWER])
def test_a_queue_that_redis_has_lost_starts_with_the_format_that_the_database_knows(by_database, monkeypatch, format):
    monkeypatch.setattr(site, "check_address", lambda *_: None)
    Checkpoint.objects.create(queue="orders", address="where it was", format=format)
    if format == NEWER:
        with pytest.raises(formats.FormatNewer):
            by_database.store.epoch()
            by_database.store.pause()
        assert not stores.link.execute("EXISTS", by_database.store.keys["meta"])
    else:
        by_database.store.pause()
        assert stores.link.execute("HGET", by_database.store.keys["meta"], "format") == b"%d" % format


PUT = """
import django_delayq as delayq
from tests.app.shop.tasks import count
for number in range(20):
    delayq.schedule(count.using(queue="slow" if number % 10 == 9 else "default"), number)
"""


@pytest.mark.slow
def test_a_worker_waits_and_says_so_once(durable):
    durable.link.execute("HSET", "delayq:{default}:meta", "format", NEWER)
    worker = durable.work("--roles", "move,mirror,relay", "--processes", "1")
    durable.manage("shell", "-v", "0", "-c", PUT)  # some of them in another queue

    def said() -> list[str]:
        return [line.partition("WARNING")[2] for line in worker.text().splitlines() if "has format" in line]

    # Each loop that finds it reports it: the mover, relay and tidy.
    eventually(lambda: any(" queue default: " in line for line in said()), "the warning")
    eventually(durable.counts, "work of the other queue")
    assert durable.counts().keys() <= {9, 19}
    assert len(said()) == len(set(said()))
    assert worker.alive
    durable.link.execute("HSET", "delayq:{default}:meta", "format", formats.FORMAT)
    eventually(lambda: len(durable.counts()) == 20, "all of them")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "FormatNewer" not in worker.text()  # a sentence, no traceback
