"""Several consumers at once, of which most are killed: judged by what each wrote down of what it held."""

from __future__ import annotations

import signal
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

import django_delayq as delayq
from django_delayq.producer.stores import stores
from tests.app import record
from tests.messages.consumer import LEASE
from tests.servers import as_package
from tests.stage import Actor, project, sqlite

pytestmark = pytest.mark.django_db(transaction=True)

QUEUES = {"default": {}, "mail": {"CONSUMER": "pull", "DURABILITY": "redis", "BACKOFF": "100ms", "MAX_CRASHES": 0, "LEASE": LEASE}}
DEATHS = ["1 taken", "2 half", "3 settled", "4 taken", ""]
MESSAGES = 150


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
        codes = [actor.wait(60) for actor in actors]
    finally:
        for actor in actors:
            actor.kill_tree()
    assert set(codes) == {0, -signal.SIGKILL}, "".join(actor.text() for actor in actors)
    depth = stores.inspector().depth("mail")
    assert (depth.scheduled, depth.running, depth.failed) == (0, 0, 0)
    held = _held(tmp_path)
    assert set(held) == pushed
    assert all(spans[-1].ends for spans in held.values()), "the last holder of each has settled it"
    fences = [span.fence for spans in held.values() for span in spans]
    assert len(set(fences)) == len(fences)
    assert _overlaps(held) == []


class Span:
    """A message in one consumer's hands, from `took` until it has settled it, or, if it never did, until its lease ended."""

    def __init__(self, line: dict) -> None:
        self.fence, self.took, self.lease_end = line["fence"], line["t"], line["sent"] + int(LEASE * 1e9)
        self.ends = 0

    @property
    def over(self) -> int:
        return self.ends or self.lease_end


def _held(folder: Path) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for line in record.lines(folder, "consumer-*.jsonl"):
        if line["what"] == "took":
            found[line["id"]].append(Span(line))
        else:
            span = next(span for span in found[line["id"]] if span.fence == line["fence"])
            span.ends = line["t"]
    return found


def _overlaps(held: dict[str, list[Span]]) -> list[str]:
    slack = 20_000_000  # ns; the lease runs by Redis' clock, the spans by that of the host
    return [
        f"{id}: {first.fence} and {second.fence}"
        for id, spans in held.items()
        for first, second in pairwise(spans)
        if second.took < first.over - slack
    ]
