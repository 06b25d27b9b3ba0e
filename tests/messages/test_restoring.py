"""Messages that Redis has lost are restored from their rows."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.mirror import restore
from django_delayq.mirror.restore import RestoreLoop, needs_restore
from django_delayq.models import Job
from django_delayq.producer.stores import stores

pytestmark = pytest.mark.django_db(transaction=True)


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
