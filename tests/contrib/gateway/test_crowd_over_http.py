"""Several consumers at once that speak HTTP, of which most are killed, and the server too: judged by what each wrote down."""

from __future__ import annotations

import signal
import sys
from collections import Counter

import pytest

from tests import servers
from tests.app import record
from tests.contrib.gateway.consumer import LEASE
from tests.contrib.gateway.served import Served, until
from tests.messages.held import held, overlaps
from tests.stage import Actor

DEATHS = ["1 taken", "2 half", "3 settled", "4 taken", ""]
MESSAGES = 150


@pytest.mark.slow
def test_of_five_consumers_over_http_none_holds_what_another_holds_and_nothing_is_lost(own_redis, settings, tmp_path):
    redis = own_redis()
    served = Served(tmp_path, servers.folder() / "web", redis.url, settings.REDIS_URL)
    actors = []
    try:
        served.start()
        pushed = {served.client.post("queues/mail/messages", {"body": number}).body["id"] for number in range(MESSAGES)}
        for number, death in enumerate(DEATHS):
            words = [str(number), str(served.address), served.token, str(tmp_path), *death.split()]
            actor = Actor(tmp_path / f"{number}.log", [sys.executable, "-m", "tests.contrib.gateway.consumer", *words], {})
            actor.start()
            actors.append(actor)
        until(lambda: len(_told(tmp_path)) > 20, "nobody acks")
        served.kill()
        served.start()
        codes = [actor.wait(120) for actor in actors]
        figures = served.client.get("queues/mail").body
    finally:
        for actor in actors:
            actor.kill_tree()
        served.stop()
    assert set(codes) == {0, -signal.SIGKILL}, "".join(actor.text() for actor in actors)
    assert (figures["scheduled"], figures["running"], figures["failed"]) == (0, 0, 0)
    found = held(tmp_path, LEASE)
    assert set(found) == pushed
    assert all(spans[-1].ends for spans in found.values()), "the last holder of each has settled it"
    fences = [span.fence for spans in found.values() for span in spans]
    assert len(set(fences)) == len(fences)
    assert overlaps(found) == []
    # Of an ack that had to be sent again the server had died: whether it was told before is not always known.
    done = Counter(line["id"] for line in _told(tmp_path) if line["done"] and line["tries"] == 1)
    assert set(done.values()) == {1}, "nobody is told done for what another has done"


def _told(folder) -> list[dict]:
    return [line for line in record.lines(folder, "consumer-*.jsonl") if line["what"] == "told"]
