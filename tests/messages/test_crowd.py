"""Several consumers at once, most of which are killed. The test checks what each wrote down about the messages that it held."""

from __future__ import annotations

import signal
import sys

import pytest

import django_delayq as delayq
from django_delayq import clock
from tests.depths import queue_depth
from tests.messages.consumer import LEASE
from tests.messages.held import held, overlaps
from tests.servers import as_package
from tests.stage import Actor, project, sqlite

pytestmark = pytest.mark.django_db(transaction=True)

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
