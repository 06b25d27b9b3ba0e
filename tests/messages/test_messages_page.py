"""The code of docs/more/messages.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import django_delayq as delayq
from django_delayq.console import health
from django_delayq.exceptions import ConfigError
from django_delayq.producer.stores import stores
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = (Path(__file__).parents[2] / "docs" / "more" / "messages.md").read_text()


def block(heading: str) -> str:
    """Returns the first code block of a section."""
    return re.findall(r"```python\n(.+?)```", PAGE.partition(f"\n## {heading}\n")[2], flags=re.DOTALL)[0]


def test_the_message_is_pushed_and_cancelled() -> None:
    names: dict[str, Any] = {"delayq": delayq}
    exec(block("Push a message"), names)
    job = names["job"]
    assert (job.key, stores.inspector().job("mail", job.id).state) == ("mail:42", "finished")


def test_the_consumer_acks_what_it_sends_and_retries_the_rest() -> None:
    good, bad = delayq.push("mail", "good"), delayq.push("mail", "bad")
    sent: list[object] = []

    def send(body: object) -> None:
        if body == "bad":
            raise ConnectionError("no route")
        sent.append(body)

    exec(block("Pull messages").replace("while True:", "for _ in range(1):"), {"delayq": delayq, "send": send})
    assert sent == ["good"]
    assert [stores.inspector().job("mail", job.id).state for job in (good, bad)] == ["finished", "scheduled"]


def test_a_task_and_a_message_go_into_their_own_kind_of_queue() -> None:
    with pytest.raises(ConfigError):
        delayq.schedule(close_order, 1, queue="mail")
    with pytest.raises(ConfigError):
        delayq.push("orders", 1)


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
