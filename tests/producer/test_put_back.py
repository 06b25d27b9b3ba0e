"""A job that is put back stays in the partition that its id says, while its key or its name may have another home by now."""

from __future__ import annotations

import logging
from typing import Any
from zlib import crc32

import pytest

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.exceptions import PayloadError, StoreUnavailable
from django_delayq.mirror.relay import RelayLoop
from django_delayq.models import Job
from django_delayq.producer import edit
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.store.scripts.queue import Outcome
from tests.partitioned import claim, divide, fold
from tests.tasks_for_tests import close_order

__all__ = ["divide"]
pytestmark = pytest.mark.django_db(transaction=True)

TEXT = next(text for n in range(1_000) if crc32((text := f"t:{n}").encode()) % 4 != crc32(text.encode()) % 16)


def fail(jobs) -> None:
    """They end badly, for good."""
    for job in jobs:
        end = Outcome(id=job.id, attempt=job.attempt, fence=job.fence, kind="fail", delay_ms=0, detail=b'{"c":"E","m":"x"}')
        store = stores.with_job("orders", ids.full(job.id))
        assert store.settle([end], worker="host:1:w", max_crashes=3) == ["done"]
    fold()


def forget(job) -> None:
    """As Redis does when a failed job has had its time there."""
    store = stores.with_job("orders", job.id)
    for key in ("jobs", "names"):
        store.link.execute("HDEL", store.keys[key], job.short_id)
    store.link.execute("ZREM", store.keys["failed"], job.short_id)


def again(job, how: str):
    """Put back, as it was or with other arguments."""
    return job.requeue() if how == "requeue" else edit.edit_and_requeue(job.id, (9,), {})


@pytest.mark.parametrize("how", ["requeue", "edit"])
@pytest.mark.parametrize("former", [(4,), ()])
def test_a_key_that_a_job_in_another_home_holds_by_now_is_not_taken(divide, former, how):
    divide(4)
    old = delayq.schedule(close_order, 1, key=TEXT)
    fail(claim())
    divide(16, *former)
    new = delayq.schedule(close_order, 2, key=TEXT, delay="1h")
    assert new.created
    assert ids.partition(new.id) != ids.partition(old.id)
    assert again(old, how) is delayq.Change.CONFLICT
    assert (old.state, new.state) == ("failed", "scheduled")
    assert new.cancel() == "done"
    assert again(old, how) == "done"


@pytest.mark.parametrize("how", ["requeue", "edit"])
def test_nor_one_that_a_row_holds_which_redis_does_not_have_yet(divide, settings, tmp_path, how):
    url = settings.DELAYQ["REDIS"]
    divide(4)
    old = delayq.schedule(close_order, 1, key=TEXT)
    fail(claim())
    divide(16)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    assert delayq.schedule(close_order, 2, key=TEXT).created is None
    with pytest.raises(StoreUnavailable):
        again(old, how)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    assert again(old, how) is delayq.Change.CONFLICT


def test_a_job_of_redis_durability_takes_none_either(divide):
    divide(4, DURABILITY="redis")
    old = delayq.schedule(close_order, 1, key=TEXT)
    fail(claim())
    Job.objects.all().delete()
    divide(16, 4, DURABILITY="redis")
    new = delayq.schedule(close_order, 2, key=TEXT, delay="1h")
    assert delayq.requeue(old.id) is delayq.Change.CONFLICT
    assert new.cancel() == "done"
    assert delayq.requeue(old.id) == "done"


@pytest.mark.parametrize("how", ["requeue", "edit"])
def test_two_of_a_name_do_not_run_side_by_side_in_two_homes(divide, how):
    divide(4)
    old = delayq.schedule(close_order, 1, serial=TEXT)
    fail(claim())
    forget(old)
    divide(16, 4)
    new = delayq.schedule(close_order, 2, serial=TEXT)
    assert ids.partition(new.id) != ids.partition(old.id)
    assert again(old, how) is delayq.Change.CONFLICT
    fail(claim())
    assert again(old, how) == "done", "the other one has ended"
    assert delayq.schedule(close_order, 3, serial=TEXT).created
    assert len(claim()) == 1


def test_other_arguments_make_no_name_that_is_counted_in_another_partition(divide, monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    pay = delayq.task(name="shop.pay", queue="orders", serial="order:{order_id}")(lambda order_id, note="": None)
    divide(16)
    home = conf.get().queue("orders").homes
    other = next(n for n in range(2, 100) if home(f"order:{n}") != home("order:1"))
    same = next(n for n in range(2, 1_000) if home(f"order:{n}") == home("order:1"))
    job = pay.schedule(1)
    fail(claim())
    with pytest.raises(PayloadError, match=f"the name 'order:{other}', which belongs to another partition"):
        edit.edit_and_requeue(job.id, (other,), {})
    assert job.state == "failed"
    assert edit.edit_and_requeue(job.id, (1,), {"note": "once more"}) == "done"
    fail(claim())
    assert edit.edit_and_requeue(job.id, (same,), {}) == "done"
    assert stores.inspector().job("orders", job.id).name == f"order:{same}"


def test_a_job_that_is_back_where_nobody_looks_is_told_of(divide, caplog):
    divide(16)
    job = delayq.schedule(close_order, 1, key=TEXT)
    fail(claim())
    divide(1)
    with caplog.at_level(logging.WARNING, logger="django_delayq"):
        assert job.requeue() == "done"
    assert f"Add {ids.partition(job.id) + 1} to FORMER_PARTITIONS" in caplog.text


def test_a_row_that_went_blindly_to_its_former_home_does_not_wait_for_a_failed_job_of_its_name(divide, settings, tmp_path):
    url = settings.DELAYQ["REDIS"]
    divide(16, 4)
    failed = delayq.schedule(close_order, 1, serial=TEXT)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    blind = delayq.schedule(close_order, 2, serial=TEXT)
    assert ids.partition(blind.id) != ids.partition(failed.id)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    fail(claim())
    config = conf.get()
    there: Any = {"prefix": config.prefix, "partition": ids.partition(blind.id), "young": 0}
    relay = RelayLoop(stores.places, config.queue("orders"), **there)
    for _ in range(3):
        relay.poll()
        fold()
    assert [one.id for one in claim()] == [blind.short_id]
