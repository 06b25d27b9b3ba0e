"""The code of docs/more/messages.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import django_delayq as delayq
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
