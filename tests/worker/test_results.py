"""The outcome of a job, read while a real worker and a real mirror run."""

from __future__ import annotations

from tests.worker.conftest import Shop

WAIT = """
import django_delayq as delayq
from tests.app.shop import tasks
one = delayq.schedule(tasks.count, 21)
print(one.result("30s"), one.wait("1s").value, one.attempts)
later = delayq.schedule(tasks.count, 1, delay="1h")
other = delayq.schedule(tasks.waits, str(later.id), 5)
print(other.wait("30s").value, other.error)
looks = delayq.schedule(tasks.waits, str(one.id), 0)
print(looks.result("30s"))
"""


def test_a_view_gets_what_the_task_has_returned_and_a_task_may_look_but_not_wait(durable: Shop) -> None:
    durable.work("--roles", "move,mirror,relay")
    said = durable.manage("shell", "-v", "0", "-c", WAIT).splitlines()
    assert said[0] == "42 succeeded 1"
    assert said[1].startswith("failed django_delayq.exceptions.ConfigError: job")
    assert "a task must not wait for another job" in said[1]
    assert said[2] == "42"
