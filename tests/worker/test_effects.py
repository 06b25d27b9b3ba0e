"""Atomic tasks and steps in a real worker: the database has their effect once, whatever happens to the process."""

from __future__ import annotations

import signal

import pytest

from tests.worker.conftest import Shop, eventually

PAY = "from tests.app.shop.tasks import {task}; print({task}.schedule(7).id)"
LOOK = """
from django.contrib.auth.models import Group
from django_delayq.models import Job
print(sorted(name.split()[0] for name in Group.objects.values_list("name", flat=True)), *Job.objects.values_list("state", "result"))
"""


def look(shop: Shop) -> str:
    return shop.manage("shell", "-v", "0", "-c", LOOK)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failpoint", "runs_again"), [("effects.commit", True), ("effects.committed", False), ("settler.settle", False)]
)
def test_an_atomic_run_pays_once_wherever_its_process_dies(durable: Shop, failpoint: str, runs_again: bool) -> None:
    durable.settings["MAX_CRASHES"] = 100
    durable.manage("shell", "-v", "0", "-c", PAY.format(task="pay"))
    worker = durable.work("--roles", "move,mirror,relay", failpoints=f"{failpoint}=kill@1")  # in each of its processes
    # Both: a worker also gives back what one of the test before held, which was killed at its end.
    eventually(lambda: durable.ran() and "are returned to it" in worker.text())
    worker.signal(signal.SIGTERM)
    worker.wait()
    durable.work("--roles", "move,mirror,relay")
    eventually(lambda: durable.left() == 0)
    eventually(lambda: look(durable) == "['payment'] ('succeeded', 7)")
    assert set(durable.ran()) == {"paying 7"}
    assert (len(durable.ran()) > 1) is runs_again, worker.text()


def test_the_steps_of_a_task_that_is_retried_are_done_once_each(durable: Shop) -> None:
    durable.manage("shell", "-v", "0", "-c", PAY.format(task="pay_in_steps"))
    durable.work("--roles", "move,mirror,relay")
    eventually(lambda: look(durable) == "['parcel', 'payment'] ('succeeded', None)")
    assert durable.ran() == ["first", "again", "again"]
