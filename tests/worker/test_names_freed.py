"""When a run that holds a name ends by force: the name is free when its process is dead, not before, and then the next one begins."""

from __future__ import annotations

import os
import signal

import pytest

from django_delayq import ids
from django_delayq.job_meta import NAMED
from django_delayq.store.keys import Keys
from tests.worker.conftest import Shop, eventually

pytestmark = pytest.mark.slow

NAMED_ALIKE = {"meta": {NAMED: ["order:1", 1]}}


@pytest.mark.parametrize(
    ("how", "end"), [("does not hear", "failed"), ("aborted", "cancelled"), ("killed", "failed"), ("evicted", "snoozed")]
)
def test_the_next_of_a_name_begins_when_the_process_of_the_holder_is_dead(shop: Shop, how: str, end: str) -> None:
    shop.settings = {"MAX_CRASHES": 0}
    if how == "evicted":
        holder = shop.put("nap", 1, 600, options=NAMED_ALIKE)
        shop.put("deaf", 9, max_attempts=1)  # its neighbour, which bears no name
    elif how == "does not hear":
        holder = shop.put("deaf", 1, options=NAMED_ALIKE, max_attempts=1)
    else:
        holder = shop.put("nap", 1, 600, options=NAMED_ALIKE)
    worker = shop.work("--threads", "2", "--grace", "1s")
    eventually(lambda: len(shop.ran()) == (2 if how == "evicted" else 1))
    (process,) = worker.children()
    next_one = shop.put("nap", 2, 0.0, options=NAMED_ALIKE)
    shop.work("--threads", "1")
    blocked = Keys("delayq", "default")["blocked"]
    if how != "evicted":  # there the two run for a second only
        eventually(lambda: shop.link.execute("ZCARD", blocked) == 1)
    if how == "aborted":
        shop.store().cancel([ids.full(holder)], actor="clerk", abort=True)
    elif how == "killed":
        os.kill(process, signal.SIGKILL)
    eventually(lambda: "claimed" in shop.happened(next_one))
    assert process not in worker.children()
    assert end in shop.happened(holder)
    eventually(lambda: "succeeded" in shop.happened(next_one))
    assert shop.link.execute("ZCARD", blocked) == 0
