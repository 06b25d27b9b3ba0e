"""A module of tasks that is no `tasks` module of an app: a test imports it, and a worker does not."""

from __future__ import annotations

import django_delayq as delayq


@delayq.task(name="tests.producer.outside.send")
def send(number: int) -> int:
    return number


def make() -> delayq.Task[..., int]:
    """A task that is made when this is called."""
    return delayq.task(name="tests.producer.outside.made")(_function)


def _function(number: int) -> int:
    return number
