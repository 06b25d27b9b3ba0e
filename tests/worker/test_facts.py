"""The details that a running job knows about itself, and its propagated context."""

from __future__ import annotations

import pytest

from django_delayq.states import CARRIED
from tests.worker.conftest import Shop, eventually

OPTIONS = {"meta": {"by": "form", CARRIED: {"Tenant": "acme"}}}


@pytest.mark.parametrize("task", ["facts", "async_facts"])
def test_a_job_knows_what_it_was_scheduled_with_and_runs_inside_its_carriers(shop: Shop, task: str) -> None:
    shop.settings = {"CARRIERS": ["tests.carriers.Tenant"]}
    attempts = 2 if task == "facts" else 1
    id = shop.put(task, 7, "x", options=OPTIONS, max_attempts=attempts)
    shop.work()  # a burst may leave before the retry is due
    eventually(lambda: "succeeded" in shop.happened(id))
    assert shop.detail(id, "succeeded")["r"] == [[7, "x"], {}, {"by": "form"}, attempts, attempts, True, "acme"]


def test_a_job_whose_carrier_fails_has_failed(shop: Shop) -> None:
    shop.settings = {"CARRIERS": ["tests.carriers.Broken"]}
    id = shop.put("count", 7, max_attempts=1)
    shop.work()
    eventually(lambda: "failed" in shop.happened(id))
    assert shop.detail(id, "failed")["m"] == "no tenant None"
    assert shop.counts() == {}


def test_without_carriers_the_meta_of_a_job_is_all_it_has(shop: Shop) -> None:
    id = shop.put("async_facts", options={"meta": {"by": "form"}})
    shop.work()
    eventually(lambda: "succeeded" in shop.happened(id))
    assert shop.detail(id, "succeeded")["r"] == [[], {}, {"by": "form"}, 1, 10, False, None]
