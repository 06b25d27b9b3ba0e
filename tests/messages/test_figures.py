"""Messages count as jobs do."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq.console import health
from django_delayq.producer.stores import stores

pytestmark = pytest.mark.django_db(transaction=True)


def test_ends_of_messages_are_counted_and_a_lost_lease_is_no_crash():
    for number in range(4):
        delayq.push("quick", number)
    with delayq.pull("quick", 3) as batch:
        batch[0].ack()
        batch[1].fail()
        batch[2].retry("1h")
    delayq.pull("quick", lease="50ms")
    delayq.pull("quick", wait="60s")
    flat = stores.link.execute("HGETALL", stores.queue("quick", 0).keys["stats"])
    counted: dict[str, int] = {}
    for name, count in zip(flat[::2], flat[1::2], strict=True):
        kind = name.decode().partition(":")[2]
        counted[kind] = counted.get(kind, 0) + int(count)
    counted.pop("scheduled", None)
    assert counted == {"succeeded": 1, "failed": 1, "retried": 2}


def test_metrics_do_not_say_that_a_queue_of_messages_lacks_workers():
    queues = {labels["queue"] for name, labels, _ in health.all_samples() if name == "delayq_queue_workers"}
    assert queues.isdisjoint({"mail", "quick"})
    assert "orders" in queues
